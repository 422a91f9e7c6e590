"""A client of another stream on the same nodes, with groups and cursors of the same names."""

from rt.errors import Refused
from rt.net.exchange import Fields

from .checkers import Violation
from .reader import SimReader

STREAM = "trains"
ORDERS: tuple[Fields, ...] = (
    {"do": "group-reset", "name": "etl", "start": "latest"},
    {"do": "group-forget", "name": "etl"},
    {"do": "cursor-reset", "name": "etl", "start": "latest"},
    {"do": "cursor-forget", "name": "etl"},
)
ASKING_SHARE = 0.03  # share of its turns


class Neighbour(SimReader):
    """Sends orders that would end this stream's readers to a node that serves this stream alone."""

    def step(self) -> None:
        """Send an order from time to time."""
        if self.is_waiting or self.chance.random() >= ASKING_SHARE:
            return

        def take(answer: Fields | None, error: Exception | None) -> None:
            if answer is not None:
                raise Violation(f"{self.name} asked about {STREAM}, and changed {answer}")
            if isinstance(error, Refused) and error.code != "stream":
                raise Violation(f"{self.name} asked about {STREAM}, and was answered: {error}")

        self.ask({"stream": STREAM, **self.chance.choice(ORDERS)}, take)
