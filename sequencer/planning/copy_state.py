"""CopyState: the findings of a node's sequencer about its copy of one session."""

from rt.position import Position


class CopyState:
    """CopyState: findings of planning and execution about one session's copy.

    | what happens                                | what is forgotten                  |
    |---------------------------------------------|------------------------------------|
    | it is set aside as damaged or different     | all but how often a copy differed  |
    | an instruction drops all copies             | everything                         |
    | it agrees with the next slice               | how often earlier copies differed  |

    Attributes:
        differed: how often a copy differed from the slice that was next.
        searched_to: the position up to which the copy was searched, without success, for a message
            that its group remembers; None if it was not searched.
        refused: why the session can never join its group, or "".
        is_unreadable: whether the last check could not read the copy; used to log that once.
    """

    __slots__ = ("differed", "is_unreadable", "refused", "searched_to")

    def __init__(self) -> None:
        self.differed = 0
        self.set_aside()

    def set_aside(self) -> None:
        """Forget the findings about a copy that was set aside."""
        self.searched_to: Position | None = None
        self.refused = ""
        self.is_unreadable = False
