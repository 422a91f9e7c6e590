"""LoneMessages: a fast path that plans and merges the small update of a single session.

At a few hundred messages a second nothing stays in the processor's caches, so a message's cost
depends on how much code and data it touches. Most instructions then merge a small update of one
session. For these, the general path (`Planner`, `Carrier`, `Executor`) makes many checks that all
have the same result. This module makes them all first; if one has another result, the general path
is used. Both paths write the same bytes: the simulation takes both for each message, and compares
them.
"""

from collections.abc import Container, Sequence
from hashlib import blake2b
from typing import Final

from rt.format.frame import Header
from rt.format.ranges import Range, range_bytes
from rt.log.write.recent_frames import Heading
from rt.position import OFFSET_END, START
from sequencer.execution.executor import Executor
from sequencer.ledger.founded import FOUNDED_NOTE, obstacle
from sequencer.ledger.instruction import CARRIED_BYTES_MAX, SLICE_DIGEST_BYTES, Merge, Slice
from sequencer.ledger.seal import SEALED_NOTE
from sequencer.planning.carried import frames_of
from sequencer.planning.holdings import Holdings
from sequencer.planning.planner import Planner
from sequencer.raft.consensus import Entry

_IN_FILE: Final = OFFSET_END - 1


class LoneMessages:
    """LoneMessages: plans and merges a small update that is in memory; declines all else."""

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
        """Return an instruction that carries all bytes of a session received and not yet merged.

        Args:
            session: the only session that may have something to merge.
            executor: its ledger is the state that the instruction will be executed on.
            planner: the planner; if its last plan could not merge a session, the result is None.
            holdings: how much of the session a majority holds durably.
            checked: the sessions whose copies here are known to hold the merged bytes.
            time_ns: the present time, ns since the epoch.

        Returns:
            The instruction, with its frames in `planner.carrier.frames`; None to use the general
            path.
        """
        ledger, copy, carrier = executor.ledger, planner.logs.copy(session), planner.carrier
        after, notes = ledger.sessions.get(session, START), ledger.notes
        durable = holdings.own.get(session, START)
        recent = None if copy is None else copy.recent
        if copy is None or recent is None or not copy.is_open or copy.identity.group:
            return None
        end = copy.end
        if (
            planner.stuck
            or not after & _IN_FILE
            or not durable
            or durable - after > CARRIED_BYTES_MAX
            or not 0 < end - after <= min(CARRIED_BYTES_MAX, ledger.file_bytes_max // 2)
            or holdings.agreed(session) >= end
            or session not in checked
            or SEALED_NOTE in notes
            or (FOUNDED_NOTE in notes and obstacle(ledger, session, "", 0))
            or not carrier.is_allowed()
            or (frames := recent.between(after, end)) is None
            or frames.end != end
        ):
            return None
        watermark = following = ledger.watermarks.get(session, 0)
        messages, headers = 0, bytearray()
        for header, raw in frames.headings:
            if header.sequence < following or not header.messages:
                return None  # a repeat, or a control frame
            messages += header.messages
            following = header.sequence + header.messages
            headers += raw
        if not recent.use(frames):
            return None
        made = Slice(
            session, after, after, end - after, messages, 0, watermark, following, "",
            blake2b(headers, digest_size=SLICE_DIGEST_BYTES).digest(), frames.data,
        )  # fmt: skip
        planner.idle, carrier.left_over = [], []
        carrier.frames = {session: (made, frames.headings)}
        return Merge(max(time_ns, ledger.time_ns), (made,))

    def merge(self, entry: Entry, merge: Merge, executor: Executor) -> bool:
        """Execute an instruction that merges a small update of one session.

        Args:
            entry: the entry of the instruction.
            merge: the instruction.
            executor: writes the merged log.

        Returns:
            Whether it was executed; if not, nothing was changed.

        Raises:
            OSError: as `Executor.execute`.
        """
        if len(merge.slices) != 1:
            return False
        [each] = merge.slices
        if not each.carried or each.skip or each.group:
            return False
        ledger, appender = executor.ledger, executor.appender
        session, place, walk = each.session, ledger.end, appender.walk
        size = range_bytes(session) + each.length
        planned, known = executor.proposed.get(session, (None, ()))  # from this very copy
        if (
            walk.position != place
            or walk.left
            or not appender.is_open
            or not place & _IN_FILE
            or (place & _IN_FILE) + size > ledger.file_bytes_max
            or session in executor.logs.states
            or ledger.sessions.get(session, START) != each.after
            or ledger.watermarks.get(session, 0) != each.watermark
            or place < executor.emptied_end
            or (ledger.archived_to and executor.lacks_lines)
            or (headings := known if planned is each else self._headings(each, executor)) is None
        ):
            return False
        every, headers = list[Header](), bytearray()
        for header, raw in headings:
            every.append(header)
            headers += raw
        if each.digest and blake2b(headers, digest_size=SLICE_DIGEST_BYTES).digest() != each.digest:
            return False
        ledger.index, executor.is_half_done = entry.index, True
        merged, frame = Range(
            entry.index, entry.term, max(merge.time_ns, ledger.time_ns), session, each.first,
            each.length, ledger.number, each.messages, 0,
        ).sealed(ledger.digest, place, bytes(headers))  # fmt: skip
        every.insert(0, frame.header)
        appender.append((*frame.parts, each.carried), every, walk.past(merged, size))
        ledger.take(each, merged, size, bytes(headers))
        executor.traffic.add(size, each.messages, len(every))
        executor.is_half_done = False
        return True

    def _headings(self, each: Slice, executor: Executor) -> Sequence[Heading] | None:
        """Return the headings of a slice's frames if in memory and equal to the carried ones."""
        session = each.session
        copy = executor.logs.copy(session)
        if copy is None or copy.end < each.end or not executor.held.get(session):
            # the publisher's bytes have yet to come here, or may be of the session's next log
            if (found := frames_of(each)) is not None:
                executor.unproven[session] = None
            return found
        frames = None if copy.recent is None else copy.recent.between(each.first, each.end)
        if frames is None or frames.end != each.end or frames.data != each.carried:
            return None
        return frames.headings if copy.recent is not None and copy.recent.use(frames) else None
