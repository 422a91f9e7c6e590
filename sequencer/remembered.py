"""Remembered: what the ledger remembers of sessions and groups besides how far they are merged."""

from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from rt.position import Position

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
    """

    tails: dict[str, Tail] = field(default_factory=dict)
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    begun: dict[str, tuple[int, str]] = field(default_factory=dict)

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
        name: Tail(Position(place), bytes.fromhex(digest))
        for name, (place, digest) in fields.pop("tails", {}).items()
    }
    samples = {
        group: [Sample(int(number), bytes.fromhex(digest)) for number, digest in each]
        for group, each in fields.pop("samples", {}).items()
    }
    begun = {str(name): (int(index), str(log)) for name, index, log in fields.pop("begun", [])}
    return Remembered(tails, samples, begun)


def tail_digest(header: bytes) -> bytes:
    """Return the digest of a raw header, as `Tail` has it."""
    return blake2b(header, digest_size=_TAIL_DIGEST_BYTES).digest()
