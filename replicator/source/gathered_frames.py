"""GatheredFrames: keeps in memory the frames that sessions grew by since the last announcement."""

from collections.abc import Sequence
from typing import Final

from rt.limits import SMALL_BYTES
from rt.log.notify.in_process_notify import WrittenFrame

_FRAMES_MAX: Final = 64


class GatheredFrames:
    """GatheredFrames: keeps small frames until they are announced, to save reading them.

    The kept frames are only a hint. A sender checks that they follow what it has sent, and
    otherwise reads the file, for example when two threads have added frames in the wrong order.

    Threads: threads that publish call `add`; the loop calls the rest. If a frame is added to a list
    that was just taken, it is lost here, and the sender reads it from the file.
    """

    def __init__(self) -> None:
        self._frames: dict[str, list[WrittenFrame]] = {}  # by session; empty if any is missing

    def add(self, session: str, frame: WrittenFrame | None) -> None:
        """Add a session's new frame; `frame` is None if the frame is large, or not in memory."""
        frames = self._frames.get(session)
        if frames is None:
            self._frames[session] = [] if frame is None else [frame]
        elif frames:
            is_little = frame is not None and frame.end - frames[0].position <= SMALL_BYTES
            if frame is not None and is_little and len(frames) < _FRAMES_MAX:
                frames.append(frame)
            else:
                self._frames[session] = []

    def pop(self, session: str) -> WrittenFrame | None:
        """Return a session's frames joined; None if any is missing, or the total is too large."""
        # A thread in `add` may still append to the list, so check and join a copy.
        frames = tuple(self._frames.pop(session, ()))
        return _joined(frames) if len(frames) > 1 else frames[0] if frames else None

    def forget(self) -> None:
        """Forget all frames, because all sessions will be read."""
        self._frames.clear()


def _joined(frames: Sequence[WrittenFrame]) -> WrittenFrame | None:
    first, end = frames[0], frames[0].position
    for each in frames:
        if each.position != end or each.log != first.log:
            return None
        end = each.end
    data = b"".join([each.data for each in frames])
    messages, count = sum(each.messages for each in frames), sum(each.frames for each in frames)
    return WrittenFrame(first.log, first.position, data, messages, count)
