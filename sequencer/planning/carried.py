"""Carried bytes: small updates that travel inside the instruction which merges them.

A slice is planned once a majority holds its bytes durably, or it brings them along. Then a node
that has the entry has the bytes, by the same sync of its journal, and waits neither for a sync of
the session's own file nor for a report of one. See ADR 22.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from rt.errors import CorruptLog, FrameError
from rt.format.frame import HEADER_BYTES, parse_header
from rt.format.walk import Walk
from rt.position import START, Position
from sequencer.ledger.instruction import CARRIED_BYTES_MAX, Merge, Slice
from sequencer.planning.session_log import Heading, SessionLogs, changed_frame

# Of instructions that no snapshot covers yet. With more, small updates wait for their own sync, as
# large ones do: the journal is read whole at a start, and memory holds the same amount.
JOURNAL_BYTES_MAX: Final = 8 << 20


class Carrier:
    """Lets a leader plan what it has only received, by putting the bytes into the instruction."""

    def __init__(
        self,
        logs: SessionLogs,
        received: Callable[[str], Position],
        is_allowed: Callable[[], bool],
    ) -> None:
        """Carry from this node's copies.

        Args:
            logs: the copies.
            received: returns up to where a session was written here.
            is_allowed: whether every member can read such an instruction now.
        """
        self._logs = logs
        self._received = received
        self.is_allowed = is_allowed
        self.left_over: list[str] = []  # sessions for which the last instruction had no room
        # By session, the slices that were filled last, with the headings of their frames.
        self.frames: dict[str, tuple[Slice, list[Heading]]] = {}

    def ends(
        self,
        agreed: Mapping[str, Position],
        own: Mapping[str, Position],
        merged_to: Callable[[str], Position],
        is_checked: Callable[[str], bool],
    ) -> dict[str, Position]:
        """Return up to where sessions can be planned by carrying them, where that is further.

        Args:
            agreed: up to where a majority holds the sessions durably that are looked at.
            own: by session, up to where this node holds it durably.
            merged_to: returns up to where a session is merged.
            is_checked: whether the copy here is known to hold what was merged of a session.
        """
        found, left, self.left_over = dict[str, Position](), CARRIED_BYTES_MAX, []
        if not self.is_allowed():
            return found
        for session, held in agreed.items():
            durable, merged = own.get(session, START), merged_to(session)
            # without a durable byte it may be a copy of a log that is not agreed on yet
            if not durable or durable - merged > CARRIED_BYTES_MAX:
                continue
            here = self._received(session)
            size = here - merged
            if held < here and 0 < size <= CARRIED_BYTES_MAX and is_checked(session):
                if size > left:
                    self.left_over.append(session)
                else:
                    found[session] = here
                    left -= size
        return found

    def fill(self, merge: Merge, agreed: Mapping[str, Position]) -> Merge:
        """Put the bytes of each slice into the instruction that no majority holds yet.

        Args:
            merge: just planned.
            agreed: by session, up to where a majority holds it durably.

        Raises:
            CorruptLog: the copy of a session on this node is damaged.
        """
        self.frames = {}
        slices = []
        for each in merge.slices:
            is_agreed = each.end <= agreed.get(each.session, START)
            slices.append(each if is_agreed else self._filled(each))
        return replace(merge, slices=tuple(slices)) if self.frames else merge

    def _filled(self, each: Slice) -> Slice:
        log = self._logs[each.session]
        made = replace(each, carried=log.take_bytes(each.first, each.length))
        headings = frames_of(made)
        if headings is None:
            path = log.log.file_path(each.first.file)
            raise CorruptLog(path, each.first, "a frame has changed since it arrived")
        self.frames[each.session] = made, headings
        return made


def frames_of(each: Slice) -> list[Heading] | None:
    """Return the headings of the frames that a slice carries; None unless they are what it names.

    A leader's entries are a peer's input: nothing of them is written unchecked.
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
