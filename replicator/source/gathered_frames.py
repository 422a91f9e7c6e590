"""GatheredFrames: the frames that sessions grew by since they were last announced, in memory."""

from collections.abc import Sequence
from typing import Final

from rt.limits import SMALL_BYTES
from rt.log.notify.in_process_notify import WrittenFrame

_FRAMES_MAX: Final = 64


class GatheredFrames:
    """Keeps small frames until they are announced, so that no connection has to read them.

    They are a hint. A sender compares where they begin with what it has sent, and reads the file
    where they do not fit, for example because frames of two threads came in the wrong order.

    Threads: threads that publish call `add`, the loop the rest. A frame that is added
    to a list just taken is lost, and then read from the file.
    """

    def __init__(self) -> None:
        self._frames: dict[str, list[WrittenFrame]] = {}  # by session; empty: not all at hand

    def add(self, session: str, frame: WrittenFrame | None) -> None:
        """Add what a session grew by; None if that is large, or not known."""
        frames = self._frames.get(session)
        if frames is None:
            self._frames[session] = [] if frame is None else [frame]
        elif frames:
            is_little = frame is not None and frame.end - frames[0].position <= SMALL_BYTES
            if frame is not None and is_little and len(frames) < _FRAMES_MAX:
                frames.append(frame)
            else:
                self._frames[session] = []

    def take(self, session: str) -> WrittenFrame | None:
        """Return all frames of a session as one; None if they are not all at hand, or not few."""
        # A thread in `add` may still append to the list: what is joined is what was checked.
        return _joined(tuple(self._frames.pop(session, ())))

    def forget(self) -> None:
        """Forget all frames, since all sessions are looked at."""
        self._frames.clear()


def _joined(frames: Sequence[WrittenFrame]) -> WrittenFrame | None:
    if len(frames) < 2:
        return frames[0] if frames else None
    first, end = frames[0], frames[0].position
    for each in frames:
        if each.position != end or each.log != first.log:
            return None
        end = each.end
    data = b"".join([each.data for each in frames])
    messages, count = sum(each.messages for each in frames), sum(each.frames for each in frames)
    return WrittenFrame(first.log, first.position, data, messages, count)
