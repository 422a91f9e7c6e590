"""LagWatch: decides whether the node that a copy comes from lags the other nodes."""

from collections.abc import Hashable, Iterable
from typing import Final, Generic, NamedTuple, TypeVar

from rt.amounts import duration_text
from rt.position import START, Position

Node = TypeVar("Node", bound=Hashable)

# Time between two questions. Each question costs the node a handshake, some 3 ms, so 100 readers
# of three nodes cost each node a thirtieth of a processor.
LOOK_S: Final = 3.0
LAG_S: Final = 5.0  # nodes merge within milliseconds; an election takes one or two seconds
AVOID_S: Final = 60.0  # after so long, a node that was left may be tried again in any case


class _Target(NamedTuple):
    """The end that the current node has to reach, because another node has reported it.

    Attributes:
        end: the end to reach.
        node: the other node, which has reported this end.
        heard_s: when the other node reported it.
    """

    end: Position
    node: Hashable
    heard_s: float


class _Heard(NamedTuple):
    """A node's last known end, and when the node was last asked; `end` never decreases."""

    end: Position
    asked_s: float
    is_silent: bool  # whether the node left the last question unanswered


class LagWatch(Generic[Node]):
    """LagWatch: decides which node to ask next how far it has merged, and when to leave a node.

    The puller leaves its current node if another node has reported an end, and the current node,
    asked `lag_s` later, still reports an earlier end. If the current node does not answer, the
    puller leaves it once the copy has not grown for `lag_s`. A node that has everything is kept,
    even if the copy has not caught up with it. A node that was left is avoided for `AVOID_S`, or
    until it has what it lacked. No node is left unless another node is known to have more, or is
    nearer and has as much.

    Pure: the caller passes the time.
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        *,
        near: Iterable[Node] = (),
        look_s: float = LOOK_S,
        lag_s: float = LAG_S,
    ) -> None:
        """Prepare; nothing is asked before a node is connected.

        Args:
            nodes: all nodes that may be copied from.
            near: those of them that are preferred, in this order, unless they lag.
            look_s: time between two questions.
            lag_s: how long a node may lack bytes that another has.
        """
        self._nodes, self._near = list(dict.fromkeys(nodes)), list(dict.fromkeys(near))
        self.look_s, self._lag_s = look_s, lag_s
        self._heard: dict[Node, _Heard] = {}
        self._answered: Node | None = None  # the node asked last, since the last `why_leave`
        self._avoided: dict[Node, tuple[Position, float]] = {}  # what it lacked, and until when
        self._current: Node | None = None
        self._since_s = 0.0  # when the current node was connected
        self._place, self._grown_s = START, 0.0  # where the copy continues; when it last grew
        self._target: _Target | None = None
        self._next_s = 0.0  # when to ask again
        self._turn = 0

    def follow(self, nodes: Iterable[Node]) -> None:
        """Compare these nodes from now on, and no others."""
        self._nodes = list(dict.fromkeys(nodes))
        self._heard = {each: self._heard[each] for each in self._nodes if each in self._heard}
        self._avoided = {each: why for each, why in self._avoided.items() if each in self._nodes}
        self._target = None

    def restart(self) -> None:
        """Forget all ends, because the copy now belongs to another log."""
        self._heard, self._avoided, self._answered = {}, {}, None
        self._place, self._target = START, None

    @property
    def furthest(self) -> Position:
        """The furthest end that any node has reported."""
        return max((each.end for each in self._heard.values()), default=START)

    def connected(self, node: Node | None, now_s: float) -> None:
        """Record the node that the copy comes from now; None if no node is connected."""
        self._current, self._target = node, None
        self._since_s = self._grown_s = now_s

    def grown(self, place: Position, now_s: float) -> None:
        """Record where the copy continues now."""
        if place > self._place:
            self._place, self._grown_s = place, now_s

    def due(self, now_s: float) -> Node | None:
        """Return the node to ask now; None if none is due."""
        if self._current is None or len(self._nodes) < 2 or now_s < self._next_s:
            return None
        self._next_s = now_s + self.look_s
        is_overdue = self._is_overdue(now_s)
        if is_overdue and not self._has_answered_late():
            return self._current
        nodes = [each for each in self._nodes if is_overdue or each != self._current]
        self._turn += 1
        return nodes[self._turn % len(nodes)]

    def heard(self, node: Node, end: Position | None, now_s: float) -> None:
        """Record the end that a node reported; `end` is None if the node gave no answer."""
        known = self._heard.get(node, _Heard(START, now_s, is_silent=False))
        self._answered = node
        self._heard[node] = _Heard(max(known.end, end or START), now_s, end is None)
        lacked = self._avoided.get(node)
        if lacked is not None and end is not None and end >= lacked[0]:
            del self._avoided[node]
        self._aim()

    def why_leave(self, now_s: float) -> str:
        """Return why the current node must be left now, or "".

        The current node is left only right after it was asked, since it may catch up at any time.
        If this returns a reason, the node is avoided from now on.
        """
        answered, self._answered = self._answered, None
        why = "" if answered is None or answered != self._current else self.lag(now_s)
        target, current = self._target, self._current
        if not why or target is None or current is None or not self._has_better(target, now_s):
            return ""
        self._avoided[current] = (target.end, now_s + AVOID_S)
        return f"{why}; another node is asked instead"

    def lag(self, now_s: float) -> str:
        """Return, as text, how far the current node lags; "" if it has not lagged for `lag_s`."""
        self._aim()
        target, current = self._target, self._current
        if target is None or current is None or not self._is_overdue(now_s):
            return ""
        own = self._heard.get(current)
        had = f"{target.node} had {target.end} {duration_text(now_s - target.heard_s)} ago"
        if own is None or not self._has_answered_late():
            return ""
        if not own.is_silent:
            return f"it has merged up to {own.end}, and {had}"
        if now_s - self._grown_s < self._lag_s:
            return ""
        return f"it has sent nothing after {self._place}, and {had}"

    def avoids(self, node: Node, now_s: float) -> bool:
        """Whether a node was left because it lagged, and may still lag."""
        lacked = self._avoided.get(node)
        return lacked is not None and now_s < lacked[1]

    def puts_off(self, node: Node, now_s: float) -> bool:
        """Whether to dial a node only if no other node can be reached.

        This is so if the node is avoided, or if it is not near and some near node is not avoided.
        """
        if self.avoids(node, now_s):
            return True
        return node not in self._near and not all(self.avoids(each, now_s) for each in self._near)

    def is_nearer(self, node: Node, end: Position | None, place: Position, now_s: float) -> bool:
        """Whether to leave the current node for `node`, which is nearer and has enough.

        It has enough if its end is at or after the copy's. A node with less would send nothing.

        Args:
            node: the node that was asked.
            end: the end that it reported; None if it gave no answer.
            place: where the copy continued when the node was asked.
            now_s: the time in seconds.
        """
        current = self._current
        if current is None or end is None or end < place or self.avoids(node, now_s):
            return False
        before = self._near.index(current) if current in self._near else len(self._near)
        return node in self._near[:before]

    def _has_answered_late(self) -> bool:
        """Whether the current node was last asked when its time to reach the target was over."""
        own = None if self._current is None else self._heard.get(self._current)
        if own is None or self._target is None:
            return False
        return own.asked_s >= max(self._since_s, self._target.heard_s + self._lag_s)

    def _is_overdue(self, now_s: float) -> bool:
        return self._target is not None and now_s >= self._target.heard_s + self._lag_s

    def _has_better(self, target: _Target, now_s: float) -> bool:
        """Whether another node answers, and has reached the end that the current node lacks."""
        return any(
            node != self._current
            and known.end >= target.end
            and not known.is_silent
            and not self.avoids(node, now_s)
            for node, known in self._heard.items()
        )

    def _aim(self) -> None:
        """Set the target to the end that was reported first of those the current node may lack."""
        if self._current is None:
            return
        own = self._heard.get(self._current)
        reached = max(self._place, START if own is None else own.end)
        if self._target is not None and reached >= self._target.end:
            self._target = None
        if self._target is None:
            further = [
                _Target(known.end, node, known.asked_s)
                for node, known in self._heard.items()
                if node != self._current and known.end > reached and not known.is_silent
            ]
            self._target = min(further, key=lambda each: each.heard_s, default=None)
