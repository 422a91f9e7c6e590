"""CarriedState: what a cluster agreed on besides its merged log, as a standby keeps it."""

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, Final

from rt.errors import Misuse
from rt.names import parse_group, parse_node, parse_session
from rt.net.exchange import Fields
from sequencer.ledger.ledger import Ledger, decode_ledger

STATE_BYTES_MAX: Final = 256 << 20  # as an answer of a node
_VERSION: Final = 1
_NUMBERED: Final = re.compile(r"n\d{1,6}")
_UNREADABLE: Final = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True)
class CarriedState:
    """CarriedState: a cluster's agreed state as of one of its instructions.

    A new cluster continues from this state, updated by what the merged log records after the
    state's end. Policy, leases, cursors and groups, which the log does not record, stay as old as
    the state.

    Attributes:
        stream: the stream.
        log: the id of the merged log.
        term: the term of the state's last instruction.
        groups: the group of each session that was in one.
        members: the names of the cluster's nodes.
        ledger: the state, as `Ledger.encode` returns it.
    """

    stream: str
    log: str
    term: int
    groups: dict[str, str]
    members: tuple[str, ...]
    ledger: bytes

    def state(self) -> Ledger:
        """Return the state; the caller may change it."""
        return decode_ledger(self.ledger)

    @property
    def fingerprint(self) -> str:
        """Return a digest that is equal for equal states: 32 hexadecimal digits."""
        return hashlib.blake2b(self.encode(), digest_size=16).hexdigest()

    def fields(self) -> Fields:
        """Return the state as fields of a JSON object, which `carried_state` reads."""
        return {
            "version": _VERSION, "stream": self.stream, "log": self.log, "term": self.term,
            "groups": dict(sorted(self.groups.items())), "members": sorted(self.members),
            "ledger": self.ledger.decode(),
        }  # fmt: skip

    def fresh_names(self, count: int) -> tuple[str, ...]:
        """Return names for a new cluster's nodes that no node of the old cluster has.

        >>> CarriedState("s", "0" * 32, 1, {}, ("n1", "n3"), b"").fresh_names(2)
        ('n4', 'n5')
        """
        numbers = [int(name[1:]) for name in self.members if _NUMBERED.fullmatch(name)]
        last = max(numbers, default=0)
        return tuple(f"n{last + each}" for each in range(1, count + 1))

    def encode(self) -> bytes:
        """Encode the state; equal states give equal bytes."""
        return json.dumps(self.fields(), separators=(",", ":")).encode()


def carried_state(fields: Any) -> CarriedState:
    """Parse the state in a node's answer or in a file.

    Raises:
        Misuse: the state is malformed, or a later version wrote it.
    """
    try:
        if fields["version"] != _VERSION:
            raise Misuse("the state was carried by another version of rt; use that one")
        groups = {
            str(parse_session(name)): str(parse_group(group))
            for name, group in fields["groups"].items()
        }
        carried = CarriedState(
            str(fields["stream"]), str(fields["log"]), int(fields["term"]), groups,
            tuple(sorted(str(parse_node(name)) for name in fields["members"])),
            fields["ledger"].encode(),
        )  # fmt: skip
    except _UNREADABLE as error:
        raise Misuse(f"this is not the state of a cluster: {error}") from None
    carried.state()
    return carried


def read_carried(path: str) -> CarriedState:
    """Read a state from a file; `Misuse` if its text is malformed, `OSError` if reading fails."""
    with open(path, "rb") as file:
        data = file.read(STATE_BYTES_MAX + 1)
    try:
        return carried_state(json.loads(data))
    except (ValueError, RecursionError) as error:
        raise Misuse(f"{path} is not the state of a cluster: {error}") from None
    except Misuse as error:
        raise Misuse(f"{path}: {error}") from None
