"""Links to nodes for tests without an event loop: helpers, and a fake link."""

import select

from replicator.wire.codec import VERSION
from replicator.wire.decoder import Decoder
from replicator.wire.messages import Open, Standing
from rt.position import START


class Line:
    """A fake link to a node that accepts everything, and answers what a test puts in `answers`."""

    name, has_left, memory, version = "n1", False, None, VERSION

    def __init__(self):
        self.answers, self.sessions, self.decoder = [], {}, Decoder()

    def take_no_frames(self):
        """Do nothing: no frames come."""

    def send(self, data):
        """Take data, and record the session that each Open message in it offers, by its number."""
        for message in self.decoder.feed(bytes(data)):
            if isinstance(message, Open):
                self.sessions[message.channel] = message.identity.name

    post = send

    def receive(self, *_args, **_named):
        """Return the answers that a test has prepared, once."""
        answers, self.answers = self.answers, []
        return iter(answers)

    def beat(self):
        """Do nothing: no heartbeat is due."""

    def shipping(self, connection):
        """Have a connection send all sessions to a node that holds none of them; return self."""
        connection.begin(self)
        turns(connection)
        self.answers = [Standing(number, START) for number in self.sessions]
        turns(connection)
        return self


def turns(connection, count=6):
    """Let a connection take some turns."""
    for _ in range(count):
        connection.turn()


def arrives(link, timeout_s):
    """Wait until a link has something to receive; return whether it has."""
    if not link.has_more and select.select([link.fileno()], [], [], timeout_s)[0]:
        link.has_more = True
    return link.has_more
