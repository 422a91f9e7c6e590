"""Absent: explains that a log does not exist, what exists instead, and how to create it."""

import logging
import os
from collections.abc import Callable
from typing import Final

from rt.errors import Misuse
from rt.format.manifest import FILE_NAME
from rt.names import MERGED_NAME
from rt.text import first_few, nearest

_log: Final = logging.getLogger("rt.subscriber")
_NAMED_MAX: Final = 5
_LISTED_MAX: Final = 10_000  # at most this many names of a directory are considered
_GRACE_S: Final = 5.0  # a waiting reader first reports after this; a copy usually appears sooner
_AGAIN_S: Final = 300.0  # and reports again after this


def no_log(directory: str) -> Misuse:
    """Return the error for a directory that contains no log.

    Looks at local directories only, and opens nothing.
    """
    if "://" in directory:
        return Misuse(f"{directory} holds no log: there is no manifest")
    if not os.path.lexists(directory):
        lacks = "there is no such directory"
    elif os.path.lexists(os.path.join(directory, FILE_NAME)):
        lacks = "its manifest names none"
    else:
        lacks = "there is no manifest"
    return Misuse(f"{directory} holds no log: {lacks}; {_instead(directory)}")


class AbsentLog:
    """Handles a log that does not exist: waits for it, or raises an error."""

    def __init__(self, directory: str, clock: Callable[[], float]) -> None:
        self._directory = directory
        self._clock = clock
        self._next_s = 0.0  # when to report next; 0 before the first call

    def met(self, *, follow: bool) -> None:
        """Log now and then that there is no log yet; without `follow`, raise `Misuse` instead."""
        if not follow:
            raise no_log(self._directory)
        now_s = self._clock()
        if not self._next_s:
            self._next_s = now_s + _GRACE_S
        elif now_s >= self._next_s:
            self._next_s = now_s + _AGAIN_S
            _log.warning("waiting for a log: %s", no_log(self._directory))


def _instead(directory: str) -> str:
    path = os.path.abspath(directory)
    stream, name = os.path.split(path)
    root, stream_name = os.path.split(stream)
    if os.path.isfile(path):
        return "it is a file; name the directory of a log"
    if logs := _logs_in(path) or _logs_below(path):
        return f"it has the logs {first_few(logs, _NAMED_MAX)}; name one of them"
    if logs := _logs_in(stream):
        return _beside(name, logs)
    if os.path.isdir(stream):
        return f"{stream} has no log either; {_HOW}"
    return _other_streams(root, stream_name)


_HOW: Final = (
    "rt publish and rt.Publisher make a session's log, rt pull and rt.connect a copy of the merged "
    "one"
)


def _beside(name: str, logs: list[str]) -> str:
    """Return, as text, what a stream's directory has instead of the missing log."""
    sessions = [each for each in logs if each != MERGED_NAME]
    has = f"the stream has: {first_few(logs, _NAMED_MAX)}"
    if name == MERGED_NAME:
        return (
            "no copy of the merged log was made yet, which rt pull and rt.connect do; of its own "
            "sessions, which session= and --own-session read, the stream has: "
            f"{first_few(sessions, _NAMED_MAX)}"
        )
    return f"{has}{_meant(name, logs)}"


def _other_streams(root: str, name: str) -> str:
    if not os.path.isdir(root):
        return f"{root} does not exist; check the root, or where the program was started"
    streams = [each for each in _names(root) if _logs_in(os.path.join(root, each))]
    if not streams:
        return f"{root} has no stream; {_HOW}"
    few = first_few(streams, _NAMED_MAX)
    return f"{root} has no stream {name!r}, but {few}{_meant(name, streams)}"


def _meant(name: str, known: list[str]) -> str:
    near = nearest(name, known)
    return f"; did you mean {near!r}?" if near else ""


def _logs_in(directory: str) -> list[str]:
    return [each for each in _names(directory) if _is_log(os.path.join(directory, each))]


def _logs_below(root: str) -> list[str]:
    return [
        os.path.join(stream, log)
        for stream in _names(root)
        for log in _logs_in(os.path.join(root, stream))
    ]


def _is_log(directory: str) -> bool:
    """Whether a directory has a manifest that is not empty."""
    path = os.path.join(directory, FILE_NAME)
    return os.path.isfile(path) and os.path.getsize(path) > 0


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory)[:_LISTED_MAX])
    except OSError:
        return []
