"""Remembered: what the ledger remembers of sessions and groups besides how far they are merged."""

from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from sys import intern
from typing import Any, Final, NamedTuple

from rt.events import SessionChange
from rt.position import Position
from sequencer.ledger.life import Life

_TAIL_DIGEST_BYTES: Final = 8  # against accidents; a hostile publisher harms only its own session
_BEGUN_MAX: Final = 10_000  # sessions: 1 MB of a snapshot
_RETIRED_MAX: Final = 8  # logs of one session; 3 MB more if all sessions have so many
_SAMPLES_MAX: Final = 32  # of a group: some 60 bytes each in a snapshot


class Tail(NamedTuple):
    """The last frame of a session that was merged; a copy with another one is another copy."""

    position: Position
    digest: bytes

    def is_of(self, header: bytes | None) -> bool:
        """Whether a raw header, if there is one, is that of this frame."""
        return header is not None and tail_digest(header) == self.digest


class Sample(NamedTuple):
    """One message that a group has merged: its number, and a digest of its key and payload."""

    number: int
    digest: bytes


class Ownership(NamedTuple):
    """Whose a session is.

    Attributes:
        owner: the name in the certificate of its publisher; "" until one is known.
        log: the id of the log that may be pushed; "" until one is.
        since: the instruction that last changed this.
        closed_ns: merge time of the instruction since which nothing pushes it; 0 while it is
            pushed.
    """

    owner: str
    log: str
    since: int
    closed_ns: int = 0

    def admits(self, peer: str, log: str) -> bool:
        """Whether this publisher may push this log."""
        return self.owner in ("", peer) and self.log in ("", log)


@dataclass(slots=True)
class Remembered:
    """Small facts by session or group, the same on every node.

    Attributes:
        tails: per session, the last frame that was merged, if it was read.
        samples: per group, a few of its messages in order: the first, the last, and between them
            fewer the older they are.
        begun: per session whose copies were dropped, by which instruction, and which logs may not
            be pushed under its name again, the latest first, with spaces between their ids. In the
            order of the instructions.
        opened: per session that was opened, whose it is.
    """

    tails: dict[str, Tail] = field(default_factory=dict)
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    begun: dict[str, tuple[int, str]] = field(default_factory=dict)
    opened: dict[str, Ownership] = field(default_factory=dict)

    def change_owner(self, life: Life, index: int, time_ns: int) -> None:
        """Remember whose a session is after a change.

        Args:
            life: the change.
            index: its instruction.
            time_ns: merge time of its event.
        """
        session, change = life.session, life.change
        known = self.opened.get(session, Ownership("", "", 0, time_ns))
        if change in {SessionChange.FORGOTTEN, SessionChange.EXPIRED}:
            self.opened.pop(session, None)
        elif change is SessionChange.CLOSED:
            self.opened[session] = known._replace(since=index, closed_ns=time_ns)
        elif change in {SessionChange.OPENED, SessionChange.RESUMED}:
            owner = life.owner or known.owner
            since_ns = 0 if life.owner else time_ns
            self.opened[session] = Ownership(owner, life.log or known.log, index, since_ns)
        elif change is SessionChange.TAKEN:
            log = "" if life.begins_again else known.log
            self.opened[session] = Ownership(life.owner, log, index, time_ns)
        elif change is SessionChange.RESET and session in self.opened:
            self.opened[session] = Ownership(known.owner, "", index, known.closed_ns or time_ns)

    def begin_again(self, session: str, index: int, log: str) -> None:
        """Remember that copies from before an instruction are gone; of the latest sessions only.

        Logs that were retired before stay so: what they hold was merged under this name too.
        """
        self.tails.pop(session, None)
        _, before = self.begun.pop(session, (0, ""))
        retired = dict.fromkeys([log, *before.split()] if log else before.split())
        self.begun[session] = (index, " ".join([*retired][:_RETIRED_MAX]))
        if len(self.begun) > _BEGUN_MAX:
            del self.begun[next(iter(self.begun))]

    def is_retired(self, session: str, log: str) -> bool:
        """Whether this log of the session may not be pushed again."""
        return log in self.begun.get(session, (0, ""))[1].split()

    def dropped_after(self, index: int) -> list[str]:
        """Return the sessions whose copies were dropped by an instruction after this one."""
        found = []
        for session, (each, _) in reversed(self.begun.items()):
            if each <= index:
                break
            found.append(session)
        return found

    def sample(self, group: str, found: list[Sample]) -> None:
        """Remember messages that follow those remembered of a group."""
        if not found:
            return
        known = self.samples.setdefault(group, [])
        known += found
        while len(known) > _SAMPLES_MAX:
            del known[min(range(1, len(known) - 1), key=partial(_gap_without, known))]

    def fields(self) -> dict[str, Any]:
        """Return this as JSON has it; the same for the same facts."""
        return {
            "tails": {
                name: [int(tail.position), tail.digest.hex()]
                for name, tail in sorted(self.tails.items())
            },
            "samples": {
                group: [[each.number, each.digest.hex()] for each in samples]
                for group, samples in sorted(self.samples.items())
            },
            "begun": [[name, index, log] for name, (index, log) in self.begun.items()],
            "opened": {name: list(each) for name, each in sorted(self.opened.items())},
        }


def _gap_without(samples: list[Sample], nth: int) -> float:
    """Return how wide the gap would be without one of the samples, relative to its age."""
    age = samples[-1].number - samples[nth].number
    return (samples[nth + 1].number - samples[nth - 1].number) / (age + 1)


def take_remembered(fields: dict[str, Any]) -> Remembered:
    """Remove from a ledger's fields what `Remembered.fields` has put there, and return it.

    Raises:
        ValueError, TypeError, AttributeError: it is something else.
    """
    tails = {
        intern(name): Tail(Position(place), bytes.fromhex(digest))
        for name, (place, digest) in fields.pop("tails", {}).items()
    }
    samples = {
        group: [Sample(int(number), bytes.fromhex(digest)) for number, digest in each]
        for group, each in fields.pop("samples", {}).items()
    }
    begun = {intern(name): (int(index), str(log)) for name, index, log in fields.pop("begun", [])}
    opened = {
        intern(name): Ownership(intern(owner), intern(log), int(index), int(closed_ns))
        for name, (owner, log, index, closed_ns) in fields.pop("opened", {}).items()
    }
    return Remembered(tails, samples, begun, opened)


def tail_digest(header: bytes) -> bytes:
    """Return the digest of a raw header, as `Tail` has it."""
    return blake2b(header, digest_size=_TAIL_DIGEST_BYTES).digest()
