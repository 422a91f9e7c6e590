"""A simulated reader of a registered cursor, with the code that ships."""

from random import Random
from typing import TYPE_CHECKING, Any

from rt.client.readers.held_cursor import HeldCursor
from rt.errors import Fenced, RtError
from rt.net.exchange import Fields
from rt.position import START, Position

from .checkers import Violation
from .reader import SimReader

if TYPE_CHECKING:
    from .reading import ReadingCluster

SILENCE_S = 0.2


class SimHolder(SimReader):
    """A reader of the cursor: opens it, acknowledges what it reads, and gets fenced."""

    def __init__(
        self, world: "ReadingCluster", name: str, chance: Random, *, is_older: bool
    ) -> None:
        super().__init__(world, name, chance)
        self._is_older = is_older
        self._held: HeldCursor | None = None
        self._acked = START  # acknowledged, by any reader, when this one asked to open the cursor
        self._said_s = 0.0

    def step(self) -> None:
        """Open the cursor or renew it, and acknowledge a message from time to time."""
        held = self._held
        if held is None:
            if not self.is_waiting and self.chance.random() < 0.1:
                self._open()
            return
        is_sync = self.chance.random() < 0.05
        if self.chance.random() < 0.3 and (found := self.world.messages_after(held.position)):
            held.ack(found)
        if not self.is_waiting and (is_sync or self.now_s > self._said_s + SILENCE_S / 3):
            self._say(held, is_sign=not is_sync)

    def _open(self) -> None:
        takeover = self.chance.choice(["refuse", "refuse", "fence"])
        self._acked = self.world.acked
        request = {"do": "cursor-open", "name": "etl", "silence_s": SILENCE_S,
                   "pin_bytes": self.world.group.pin_bytes, "share": "", "holder": self.name,
                   "takeover": takeover}  # fmt: skip

        def take(answer: Fields | None, error: Exception | None) -> None:
            if answer is None:
                return
            position = Position.parse(answer["position"])
            if position < self._acked:
                raise Violation(f"{self.name} opens at {position}; {self._acked} was agreed")
            self._held = HeldCursor("etl", int(answer["epoch"]), position, self.now_s)

        self.ask(request, take)

    def _say(self, held: HeldCursor, *, is_sign: bool) -> None:
        self._said_s = self.now_s
        request = held.said(self.now_s, is_sign=is_sign)
        sent: dict[str, Any] = request
        if self._is_older:
            sent = {name: each for name, each in request.items()
                    if name not in ("latest", "asks_again")}  # fmt: skip
            request = {**request, "latest": True}

        def take(answer: Fields | None, error: Exception | None) -> None:
            if answer is not None:
                held.record_done(request)
                self.world.acked = max(self.world.acked, held.sent)
                return
            assert error is not None
            try:
                if held.must_ask_again(request, error):
                    self._said_s = 0.0
            except Fenced as fenced:
                if self.world.epoch <= held.epoch:
                    raise Violation(f"no reader took it: {fenced}") from None
                self._held = None
            except (RtError, OSError):
                pass  # it will send it again

        self.ask(sent, take)
