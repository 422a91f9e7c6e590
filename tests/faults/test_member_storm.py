"""Every node of a cluster is replaced, again and again, under load and under attack."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rt.node.founding.cluster_files import Place, free_addresses

from .storm import Storm

SECONDS = float(os.environ.get("STORM_S", "60"))
WAIT_S = 120.0  # for one replacement, with other nodes dying meanwhile


class MemberStorm(Storm):
    """A storm with one more address than nodes: a new node gets the last removed node's."""

    def __init__(self, root: Path, seed: int) -> None:
        *_, self.spare = free_addresses(5)
        super().__init__(root, 3, seed, spare=[self.spare])
        addresses = [*(place.address for place in self.places), self.spare]
        self.link = [word for address in addresses for word in ("--nodes", address)]
        self.made = len(self.places)

    def rage(self, seconds: float) -> None:
        """Replace nodes for this long; between and during that, kill others."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._harm(self.chance.choice(["kill_node", "kill_leader", "pause_node", "kill_all"]))
            self.replace(self.chance.choice(self.names))

    def replace(self, old: str) -> None:
        """Put another node in the place of one that is dead, or alive, or leads."""
        self.made += 1
        new, address = f"n{self.made}", self.spare
        config = self.root / f"{new}.toml"
        is_dead = self.chance.random() < 0.5
        if is_dead:
            self.await_whole()  # what only the lost disk and a dead node had would be gone
            self.running[old].kill()
        command = [
            sys.executable, "-m", "rt", "cluster", "replace", old, new, "--address", address,
            "--config", str(self.root / "clients.toml"), *self.link, "--timeout", "5",
        ]  # fmt: skip
        self._repeat(command, lambda: self._join(new, address, config))
        self._leave(old)
        self.spare = next(place.address for place in self.places if place.name == old)
        self.places = [place for place in self.places if place.name != old]
        self.names = [place.name for place in self.places]
        self.done["replace_dead" if is_dead else "replace"] += 1

    def _repeat(self, command: list[str], join: Callable[[], None]) -> None:
        """Run the command until it succeeds, as its message says; others die meanwhile."""
        deadline, outcome = time.monotonic() + WAIT_S, None
        while outcome is None or outcome.returncode:
            outcome = subprocess.run(command, capture_output=True, text=True, check=False)
            join()
            if outcome.returncode and self.chance.random() < 0.3:
                alive = [name for name in self.names if self.running[name].running]
                self.kill(self.chance.choice(alive))
            if time.monotonic() > deadline:
                raise AssertionError(f"{outcome.stderr}\n{self.answers()}")

    def _join(self, name: str, address: str, config: Path) -> None:
        if config.exists() and name not in self.running:
            self.places.append(Place(name, address, str(config)))
            self.restart(name)

    def _leave(self, name: str) -> None:
        """A removed node ends; its machine is gone then."""
        child, deadline = self.running.pop(name), time.monotonic() + 5
        while child.running and time.monotonic() < deadline:
            time.sleep(0.1)
        child.kill()
        shutil.rmtree(self.root / name)


@pytest.mark.faults
@pytest.mark.process
def test_every_node_is_replaced_again_and_again_and_nothing_is_lost(tmp_path: Path) -> None:
    """The machines of a stream that runs for years are not the ones that it began on."""
    storm = MemberStorm(tmp_path, seed=4)
    try:
        storm.rage(SECONDS)
        print(storm.demand_all())
    finally:
        storm.close()
