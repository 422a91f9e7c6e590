"""ComparedLoneMessages: takes the general road beside the short one, and compares their bytes."""

import pickle
from collections.abc import Container

from rt.format.walk import Walk
from rt.position import Position
from sequencer.execution.executor import Executor
from sequencer.execution.lone_messages import LoneMessages
from sequencer.ledger.instruction import Merge, Slice, demand_readable, encode_instruction
from sequencer.ledger.ledger import Ledger
from sequencer.planning.carried import frames_of
from sequencer.planning.holdings import Holdings
from sequencer.planning.planner import Planner
from sequencer.raft.consensus import Entry

from .checkers import Violation
from .watched import WatchedExecutor


class ComparedLoneMessages(LoneMessages):
    """LoneMessages: raises `Violation` where the general road would write something else."""

    def plan(
        self,
        session: str,
        *,
        executor: Executor,
        planner: Planner,
        holdings: Holdings,
        checked: Container[str],
        time_ns: int,
    ) -> Merge | None:
        """Plan on both roads."""
        made = super().plan(
            session, executor=executor, planner=planner, holdings=holdings, checked=checked,
            time_ns=time_ns,
        )  # fmt: skip
        if made is None:
            return None
        ledger, carrier, frames = executor.ledger, planner.carrier, planner.carrier.frames
        agreed = {session: holdings.agreed(session)}
        ends = carrier.ends(agreed, holdings.own, ledger.merged_to, checked)
        durable = planner.readable({**agreed, **ends}, holdings.own, checked)
        planned = planner.plan(ledger, durable, time_ns)
        general = planned and carrier.fill(planned, agreed)
        carrier.frames = frames
        if general is None or demand_readable(general) != encode_instruction(made):
            raise Violation(f"a lone message is planned as {made}, and with others as {general}")
        return made

    def merge(self, entry: Entry, merge: Merge, executor: Executor) -> bool:
        """Merge on the short road, and find out what the general one would have written."""
        if not isinstance(executor, WatchedExecutor):
            raise TypeError("only a watched executor is compared")
        # A tenth of the time of a copy by `deepcopy`, and there is one a message.
        ledger: Ledger = pickle.loads(pickle.dumps(executor.ledger))
        walk, place = executor.appender.walk.copy(), executor.ledger.end
        with executor.observed(entry.index, merge):
            is_merged = super().merge(entry, merge, executor)
        if is_merged:
            ledger.index = entry.index
            expected = _on_the_general_road(merge.slices[0], entry, merge, ledger, walk)
            _demand_same(executor, ledger, walk, place, expected)
        return is_merged


def _demand_same(
    executor: Executor, ledger: Ledger, walk: Walk, place: Position, expected: bytes
) -> None:
    """Compare what was appended from `place` on, the ledger and the walk."""
    appender = executor.appender
    if appender.read(place, len(expected) + 1) != expected:
        raise Violation(f"a lone message at {place} is merged in other bytes than among others")
    if executor.ledger.encode() != ledger.encode():
        raise Violation(f"a lone message at {place} leads to another ledger than among others")
    now = appender.walk
    if any(getattr(now, name) != getattr(walk, name) for name in Walk.__slots__):
        raise Violation(f"after a lone message at {place} another frame may follow")


def _on_the_general_road(
    each: Slice, entry: Entry, merge: Merge, ledger: Ledger, walk: Walk
) -> bytes:
    """Execute a slice by the parts of the general road; return the bytes that it appends."""
    headings = frames_of(each)
    if headings is None:
        raise Violation(f"a lone message whose bytes do not match: {each}")
    headers = b"".join([raw for _, raw in headings])
    merged = ledger.range_of(each, entry.term, merge.time_ns)
    merged = merged.digested(ledger.digest, ledger.end, headers)
    frame = merged.frame(ledger.end)
    walk.begin_range(frame.header, merged)
    for header, _ in headings:
        walk.step(header)
    data = b"".join(frame.parts) + each.carried
    ledger.take(each, merged, len(data), headers)
    return data
