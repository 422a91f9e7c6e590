"""One load reads several logs: a list, a glob, or the parent directory of them."""

import shutil

import pyarrow as pa
import pytest

from rt import Publisher
from rt.errors import GapError, Misuse
from rt.format.manifest import decode_entry, encode_entry
from rt.spark.reading.log_paths import log_paths
from rt.spark.reading.options import read_options
from rt.spark.reading.plan import take_snapshots
from rt.spark.reading.steps import after_records
from tests.spark.random_logs import NOW_NS, STREAM, plain_rows, random_log
from tests.spark.reading import Load, wanted


def publish(root, stream, session, count):
    """Publish so many messages in one session."""
    with Publisher(str(root), stream=stream, session=session) as publisher:
        publisher.publish_many([f"{stream}/{session}".encode()] * count)
    return f"{root}/{stream}/{session}"


@pytest.fixture
def root(tmp_path):
    """Two streams with three sessions."""
    publish(tmp_path, "flights", "jfk", 3)
    publish(tmp_path, "flights", "lga", 4)
    publish(tmp_path, "weather", "jfk", 5)
    return tmp_path


def counts(load):
    """The messages of each stream and session."""
    table = load.read(wanted("stream", "session"))
    found = table.group_by(["stream", "session"]).aggregate([([], "count_all")]).to_pylist()
    return {(row["stream"], row["session"]): row["count_all"] for row in found}


def test_a_parent_directory_a_glob_and_a_list_name_their_logs(root):
    """Each log once, in the order of the paths."""
    every = {("flights", "jfk"): 3, ("flights", "lga"): 4, ("weather", "jfk"): 5}
    assert counts(Load(str(root))) == every
    assert counts(Load(f"{root}/*/jfk")) == {k: n for k, n in every.items() if k[1] == "jfk"}
    assert counts(Load(f"{root}/fl*")) == {k: n for k, n in every.items() if k[0] == "flights"}
    listed = f'["{root}/weather/jfk", "{root}/flights/lga", "{root}/weather"]'
    assert len(log_paths(read_options({"paths": listed}).paths)) == 2


def test_streams_and_sessions_select_by_globs(root):
    """A stream that is not selected costs no task."""
    assert counts(Load(str(root), streams="we*")) == {("weather", "jfk"): 5}
    load = Load(str(root), streams="flights")
    assert {part.log for split in load.splits() for part in split} == {0, 1}
    assert counts(Load(str(root), sessions="?fk")) == {("flights", "jfk"): 3, ("weather", "jfk"): 5}
    assert counts(Load(str(root), sessions="[k-m]ga")) == {("flights", "lga"): 4}
    assert counts(Load(str(root), sessions="[!l]*")) == counts(Load(str(root), sessions="jfk"))
    with pytest.raises(Misuse, match="sessions="):
        Load(str(root), sessions="a b")


def test_a_log_that_is_not_selected_fails_no_load(root):
    """A reader of one stream can do nothing about what was archived of another."""
    with random_log(str(root / "archived"), 3, file_bytes_max=1 << 14) as merging:
        merging.executor.appender.roll(NOW_NS)
        merging.archive(1000)
    assert counts(Load(str(root), streams="weather")) == {("weather", "jfk"): 5}
    position = {"endingPosition": "0.0.2"}
    assert counts(Load(str(root), streams="weather", **position)) == {("weather", "jfk"): 2}
    with pytest.raises(GapError):
        Load(str(root / "archived" / f"{STREAM}.merged"))


def test_the_file_column_is_the_path_of_the_log_file(root):
    """So that a bad row leads to its file, whichever log it came from."""
    table = Load(str(root)).read(wanted("file", "payload"))
    for row in table.to_pylist():
        assert row["file"] == f"{root}/{row['payload'].decode()}/log.0.0"


def test_a_position_belongs_to_one_log(root):
    """The same position means another message in each."""
    with pytest.raises(Misuse, match="position belongs to one log"):
        Load(str(root), startingPosition="0.0.0")
    with pytest.raises(Misuse, match="holds no log"):
        Load(str(root / "nothing"))


def test_below_a_node_only_its_merged_logs_are_read(tmp_path):
    """Its copies of the sessions hold the same messages."""
    with random_log(str(tmp_path), 1) as merging:
        pass
    rows = plain_rows(merging.directory)
    paths = log_paths((str(tmp_path),))
    assert list(paths) == [merging.directory]
    assert Load(str(tmp_path)).read().num_rows == len(rows)


