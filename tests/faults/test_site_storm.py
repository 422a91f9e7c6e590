"""Two sites in real processes: one is lost, the other goes on, and the stream is given back."""

import os
import time
from pathlib import Path

import pytest

from .site_storm import SiteStorm

ROUNDS = int(os.environ.get("STORM_ROUNDS", "1"))


@pytest.mark.faults
@pytest.mark.process
@pytest.mark.timeout(300 + 300 * ROUNDS)
def test_a_stream_that_moves_between_sites_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """A second site is for the day on which much fails at once."""
    storm = SiteStorm(tmp_path, int(os.environ.get("STORM_SEED", "1")))
    try:
        for number in range(ROUNDS):
            storm.round(number)
            print(f"{time.strftime('%X')} round {number}: {dict(storm.done)}", flush=True)
        print(storm.settle())
    finally:
        storm.close()
