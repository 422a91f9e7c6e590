"""StreamHandler: publishes the records of Python's logging as messages of a session."""

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from rt.client.tracing import TracedPublisher
from rt.errors import NO_HEADERS, Refused, RtError, Stopped
from rt.format.headers import Headers
from rt.log.notify.confirmations import Confirmed, Level

_OWN: Final = ("rt", "replicator", "sequencer", "archiver")
_FLUSH_S: Final = 5.0
# Limits for a record's own attributes: together they fit the limits of a message's headers.
_EXTRAS_MAX, _NAME_MAX, _VALUE_BYTES_MAX = 40, 64, 256
_USUAL: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class RecordPublisher(TracedPublisher, Protocol):
    """The publisher that the handler needs: `rt.Publisher` or `ClientPublisher`."""

    def flush(self, level: Level, timeout_s: float) -> Confirmed:
        """Wait until everything published has reached a level."""


class StreamHandler(logging.Handler):
    """Publishes each log record, formatted, with its logger's name as key and its own time.

    A record is in the session's file half a millisecond after `emit` at the latest, and is not lost
    if the process is killed after that. `flush`, which `logging.shutdown` calls at exit, syncs all
    records. Records of rt's own loggers are left out, since publishing them would log again.

    With `headers=record_headers`, a message's headers are its record's attributes, with the names
    that OpenTelemetry uses.

    Examples:
        >>> import logging, tempfile
        >>> from rt import Publisher, Subscriber
        >>> root = tempfile.mkdtemp()
        >>> with Publisher(root, stream="logs", session="web") as publisher:
        ...     StreamHandler(publisher).handle(logging.makeLogRecord({"name": "a", "msg": "up"}))
        True
        >>> with Subscriber(root, stream="logs", session="web", follow=False) as subscriber:
        ...     [message.payload for message in subscriber]
        [b'up']
    """

    def __init__(
        self,
        publisher: RecordPublisher,
        level: int | str = logging.NOTSET,
        *,
        headers: Callable[[logging.LogRecord], Headers] | None = None,
    ) -> None:
        """Prepare to publish records.

        Args:
            publisher: the caller closes it after the last record.
            level: records below it are left out.
            headers: returns the headers of a record, such as `record_headers`; None for none. While
                not all nodes can read headers, records are published without headers.
        """
        super().__init__(level)
        self._publisher = publisher
        self._headers = headers
        self.addFilter(lambda record: record.name.partition(".")[0] not in _OWN)

    def emit(self, record: logging.LogRecord) -> None:
        """Publish one record; handles errors as `logging.raiseExceptions` says."""
        try:
            message = (
                self.format(record).encode("utf-8", "surrogateescape"),
                record.name.encode("utf-8", "surrogateescape"),
                int(record.created * 1e9),
            )
            self._publish(record, message)
        except (RtError, OSError, ValueError, TypeError):
            self.handleError(record)

    def _publish(self, record: logging.LogRecord, message: tuple[bytes, bytes, int]) -> None:
        if self._headers is not None:
            try:
                self._publisher.publish(*message, headers=self._headers(record))
            except Refused as error:
                if error.code != NO_HEADERS:
                    raise
            else:
                return
        self._publisher.publish(*message)

    def flush(self) -> None:
        """Sync what was published; a closed publisher has already done so."""
        with suppress(Stopped):
            self._publisher.flush(Level.SYNCED, _FLUSH_S)


def record_headers(record: logging.LogRecord) -> dict[str, bytes]:
    """Return a record's attributes as headers, named as by OpenTelemetry's `LoggingHandler`.

    These are the severity, the place in the code, an exception, and each value of `extra=` that is
    a string, a number or a boolean; long values are cut. If OpenTelemetry's instrumentation has
    added a span to the record, `traceparent` is one of the headers.

    >>> record = logging.makeLogRecord({"levelname": "INFO", "user": "ada", "lineno": 7})
    >>> found = record_headers(record)
    >>> found["severity_text"], found["user"], found["code.line.number"]
    (b'INFO', b'ada', b'7')
    """
    found: dict[str, object] = {
        "severity_text": record.levelname,
        "severity_number": record.levelno,
        "code.file.path": record.pathname,
        "code.function.name": record.funcName,
        "code.line.number": record.lineno,
    }
    if record.exc_info and record.exc_info[0] is not None:
        found["exception.type"] = record.exc_info[0].__name__
        found["exception.message"] = str(record.exc_info[1])
    extras = [
        (name, value)
        for name, value in vars(record).items()
        if name not in _USUAL and isinstance(value, str | int | float) and len(name) <= _NAME_MAX
    ]
    found |= dict(extras[:_EXTRAS_MAX])
    trace, span = getattr(record, "otelTraceID", "0"), getattr(record, "otelSpanID", "0")
    if trace != "0" and span != "0":
        sampled = "01" if getattr(record, "otelTraceSampled", False) else "00"
        found["traceparent"] = f"00-{trace}-{span}-{sampled}"
    return {name: _cut(str(value)) for name, value in found.items() if value not in (None, "")}


def _cut(text: str) -> bytes:
    return text.encode(errors="replace")[:_VALUE_BYTES_MAX].decode(errors="ignore").encode()
