"""Carried bytes: small updates that travel inside the instruction that merges them.

A slice can be planned once a majority holds its bytes durably, or if the instruction carries them.
A node that has synced such a journal entry has the bytes as well, so it need not wait until the
session's own file is synced, or reported as synced. See ADR 22.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from rt.errors import CorruptLog, FrameError
from rt.format.frame import HEADER_BYTES, parse_header
from rt.format.walk import Walk
from rt.log.write.recent_frames import Heading
from rt.position import START, Position
from sequencer.ledger.instruction import CARRIED_BYTES_MAX, Merge, Slice
from sequencer.planning.session_log import SessionLogs, changed_frame
from sequencer.planning.session_records import Proposed

# The most carried bytes that no snapshot covers yet. At this limit, small updates are not carried
# but wait for their own sync, as large ones do. The limit is needed because a node reads its whole
# journal when it starts, and memory holds the same amount.
JOURNAL_BYTES_MAX: Final = 8 << 20


class Carrier:
    """Carrier: puts small updates into instructions, before a majority holds them durably."""

    def __init__(
        self,
        logs: SessionLogs,
        received: Callable[[str], Position],
        is_allowed: Callable[[], bool],
    ) -> None:
        """Carry bytes of this node's copies.

        Args:
            logs: the copies.
            received: returns the end of a session's copy here, durable or not.
            is_allowed: returns whether every member can read such an instruction now.
        """
        self._logs = logs
        self._received = received
        self.is_allowed = is_allowed
        self.left_over: list[str] = []  # sessions that did not fit into the last instruction

    def ends(
        self,
        agreed: Mapping[str, Position],
        own: Mapping[str, Position],
        merged: Mapping[str, Position],
    ) -> dict[str, Position]:
        """For each session whose new bytes the next instruction should carry, return their end.

        Sessions that do not fit are in `left_over` afterwards.

        Args:
            agreed: the end that a majority holds durably, for each session to consider.
            own: per session, the end this node holds durably.
            merged: each session's merged end.
        """
        found, left, self.left_over = dict[str, Position](), CARRIED_BYTES_MAX, []
        checked = self._logs.records.checked
        if not self.is_allowed():
            return found
        for session, held in agreed.items():
            durable, after = own.get(session, START), merged.get(session, START)
            # a copy without a durable byte may be of a log that is not agreed on yet
            if not durable or durable - after > CARRIED_BYTES_MAX:
                continue
            here = self._received(session)
            size = here - after
            if held < here and 0 < size <= CARRIED_BYTES_MAX and session in checked:
                if size > left:
                    self.left_over.append(session)
                else:
                    found[session] = here
                    left -= size
        return found

    def fill(self, merge: Merge, agreed: Mapping[str, Position]) -> Merge:
        """Return the merge, with the bytes added to each slice that a majority does not hold yet.

        These slices are recorded as proposed.

        Args:
            merge: the merge that was just planned.
            agreed: per session, the end a majority holds durably.

        Raises:
            CorruptLog: the copy of a session on this node is damaged.
        """
        proposed = self._logs.records.proposed = {}
        slices = []
        for each in merge.slices:
            is_agreed = each.end <= agreed.get(each.session, START)
            slices.append(each if is_agreed else self._filled(each))
        return replace(merge, slices=tuple(slices)) if proposed else merge

    def _filled(self, each: Slice) -> Slice:
        log = self._logs[each.session]
        received = log.received(each.first, each.end)
        if received is not None:
            headings = received.headings
            made = replace(each, carried=received.data)
        else:
            made = replace(each, carried=log.take_bytes(each.first, each.length))
            found = frames_of(made)
            if found is None:
                path = log.log.file_path(each.first.file)
                raise CorruptLog(path, each.first, "a frame has changed since it arrived")
            headings = found
        self._logs.records.proposed[each.session] = Proposed(made, headings)
        return made


def frames_of(each: Slice) -> list[Heading] | None:
    """Return the headings of a slice's carried frames; None unless they match the slice.

    A leader's entries come from another node, so nothing is written unchecked.
    """
    if len(each.carried) != each.length or not each.length:
        return None
    walk, data = Walk(each.first, merged=False, session=each.session), each.carried
    found, headers, at = list[Heading](), bytearray(), 0
    try:
        while at < each.length:
            header, raw = parse_header(data, at), data[at : at + HEADER_BYTES]
            walk.step(header)
            found.append(Heading(header, raw))
            headers += raw
            at += header.size
    except FrameError:
        return None
    is_whole = at == each.length and changed_frame(data, found) is None
    return found if is_whole and each.agrees_with(bytes(headers)) else None
