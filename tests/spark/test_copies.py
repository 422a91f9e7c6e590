"""Archived files are read in their copies: by `rt.read_arrow`, `rt query`, and Spark's tasks."""

import json
import os
import shutil

import pytest

import rt
import rt.spark
from rt.errors import CorruptLog, GapError, Misuse
from rt.format.manifest import encode_entry
from rt.offload.offload import offload
from rt.offload.store import open_store
from rt.position import Position
from tests.commands import run
from tests.logs import MergedLog

FILES = [Position.of(0, roll, 0) for roll in range(4)]


@pytest.fixture
def log(tmp_path):
    """Make a merged log of three rolled files, which have copies, and one that grows."""
    with MergedLog(str(tmp_path / "flights" / "out")) as log:
        for file in range(4):
            for first in range(0, 100, 20):
                log.merge("jfk", [b"%d.%d" % (file, n) for n in range(first, first + 20)])
            if file < 3:
                log.roll()
        offload(log.appender.directory, open_store(str(tmp_path / "backup")))
        yield log


def read(log, tmp_path, **options):
    """Return positions and payloads."""
    options = {"copies": tmp_path / "backup", **options}
    table = rt.read_arrow(log.directory, columns=["position", "payload"], **options).read_all()
    return [(row["position"], row["payload"]) for row in table.to_pylist()]


def test_archived_files_are_read_as_if_they_were_there(log, tmp_path):
    """From any start, with the same positions; even if their names are gone."""
    before = read(log, tmp_path)
    log.archive(*FILES[:2])
    os.unlink(os.path.join(log.directory, FILES[0].file_name))
    assert read(log, tmp_path) == before
    assert len(before) == 400
    assert read(log, tmp_path, start="last:350") == before[50:]
    assert read(log, tmp_path, start=rt.Position(before[110][0])) == before[110:]
    assert read(log, tmp_path, start="0.0.0", end=rt.Position(before[30][0])) == before[:30]
    assert read(log, tmp_path, copies=None) == before[200:]
    with pytest.raises(GapError):
        read(log, tmp_path, copies=None, start="0.0.0")


def test_a_file_that_is_archived_after_the_load_is_read_in_its_copy(log, tmp_path):
    """A load is planned long before its last file is read."""
    before = read(log, tmp_path)
    reader = rt.read_arrow(
        log.directory, columns=["position", "payload"], copies=tmp_path / "backup"
    )
    log.archive(*FILES[:3])
    rows = reader.read_all().to_pylist()
    assert [(row["position"], row["payload"]) for row in rows] == before


def test_what_has_no_copy_is_a_gap_and_a_damaged_copy_an_error(log, tmp_path):
    """Each in one sentence that names the file or the place."""
    before, backup = read(log, tmp_path), tmp_path / "backup"
    log.archive(*FILES[:2])
    with pytest.raises(Misuse, match="nowhere holds no copies"):
        read(log, tmp_path, copies=tmp_path / "nowhere")
    with pytest.raises(Misuse, match="is empty; name a directory"):
        read(log, tmp_path, copies="")
    path = backup / "log.0.1.zst"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptLog, match=r"backup/log\.0\.1"):
        read(log, tmp_path)
    path.unlink()
    with pytest.raises(CorruptLog, match="its copy is gone"):
        read(log, tmp_path)
    (backup / "log.0.1.json").unlink()
    with pytest.raises(GapError, match=r"log\.0\.1"):
        read(log, tmp_path, start="0.0.0")
    assert read(log, tmp_path, start="0.0.0", on_gap="skip") == before[:100] + before[200:]


def test_copies_are_of_one_log(log, tmp_path, tmp_path_factory):
    """The names of another log's files are the same."""
    copies = tmp_path_factory.mktemp("apart") / "backup"  # or they are a third log
    shutil.move(tmp_path / "backup", copies)
    with MergedLog(str(tmp_path / "trains" / "out")) as other:
        other.merge("jfk", [b"other"])
        manifest = tmp_path / "trains" / "out" / "manifest"
        manifest.write_bytes(encode_entry(other.appender.identity._replace(id="1" * 32)))
        with pytest.raises(Misuse, match="holds copies of one log, and the load names 2"):
            rt.read_arrow(str(tmp_path), copies=copies).read_all()


def test_a_query_reads_copies(log, tmp_path):
    """`rt query --copies`."""
    pytest.importorskip("duckdb")
    log.archive(*FILES[:2])
    line = ["query", "select count(*) n from log", log.directory, "--json"]
    line += ["--from", "0.0.0"]
    assert run(*line).exit_code == 1
    done = run(*line, "--copies", tmp_path / "backup")
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"n": 400})
    shutil.rmtree(tmp_path / "backup")
    done = run(*line, "--copies", tmp_path / "backup")
    assert (done.exit_code, "holds no copies of a log" in done.stderr) == (2, True)


def test_a_load_of_spark_takes_the_option_copies(log, tmp_path):
    """`rt.spark.read(path).option(copies=...)`: what a task reads, without a JVM."""
    log.archive(*FILES[:3])
    loading = rt.spark.read(log.directory).option(copies=tmp_path / "backup")
    assert loading.between("0.0.0").summary().messages == 400
    assert loading.between("last:150").summary().messages == 150
    with pytest.raises(Misuse, match="copies"):
        rt.spark.read(log.directory).option(copies="").summary()


@pytest.mark.spark
def test_spark_reads_copies(log, tmp_path, spark):
    """A batch of real workers."""
    log.archive(*FILES[:2])
    frame = rt.spark.read(log.directory).option(copies=tmp_path / "backup").between("0.0.0").load()
    assert frame.count() == 400
