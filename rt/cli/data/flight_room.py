"""FlightRoom: makes `rt publish` wait while too many of its messages are not merged yet."""

import time
from collections.abc import Callable
from typing import Final

from rt.cli.common.console import note
from rt.cli.process.stop_signals import StopSignals
from rt.client.flight import Flight, FlightLimit
from rt.errors import LimitReached
from rt.log.notify.confirmations import ConfirmationsFile, Level
from rt.log.write.frame_gate import Room
from rt.publisher import Publisher
from rt.text import counted

_POLL_S: Final = 0.005
_SAY_FIRST_S: Final = 1.0
_SAY_S: Final = 60.0
_PIECES: Final = 8  # a flight limit is granted in this many pieces


class FlightRoom:
    """Makes a publisher wait while too many of its messages are not merged; says so on stderr.

    A signal ends the wait and all later waits: what was already read from the input is published
    even beyond the limit.
    """

    def __init__(
        self, publisher: Publisher, directory: str, messages: int, stop: StopSignals
    ) -> None:
        """Limit from now on how many of a publisher's messages are published and not merged yet.

        Args:
            publisher: the session's publisher.
            directory: the session's directory, where its pusher records what is merged.
            messages: the most messages that may be published and not merged yet.
            stop: the signals that end a wait.
        """
        self.piece = max(1, messages // _PIECES)  # messages to publish in one call
        confirmations = ConfirmationsFile(directory)
        self._flight = Flight(
            FlightLimit(messages, on_full="error"), lambda: publisher.taken,
            lambda: publisher.flush(Level.WRITTEN).position, lambda: confirmations.read().merged,
        )  # fmt: skip
        self._stop = stop
        self._reason: Callable[[], str] = lambda: publisher.shipping_note
        publisher.limit_flight(self._admit)

    def _admit(self, messages: int, size: int) -> Room:
        say_s = time.monotonic() + _SAY_FIRST_S
        while True:
            try:
                return self._flight.admit(messages, size)
            except LimitReached as full:
                if not self._stop.wait(_POLL_S):
                    return messages, size
                if time.monotonic() >= say_s:
                    say_s = time.monotonic() + _SAY_S
                    reason = self._reason() or "is rt push running?"
                    note(
                        f"waiting: {counted(full.messages)} published and not merged yet ({reason})"
                    )
