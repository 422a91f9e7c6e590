"""SessionRecords: what a node's sequencer has found out about each session, and the transitions."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rt.log.write.recent_frames import Heading
from rt.position import Position
from sequencer.ledger.instruction import Slice
from sequencer.ledger.session_facts import Tail


class Stuck(NamedTuple):
    """Stuck: why a session that a majority holds is not merged.

    Attributes:
        words: a sentence for its publisher and the operator.
        is_refused: whether it can never be merged, so that its publisher is refused.
        code: the code of that refusal.
    """

    words: str
    is_refused: bool = False
    code: str = "group"


class Proposed(NamedTuple):
    """Proposed: a slice that this node proposed, with the headings of its frames.

    The frames were read from this node's copy and checked.
    """

    planned: Slice
    headings: Sequence[Heading]


class SessionRecord:
    """SessionRecord: the findings about one session, most of them about this node's copy of it.

    Attributes:
        last_frame: the last frame that was merged while the copy was in doubt, or None. The ledger
            forgets that frame after a slice of repeats.
        is_unreadable: whether the last check could not read the copy; used to log that once.
        differed: how often a copy differed from the slice that was next.
        searched_to: the position up to which the copy was searched, without success, for a message
            that its group remembers; None if it was not searched.
        refused: why the session can never join its group, or "".
    """

    __slots__ = ("differed", "is_unreadable", "last_frame", "refused", "searched_to")

    def __init__(self) -> None:
        """Start with a copy of which nothing is known."""
        self.last_frame: Tail | None = None
        self.differed = 0
        self.set_aside()

    def set_aside(self) -> None:
        """Forget the findings about a copy that was set aside, but not how often one differed."""
        self.is_unreadable = False
        self.searched_to: Position | None = None
        self.refused = ""


class SessionRecords:
    """SessionRecords: the record of each session, and what happens to a session.

    | what happens                               | method         | the records afterwards        |
    |--------------------------------------------|----------------|-------------------------------|
    | the copy was opened, or has grown          | `grow`         | to be checked, if not checked |
    | a check found the merged bytes in the copy | `check_passed` | checked                       |
    | a check found other bytes, or damage       | `check_failed` | in doubt; `set_aside` follows |
    | bytes were merged without reading the copy | `doubt`        | to be checked                 |
    | this node adopted another node's ledger    | `doubt_all`    | all copies to be checked      |
    | the copy differs from the slice to merge   | `differ`       | one more difference counted   |
    | a slice of the session was merged          | `agree`        | no differences counted        |
    | the copy is damaged or wrong and removed   | `set_aside`    | empty, but for differences    |
    | reset, forgotten, expired, another owner   | `drop`         | empty                         |
    | this node restarts, or its power failed    | none           | empty                         |

    Whatever a method makes doubtful is also removed from memory: the copy's frames, and the slice
    of it that this node proposed.

    Attributes:
        checked: the sessions whose copies are known to hold the bytes that were merged.
        unchecked: the sessions whose copies must be checked; a dict for its order.
        differing: the sessions of which a copy differed from the slice that is next.
        stuck: the sessions that could not be merged when last planned, and why.
        proposed: by session, the slice in this node's last proposal.
    """

    def __init__(self, forget_frames: Callable[[str], None]) -> None:
        """Start without a record.

        Args:
            forget_frames: closes a session's copy, and removes its frames from memory.
        """
        self._forget_frames = forget_frames
        self._records: dict[str, SessionRecord] = {}
        self.checked: set[str] = set()
        self.unchecked: dict[str, None] = {}
        self.differing: set[str] = set()
        self.stuck: dict[str, Stuck] = {}
        self.proposed: dict[str, Proposed] = {}

    def __getitem__(self, session: str) -> SessionRecord:
        """Return a session's record, which the caller may change."""
        known = self._records.get(session)
        if known is None:
            known = self._records[session] = SessionRecord()
        return known

    # Transitions

    def grow(self, session: str) -> None:
        """Record that a session's copy was opened, or has grown."""
        if session not in self.checked:
            self.unchecked[session] = None

    def check_passed(self, session: str) -> None:
        """Record that a copy was found to hold the merged bytes."""
        known = self[session]
        known.is_unreadable, known.last_frame = False, None
        self.checked.add(session)
        self.unchecked.pop(session, None)

    def check_failed(self, session: str) -> None:
        """Record that a copy was found damaged or wrong; it is checked again once it grows."""
        self[session].last_frame = None
        self.unchecked.pop(session, None)

    def doubt(self, session: str, last_frame: Tail | None) -> None:
        """Have a copy checked, because a merge did not read it.

        Args:
            session: the session.
            last_frame: the last frame that was merged, or None if it is not known.
        """
        known = self[session]
        known.last_frame = last_frame or known.last_frame
        self.checked.discard(session)
        self.unchecked[session] = None
        self._forget_copy(session)

    def doubt_all(self, sessions: Iterable[str]) -> None:
        """Have every copy checked, because the ledger now comes from another node.

        Args:
            sessions: the sessions of which this node has a copy.
        """
        for known in self._records.values():
            known.last_frame = None
        self.checked.clear()
        self.unchecked = dict.fromkeys(sessions)
        for session in self.unchecked:
            self._forget_copy(session)

    def agree(self, session: str) -> None:
        """Record that a slice of a session was merged; needed only if a copy has differed."""
        self[session].differed = 0
        self.differing.discard(session)

    def differ(self, session: str) -> None:
        """Count that a copy differs from the slice that is next."""
        self[session].differed += 1
        self.differing.add(session)

    def set_aside(self, session: str) -> None:
        """Record that a copy was set aside; a new one, which must be checked, will replace it."""
        self._forget_copy(session)
        self.checked.discard(session)
        self.stuck.pop(session, None)
        if (known := self._records.get(session)) is not None:
            known.set_aside()

    def drop(self, session: str) -> None:
        """Record that an instruction dropped all nodes' copies of a session.

        Its next log shares nothing with this one. A copy that had to be checked is still checked,
        since it may be of the next log already.
        """
        self._forget_copy(session)
        self.checked.discard(session)
        self.differing.discard(session)
        self.stuck.pop(session, None)
        self._records.pop(session, None)

    def _forget_copy(self, session: str) -> None:
        self.proposed.pop(session, None)
        self._forget_frames(session)
