"""StreamHandler: log records of Python's logging as messages of a session."""

import logging
from contextlib import suppress
from typing import Final, Protocol

from rt.errors import RtError, Stopped
from rt.log.notify.confirmations import Confirmed, Level

_OWN: Final = ("rt", "replicator", "sequencer", "archiver")
_FLUSH_S: Final = 5.0


class RecordPublisher(Protocol):
    """What the handler needs: `rt.Publisher` and `ClientPublisher` both do."""

    def publish(self, payload: bytes, key: bytes | None = None, time_ns: int | None = None) -> int:
        """Publish one message."""

    def flush(self, level: Level, timeout_s: float) -> Confirmed:
        """Wait for a level."""


class StreamHandler(logging.Handler):
    """Publishes each log record, formatted, with its logger's name as key and its own time.

    A record is in the session's file when `emit` returns, or half a millisecond later, so a killed
    process loses none; `flush`, which `logging.shutdown` calls at exit, syncs them. Records of rt's
    own loggers are left out, since publishing them would log again.

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

    def __init__(self, publisher: RecordPublisher, level: int | str = logging.NOTSET) -> None:
        """Publish through `publisher`, which the caller closes after the last record."""
        super().__init__(level)
        self._publisher = publisher
        self.addFilter(lambda record: record.name.partition(".")[0] not in _OWN)

    def emit(self, record: logging.LogRecord) -> None:
        """Publish one record; what fails is reported as `logging.raiseExceptions` says."""
        try:
            text = self.format(record)
            self._publisher.publish(
                text.encode("utf-8", "surrogateescape"),
                record.name.encode("utf-8", "surrogateescape"),
                int(record.created * 1e9),
            )
        except (RtError, OSError, ValueError, TypeError):
            self.handleError(record)

    def flush(self) -> None:
        """Sync what was published; a publisher that is closed has done so."""
        with suppress(Stopped):
            self._publisher.flush(Level.SYNCED, _FLUSH_S)
