"""EndAsks: asks a node, or a mirror, where the stream ends."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from rt.errors import Misuse, PeerError, Refused, RtError, spoken
from rt.net.addresses import Address, address_text
from rt.net.admin import END, ask, member_addresses, reading_answers
from rt.net.authority.identity import SERVING
from rt.net.contexts import Contexts
from rt.net.tls import client_context
from rt.position import Position

HOPS_MAX: Final = 8  # mirrors that a question may pass, each of which copies from the next
_LATEST_S: Final = 12.0  # a node without a majority refuses after ten seconds
_SERVED_S: Final = 2.0
_ELSEWHERE: Final = ("not-leader", "stopping")
_FOR_GOOD: Final = ("role", "stream", "hops")


class NoEnd(NamedTuple):
    """NoEnd: why a node could not say where the stream ends.

    Attributes:
        why: the reason, as a sentence.
        members: members of the cluster, one of which may know the end.
        for_good: whether it is useless to ask the node again.
    """

    why: str
    members: Sequence[Address] = ()
    for_good: bool = False


class EndAsks:
    """EndAsks: asks nodes where a stream ends, for a puller. Any thread may call any method."""

    def __init__(self, contexts: Contexts) -> None:
        """Prepare; nothing is asked yet.

        Args:
            contexts: contexts made by `rt.net.tls.client_context`; questions need contexts of their
                own, made from the same files.
        """
        self._successions = contexts.successions
        self._files, self._stream = contexts.files, contexts.stream
        self._made: Contexts | None = None

    @property
    def _contexts(self) -> Contexts:
        made = self._made
        if made is None:
            made = self._made = Contexts(self._files, client_context, self._stream)
            made.successions = self._successions
        return made

    def close(self) -> None:
        """Forget the certificate, whose files may now be removed. Idempotent."""
        self._made = None

    def latest(self, node: Address, hops: int = HOPS_MAX) -> Position | NoEnd:
        """Return a position after everything confirmed as merged before this call.

        If the node cannot tell, return why.

        Args:
            node: the node or mirror to ask. A node has a majority confirm that it leads; a mirror
                asks its nodes.
            hops: how many mirrors the question may pass.
        """
        asked = address_text(node)
        try:
            return self._ask(node, {"latest": True, "hops": hops}, _LATEST_S)
        except Misuse:
            words = f"{asked} runs a version that cannot say it; update the nodes first"
            return NoEnd(words, for_good=True)
        except Refused as error:
            elsewhere = error.code in _ELSEWHERE
            members = member_addresses(node, self._contexts) if elsewhere else ()
            return NoEnd(f"{asked}: {error}", members, for_good=error.code in _FOR_GOOD)
        except (RtError, OSError) as error:
            return NoEnd(f"{asked}: {spoken(error)}")

    def served(self, node: Address) -> Position | None:
        """Return the end that a node or mirror serves now; None if `node` does not answer.

        The node may serve less than was merged. The question costs a handshake.
        """
        try:
            return self._ask(node, {}, _SERVED_S)
        except (RtError, OSError):
            return None

    def _ask(self, node: Address, more: dict[str, object], answer_s: float) -> Position:
        request = {"do": END, **more}
        answer = ask(node, self._contexts, request, roles=SERVING, answer_s=answer_s)
        with reading_answers():
            text = answer["end"]
            if not isinstance(text, str):
                raise PeerError("a node's answer cannot be read; does it run our version?")
            return Position.parse(text)
