"""A session's own log is put back from a backup while it is read on the same machine."""

import filecmp
import os
import shutil

import pytest

from rt import NewRun, Publisher, ReplacedLog, Subscriber, WriterSettings
from rt.limits import KIB

STREAM, SESSION = "flights", "jfk"
PATIENCE_S = 60.0


def publish(root, numbers, word=b"first"):
    """Publish in a run of its own; the files roll every few messages."""
    settings = WriterSettings(file_bytes_max=64 * KIB)
    with Publisher(root, stream=STREAM, session=SESSION, writer=settings) as publisher:
        assert publisher.next_sequence == numbers[0]
        for number in numbers:
            publisher.publish(b"%s %d " % (word, number) + bytes(10_000))
            publisher.flush("written")


def move(backup, directory):
    """As `mv` does, after what was there is deleted."""
    shutil.rmtree(directory)
    os.rename(backup, directory)


def without_later_files(backup, directory):
    """A publisher refuses to start if files lie there that the manifest does not name."""
    for name in set(os.listdir(directory)) - set(os.listdir(backup)):
        os.unlink(os.path.join(directory, name))


def overwrite(backup, directory):
    """As `rsync --inplace --delete` does: files keep their inodes."""
    without_later_files(backup, directory)
    shutil.copytree(backup, directory, dirs_exist_ok=True)


def synchronize(backup, directory):
    """As `rsync --delete` does: only what differs gets another inode."""
    without_later_files(backup, directory)
    for name in os.listdir(backup):
        new, old = os.path.join(backup, name), os.path.join(directory, name)
        if not os.path.exists(old) or not filecmp.cmp(new, old, shallow=False):
            shutil.copy2(new, f"{old}.rsync")
            os.replace(f"{old}.rsync", old)


@pytest.mark.parametrize("restore_from_journal", [move, overwrite, synchronize])
@pytest.mark.parametrize("more", [1, 20], ids=["a message", "files"])
@pytest.mark.parametrize("runs", [0, 1, 2])
def test_a_reader_of_a_log_that_is_put_back_hears_so_and_reads_no_number_twice(
    tmp_path, restore_from_journal, more, runs
):
    """The numbers of what is published now are those of messages that it has handled."""
    directory, backup = tmp_path / STREAM / SESSION, tmp_path / "backup"
    publish(tmp_path, range(10))
    if not runs:
        shutil.copytree(directory, backup)
    for run in range(2):
        first = 10 + run * more
        publish(tmp_path, range(first, first + more))
        if runs == run + 1:
            shutil.copytree(directory, backup)
    publish(tmp_path, range(10 + 2 * more, 10 + 3 * more))
    kept = 10 + runs * more
    found, events = [], []
    # it looks for another log every few polls
    options = {"watch": "poll", "on_event": events.append}
    with Subscriber(tmp_path, stream=STREAM, session=SESSION, **options) as reader:
        found += [each.sequence for each in reader.messages(timeout_s=0)]
        assert found == list(range(10 + 3 * more))
        restore_from_journal(backup, directory)
        publish(tmp_path, range(kept, kept + 2), b"second")
        events.clear()
        for _ in range(2):
            with pytest.raises(ReplacedLog, match=r"was put back from a backup"):
                found += [each.sequence for each in reader.messages(timeout_s=PATIENCE_S)]
    assert found == list(range(10 + 3 * more))
    assert not any(isinstance(each, NewRun) for each in events)
