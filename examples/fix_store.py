"""Keep a FIX session in a log: `python examples/fix_store.py ROOT SESSION [ORDERS]`.

After any crash a FIX engine must know the number of the next message that it sends, the number that
it expects, and the bytes of what it has sent, which the other side may ask for again. Here each is
a message of one rt session. This sends ORDERS orders as an engine would, and prints what the other
side may ask for. Killed anywhere, it goes on with the next number: none is used twice or left out.

With `client.publisher(SESSION)` in place of `rt.Publisher` the nodes hold the session as well;
`flush("replicated", timeout_s=0.01)` is then what engines call synchronous replication.
"""

import sys
from collections.abc import Iterator

from rt import Message, Position, Publisher, RtError, Subscriber

try:
    import simplefix
except ImportError:
    sys.exit("fix_store: simplefix is missing: pip install simplefix")

STREAM = "fix"


class FixStore:
    """The messages and numbers of one FIX session, as an engine's message store keeps them."""

    def __init__(self, root: str, session: str) -> None:
        """Read what the session has; numbers begin at 1, also after a reset."""
        self._root, self._session = root, session
        self._publisher = Publisher(root, stream=STREAM, session=session)
        self.next_expected = 1
        self._sent: list[int] = []  # where in the rt session each message is, since the last reset
        self._begin = Position(0)  # the last reset that was read
        self._publisher.flush("written")  # so that there is a log
        for event in self._events():
            self._apply(event.key, event.payload, event.sequence)
            if event.key == b"reset":
                self._begin = event.position

    @property
    def next_sent(self) -> int:
        """The number of the next message to send."""
        return len(self._sent) + 1

    def sent(self, message: bytes) -> None:
        """Keep a message that is about to be sent; it is on the disk when this returns."""
        if (number := number_of(message)) != self.next_sent:
            raise ValueError(f"message {number} is not the next one, {self.next_sent}")
        self._keep(b"sent", message)

    def received(self, number: int) -> None:
        """Keep that all messages of the other side up to this one were handled."""
        self._keep(b"received", b"%d" % number)

    def reset(self) -> None:
        """Begin again at 1 on both sides, as after a Logon with ResetSeqNumFlag."""
        self._keep(b"reset", b"")

    def again(self, first: int, last: int = 0) -> Iterator[bytes]:
        """Return the messages that a ResendRequest asks for; 0 as the last means all."""
        places = self._sent[max(first, 1) - 1 : last or None]
        for event in self._events() if places else ():
            if event.key == b"sent" and event.sequence >= places[0]:
                yield event.payload
            if event.sequence >= places[-1]:
                return

    def close(self) -> None:
        """End; what was kept is on the disk."""
        self._publisher.close()

    def _keep(self, kind: bytes, payload: bytes) -> None:
        place = self._publisher.publish(payload, key=kind)
        self._publisher.flush("synced")
        self._apply(kind, payload, place)

    def _apply(self, kind: bytes | None, payload: bytes, place: int) -> None:
        if kind == b"sent":
            self._sent.append(place)
        elif kind == b"received":
            self.next_expected = int(payload) + 1
        elif kind == b"reset":
            self._sent, self.next_expected = [], 1

    def _events(self) -> Iterator[Message]:
        with Subscriber(
            self._root, stream=STREAM, session=self._session, start=self._begin, follow=False
        ) as log:
            yield from log


def number_of(message: bytes) -> int:
    """Return the MsgSeqNum of a FIX message."""
    parser = simplefix.FixParser()
    parser.append_buffer(message)
    found = parser.get_message()
    if found is None or found.get(34) is None:
        raise ValueError("this is no whole FIX message with a MsgSeqNum")
    return int(found.get(34))


def order(number: int) -> bytes:
    """Return a NewOrderSingle with this number."""
    message = simplefix.FixMessage()
    for tag, value in ((8, "FIX.4.4"), (35, "D"), (49, "US"), (56, "THEM"), (34, number)):
        message.append_pair(tag, value, header=True)
    for tag, value in ((11, f"order-{number}"), (55, "AA"), (54, 1), (38, 100), (40, 1)):
        message.append_pair(tag, value)
    encoded: bytes = message.encode()
    return encoded


def main(root: str, session: str, orders: str = "3") -> None:
    """Send some orders; print the numbers, and what could be sent again."""
    if not (orders.isascii() and orders.isdecimal()):
        raise ValueError(f"ORDERS is {orders!r}; use a whole number")
    store = FixStore(root, session)
    try:
        for _ in range(int(orders)):
            message = order(store.next_sent)
            store.sent(message)  # before it goes to the other side
            print("sent", number_of(message), flush=True)
            store.received(store.next_expected)  # its execution report
        print(f"next to send {store.next_sent}, next expected {store.next_expected}")
        for message in store.again(max(store.next_sent - 2, 1)):
            print("can be sent again:", message.decode().replace("\x01", "|"))
    finally:
        store.close()


if __name__ == "__main__":
    if not 3 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except (RtError, OSError, ValueError) as error:
        sys.exit(f"fix_store: {error}")
