"""Groups of readers for tests: a ledger, its leaders, and the peers that send requests."""

from functools import partial
from types import SimpleNamespace

from rt.log.files.directory import LogDirectory
from rt.net.authority.identity import CertificateRole, PeerIdentity
from rt.node.agree.latest import confirmed
from rt.node.agree.steps import Order, Until, perform
from rt.node.notes.reading_group import GROUP_NOTE, parse_reading_group
from rt.node.readers.claims_heard import ClaimsHeard
from rt.node.readers.groups import NodeGroups
from sequencer.ledger.instruction import decode_instruction, encode_instruction
from sequencer.ledger.ledger import Ledger

SPARK = PeerIdentity("spark", CertificateRole.SUBSCRIBER, streams=("*",), leases=True)
NAS = PeerIdentity("nas", CertificateRole.SUBSCRIBER, streams=("*",))
ALICE = PeerIdentity("alice", CertificateRole.OPERATOR)


class Nodes:
    """A ledger, its leaders, and the merged log that they divide."""

    def __init__(self, directory, end, number):
        self.ledger, self.now_s, self.term = Ledger(), 100.0, 1
        self.directory, self.end, self.number = str(directory), end, number
        self.barriers = 0  # how often a leader waited for the latest state
        self.behind = None  # what a leader that has not executed its log knows: notes, end, number
        self.heard = ClaimsHeard  # makes a leader's memory of signs of life
        self.between = lambda: None  # called after a leader has looked, before it decides

    def view(self):
        known = dict(self.ledger.notes), self.end, self.number
        notes, end, number = self.behind or known
        return SimpleNamespace(
            notes=notes,
            leads=True,
            end=end,
            number=number,
            time_ns=0,
            engine=SimpleNamespace(term=self.term),
        )

    def decide(self, note, is_done, *, may_repeat):
        self.between()
        yield Order(note)
        yield Until(is_done)

    def latest(self):
        """Let a leader execute what it has not executed yet."""
        self.barriers += 1
        self.behind = None
        yield from ()

    def carry_out(self, need):
        """Execute the order that a leader waits for, or check that its condition holds."""
        if isinstance(need, Order):
            self.ledger.carry_out(decode_instruction(encode_instruction(need.instruction)))
            self.behind = None  # executing implies everything committed before
        elif isinstance(need, Until):
            assert need.is_over()

    def grow(self, end, number):
        """Extend the merged log up to here."""
        self.end, self.number = end, number

    def leader(self):
        groups = NodeGroups(
            self.view, self.decide, self.latest, lambda: LogDirectory(self.directory),
            lambda identity: identity.leases, heard=self.heard(lambda: self.now_s),
        )  # fmt: skip
        return Leader(self, groups)

    def group(self):
        return parse_reading_group(self.ledger.notes[GROUP_NOTE + "etl"])


class Leader:
    """A leader that answers requests, one after another."""

    def __init__(self, nodes, groups):
        self.nodes, self.groups = nodes, groups

    def __getattr__(self, verb):
        def do(request, identity):
            if verb == "work":
                self.groups.hear(request, identity)
            work = partial(getattr(self.groups, verb), request, identity)
            steps = confirmed(work, self.nodes.view, self.nodes.latest, request)
            return perform(steps, self.nodes.carry_out)

        return do
