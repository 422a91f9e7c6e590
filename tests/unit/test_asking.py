"""Commands that ask all nodes follow the members, wherever the settings were left behind."""

import pytest

from rt.cli.common.asking import NodeAnswer, member_places

A, B, C, D = (("localhost", port) for port in (7420, 7421, 7422, 7423))


def answer(place, *members, role="follower", learners=()):
    """Return the answer of a node that lists these members."""
    addresses = {f"n{port - 7419}": f"{host}:{port}" for host, port in [*members, *learners]}
    voters = [f"n{port - 7419}" for _, port in members]
    fields = {"addresses": addresses, "role": role, "members": voters}
    return NodeAnswer(f"{place[0]}:{place[1]}", fields)


def test_a_replaced_node_is_no_member_and_its_successor_is():
    """Rt status showed it as `?`, and down, for as long as a file named it."""
    found = [answer(A, A, B, D), answer(B, A, B, D), NodeAnswer("localhost:7422", error="refused")]
    assert member_places(found) == [A, B, D]


def test_the_leaders_list_is_preferred_to_that_of_a_node_that_lags():
    """A follower that lags still lists the node that was removed."""
    found = [answer(A, A, B, C), answer(B, A, B, D, role="leader")]
    assert member_places(found) == [A, B, D]


def test_learners_are_asked_and_not_remembered():
    """What ships to a learner counts for nothing before it votes."""
    found = [answer(A, A, B, C, learners=[D])]
    assert member_places(found) == [A, B, C, D]
    assert member_places(found, only_voters=True) == [A, B, C]


@pytest.mark.parametrize(
    "addresses", [None, [], {"n1": "10.0.0.1:7420"}, {"n1": ""}, {"n1": 7420}, {"n1": "x:y"}]
)
def test_addresses_that_are_not_those_that_we_use_are_not_followed(addresses):
    """Behind a gateway, nodes know each other by addresses that a client cannot reach."""
    assert member_places([NodeAnswer("localhost:7420", {"addresses": addresses})]) == []
