"""Offload: copies rolled files to a store, compressed, and verifies each by reading it back."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import zstandard

from rt.errors import CorruptLog, ManifestError, Misuse
from rt.format.manifest import (
    FILE_NAME,
    Archived,
    Entry,
    Manifest,
    Rolled,
    decode_entry,
    encode_entry,
)
from rt.format.recovery import Corrupt, judge
from rt.format.walk import Walk
from rt.limits import MANIFEST_BYTES_MAX, READ_BYTES
from rt.log.files.absent import no_log
from rt.log.files.archived import NOT_COPIED
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import OsDisk, make_private_directory, sync_directory
from rt.log.files.indexing import rebuild_index
from rt.log.files.listing import manifest_size
from rt.log.files.lock import locked
from rt.masking import demand_no_secret
from rt.offload.offloaded import NOTE_BYTES_MAX, SUFFIX, Offloaded, gaps_of
from rt.offload.private import create_private
from rt.offload.store import Store
from rt.position import START, Position, file_position

LEVEL: Final = 3
_FACTS: Final = ".json"


@dataclass(frozen=True, slots=True)
class OffloadedFile:
    """A copied file, as described by its facts file, which is written once the copy is verified.

    Attributes:
        file: Name of the original file.
        bytes: Size of the original file.
        sha256: Digest of the original file.
        identity: The manifest line that names the log.
        rolled: The manifest line of the file.
    """

    file: str
    bytes: int
    sha256: str
    identity: str
    rolled: str

    @property
    def line(self) -> Rolled:
        """The file's manifest line, decoded."""
        entry = decode_entry(self.rolled.encode())
        if not isinstance(entry, Rolled) or entry.file.file_name != self.file:
            raise ManifestError(f"the facts of {self.file} describe another file")
        return entry


@dataclass(frozen=True, slots=True)
class Outcome:
    """The state of the copies after an offload.

    Attributes:
        offloaded: Which files have a copy.
        missing: Files without a copy, because they were archived before they were copied.
        given_up: The missing files that this log archived by its own rule; other copies of the log
            may still have them.
    """

    offloaded: Offloaded
    missing: tuple[str, ...]
    given_up: tuple[str, ...]


def offload(
    directory: str, store: Store, done: Callable[[str, int], None] = lambda _file, _bytes: None
) -> Outcome:
    """Copy each rolled file of a log that is neither archived nor copied yet.

    Args:
        directory: Directory of the log.
        store: Where to copy to.
        done: Called after each file was copied and read back, with its name and the size of the
            copy.

    Raises:
        Misuse: There is no log, the store holds copies of another log, or the store's address has
            credentials in it, which would be recorded with the copies.
        CorruptLog: A copy does not read back as what was written.
    """
    demand_no_secret(store.address)
    with closing(LogDirectory(directory)) as log:
        log.refresh()
        if log.manifest.identity is None:
            raise no_log(directory)
        if not log.merged:
            raise Misuse(f"{directory} is a session's log; name a merged one, which is called out")
        identity, there = _line(encode_entry(log.manifest.identity)), copies(store)
        if any(copy.identity != identity for copy in there.values()):
            raise Misuse(f"{store.address} holds copies of another log")
        _copy_manifest(directory, store)  # first, because no copy may exist without its line
        for file in log.manifest.order:
            if file.file_name not in there and file not in log.manifest.archived:
                size = _copied(log, log.manifest.rolled[file], identity, store)
                if size is not None:
                    done(file.file_name, size)
        _copy_manifest(directory, store)  # again, with what was archived meanwhile
        return _outcome(log.manifest, store)


def _outcome(manifest: Manifest, store: Store) -> Outcome:
    there, order = names_of_copies(store), manifest.order
    missing = [file for file in order if file.file_name not in there]
    to = order[-1].next_file() if order else START
    decided = {file for file, gone in manifest.archived.items() if gone.by}
    own = [file for file in missing if file not in decided]
    return Outcome(
        Offloaded(store.address, to, gaps_of(order, missing)),
        tuple(file.file_name for file in missing),
        tuple(file.file_name for file in own),
    )


def copies(store: Store) -> dict[str, OffloadedFile]:
    """Return the copies in a store, by file name."""
    return {name: copy_of(store, name) for name in names_of_copies(store)}


def names_of_copies(store: Store) -> set[str]:
    """Return the names of the files that have a copy."""
    return {
        name.removesuffix(_FACTS)
        for name in store.names()
        if name.startswith("log.") and name.endswith(_FACTS)
    }


def copy_of(store: Store, name: str) -> OffloadedFile:
    """Return a file's copy, as described by the facts next to it.

    Raises:
        CorruptLog: The facts cannot be read, or describe another file.
    """
    with store.read(name + _FACTS) as source:
        data = source.read(NOTE_BYTES_MAX)
    try:
        copy = OffloadedFile(**json.loads(data))
        if copy.line.file.file_name != name:
            raise ManifestError("they describe another file")
    except (ValueError, TypeError, AttributeError, RecursionError, ManifestError) as error:
        place = f"{store.address}/{name}{_FACTS}"
        raise CorruptLog(place, file_position(name) or START, str(error)) from None
    return copy


