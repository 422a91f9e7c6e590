"""Decoders: hostile bytes with right checksums end in an error that has a name."""

from random import Random

import pytest

from tests.data_fuzz import DECODERS

RUNS = 1500  # `make faults` does 200,000


@pytest.mark.parametrize("name", DECODERS)
def test_no_sealed_bytes_raise_an_unnamed_error(name):
    """An error that is not expected ends the thread that serves a peer, or the node."""
    chance = Random(15)
    for _ in range(RUNS):
        DECODERS[name](chance)
