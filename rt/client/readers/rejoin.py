"""Rejoin: turns a copy of a log that ended into a copy of the log that continues it."""

import os
import shutil
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Final

from rt.client.readers.cursor import carry_cursors, read_cursors
from rt.errors import Misuse
from rt.format.index import SUFFIX
from rt.format.manifest import FILE_NAME, LogIdentity, decode_entry, encode_entry
from rt.inspect.divergence import Spans, count_messages, messages_after
from rt.log.files.absent import no_log
from rt.log.files.archived import place_after
from rt.log.files.continued import CONTINUED_NAME, ContinuedLog
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import SET_ASIDE, make_private_directory, sync_directory, write_whole
from rt.log.files.listing import log_files
from rt.log.files.lock import writers_lock
from rt.log.read.proof import Proof, proof_at
from rt.log.read.start import end_of
from rt.names import MERGED_NAME, stream_directory
from rt.net.authority.succession import Succession
from rt.position import Position

LISTING_NAME: Final = "beyond.tsv"
_DRAFT: Final = ".rejoin.tmp"
_ID_DIGITS: Final = 8  # of the log that ended, in the name of its directory


@dataclass(frozen=True, slots=True)
class Rejoined:
    """Rejoined: what `rejoin` did to a copy, or would do.

    Attributes:
        end: where the copy ends now.
        beyond: what the copy had after the cut: spans of sequence numbers by session.
        aside: the directory that keeps the log as it was; "" if the copy had nothing after the cut.
            The directory shares the files before the cut with the copy; archiving one of them
            empties it in both.
        cursors: the former position of each cursor that was beyond the cut, by name; all are at the
            cut now.
    """

    end: Position
    beyond: Mapping[str, Spans]
    aside: str
    cursors: Mapping[str, Position]

    @property
    def messages(self) -> int:
        """How many messages the copy had after the cut."""
        return count_messages(self.beyond)


def rejoin(root: str, stream: str, succession: Succession, *, is_dry: bool = False) -> Rejoined:
    """Cut off what a copy of an ended log has beyond the cut, and give it the continuing log's id.

    Everything after the cut stays on disk, in a directory next to the copy, with a list of the
    messages. If this is interrupted, call it again to complete it.

    Args:
        root: the directory that holds the streams of a stopped node or of a puller.
        stream: the stream of the copy.
        succession: the statement of which log continues the copy, and from where.
        is_dry: whether to change nothing, and only return what would happen.

    Raises:
        Misuse: the copy is in use, belongs to another log, or differs before the cut.
        CorruptLog: the copy is damaged.
        OSError: the disk failed; the copy is either unchanged or completely cut.
    """
    top = stream_directory(root, stream)
    path, cut = os.path.join(top, MERGED_NAME), Position.parse(succession.cut)
    draft, aside = path + _DRAFT, _aside(path, succession.old)
    if not is_dry and os.path.exists(aside) and not os.path.exists(path):
        os.rename(draft, path)  # complete: the old copy was moved away after that
        sync_directory(top)
    if not os.path.exists(path):
        raise no_log(path)
    with (
        closing(LogDirectory(path)) as log,
        writers_lock(path, f"{path} is in use; stop the program that writes it"),
    ):
        log.refresh()
        identity, end = _demand(log, succession, cut), end_of(log)
        cursors = _beyond(root, stream, succession.old, cut)
        if identity.id == succession.new:
            beyond = _kept(aside, cut)
            found = Rejoined(end, beyond or {}, aside if beyond is not None else "", cursors)
        elif os.path.exists(aside):
            raise Misuse(f"{aside} is there already; move it away, and run this again")
        else:
            beyond = messages_after(log, cut) if end > cut else {}
            found = Rejoined(min(end, cut), beyond, aside if end > cut else "", cursors)
            if not is_dry:
                _cut(log, cut, identity, found, _continued(succession, cut, found))
    if not is_dry:
        carry_cursors(root, stream, succession.old, succession.new, cut)
    return found


def rejoin_running(root: str, stream: str, succession: Succession) -> str:
    """Rejoin a copy that a running puller has released; return a sentence about what happened.

    Arguments and errors as for `rejoin`.
    """
    found = rejoin(root, stream, succession)
    words = f"the log {succession.old} has ended at {succession.cut}: {succession.new} continues it"
    if not found.aside:
        return f"{words}, and the copy goes on with that"
    listing = os.path.join(found.aside, LISTING_NAME)
    first, last = succession.number, succession.number + found.messages - 1
    return (
        f"{words}; this copy's messages {first} to {last} are not part of that, and are kept in "
        f"{found.aside}, listed in {listing}; the copy goes on from there"
    )


