"""CopyState: what a node's sequencer has found out about its copy of one session."""

from rt.position import Position


class CopyState:
    """CopyState: one session's copy, as planning and execution have met it.

    | what happens                                | what is forgotten                  |
    |---------------------------------------------|------------------------------------|
    | it is set aside, damaged or different       | all but how often a copy differed  |
    | an instruction drops all copies             | everything                         |
    | it agrees with the next slice               | that earlier ones differed         |

    Attributes:
        differed: how often a copy differed from the slice that was next.
        searched_to: no message that its group remembers was found before this; None: not searched.
        refused: why it can never join its group, or "".
        is_unreadable: whether it could not be read when it was checked last; logged once.
    """

    __slots__ = ("differed", "is_unreadable", "refused", "searched_to")

    def __init__(self) -> None:
        self.differed = 0
        self.set_aside()

    def set_aside(self) -> None:
        """Forget the copy: another one begins in its place."""
        self.searched_to: Position | None = None
        self.refused = ""
        self.is_unreadable = False
