"""Leadership handover: a leader that is stopped lets another node lead first."""

from types import SimpleNamespace

from archive_cluster import ArchiveCluster
from replicator_host import eventually

from rt.errors import Refused
from rt.node.agree.leadership_handover import hand_over


def leader(cluster):
    """The name of the node that leads, or None."""
    leads = (name for name, node in cluster.nodes.items() if node.pipeline.sequencer.view.leads)
    return next(leads, None)


def test_a_leader_that_is_stopped_leaves_a_leader(tmp_path):
    """Nothing was merged until the others had waited an election timeout, at every update."""
    with ArchiveCluster(tmp_path, nodes=3) as cluster:
        found = []

        def is_settled():
            """One that has committed nothing knows of no node that could take over."""
            found[:] = [leader(cluster)]
            [name] = found
            return name and cluster.nodes[name].pipeline.sequencer.view.engine.commit > 0

        assert eventually(is_settled)
        [name] = found
        term = cluster.nodes[name].pipeline.sequencer.view.engine.term
        seen = []
        pipeline = cluster.nodes[name].pipeline
        stop = pipeline.stop
        pipeline.stop = lambda: (seen.append(pipeline.sequencer.view), stop())
        cluster.stop(name)
        [view] = seen
        assert not view.leads, "it led until its end"
        assert view.engine.term == term + 1, "it was not elected out of a timeout"
        assert eventually(lambda: leader(cluster))


def noted(member, told):
    """Note which members a node learns are gone."""
    gone = member.gone
    member.gone = lambda name: (told.append((member.name, name)), gone(name))


def test_the_others_hear_from_its_machine_that_a_killed_leader_is_gone(tmp_path):
    """Half a second of silence told them so, in which nothing was merged."""
    told = []
    with ArchiveCluster(tmp_path, nodes=3) as cluster:
        assert eventually(lambda: leader(cluster))
        name = leader(cluster)
        others = set(cluster.nodes) - {name}
        assert eventually(lambda: all(_hears(cluster.nodes[each], name) for each in others))
        for each in others:
            noted(cluster.nodes[each].pipeline.member, told)
        cluster.nodes[name].pipeline.halt()  # it hands nothing over
        cluster.stop(name)
        assert eventually(lambda: {(each, name) for each in others} <= set(told))
        assert eventually(lambda: leader(cluster) in others)


def _hears(other, name):
    """Whether a node is connected to this one."""
    return name in other.status()["peer_versions"]


def engine(*peers, leads=True):
    """An engine with these peers, and where it hands over to."""
    to = []
    fake = SimpleNamespace(
        leads=leads, status=lambda: SimpleNamespace(peers=peers), transfer=to.append
    )
    return fake, to


def peer(name, lag=0, silent_ticks=0, *, counts=True):
    """A peer as a leader sees it."""
    return SimpleNamespace(name=name, lag=lag, silent_ticks=silent_ticks, counts=counts)


class Sequencer:
    """Answers at once, and leads until it was asked to hand over."""

    def __init__(self, fake, to):
        self._engine, self._to = fake, to

    @property
    def view(self):
        return SimpleNamespace(leads=self._engine.leads and not self._to)

    def ask(self, question):
        return question()


def test_it_hands_over_to_the_live_member_that_lacks_least():
    """One that is silent, or a learner, would never lead, and the stop would wait for it."""
    fake, to = engine(
        peer("n2", silent_ticks=99), peer("n3", counts=False), peer("n4", 7), peer("n5", 3)
    )
    assert hand_over(Sequencer(fake, to), fake)
    assert to == ["n5"]


def test_a_node_without_a_live_peer_or_that_does_not_lead_just_stops():
    """The last node of a cluster must not hesitate to stop."""
    for fake, to in (
        engine(peer("n2", silent_ticks=99)),
        engine(),
        engine(peer("n2"), leads=False),
    ):
        assert not hand_over(Sequencer(fake, to), fake)
        assert to == []


def test_a_node_that_is_stopping_already_does_not_hand_over():
    """Its threads have ended, perhaps with an error."""
    fake, to = engine(peer("n2"))
    sequencer = Sequencer(fake, to)

    def refuse(_question):
        raise Refused("stopping", "this node is stopping")

    sequencer.ask = refuse
    assert not hand_over(sequencer, fake)