def restore(
    store: Store, directory: str, done: Callable[[str, int], None] = lambda _file, _bytes: None
) -> int:
    """Build a log directory, indexes included, from copies; return how many files it has.

    Args:
        store: Where the copies are.
        directory: The new log, which any subscriber can read.
        done: Called with the name and size of each restored file.

    Raises:
        Misuse: The directory is not empty, or there are no copies.
        CorruptLog: A copy is not what was written.
    """
    there = sorted(copies(store).values(), key=lambda copy: copy.line.file)
    if not there:
        raise Misuse(f"{store.address} holds no copies of a log")
    make_private_directory(directory)
    if os.listdir(directory):
        raise Misuse(f"{directory} is not empty; name a new directory")
    parent, name = os.path.split(os.path.abspath(directory))
    draft = os.path.join(parent, f".{name}.restoring")  # never seen by a reader
    beside = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not locked(beside):
            raise Misuse(f"another restore is writing to {parent}; wait for it")
        shutil.rmtree(draft, ignore_errors=True)  # of a restore that was killed
        make_private_directory(draft)
        try:
            _fill(draft, store, there, done)
            os.replace(draft, directory)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        sync_directory(parent)
    finally:
        os.close(beside)
    return len(there)


def _fill(
    directory: str, store: Store, there: Sequence[OffloadedFile], done: Callable[[str, int], None]
) -> None:
    for copy in there:
        _make(os.path.join(directory, copy.file), proven(store, copy))
        done(copy.file, copy.bytes)
    known = Manifest()
    with store.read(FILE_NAME) as source:
        known.feed(source.read(MANIFEST_BYTES_MAX))
    lines = list(_lines(known, {copy.line.file for copy in there}))
    for entry in lines:
        if isinstance(entry, Archived):
            _make(os.path.join(directory, entry.file.file_name), ())
    _make(os.path.join(directory, FILE_NAME), map(encode_entry, lines))
    with closing(LogDirectory(directory)) as log:
        log.refresh()
        for copy in there:  # indexed while it is still in the page cache
            rebuild_index(log.disk, log, copy.line.file)


def _make(path: str, parts: Iterable[bytes]) -> None:
    with create_private(path) as target:
        target.writelines(parts)
        target.flush()
        os.fsync(target.fileno())


def proven(store: Store, copy: OffloadedFile) -> Iterator[bytes]:
    """Yield the bytes of a copy; at the end, raise `CorruptLog` unless their digest is right."""
    digest, length = hashlib.sha256(), 0
    path = f"{store.address}/{copy.file}{SUFFIX}"
    try:
        with store.read(copy.file + SUFFIX) as source:
            stream = zstandard.ZstdDecompressor().stream_reader(source)
            while part := stream.read(READ_BYTES):
                digest.update(part)
                length += len(part)
                if length > copy.bytes:
                    break
                yield part
    except zstandard.ZstdError as error:
        raise CorruptLog(path, copy.line.file, str(error)) from None
    if (length, digest.hexdigest()) != (copy.bytes, copy.sha256):
        raise CorruptLog(path, copy.line.file, "its bytes are not those that were copied")


def _lines(known: Manifest, there: set[Position]) -> Iterator[Entry]:
    """Yield the manifest lines of a restored log; files that were not restored count as archived.

    Args:
        known: The manifest at the time of the last offload.
        there: The files that were restored.
    """
    if known.identity is not None:
        yield known.identity
    for file in known.order:
        if file <= max(there):
            yield known.rolled[file]
            if file not in there:
                yield known.archived.get(file) or Archived(file, 0, NOT_COPIED)


def _copied(log: LogDirectory, line: Rolled, identity: str, store: Store) -> int | None:
    """Copy a file; return the copy's size, or None if the file was archived before it was read."""
    try:
        return _copy(log, line, identity, store)
    except (CorruptLog, FileNotFoundError):
        log.refresh()
        if line.file in log.manifest.archived and line.file.file_name not in names_of_copies(store):
            return None
        raise


def _copy(log: LogDirectory, line: Rolled, identity: str, store: Store) -> int:
    _demand_whole(log, line)
    name, digest = line.file.file_name, hashlib.sha256()
    with store.write(name + SUFFIX) as target:
        compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
        with compressor.stream_writer(target, closefd=False) as stream:
            for part in _parts(log, line):
                digest.update(part)
                stream.write(part)
    facts = OffloadedFile(name, line.end, digest.hexdigest(), identity, _line(encode_entry(line)))
    for _ in proven(store, facts):
        pass
    with store.write(name + _FACTS) as target:
        fields = {each: getattr(facts, each) for each in OffloadedFile.__slots__}
        target.write(json.dumps(fields, indent=1).encode())
    return store.size(name + SUFFIX)


def _demand_whole(log: LogDirectory, line: Rolled) -> None:
    """Check the frames before copying, because the originals may be deleted afterwards."""
    walk = Walk(line.file, merged=log.merged, session=log.session)
    with closing(log.open_file(line.file)) as file:
        verdict = judge(file.pread, file.size(), walk, rolled_end=line.end)
    if isinstance(verdict, Corrupt):
        raise CorruptLog(log.file_path(line.file), verdict.at, verdict.reason)
    if not walk.at_boundary:
        raise CorruptLog(log.file_path(line.file), walk.position, "the range is incomplete")


def _parts(log: LogDirectory, line: Rolled) -> Iterator[bytes]:
    offset = 0
    with closing(log.open_file(line.file)) as file:
        while offset < line.end:
            part = file.pread(min(READ_BYTES, line.end - offset), offset)
            if not part:
                raise CorruptLog(log.file_path(line.file), line.file, "it is shorter than its line")
            offset += len(part)
            yield part


def _copy_manifest(directory: str, store: Store) -> None:
    with closing(OsDisk().open_read(os.path.join(directory, FILE_NAME))) as file:
        data = file.pread(manifest_size(file), 0)
    with store.write(FILE_NAME) as target:
        target.write(data[: data.rfind(b"\n") + 1])


def _line(encoded: bytes) -> str:
    return encoded.decode("ascii").rstrip("\n")