def _kept(aside: str, cut: Position) -> dict[str, Spans] | None:
    """Return what the log in `aside` has after `cut`, by session; None if it has nothing."""
    if not os.path.exists(aside):
        return None
    with closing(LogDirectory(aside)) as log:
        log.refresh()
        return messages_after(log, cut) if end_of(log) > cut else None


def _demand(log: LogDirectory, succession: Succession, cut: Position) -> LogIdentity:
    """Return the identity of a copy that can be cut, or was cut before.

    Raises:
        Misuse: the copy belongs to another log, or differs before the cut.
    """
    identity = log.manifest.identity
    if identity is None or not identity.merged:
        raise no_log(log.path)
    if identity.id not in (succession.old, succession.new):
        words = f"{log.path} is a copy of the log {identity.id}, and {succession.old} has ended"
        raise Misuse(f"{words}; name the succession of its own log")
    if identity.id == succession.old and place_after(log.manifest, end_of(log)) >= cut:
        proof = proof_at(log, cut)
        if proof != Proof(succession.number, bytes.fromhex(succession.digest)):
            words = "it is damaged, or its files there are archived" if proof is None else ""
            differs = words or f"it has number {proof.number if proof else 0:,} there"
            raise Misuse(f"{log.path} is not equal to the log that goes on at {cut}: {differs}")
    return identity


def _beyond(root: str, stream: str, old: str, cut: Position) -> dict[str, Position]:
    """Return the cursors that are beyond the cut, with their positions."""
    found = {}
    for name, state in read_cursors(root, stream).items():
        if state.log_id in ("", old) and state.position > cut:
            found[name] = state.position
    return found


def _aside(path: str, old: str) -> str:
    """Return where the copy of the ended log is moved: a name that no program reads."""
    top, name = os.path.split(path)
    return os.path.join(top, f"{SET_ASIDE}{name}.{old[:_ID_DIGITS]}")


def _continued(succession: Succession, cut: Position, found: Rejoined) -> ContinuedLog:
    """Return the record that tells running readers of the copy where to continue."""
    number = succession.number
    return ContinuedLog(
        succession.old, succession.new, cut, number, number + found.messages, found.aside
    )


def _cut(
    log: LogDirectory, cut: Position, old: LogIdentity, found: Rejoined, known: ContinuedLog
) -> None:
    """Replace a copy by its part before `cut`; keep the old copy aside if it had more."""
    path, top = log.path, os.path.dirname(log.path)
    draft, aside = path + _DRAFT, _aside(path, old.id)
    identity = old._replace(id=known.new, created_ns=0)  # as cluster nodes' identities
    shutil.rmtree(draft, ignore_errors=True)
    make_private_directory(draft)
    for start in log_files(log.disk, path):
        if start < cut.file:
            for name in (start.file_name, start.file_name + SUFFIX):
                with suppress(FileNotFoundError):
                    os.link(os.path.join(path, name), os.path.join(draft, name))
    if cut.offset and log.has_file(cut.file):
        _copy(log, draft, cut)
    write_whole(log.disk, draft, CONTINUED_NAME, [known.encode()])
    write_whole(log.disk, draft, FILE_NAME, _lines(log, cut, identity))
    sync_directory(draft)
    if found.aside:
        rows = [f"{name}\t{first}\t{end - 1}\n" for name, spans in sorted(found.beyond.items())
                for first, end in spans]  # fmt: skip
        header = "session\tfirst sequence number\tlast sequence number\n"
        write_whole(log.disk, path, LISTING_NAME, [header.encode(), *(r.encode() for r in rows)])
    os.rename(path, aside)
    os.rename(draft, path)
    sync_directory(top)
    if not found.aside:
        shutil.rmtree(aside)  # everything in it is in the copy


def _copy(log: LogDirectory, draft: str, cut: Position) -> None:
    """Copy the file that contains the cut into `draft`, up to the cut."""
    name = cut.file.file_name
    with (
        closing(log.open_file(cut.file)) as file,
        closing(log.disk.open(os.path.join(draft, name), create=True)) as copy,
    ):
        copy.copy(file, 0, min(cut.offset, file.size()))
        copy.sync()


def _lines(log: LogDirectory, cut: Position, identity: LogIdentity) -> list[bytes]:
    """Return the lines of a manifest that concern files before the cut."""
    with closing(log.disk.open_read(os.path.join(log.path, FILE_NAME))) as file:
        data = file.pread(log.manifest.length, 0)
    found = [encode_entry(identity)]
    for line in data.splitlines(keepends=True)[1:]:
        entry = decode_entry(line.rstrip(b"\n"))
        if not isinstance(entry, LogIdentity) and entry.file < cut.file:
            found.append(line)
    return found
