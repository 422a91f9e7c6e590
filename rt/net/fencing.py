"""Fencing: has a cluster whose log has ended sealed, by the authority's word that it has."""

from collections.abc import Callable, Sequence
from typing import Final

from rt.errors import SEALED, Misuse, Refused, RtError, spoken
from rt.net.addresses import Address
from rt.net.admin import PASSING, ask_any
from rt.net.authority.successions import FIELD
from rt.net.contexts import Contexts
from rt.net.exchange import Fields

SUCCEED: Final = "succeed"  # the request that brings the word
EVERY_S: Final = 1.0  # between two attempts
_WAITING: Final = (*PASSING, "not-leader", "stopping")  # codes of refusals that end by themselves


class Fencing:
    """Fencing: asks the nodes of a cluster until a majority has agreed that its log has ended.

    Attributes:
        answer: what a node has answered; empty before.
        failure: why it is not sealed yet, or that it was before.
        is_sealed: whether it was sealed before.
    """

    def __init__(
        self, addresses: Callable[[], Sequence[Address]], contexts: Contexts, text: str
    ) -> None:
        """Ask nothing yet.

        Args:
            addresses: returns the addresses of the cluster's nodes.
            contexts: any certificate of the cluster's authority, and its stream.
            text: the authority's word.
        """
        self._addresses, self._contexts = addresses, contexts
        self._request: Fields = {"do": SUCCEED, FIELD: text}
        self.answer: Fields = {}
        self.failure, self.is_sealed = "no node was asked yet", False

    def attempt(self) -> bool:
        """Ask once; return whether the cluster is sealed.

        Raises:
            Misuse: its nodes are of a version that does not know this.
            Refused: they refuse, and not only for now.
        """
        try:
            self.answer = ask_any(self._addresses(), self._contexts, self._request, election_s=0.0)
        except Misuse:
            raise
        except (RtError, OSError) as error:
            code = error.code if isinstance(error, Refused) else ""
            self.is_sealed = code == SEALED  # it tells everyone so already
            if code and not self.is_sealed and code not in _WAITING:
                raise
            self.failure = spoken(error)
        return bool(self.answer) or self.is_sealed
