"""NodeAdmission: decides by name and cluster whether a certificate is a member's."""

from types import SimpleNamespace

import pytest

from rt.errors import Misuse
from rt.net.authority.certificates import init_authority, issue, load_certificate, remember_cluster
from rt.net.authority.identity import CertificateRole, PeerIdentity, identity_of
from rt.net.authority.renewal import renew
from rt.node.host.node_admission import CERTIFICATES_NOTE, NodeAdmission, demand_own
from sequencer.membership import Doors

OURS = "4f1c"


def node(name, *clusters):
    """The holder of a node's certificate that names these clusters."""
    return PeerIdentity(name, CertificateRole.NODE, clusters=clusters)


def an_admission(
    doors=None, notes=None, stream="flights", cluster=OURS, members=("n1", "n2", "n3")
):
    """The admission of n1, whose log lists n1, n2 and n3."""
    listed = frozenset({"n1", "n2", "n3"})
    doors = doors or Doors(listed, listed, listed, frozenset({"n7"}))
    settings = SimpleNamespace(
        name="n1", stream=stream, cluster_id=cluster, member_names=list(members), certs="nowhere"
    )
    view = SimpleNamespace(notes=notes if notes is not None else {})
    return NodeAdmission(settings, SimpleNamespace(doors=doors), SimpleNamespace(view=view))


@pytest.mark.parametrize("greets", [True, False])
def test_a_member_is_let_in_by_its_name_and_cluster(greets):
    """A node of another cluster may have the same name, and the same authority."""
    admission = an_admission()
    assert admission.objection(node("n2", OURS), greets=greets) == ""
    assert admission.objection(node("n2", "other", OURS), greets=greets) == ""
    assert "another cluster's node n2" in admission.objection(node("n2", "other"), greets=greets)
    assert "not a node" in admission.objection(node("n4", OURS), greets=greets)
    assert "n7 was removed" in admission.objection(node("n7", OURS), greets=greets)


def test_a_certificate_of_an_earlier_version_names_no_cluster_and_is_let_in_until_all_do():
    """A cluster is updated, and its certificates renewed, one after another."""
    admission, notes = an_admission(), {}
    assert admission.objection(node("n2")) == ""
    strict = an_admission(notes={CERTIFICATES_NOTE: OURS})
    assert "names no cluster" in strict.objection(node("n2"))
    assert f"rt certs renew n2 --cluster {OURS}" in strict.objection(node("n2"))
    assert strict.objection(node("n2", OURS)) == ""
    assert not notes


def test_a_connected_node_is_judged_again_once_it_or_the_log_has_changed():
    """Each of its messages asks, so it was admitted without a look while nothing changes."""
    listed = frozenset({"n1", "n2", "n3"})
    admits, removed = Doors(listed, listed, listed), Doors(departed=frozenset({"n2"}))
    membership = SimpleNamespace(doors=admits)
    sequencer = SimpleNamespace(view=SimpleNamespace(notes={}))
    settings = SimpleNamespace(
        name="n1", stream="flights", cluster_id=OURS, member_names=["n1"], certs="nowhere"
    )
    admission, peer = NodeAdmission(settings, membership, sequencer), node("n2")

    def objection(peer, *, is_live=True):
        return admission.objection(peer, greets=True, is_live=is_live)

    assert [objection(peer) for _ in range(2)] == ["", ""]
    assert "another cluster" in objection(node("n2", "other"))
    assert objection(peer, is_live=False) == ""
    sequencer.view = SimpleNamespace(notes={CERTIFICATES_NOTE: OURS})
    assert "names no cluster" in objection(peer)
    renewed = node("n2", OURS)
    assert [objection(renewed) for _ in range(2)] == ["", ""]
    membership.doors = removed
    assert "n2 was removed" in objection(renewed)


def test_a_node_without_a_cluster_id_lets_its_own_name_in():
    """It was founded alone; its certificate may name the cluster that its authority remembers."""
    admission = an_admission(cluster="")
    assert admission.objection(node("n2", OURS)) == ""


def test_a_certificate_that_is_being_copied_ends_nothing(tmp_path):
    """A leader reads its own at each look, and operators copy renewed ones over it."""
    admission, ordered = an_admission(), []
    admission.bind({"n2": node("n2", OURS), "n3": node("n3", OURS)}, ordered.append)
    assert not ordered, "there is none at all here"


def test_the_streams_of_a_process_share_its_certificate():
    """Each is a cluster of its own to the nodes, and its id begins with that of the process."""
    admission = an_admission(stream="trains", cluster=f"{OURS}/trains")
    assert admission.objection(node("n2", OURS)) == ""
    assert "another cluster" in admission.objection(node("n2", "other"))
    assert admission.cluster == OURS


def test_an_unknown_node_introduces_itself_only_with_a_certificate_that_names_the_cluster():
    """Its announcement may be believed then, since no voter that is known is left."""
    listed = frozenset({"n1", "n2", "n3"})
    admission = an_admission(
        Doors(listed, listed, listed, frozenset({"n7"}), frozenset(), is_open=True)
    )
    assert admission.objection(node("n4", OURS), greets=True) == ""
    assert admission.objection(node("n4", OURS)) != "", "it may announce, and nothing else"
    assert "not a node" in admission.objection(node("n4"), greets=True)
    assert "was removed" in admission.objection(node("n7", OURS), greets=True)
    listing = an_admission(
        Doors(listed, listed, listed, is_open=True), members=("n1", "n2", "n3", "n4")
    )
    assert listing.objection(node("n4"), greets=True) == "", "its operator vouches for it"


def test_a_removed_node_learns_of_it_on_the_connection_that_it_has():
    """A new one is refused at once."""
    listed = frozenset({"n1", "n2"})
    doors = Doors(listed, listed, listed, frozenset({"n3"}), frozenset({"n3"}))
    admission = an_admission(doors)
    assert admission.objection(node("n3", OURS), greets=True, is_live=True) == ""
    assert "was removed" in admission.objection(node("n3", OURS), greets=True)
    assert "was removed" in admission.objection(node("n3", OURS), is_live=True)


def test_what_a_certificate_names_is_kept_when_it_is_renewed(tmp_path):
    """A renewal makes another key; the name, the role, the hosts and the cluster stay."""
    directory = str(tmp_path / "certs")
    init_authority(directory)
    old = issue(directory, "n1", CertificateRole.NODE)
    assert identity_of(load_certificate(old.cert)).clusters == ()
    renew(directory, "n1", clusters=(OURS,))
    assert identity_of(load_certificate(old.cert)).clusters == (OURS,)
    renew(directory, "n1")
    assert identity_of(load_certificate(old.cert)).clusters == (OURS,)
    remember_cluster(directory, "5e")
    new = issue(directory, "n4", CertificateRole.NODE)
    assert identity_of(load_certificate(new.cert)).clusters == ("5e",)
    client = issue(directory, "jfk", CertificateRole.PUBLISHER)
    assert identity_of(load_certificate(client.cert)).clusters == ()
    with pytest.raises(Misuse, match="of no cluster"):
        issue(directory, "lga", CertificateRole.PUBLISHER, clusters=(OURS,))
    with pytest.raises(Misuse, match="not a cluster_id that a certificate can name"):
        issue(directory, "n5", CertificateRole.NODE, clusters=("a b",))
    settings = SimpleNamespace(name="n1", certs=directory, stream="flights", cluster_id="5e")
    with pytest.raises(Misuse, match="it is of cluster 4f1c, and this node is of 5e"):
        demand_own(settings)
