"""Hostile bytes for every decoder, many of them; `tests/unit` runs a few thousand."""

from random import Random

import pytest

from tests.control_fuzz import at_once, fuzz_ballot, fuzz_history, fuzz_request, node_admin
from tests.data_fuzz import DECODERS, demand_tried
from tests.note_fuzz import NOTES
from tests.peer_fuzz import PEERS

pytestmark = pytest.mark.faults

RUNS = 200_000
FUZZERS = DECODERS | NOTES | PEERS


def test_no_sealed_ballot_raises_an_unnamed_error():
    """A UnicodeDecodeError at a start says nothing to an operator."""
    chance = Random(11)
    for _ in range(RUNS):
        fuzz_ballot(chance)


def test_no_request_raises_an_unnamed_error():
    """A RecursionError ended the thread that answered."""
    chance = Random(12)
    for batch in range(200):
        admin = node_admin(wait=at_once)
        for _ in range(RUNS // 200):
            fuzz_request(admin, chance)
        assert batch >= 0


def test_no_answer_raises_an_unnamed_error():
    """Operators run `rt log-history` against nodes they do not trust yet."""
    chance = Random(13)
    for _ in range(RUNS):
        fuzz_history(chance)


@pytest.mark.parametrize("name", FUZZERS)
def test_no_sealed_bytes_raise_an_unnamed_error(name):
    """An error that is not expected ends the thread that serves a peer, or the node."""
    demand_tried(FUZZERS[name], Random(14), RUNS)
