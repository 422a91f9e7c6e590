"""Whether a node may start whose cluster may have been given up meanwhile."""

import pytest

from rt.config.settings import load
from rt.errors import Misuse, Refused
from rt.names import merged_directory
from rt.net.authority.certificates import certificate_files, init_authority
from rt.net.authority.identity import CertificateRole
from rt.net.authority.succession import Succession, one_line
from rt.net.authority.successions import Successions
from rt.node.admin.node_successions import node_successions
from rt.node.host.standby_gate import StandbyGate
from rt.node.settings.node import NodeSettings
from tests.logs import MergedLog

LOG = "5" * 32
MEMBERS = ["n1=a:1", "n2=b:2", "n3=c:3"]


def untold(log):
    """Return what a node knows that has heard nothing."""
    return Successions("flights", list, log=log)


class Network:
    """Answers of nodes and mirrors by port; others do not answer."""

    def __init__(self, **answers):
        self.answers = {int(port[1:]): answer for port, answer in answers.items()}
        self.asked = []

    def __call__(self, address, request, roles):
        """Answer as told."""
        self.asked.append((address[1], request.get("latest"), roles))
        answer = self.answers.get(address[1], ConnectionRefusedError("nothing listens there"))
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def gate(tmp_path):
    """Return a function that makes the gate of n1, with standbys at two ports."""
    out = merged_directory(str(tmp_path), "flights")

    def made(network, *, has_log=True, standby=("s:7", "s:8"), known=untold):
        if has_log:
            (tmp_path / "flights" / "out").mkdir(parents=True)
            with MergedLog(out, log_id=LOG) as log:
                log.merge("jfk", [b"x"])
        given = {"root": str(tmp_path), "stream": "flights", "name": "n1", "standby": list(standby),
                 "members": MEMBERS, "cluster_id": "c"}  # fmt: skip
        return StandbyGate(load(NodeSettings, None, None, {}, given), network, known)

    return made


@pytest.mark.parametrize(
    ("answers", "may", "words"),
    [
        ({}, False, "s:8 does not answer: nothing listens there"),
        ({"p3": {"end": "0.0.1"}}, True, ""),  # a node that knows a leader
        ({"p3": Refused("not-leader", "none leads")}, False, "does not answer"),
        ({"p8": {"end": "0.0.1", "log": LOG}}, True, ""),
        ({"p8": {"end": "0.0.1", "log": "6" * 32}}, False, f"another log, {'6' * 32}, by now"),
        ({"p8": {"end": "0.0.1"}}, False, "does not say which log it has"),
        ({"p7": {"log": "6" * 32}, "p8": {"log": LOG}}, True, ""),
    ],
)
def test_a_node_starts_only_where_its_log_goes_on(gate, answers, may, words):
    """Others that are led, or a mirror that was not promoted, say so."""
    network = Network(**answers)
    found = gate(network)
    assert found.may_start() is may
    assert may or words in found.why
    assert not {port for port, _, roles in network.asked if roles == (CertificateRole.NODE,)} - {
        2,
        3,
    }
    assert all(latest for port, latest, _ in network.asked if port < 4)


def test_a_node_starts_that_knows_that_its_log_has_ended(gate, tmp_path):
    """It tells clients where the log continues; waiting for the standby would tell no one."""
    certs = str(tmp_path / "certs")
    init_authority(certs)
    ca = certificate_files(certs, "n1").ca
    heard = []

    def known(log):
        heard.append(node_successions(ca, "flights", log, str(tmp_path / "flights")))
        return heard[-1]

    class Telling(Network):
        def __call__(self, address, request, roles):
            heard[-1].hear(one_line(word.signed(certs)).decode().rstrip())
            return super().__call__(address, request, roles)

    word = Succession("flights", LOG, "6" * 32, "0.0.64", 1, "0" * 32, "b1:7420", "ops", 7)
    assert gate(Telling(p8={"log": "6" * 32}), known=known).may_start()
    network = Network()
    assert gate(network, known=known, has_log=False).may_start(), "it was kept"
    assert not network.asked


def test_a_node_without_a_log_has_nothing_that_was_given_up(gate):
    """It copies the log from the others, or begins it."""
    network = Network()
    assert gate(network, has_log=False).may_start()
    assert not network.asked


def test_an_address_that_is_none_is_refused(gate):
    """Before anything is asked."""
    with pytest.raises(Misuse, match="standby"):
        gate(Network(), standby=["nowhere"])
