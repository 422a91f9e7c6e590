"""A network that loses, repeats, delays and reorders, and can be cut in either direction."""

from collections.abc import Callable
from random import Random

from .clock import Clock

REMEMBERED = 60  # old messages that may arrive again

Deliver = Callable[[str, str, bytes], None]


class Wire:
    """Carries bytes between named nodes.

    Attributes:
        loss, repeat: the share of messages lost or repeated, 0 to 1.
        delay_us: the longest usual delay; one in twenty takes ten times as long.
        cut: pairs of source and target whose messages are lost.
    """

    def __init__(self, clock: Clock, chance: Random, deliver: Deliver) -> None:
        self._clock, self._chance, self.deliver = clock, chance, deliver
        self.loss = 0.0
        self.repeat = 0.0
        self.delay_us = 2_000
        self.cut: dict[tuple[str, str], bool] = {}
        self.gone = ""  # a node that was lost together with everything it had sent
        self._sent: list[tuple[str, str, bytes]] = []

    def send(self, source: str, target: str, data: bytes) -> None:
        """Send a message, which may be lost, repeated or delayed."""
        chance = self._chance
        if len(self._sent) < REMEMBERED:
            self._sent.append((source, target, data))
        else:
            self._sent[int(chance.random() * REMEMBERED)] = (source, target, data)
        if (source, target) in self.cut or (self.loss and chance.random() < self.loss):
            return
        self._clock.after(self._delay_us(), self._arrive, source, target, data)
        if self.repeat and chance.random() < self.repeat:
            late = chance.choice((2, 8, 40)) * self._delay_us()
            self._clock.after(late, self._arrive, source, target, data)

    def _delay_us(self) -> int:
        drawn = self._chance.random()
        return 100 + int(drawn * 20 * self.delay_us if drawn < 0.05 else drawn * self.delay_us)

    def _arrive(self, source: str, target: str, data: bytes) -> None:
        if (source, target) not in self.cut and source != self.gone:
            self.deliver(source, target, data)

    def replay(self, count: int) -> None:
        """Deliver some messages again, however old they are."""
        for _ in range(count if self._sent else 0):
            source, target, data = self._chance.choice(self._sent)
            self._clock.after(self._delay_us(), self._arrive, source, target, data)

    def heal(self) -> None:
        """Restore all links."""
        self.cut.clear()

    def isolate(self, inside: list[str], outside: list[str], *, hears: bool, speaks: bool) -> None:
        """Cut a group off, in one direction or both."""
        for one in inside:
            for other in outside:
                if not speaks:
                    self.cut[one, other] = True
                if not hears:
                    self.cut[other, one] = True
