"""Log paths: finds the log directories to which a load's paths refer."""

import glob
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from rt.format.manifest import FILE_NAME
from rt.log.files.disk import Disk, OsDisk
from rt.spark.reading.storage import open_directory, open_storage

_DEPTH_MAX: Final = 3  # ROOT/STREAM/in/SESSION


@dataclass(frozen=True, slots=True)
class LogPlace:
    """A log that a load reads."""

    path: str  # the path or URI of its directory
    log_id: str  # a log that was deleted and created again has another id
    stream: str  # the stream whose messages it holds
    copies: str = ""  # the store in which its archived files are read; "" for none


def log_paths(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Return the log directories that these paths name, in order, each once.

    A path is a log directory, a glob, or a parent directory. For each stream below it, a parent
    directory names the merged log, or the sessions if there is no merged log, since the two have
    the same messages. A path that names no log is returned unchanged; opening it fails later.
    """
    found: dict[str, str] = {}  # by real path, since one directory may be named in several ways
    for path in paths:
        matches = [path]
        # in a URI, `?` begins a query
        if glob.has_magic(path) and "://" not in path and not os.path.isdir(path):
            matches = sorted(glob.glob(path)) or [path]
        for match in matches:
            for each in _below(match) or [match]:
                found.setdefault(_canonical(each), each)
    return tuple(found.values())


def _below(path: str) -> list[str]:
    disk, inside = open_storage(path)
    logs = [path.replace(inside, each, 1) for each in _walk(disk, inside, 0)]
    if logs == [path]:
        return logs
    kinds = {each: _kind(each) for each in logs}
    merged = {stream for stream, is_merged in kinds.values() if is_merged}
    return [log for log, (stream, is_merged) in kinds.items() if is_merged or stream not in merged]


def _canonical(path: str) -> str:
    disk, inside = open_storage(path)
    return os.path.realpath(inside) if isinstance(disk, OsDisk) else path.rstrip("/")


def _walk(disk: Disk, path: str, depth: int) -> Iterator[str]:
    try:
        names = sorted(disk.names(path))
    except NotADirectoryError:
        return
    if FILE_NAME in names:
        yield path
    elif depth < _DEPTH_MAX:
        for name in (each for each in names if not each.startswith(".")):
            yield from _walk(disk, os.path.join(path, name), depth + 1)


def _kind(path: str) -> tuple[str, bool]:
    """Return the stream of the log at `path`, and whether the log is a merged log."""
    with closing(open_directory(path)) as log:
        log.refresh()
        identity = log.manifest.identity
        return identity.stream if identity else "", log.merged
