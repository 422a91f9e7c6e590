"""CatchUp: copies the merged log from another node, as any subscriber would."""

from replicator.pull import PullClient
from rt.certificates import certificate_files
from rt.node_settings import NodeSettings
from rt.position import Position
from rt.tls import Contexts, client_context


class CatchUp:
    """A copy under way, into a node's own merged log, which nobody else has open meanwhile."""

    def __init__(self, settings: NodeSettings, begin: Position) -> None:
        """Begin to copy.

        Args:
            settings: of this node; all other members are asked in turn.
            begin: where the merged log here goes on; the copy is of use once it is beyond.
        """
        others = [place for name, place in settings.addresses.items() if name != settings.name]
        contexts = Contexts(certificate_files(settings.certs, settings.name), client_context)
        self._pull = PullClient(settings.root, settings.stream, others, contexts)
        self._begin = begin
        self._pull.start()

    @property
    def position(self) -> Position:
        """Up to where it is copied."""
        return self._pull.status().position

    def is_done(self, ledger_end: Position) -> bool:
        """Whether merging can go on: the copy holds the ledger's end and all its source had."""
        status = self._pull.status()
        return status.caught_up and max(ledger_end, self._begin + 1) <= status.next_place

    def stop(self) -> None:
        """End the copy and release the log."""
        self._pull.stop()
