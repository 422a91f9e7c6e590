"""HeldCursor: makes the requests of a registered cursor's holder, and interprets the answers."""

from typing import Any, Final

from rt.errors import Fenced, Refused
from rt.log.files.continued import ContinuedLog
from rt.position import START, Position

_STORE_S: Final = 1.0  # how often acknowledgements are sent
_TAKEN: Final = ("fenced", "unknown-cursor")


class HeldCursor:
    """The state of a registered cursor's holder; it has no thread, clock or socket.

    A node that lags may wrongly call a held cursor taken or unknown. So the holder asks again and
    requires the latest state before it believes that.

    Attributes:
        name: the name of the cursor.
        epoch: the number that the nodes gave to this use of the cursor.
        position: everything before it is acknowledged, whether the nodes have agreed on that or
            not.
        sent: the position up to which the nodes have agreed on the acknowledgement.
        fenced: the error to raise once another reader has taken the cursor; None before that.
        log: the id of the log that both positions belong to; "" while it is not known.
    """

    def __init__(self, name: str, epoch: int, position: Position, now_s: float) -> None:
        """Begin where the nodes say that the cursor is."""
        self.name = name
        self.epoch = epoch
        self.position = self.sent = position
        self.fenced: Fenced | None = None
        self.log = ""
        self._sent_s = now_s
        self._is_unsure = False  # whether a refusal has to be confirmed

    def ack(self, position: Position) -> None:
        """Acknowledge everything before a position; an earlier position changes nothing."""
        self.position = max(self.position, position)

    def carry(self, continued: ContinuedLog) -> None:
        """Move the cursor to the log that continues its log, whose nodes then get the position."""
        if self.log in ("", continued.old):
            self.log, self.sent = continued.new, START
            self.position = min(self.position, continued.cut)

    def said(self, now_s: float, *, is_sign: bool = False, release: bool = False) -> dict[str, Any]:
        """Return the next request; a mere sign of life includes the position only when due."""
        request: dict[str, Any] = {
            "do": "cursor-ack", "name": self.name, "epoch": self.epoch, "release": release,
            "latest": self._is_unsure, "asks_again": True,
        }  # fmt: skip
        if self.log:
            request["log"] = self.log
        is_due = self.position > self.sent and now_s - self._sent_s >= _STORE_S
        if is_due or not is_sign:
            request["position"] = str(self.position)
            self._sent_s = now_s
        return request

    def record_done(self, request: dict[str, Any]) -> None:
        """Record that a request was carried out."""
        self._is_unsure = False
        if "position" in request and request.get("log", "") in ("", self.log):
            self.sent = max(self.sent, Position.parse(request["position"]))

    def must_ask_again(self, request: dict[str, Any], error: Exception) -> bool:
        """Record that a request was refused, or not answered.

        Returns:
            Whether to repeat the request at once, requiring the latest state.

        Raises:
            Fenced: another reader has certainly taken the cursor.
            Exception: the given error, if it says nothing about the cursor.
        """
        if not isinstance(error, Refused) or error.code not in _TAKEN:
            raise error
        if not request["latest"]:
            self._is_unsure = True
            return True
        self.fenced = Fenced(self.name, str(error))
        raise self.fenced from None
