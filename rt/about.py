"""About: prefixes a thread's log lines with the stream that the thread works for.

A process may serve many streams with the same code. Log lines of a stream's threads begin with
`stream NAME: `, whichever module logs them and wherever they are shown, on stderr or on the page.
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
# the log record factory before ours; empty until needed
_before: list[Callable[..., logging.LogRecord]] = []


def speak_of(about: str) -> None:
    """Begin this thread's log lines with `about` from now on; "" for no prefix.

    >>> with speaking("stream ships: "):
    ...     logging.getLogRecordFactory()("rt", 30, "", 0, "%d lost", (2,), None).getMessage()
    'stream ships: 2 lost'
    """
    if about:
        _install()
    _about.set(about)


@contextmanager
def speaking(about: str) -> Iterator[None]:
    """Begin this thread's log lines with `about` in the block; then restore the former prefix."""
    before = _about.get()
    speak_of(about)
    try:
        yield
    finally:
        _about.set(before)


def carried(work: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Wrap work for another thread, so that its log lines get this thread's prefix."""
    return partial(copy_context().run, work)


def _install() -> None:
    """Install the factory of log records that adds the prefix.

    The prefix is added when a record is made, since another stream's thread may format the record.
    """
    with _installing:
        if not _before:
            _before.append(logging.getLogRecordFactory())
            logging.setLogRecordFactory(_named)


def _named(*arguments: Any, **more: Any) -> logging.LogRecord:
    record, about = _before[0](*arguments, **more), _about.get()
    if about and not _begins_with(record, about):  # repeated lines have the prefix already
        record.msg = about + str(record.msg)
    return record


def _begins_with(record: logging.LogRecord, about: str) -> bool:
    """Whether a record begins with the prefix, without formatting it, which may raise an error."""
    words = str(record.msg)
    if words.startswith("%s") and isinstance(record.args, tuple) and record.args:
        first = record.args[0]
        return isinstance(first, str) and first.startswith(about)
    return words.startswith(about)
