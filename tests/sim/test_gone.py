"""Reports that a leader's process has ended are hints: false ones must break no promise."""

from random import Random

from .mutation import patched
from .node import SimNode
from .worlds import live, replay_command

SEEDS = [2, 6, 10, 3, 11, 19, 27, 35]  # whole nodes, and engines alone
OFTEN = 0.3  # of the ticks


def test_false_reports_of_an_ended_leader_break_no_promise() -> None:
    """A proxy or a firewall may refuse connections to a healthy leader."""
    calls, guarded = [0], SimNode.guarded

    def misled(node: SimNode, act: object, *arguments: object) -> None:
        if act == node.advance and node.cluster.nemesis.active:
            chance = Random(f"{node.name} {node.life} {node.cluster.clock.now_us}")
            if chance.random() < OFTEN:
                leader = node.raft.leader
                calls[0] += bool(leader)
                node.raft.gone(leader)
        guarded(node, act, *arguments)  # type: ignore[arg-type]

    with patched([(SimNode, "guarded", misled)]):
        for seed in SEEDS:
            _, violation, _ = live(seed)
            assert not violation, f"{violation}\nreplay: {replay_command(seed)}"
    assert calls[0] > len(SEEDS)
