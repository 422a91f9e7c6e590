"""Events: what a reader meets between messages."""

from dataclasses import dataclass

from rt.position import Position


@dataclass(frozen=True, slots=True)
class Gap:
    """Part of the log is not there any more; reading goes on at `end`.

    Args:
        begin: the position that was to be read next.
        end: the first position that is there.
        files: the files that are gone, by name; at most the first 100 of them.
        reason: as the manifest has it, for example `time`, `limit`, `disk`; `missing` if nothing
            accounts for it.
        at_ns: when the last of them was archived, ns since the epoch; 0 if nothing tells.
    """

    begin: Position
    end: Position
    files: tuple[str, ...]
    reason: str
    at_ns: int

    def __str__(self) -> str:
        names = ", ".join(self.files[:3]) + (", ..." if len(self.files) > 3 else "")
        return (
            f"the log from {self.begin} to {self.end} was archived ({self.reason}; {names}); "
            f"start from {self.end} to go on behind it"
        )


@dataclass(frozen=True, slots=True)
class NewRun:
    """A session's writer was started again."""

    session: str
    position: Position  # in the session


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Everything that is there has been read."""

    position: Position


Event = Gap | NewRun | CaughtUp
