"""Fencing: seals a cluster whose log has ended, by the authority's signed statement."""

from collections.abc import Callable, Sequence
from typing import Final

from rt.errors import SEALED, Misuse, Refused, RtError, spoken
from rt.net.addresses import Address
from rt.net.admin import PASSING, ask_any
from rt.net.authority.successions import FIELD
from rt.net.contexts import Contexts
from rt.net.exchange import Fields

SUCCEED: Final = "succeed"  # the request that carries the statement
EVERY_S: Final = 1.0  # between two attempts
_WAITING: Final = (*PASSING, "not-leader", "stopping")  # codes of refusals that end by themselves


class Fencing:
    """Fencing: has a majority of a cluster's nodes agree that the cluster's log has ended.

    Attributes:
        answer: the answer of the node that has sealed the cluster; empty until then.
        failure: why the last attempt failed.
        is_sealed: whether the last attempt failed because the cluster was sealed before.
    """

    def __init__(
        self, addresses: Callable[[], Sequence[Address]], contexts: Contexts, text: str
    ) -> None:
        """Prepare; nothing is asked yet.

        Args:
            addresses: returns the addresses of the cluster's nodes.
            contexts: contexts with any certificate of the cluster's authority, and the stream.
            text: the authority's signed statement.
        """
        self._addresses, self._contexts = addresses, contexts
        self._request: Fields = {"do": SUCCEED, FIELD: text}
        self.answer: Fields = {}
        self.failure, self.is_sealed = "no node was asked yet", False

    def attempt(self) -> bool:
        """Ask once; return whether the cluster is sealed.

        Raises:
            Misuse: the nodes run a version that does not know this request.
            Refused: the nodes refuse, and a later attempt would not help.
        """
        try:
            self.answer = ask_any(self._addresses(), self._contexts, self._request, election_s=0.0)
        except Misuse:
            raise
        except (RtError, OSError) as error:
            code = error.code if isinstance(error, Refused) else ""
            self.is_sealed = code == SEALED  # sealed before, which its nodes tell every client
            if code and not self.is_sealed and code not in _WAITING:
                raise
            self.failure = spoken(error)
        return bool(self.answer) or self.is_sealed
