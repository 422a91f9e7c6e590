"""MessageReader: cuts the bytes that another node sends into messages."""

import struct
from typing import Final

from rt.errors import PeerError
from sequencer.peers.send_queue import MESSAGE_BYTES_MAX
from sequencer.peers.versions import INTRODUCED, PEER_VERSIONS, PeerVersion, decode_software

_LENGTH: Final = struct.Struct("<I")
_TURN_MESSAGES: Final = 1000  # a megabyte of empty messages at once would block a loop for seconds


class MessageReader:
    """Cuts the bytes that one member sends into messages; the first may introduce the member."""

    def __init__(self, sender: str, protocol: int | None, most: int = MESSAGE_BYTES_MAX) -> None:
        """Begin a connection.

        Args:
            sender: the member.
            protocol: the version on which both sides agreed; None counts as the oldest.
            most: the most bytes that a message may have.
        """
        self._sender, self._most = sender, most
        self._protocol = protocol or PEER_VERSIONS[-1]
        self._data = bytearray()
        self.has_more = False  # whether `pop_messages` has left messages that may be complete
        is_silent = self._protocol < INTRODUCED
        self.version = PeerVersion(self._protocol) if is_silent else None  # once it is known

    def add(self, chunk: bytes) -> int:
        """Add received bytes; return how many bytes wait for `pop_messages`."""
        self._data += chunk
        return len(self._data)

    def pop_messages(self) -> list[bytes]:
        """Remove and return the complete messages, 1,000 at most; an introduction sets `version`.

        Raises:
            PeerError: a message is too long, or the introduction is malformed.
        """
        messages, data = list[bytes](), self._data
        offset, there = 0, len(data)
        while there - offset >= _LENGTH.size and len(messages) < _TURN_MESSAGES:
            [length] = _LENGTH.unpack_from(data, offset)
            if length > self._most:
                raise PeerError(f"node {self._sender} announces a message of {length} bytes")
            end = offset + _LENGTH.size + length
            if end > there:
                break
            messages.append(bytes(data[offset + _LENGTH.size : end]))
            offset = end
        del data[:offset]
        self.has_more = len(messages) == _TURN_MESSAGES
        if messages and self.version is None:
            self.version = PeerVersion(self._protocol, decode_software(messages.pop(0)))
        return messages


def framed(message: bytes) -> bytes:
    """Return a message as it goes onto the wire."""
    return _LENGTH.pack(len(message)) + message
