"""The road of a lone message through three real nodes, which may only become shorter."""

import pytest

from benchmarks.road import touched

# `python -m benchmarks.road` prints the figures of now; lower these when they fall. Ticks, of which
# a busy machine has more or fewer a message, touch some twenty functions.
LEADER = 259
FOLLOWER = 222
SPARE = 20


@pytest.mark.faults
def test_a_lone_message_passes_no_more_functions_of_a_node_than_it_did():
    """Connections, the loop and mail cost as much as what decides; tests/sim counts only that."""
    nodes = touched()
    leaders = [len(each.functions) for each in nodes if each.leads]
    followers = [len(each.functions) for each in nodes if not each.leads]
    assert len(leaders) == 1
    assert leaders[0] <= LEADER + SPARE
    assert max(followers) <= FOLLOWER + SPARE
