"""Checkpoint: the last values of a stream up to a position, in a log directory of their own."""

import hashlib
import json
import logging
import os
import shutil
import struct
from collections.abc import Collection
from typing import Final, NamedTuple

from rt.errors import Misuse, RtError, spoken
from rt.format.message import Message, Origin
from rt.log.files.disk import make_private_directory
from rt.log.files.lock import take_lock
from rt.log.write.writer import WriterSettings
from rt.names import parse_session, stream_directory
from rt.position import START, Position
from rt.publisher import Publisher
from rt.subscriber import Subscriber

DIRECTORY: Final = ".last"  # not a valid session name, so it never clashes with one
_log: Final = logging.getLogger("rt.client")
_SLOTS: Final = ("a", "b")  # while one is being written, the other is whole
_STREAM: Final = "values"
# position, sequence, number, merge time, length of the session
_PLACE: Final = struct.Struct("<QQQqB")
_BATCH: Final = 1024
# Errors of reading a checkpoint that is not whole.
_NOT_WHOLE: Final = (
    RtError, OSError, ValueError, KeyError, TypeError, RecursionError, struct.error,
)  # fmt: skip


class Values(NamedTuple):
    """The last message of each key, among all messages before `position`."""

    position: Position
    messages: dict[bytes, Message]


def filter_name(*parts: object) -> str:
    """Return a checkpoint's name, which differs for each selection of messages.

    >>> filter_name(b"eu-", None) == filter_name(b"us-", None)
    False
    """
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def choice_parts(
    sessions: Collection[str] | None, key_prefix: bytes, where: str | Collection[str] | None
) -> tuple[object, ...]:
    """Return a reader's selection in a form that is equal for equal selections."""
    names = [sessions] if isinstance(sessions, str) else sorted(sessions or ())
    terms = [where] if isinstance(where, str) else sorted(where or ())
    return names, bytes(key_prefix), terms


class Checkpoint:
    """Keeps the last value of each key on disk, so that a restart need not read the whole stream.

    The values are in two session logs, written in turn. Each has one message for each key, then a
    final message. The final message gives the number of keys, the merged log that the values are
    from, and the position up to which that log was read. A session log that is damaged or lacks its
    final message is ignored. The older session log is then used, if there is one, and more of the
    stream is read again.

    Of several programs with the same selection, the first one stores values; the others cannot
    store any until the first has closed.
    """

    def __init__(self, root: str, stream: str, name: str, log_id: str) -> None:
        """Prepare; this opens no file.

        Args:
            root: directory that holds the streams.
            stream: name of the stream.
            name: the name of the checkpoint, see `filter_name`.
            log_id: id of the merged log; values from another log are ignored.
        """
        self.directory = os.path.join(
            stream_directory(root, stream), DIRECTORY, parse_session(name)
        )
        self._log_id = log_id
        self._written = ""  # the slot that is whole
        self._lock_fd = -1

    def load(self) -> Values:
        """Return the newest complete values; no values, up to `START`, if none are stored."""
        found = {slot: values for slot in _SLOTS if (values := self._load(slot)) is not None}
        if not found:
            return Values(START, {})
        self._written = max(found, key=lambda slot: found[slot].position)
        return found[self._written]

    def store(self, values: Values) -> None:
        """Replace the older stored values durably; do nothing if another program stores them.

        Raises:
            OSError: the values cannot be written; the values stored before stay complete.
        """
        if not self._is_ours():
            return
        slot = _SLOTS[self._written == _SLOTS[0]]
        shutil.rmtree(os.path.join(self.directory, _STREAM, slot), ignore_errors=True)
        messages = list(values.messages.values())
        writer = WriterSettings()
        with Publisher(self.directory, stream=_STREAM, session=slot, writer=writer) as publisher:
            for begin in range(0, len(messages), _BATCH):
                part = messages[begin : begin + _BATCH]
                publisher.publish_many(
                    [_encode(each) for each in part], [each.key for each in part],
                    [each.time_ns for each in part], headers=[each.headers for each in part],
                )  # fmt: skip
            end = {"keys": len(messages), "position": str(values.position), "log": self._log_id}
            publisher.publish(json.dumps(end).encode())
            publisher.flush("synced")
        self._written = slot

    def close(self) -> None:
        """Release the checkpoint, so that another program can write to it. Idempotent."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _is_ours(self) -> bool:
        """Return whether this program stores the checkpoint; takes the lock if it is free."""
        if self._lock_fd < 0:
            make_private_directory(self.directory)
            try:
                self._lock_fd = take_lock(self.directory, f"{self.directory} is in use")
            except Misuse as error:
                _log.info("these last values are stored by another: %s", error)
                return False
            # another program may have stored newer values since: do not delete those first
            self.load()
        return True

    def _load(self, slot: str) -> Values | None:
        path = os.path.join(self.directory, _STREAM, slot)
        if not os.path.isdir(path):
            return None
        try:
            with Subscriber(self.directory, stream=_STREAM, session=slot, follow=False) as reader:
                *kept, end = reader
            facts = json.loads(end.payload)
            is_whole = (facts["keys"], facts["log"]) == (len(kept), self._log_id)
            messages = {each.key: _decode(each) for each in kept}
            return Values(Position.parse(facts["position"]), messages) if is_whole else None
        except _NOT_WHOLE as error:
            _log.warning("%s: no whole checkpoint: %s", path, spoken(error))
            return None


def _encode(message: Message) -> bytes:
    session = message.session.encode()
    place = _PLACE.pack(
        message.at, message.sequence, message.number, message.merge_time_ns or 0, len(session)
    )  # fmt: skip
    return place + session + message.payload


def _decode(stored: Message) -> Message:
    at, sequence, number, merge_time_ns, length = _PLACE.unpack_from(stored.payload)
    end = _PLACE.size + length
    session = stored.payload[_PLACE.size : end].decode()
    origin = Origin(session, merge_time_ns, stored.origin.headers)
    return Message(
        stored.payload[end:], stored.key, stored.time_ns, sequence, number, at, origin
    )  # fmt: skip
