"""Nodes are replaced, files rot, a directory and a publisher come back from backups, under load."""

import os
import shutil
import time
from pathlib import Path

import pytest

from rt import Publisher
from rt.errors import FlushTimeout, RtError
from rt.log.files.directory import LogDirectory

from .storm import STREAM, flip
from .test_member_storm import MemberStorm

SECONDS = float(os.environ.get("STORM_S", "60"))
RUN = 200  # messages of a publisher before it is restored; half of them are in the backup
PATIENCE_S = 90.0


class WornStorm(MemberStorm):
    """A storm of all that wears a stream out over the years."""

    def __init__(self, root: Path, seed: int) -> None:
        super().__init__(root, seed)
        self.restored: list[str] = []

    def rage(self, seconds: float) -> None:
        """Do each kind of harm at least once, and then at random, for at least this long."""
        deeds = [self._replace_any, self._rot_rolled, self._roll_back, self._restore_publisher]
        end, turn = time.monotonic() + seconds, 0
        while turn < len(deeds) or time.monotonic() < end:
            self._harm(self.chance.choice(["kill_node", "kill_leader", "pause_node", "kill_all"]))
            deed = deeds[turn] if turn < len(deeds) else self.chance.choice(deeds)
            deed()
            turn += 1

    def _replace_any(self) -> None:
        self.replace(self.chance.choice(self.names))

    def _rot_rolled(self) -> None:
        """Flip bits in rolled merged files under a running node; wait until all are repaired."""
        name = self.chance.choice(self.names)
        out = self.root / name / STREAM / "out"
        files = rolled_files(out)
        for path, size in self.chance.sample(files, min(3, len(files))):
            flip(path, self.chance.randrange(size), self.chance.randrange(8))
            self.done["rot_rolled"] += 1
        deadline = time.monotonic() + PATIENCE_S
        while not all(is_equal(path, self._others(name, path)) for path, _ in files):
            if time.monotonic() > deadline:
                raise AssertionError(f"{name} does not repair what has rotted: {self.answers()}")
            time.sleep(0.2)

    def _others(self, name: str, path: Path) -> list[Path]:
        others = (self.root / each / STREAM / "out" / path.name for each in self.names)
        return [each for each in others if each.exists() and each.parent != path.parent]

    def _roll_back(self) -> None:
        """Restore a node's directory from a backup, against all advice."""
        self.await_whole()
        name = self.chance.choice(self.names)
        self.running[name].kill()
        backup = self.root / "backup"
        shutil.copytree(self.root / name, backup)
        self.restart(name)
        self.await_whole()  # the others have heard of a later start, and of later entries
        self.running[name].kill()
        restore_in_place(backup, self.root / name)
        self.restart(name)
        deadline = time.monotonic() + PATIENCE_S
        while self.running[name].running:  # it says that it is an older copy, and ends
            if time.monotonic() > deadline:
                raise AssertionError(f"the older copy of {name} is not recognized")
            time.sleep(0.1)
        self.restart(name)
        self.await_whole()
        self.done["roll_back"] += 1

    def _restore_publisher(self) -> None:
        """Restore a publisher from a backup and publish other messages under the same numbers."""
        session = f"b{len(self.restored) + 1}"
        root, backup = self.root / "pub", self.root / "publisher-backup"
        mine = root / STREAM / session
        with Publisher(str(root), stream=STREAM, session=session) as publisher:
            self._publish_some(publisher, RUN // 2)
            publisher.flush("merged", timeout_s=PATIENCE_S)
            shutil.copytree(mine, backup)
            self._publish_some(publisher, RUN // 2)
            publisher.flush("merged", timeout_s=PATIENCE_S)
        self.restored.append(session)
        shutil.rmtree(mine)
        backup.rename(mine)
        with Publisher(str(root), stream=STREAM, session=session) as publisher:
            assert publisher.next_sequence < RUN
            for _ in range(RUN):
                publisher.publish(b"never merged")
            with pytest.raises(FlushTimeout, match="put back from a backup"):
                publisher.flush("merged", timeout_s=5)
        shutil.rmtree(mine)  # its owner has read why
        self.done["restore_publisher"] += 1

    @staticmethod
    def _publish_some(publisher: Publisher, count: int) -> None:
        for _ in range(count):
            publisher.publish(b"%s %d" % (publisher.name.encode(), publisher.next_sequence))

    def settle(self) -> dict[str, int]:
        """Stop publishing; return each session's count, those of restored publishers included."""
        return {**super().settle(), **dict.fromkeys(self.restored, RUN)}


def restore_in_place(backup: Path, target: Path) -> None:
    """Put back files in the directories that they were in, as a virtual machine's snapshot does."""
    for path in target.rglob("*"):
        if not path.is_dir():
            path.unlink()
    shutil.copytree(backup, target, dirs_exist_ok=True)
    shutil.rmtree(backup)


def rolled_files(out: Path) -> list[tuple[Path, int]]:
    """Return the rolled files of a merged log that have their bytes, with their sizes."""
    log = LogDirectory(str(out))
    try:
        log.refresh()
    except (RtError, OSError):
        return []  # the node copies it again just now
    known = log.manifest
    log.close()
    return [
        (out / file.file_name, known.rolled[file].end)
        for file in known.order
        if file not in known.archived
    ]


def is_equal(path: Path, others: list[Path]) -> bool:
    """Whether a file is what other nodes have."""
    return path.exists() and any(path.read_bytes() == each.read_bytes() for each in others)


@pytest.mark.faults
@pytest.mark.process
def test_replaced_rotten_and_restored_parts_lose_double_reorder_and_hide_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these has happened to a stream that ran for years."""
    monkeypatch.setenv("RT_SCRUB_EVERY_S", "0.5")
    monkeypatch.setenv("RT_FILE_BYTES", "65536")
    storm = WornStorm(tmp_path, seed=7)
    try:
        storm.rage(SECONDS)
        print(storm.demand_all())
    finally:
        storm.close()
