"""Groups of readers for tests: a ledger, the nodes that lead, and the peers that ask them."""

from types import SimpleNamespace

from rt.net.identity import CertificateRole, PeerIdentity
from rt.node.groups import NodeGroups
from rt.node.reading_group import GROUP_NOTE, parse_reading_group
from sequencer.instruction import decode_instruction, encode_instruction
from sequencer.ledger import Ledger

SPARK = PeerIdentity("spark", CertificateRole.SUBSCRIBER, streams=("*",), leases=True)
NAS = PeerIdentity("nas", CertificateRole.SUBSCRIBER, streams=("*",))
ALICE = PeerIdentity("alice", CertificateRole.OPERATOR)


class Nodes:
    """A ledger, leaders of it, and the merged log that they hand out."""

    def __init__(self, directory, end, number):
        self.ledger, self.now_s = Ledger(), 100.0
        self.directory, self.end, self.number = str(directory), end, number
        self.between = lambda: None  # what happens after a leader has looked, before it decides

    def view(self):
        return SimpleNamespace(
            notes=dict(self.ledger.notes), leads=True, end=self.end, number=self.number, time_ns=0
        )

    def decide(self, note, is_done):
        self.between()
        self.ledger.carry_out(decode_instruction(encode_instruction(note)))
        assert is_done()

    def grow(self, end, number):
        """Have merged up to here."""
        self.end, self.number = end, number

    def leader(self):
        return NodeGroups(
            self.view, self.decide, lambda: self.directory, lambda identity: identity.leases,
            steady_s=lambda: self.now_s,
        )  # fmt: skip

    def group(self):
        return parse_reading_group(self.ledger.notes[GROUP_NOTE + "etl"])