def test_a_fully_archived_log_is_an_error(tmp_path):
    """`earliest` may be the oldest that is left; if nothing is left, 0 rows would be a lie."""
    with random_log(str(tmp_path), 3, file_bytes_max=1 << 15) as merging:
        merging.executor.appender.roll(NOW_NS)
        merging.archive(1000)
    with pytest.raises(GapError, match="archived"):
        Load(merging.directory)
    assert Load(merging.directory, failOnDataLoss="false").read().num_rows == 0


def test_a_limit_of_records_counts_the_selected_sessions_only(tmp_path):
    """Otherwise a rare session costs one empty micro-batch after another."""
    with random_log(str(tmp_path), 4) as merging:
        pass
    rows = plain_rows(merging.directory)
    session = rows[-1].session
    chosen = [row for row in rows if row.session == session]
    options = read_options({"path": merging.directory, "sessions": session})
    from rt.spark.reading.plan import LogView

    view = LogView(merging.directory)
    view.refresh()
    for count in (1, 7, len(chosen) - 1):
        start = rows[5].position
        left = [row for row in chosen if row.position >= start]
        end = after_records(view, start, count, view.end(), options.selection)
        taken = [row for row in left if row.position < end]
        assert taken == left[:count]
    assert after_records(view, start, 1 << 30, view.end(), options.selection) == view.end()
    view.close()


def test_several_logs_share_one_snapshot_of_each(root):
    """A message published after the load is in none of its queries."""
    load = Load(str(root))
    publish(root, "flights", "jfk", 10)
    assert counts(load)["flights", "jfk"] == 3
    assert [each.place.stream for each in take_snapshots(load.options)] == ["flights"] * 2 + [
        "weather"
    ]
    assert isinstance(load.read(), pa.Table)


def test_a_parent_gives_each_stream_by_its_merged_log_or_else_its_sessions(tmp_path):
    """Beside a merged log, a stream that the sink had written was missing without a word."""
    with random_log(str(tmp_path), 1) as merging:
        pass
    rows = plain_rows(merging.directory)
    publish(tmp_path, "alerts", "spark-0", 3)
    found = counts(Load(str(tmp_path)))
    assert found["alerts", "spark-0"] == 3
    assert sum(found.values()) == len(rows) + 3
    assert counts(Load(str(tmp_path), streams="alerts")) == {("alerts", "spark-0"): 3}


def test_a_log_that_is_named_twice_is_read_once(root, monkeypatch):
    """A slash, a scheme, a link or a relative path names no other log."""
    path = f"{root}/weather/jfk"
    (root / "link").symlink_to(path)
    monkeypatch.chdir(root)
    for other in (path + "/", "file://" + path, f"{root}/link", "weather/../weather/jfk"):
        found = log_paths((path, other))
        assert found == (path,)
    assert counts(Load(str(root)))["weather", "jfk"] == 5


def test_copies_of_a_log_are_refused_together(root):
    """Both below one parent gave every message twice."""
    shutil.copytree(root / "weather" / "jfk", root / "backup" / "jfk")
    with pytest.raises(Misuse, match=r"backup/jfk and .*/weather/jfk are copies of one log"):
        Load(str(root))
    assert Load(str(root), streams="flights").read().num_rows == 7


def test_a_merged_log_and_what_it_was_merged_from_are_refused_together(tmp_path):
    """So are the merged logs of two nodes, which may have drawn ids of their own."""
    with random_log(str(tmp_path / "one"), 1) as merging:
        merging.executor.appender.roll(NOW_NS)
        merging.ledger.roll()
    session = next((tmp_path / "one" / STREAM).iterdir())
    with pytest.raises(Misuse, match="hold the same messages of the stream"):
        take_snapshots(read_options({"paths": f"{merging.directory},{session}"}))
    copy = tmp_path / "two"
    shutil.copytree(merging.directory, copy)
    manifest = copy / "manifest"
    lines = manifest.read_bytes().splitlines(keepends=True)
    old = decode_entry(lines[0].rstrip())
    manifest.write_bytes(encode_entry(old._replace(id="0" * 32)) + b"".join(lines[1:]))
    with pytest.raises(Misuse, match="hold the same messages of the stream"):
        take_snapshots(read_options({"paths": f"{merging.directory},{copy}"}))
