"""Steps: the needs of a request, which a thread or a simulation meets one after another."""

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from rt.errors import Refused, RtError
from sequencer.ledger.instruction import Instruction

DECIDED_S: Final = 10.0  # deciding takes milliseconds, unless there is no quorum
UNDECIDED: Final = "no majority decided it in time; it may yet come: look, and ask again"
_POLL_FIRST_S, _POLL_S = 0.001, 0.01

Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class Order:
    """Propose an instruction soon, unless this term ends first."""

    instruction: Instruction


@dataclass(frozen=True, slots=True)
class Ask:
    """Call `question` between two steps of the node, while its state does not change."""

    question: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Until:
    """Continue once a condition holds; refuse with `code` if that takes too long."""

    is_over: Callable[[], bool]
    timeout_s: float = DECIDED_S
    words: str = UNDECIDED
    code: str = "undecided"


Need = Order | Ask | Until
Steps = Generator[Need, None, Outcome]


def wait_until(need: Until) -> None:
    """Wait in this thread until the condition holds; `Refused` if that takes too long."""
    end_s, pause_s = time.monotonic() + need.timeout_s, _POLL_FIRST_S
    while not need.is_over():
        if time.monotonic() > end_s:
            raise Refused(need.code, need.words)
        time.sleep(pause_s)
        pause_s = min(_POLL_S, 2 * pause_s)


def perform(steps: "Steps[Outcome]", carry_out: Callable[[Need], Any]) -> Outcome:
    """Run the steps, passing each need that they yield to `carry_out`; return their result.

    An error of `carry_out` is raised inside the steps, so that they can clean up.
    """
    try:
        need = next(steps)
        while True:
            try:
                carry_out(need)
            except (RtError, OSError) as error:
                need = steps.throw(error)
            else:
                need = next(steps)
    except StopIteration as end:
        outcome: Outcome = end.value
        return outcome
