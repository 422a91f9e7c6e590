"""How a driver publishes a batch that its tasks have staged: once, or not at all."""

import os
import random
import signal
import subprocess
import sys

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from rt import Publisher
from rt.errors import Misuse
from rt.log.notify.confirmations import Level
from rt.spark.formats.sink import SinkOptions, Written, abort, commit, write_partition
from rt.spark.formats.staging import Record, StagingArea
from tests.spark.reading import Load, wanted

STREAM, KILLS, BATCHES, ROWS = "alerts", 40, 8, 600


def options_of(root):
    """A sink that waits for nothing but the file."""
    return SinkOptions(str(root), STREAM, "job", flush=Level.WRITTEN)


def staged(root, batch, parts, owner=""):
    """Return the reports of a batch's tasks, each of which had these payloads."""
    area = StagingArea(str(root), STREAM, "job")
    for partition, payloads in enumerate(parts):
        rows = pa.RecordBatch.from_pydict({"payload": pa.array(payloads, pa.binary())})
        yield Written(area.stage(batch, partition, iter([rows])), "job", owner)


def write(root, batch, parts, owner="", **how):
    """Write one whole batch."""
    commit(options_of(root), batch, [*staged(root, batch, parts, owner)], **how)


def payloads(root):
    """All that was published."""
    return sorted(Load(f"{root}/{STREAM}").read(wanted("payload"))["payload"].to_pylist())


def test_nothing_is_published_before_all_tasks_are_done_and_nothing_of_a_batch_that_fails(tmp_path):
    """Subscribers saw the rows of a task whose batch failed afterwards."""
    messages = [*staged(tmp_path, 0, [[b"a"], [b"b"]])]
    assert not (tmp_path / STREAM).exists()
    abort(options_of(tmp_path), 0, messages)
    assert sorted(os.listdir(tmp_path / ".spark" / STREAM / "job")) == ["lock"]
    write(tmp_path, 0, [[b"c"]])
    assert payloads(tmp_path) == [b"c"]


def test_a_batch_that_is_replayed_in_other_partitions_is_published_once(tmp_path):
    """3 partitions, then 1: 33,355 rows of 20,000 were published, and no error told of it."""
    rows = [b"%d" % n for n in range(30)]
    write(tmp_path, 0, [rows[:10], rows[10:20], rows[20:]])
    write(tmp_path, 0, [rows[::-1]])
    write(tmp_path, 0, [rows[:15], rows[15:]])
    assert payloads(tmp_path) == sorted(rows)
    assert sorted(os.listdir(tmp_path / ".spark" / STREAM / "job")) == ["lock", "record"]


def test_a_batch_that_was_recorded_is_finished_whatever_the_replay_brings(tmp_path):
    """The driver died after its record; then a replay comes, or the next batch."""
    area = StagingArea(str(tmp_path), STREAM, "job")
    for batch, replayed in ((0, 0), (1, 2)):
        rows = [b"%d of %d" % (n, batch) for n in range(30)]
        parts = [each.part for each in staged(tmp_path, batch, [rows[:10], rows[10:]])]
        area.save(Record("", batch, done=False, parts=parts))
        with Publisher(str(tmp_path), stream=STREAM, session="job-0") as publisher:
            publisher.skip_to(batch << 32)
            publisher.publish_many(rows[:7])
        write(tmp_path, replayed, [rows[::-1]] if replayed == batch else [[b"next"]])
    expected = [b"%d of %d" % (n, batch) for batch in (0, 1) for n in range(30)]
    assert payloads(tmp_path) == sorted([*expected, b"next"])


def test_a_batch_out_of_turn_or_with_other_rows_is_refused(tmp_path):
    """What it lacks would have to come before what is published, or be lost silently."""
    write(tmp_path, 2, [[b"of 2"]], is_job=True)
    with pytest.raises(Misuse, match=r"holds batch 2 already.* batch 1 would have to come before"):
        write(tmp_path, 1, [[b"of 1"]], is_job=True)
    with pytest.raises(Misuse, match="1 rows of 4 bytes, and 2 of 8 come now"):
        write(tmp_path, 2, [[b"of 2"], [b"of 3"]], is_job=True)
    with pytest.raises(Misuse, match="belongs to another query"):
        write(tmp_path, 3, [[b"of 3"]], owner="a query", is_job=False)
    assert payloads(tmp_path) == [b"of 2"]


def test_a_null_payload_fails_its_task_before_anything_is_published(tmp_path):
    """It used to fail after the rows before it."""
    rows = pa.RecordBatch.from_pydict({"payload": pa.array([b"x", None], pa.binary())})
    with pytest.raises(Misuse, match="a payload is null"):
        write_partition(options_of(tmp_path), "job", 0, 0, iter([rows]))
    assert not (tmp_path / STREAM).exists()


@pytest.mark.faults
@pytest.mark.process
def test_a_driver_that_is_killed_anywhere_publishes_each_batch_once(tmp_path):
    """The replay of a shuffle brings its rows in another order, here in other parts as well."""
    chance, kills = random.Random(5), 0
    command = [sys.executable, "-m", "tests.spark.test_staging", str(tmp_path)]
    while True:
        job = subprocess.Popen(command, stdout=subprocess.PIPE)
        job.stdout.readline()  # it has begun
        if kills < KILLS:
            try:
                job.wait(chance.uniform(0, 0.15))
            except subprocess.TimeoutExpired:
                job.send_signal(signal.SIGKILL)
        ended, _ = job.wait(), job.stdout.close()
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        kills += 1
    assert payloads(tmp_path) == sorted(
        b"%d of %d" % (n, batch) for batch in range(BATCHES) for n in range(ROWS)
    )


def main(root):
    """A driver: every batch from the first one that is not done, as a checkpoint would have it."""
    chance, done = random.Random(), os.path.join(root, "done")
    first = os.path.getsize(done) if os.path.exists(done) else 0
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    for batch in range(first, BATCHES):
        rows = [b"%d of %d" % (n, batch) for n in range(ROWS)]
        chance.shuffle(rows)
        count = chance.randint(1, 4)
        write(root, batch, [rows[n::count] for n in range(count)], "a query")
        with open(done, "ab") as file:
            file.write(b".")


if __name__ == "__main__":
    main(sys.argv[1])
