"""Links that no event loop serves, and a link to a node that is none."""

import select

from replicator.wire.codec import VERSION
from replicator.wire.decoder import Decoder
from replicator.wire.messages import Open, Standing
from rt.position import START


class Line:
    """A link to a node that takes everything, and answers what a test puts there."""

    name, has_left, memory, version = "n1", False, None, VERSION

    def __init__(self):
        self.answers, self.sessions, self.decoder = [], {}, Decoder()

    def take_no_frames(self):
        """Nothing comes."""

    def send(self, data):
        """Take it, and note which sessions are offered by which numbers."""
        for message in self.decoder.feed(bytes(data)):
            if isinstance(message, Open):
                self.sessions[message.channel] = message.identity.name

    post = send

    def receive(self, *_args, **_named):
        """Return what a test has put there."""
        answers, self.answers = self.answers, []
        return iter(answers)

    def beat(self):
        """Nothing is due."""

    def shipping(self, connection):
        """Connect, and have all that there is sent to a node that has nothing; return the line."""
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
