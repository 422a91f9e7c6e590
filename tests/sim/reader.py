"""What simulated members of groups and holders of cursors share: turns, pauses, and requests."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from rt.net.exchange import Fields

from .asking import SimAsking

if TYPE_CHECKING:
    from .reading import ReadingCluster

TURN_US = (500, 6_000)  # time between two messages of a handler


class SimReader(ABC):
    """Base of members and holders: they take turns, pause, and read one copy of the stream."""

    def __init__(self, world: "ReadingCluster", name: str, chance: Random) -> None:
        self.world, self.name, self.chance = world, name, chance
        self.asking = SimAsking(world, chance)
        self.paused_until_us = 0
        self.is_over = self.is_waiting = False
        world.clock.after(chance.randint(*TURN_US), self._turn)

    def die(self) -> None:
        """End at once, without telling anyone."""
        self.is_over = True

    @property
    def now_s(self) -> float:
        """The reader's clock."""
        return self.world.clock.now_us / 1e6

    def _turn(self) -> None:
        if self.is_over:
            return
        now_us = self.world.clock.now_us
        if now_us < self.paused_until_us:
            self.world.clock.after(self.paused_until_us - now_us, self._turn)
            return
        self.step()
        self.world.clock.after(self.chance.randint(*TURN_US), self._turn)

    @abstractmethod
    def step(self) -> None:
        """Do what there is to do."""

    def ask(self, request: Fields, done: Callable[[Fields | None, Exception | None], None]) -> None:
        """Send a request; `done` is called when this reader is awake."""
        self.is_waiting = True

        def take(answer: Fields | None, error: Exception | None) -> None:
            now_us = self.world.clock.now_us
            if self.is_over:
                return
            if now_us < self.paused_until_us:
                self.world.clock.after(self.paused_until_us - now_us, take, answer, error)
                return
            self.is_waiting = False
            done(answer, error)

        self.asking.ask(request, take)
