"""Group: a name under which several programs divide a stream, and how they do it."""

import base64
import json
import os
import re
import secrets
import socket
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from rt.errors import Misuse
from rt.format.message import Message
from rt.names import parse_cursor, parse_session
from rt.position import Position

CAREFUL: Final = 3  # deliveries from which on each message is reported before it is handed out
_HOST_LENGTH: Final = 30  # of a member's name, so that a session's has room for a prefix


@dataclass(frozen=True, slots=True)
class Group:
    """A group of readers that divide a stream: each message goes to one of them.

    Attributes:
        name: of the group; its members show certificates of one name and role.
        member: name of this member, a different one for each; made up unless given.
        silence_s: what a member holds is handed to others when it gave no sign of life for so long.
        max_deliveries: so often a message is handed to a handler before it is a dead letter. Where
            members die instead of rejecting it, at least 3: it takes two to find the one message.
        dead_letters: dead letters are published to the session `DEAD_LETTERS-MEMBER`; "" hands a
            message out for ever.
        retry_s: how long a message that was rejected waits before it is handed out again.
        work_s_max: a member whose handler takes longer than this for one message counts as dead.
        pin_bytes: how much of what is not handled the nodes keep from the rules `time` and `limit`,
            at most; the certificate needs a grant of leases for it.
    """

    name: str
    member: str = ""
    silence_s: float = 0.75
    max_deliveries: int = 5
    dead_letters: str = ""
    retry_s: float = 1.0
    work_s_max: float = 300.0
    pin_bytes: int = 0

    def __post_init__(self) -> None:
        parse_cursor(self.name)
        if self.dead_letters:
            parse_session(self.letters_session(self.member or "m"))
        if self.retry_s < 0 or self.work_s_max <= 0:
            raise Misuse("retry_s is 0 or more, and work_s_max more than 0 seconds")

    def agreed_on(self) -> dict[str, Any]:
        """Return what all members agree on, as the nodes are told."""
        names = ("name", "silence_s", "max_deliveries", "dead_letters", "pin_bytes")
        return {name: getattr(self, name) for name in names}

    def letters_session(self, member: str) -> str:
        """Return the session that a member publishes dead letters to."""
        return f"{self.dead_letters}-{member}"

    def is_letter(self, message: Message) -> bool:
        """Whether this is a dead letter, of this group or one that shares its sessions.

        It is not read: a letter that is a letter's cause would have no end. Other messages of a
        session that is called like one of letters are.
        """
        if not self.dead_letters or not message.session.startswith(f"{self.dead_letters}-"):
            return False
        try:
            DeadLetter.parse(message.payload)
        except Misuse:
            return False
        return True


class Delivery(Message):
    """A message as a member of a group gets it; `redelivered` is 0 when it is the first time.

    More than 0 says how often it may have been handed to a handler before.
    """

    redelivered: int = 0
    claim: Any = None  # the `HeldClaim` that it came in


class DeadLetter(NamedTuple):
    """A message that no handler of a group could handle, as it is published.

    Examples:
        >>> letter = DeadLetter("etl", Position(64), "jfk", 7, b"AA1", 5, "rejected", b"AA1 late")
        >>> DeadLetter.parse(letter.encode()) == letter
        True
    """

    group: str
    position: Position  # where the message is in the stream
    session: str
    sequence: int
    key: bytes
    deliveries: int
    reason: str
    payload: bytes
    headers: dict[str, bytes] | None = None  # None if it has none

    def encode(self) -> bytes:
        """Lay it out: a line of JSON, and the message's own payload."""
        fields = {
            **self._asdict(), "position": str(self.position),
            "key": base64.b64encode(self.key).decode(),
        }  # fmt: skip
        del fields["payload"], fields["headers"]
        if self.headers:  # an older version takes a letter with a field more for something else
            fields["headers"] = {
                name: base64.b64encode(value).decode() for name, value in self.headers.items()
            }
        return json.dumps(fields).encode() + b"\n" + self.payload

    @classmethod
    def parse(cls, payload: bytes) -> Self:
        """Read the payload of a dead letter; `Misuse` if it is something else."""
        line, _, body = payload.partition(b"\n")
        try:
            fields = json.loads(line)
            position, key = Position.parse(fields.pop("position")), base64.b64decode(fields["key"])
            texts = fields.pop("headers", {}).items()
            headers = {name: base64.b64decode(text) for name, text in texts} or None
            return cls(**{**fields, "key": key}, position=position, payload=body, headers=headers)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Misuse(f"not a dead letter: {error}") from None


def made_up_member() -> str:
    """Return a name for a member that no other has."""
    host = re.sub(r"[^a-z0-9]+", "-", socket.gethostname().lower())[:_HOST_LENGTH].strip("-")
    return f"{host or 'host'}-{os.getpid()}-{secrets.token_hex(3)}"
