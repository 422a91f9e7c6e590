"""About: which stream a thread works for, so that what it logs names that stream.

A process may serve many streams, each by the same code. The lines of a stream's threads begin with
`stream NAME: `, whichever module logs them and wherever they are shown: on stderr or on the page.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_about: Final[ContextVar[str]] = ContextVar("about", default="")
_installing: Final = threading.Lock()
_before: list[Callable[..., logging.LogRecord]] = []  # what made records; empty until it is needed


def speak_of(about: str) -> None:
    """From now on this thread's lines begin with `about`, unless that is empty.

    >>> with speaking("stream ships: "):
    ...     logging.getLogRecordFactory()("rt", 30, "", 0, "%d lost", (2,), None).getMessage()
    'stream ships: 2 lost'
    """
    if about:
        _install()
    _about.set(about)


@contextmanager
def speaking(about: str) -> Iterator[None]:
    """As `speak_of`, for a while."""
    before = _about.get()
    speak_of(about)
    try:
        yield
    finally:
        _about.set(before)


def carried(work: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Return work for one other thread, whose lines then begin as this one's do now."""
    return partial(copy_context().run, work)


def _install() -> None:
    """Name the stream in records: they are formatted later, and by threads of no stream."""
    with _installing:
        if not _before:
            _before.append(logging.getLogRecordFactory())
            logging.setLogRecordFactory(_named)


def _named(*arguments: Any, **more: Any) -> logging.LogRecord:
    record, about = _before[0](*arguments, **more), _about.get()
    if about and not _begins_with(record, about):  # a line that is repeated names it too
        record.msg = about + str(record.msg)
    return record


def _begins_with(record: logging.LogRecord, about: str) -> bool:
    """Look without formatting: what a wrong format raises is for the handlers to report."""
    words = str(record.msg)
    if words.startswith("%s") and isinstance(record.args, tuple) and record.args:
        first = record.args[0]
        return isinstance(first, str) and first.startswith(about)
    return words.startswith(about)
