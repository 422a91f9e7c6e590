"""Export to Iceberg: each message once, whatever interrupts a run or runs beside it."""

import os

import pytest
from click.testing import CliRunner

from rt import Publisher
from rt.errors import GapError, Misuse
from rt.position import Position
from tests.spark.random_logs import STREAM, plain_rows, random_log

pytest.importorskip("pyiceberg")
from rt.cli.program import rt
from rt.tables.dataset import SCHEMA
from rt.tables.export import ExportSettings, to_iceberg

ALL = ExportSettings(include_active=True)
TABLE = "flights.messages"


# Its packages take longer to import than all other files of tests: no worker that runs none of
# these tests imports them.


def local(directory):
    """Return a catalog in a directory."""
    from rt.tables.iceberg import local_catalog

    return local_catalog(directory)


def identity():
    """Return what partitions a table by a column."""
    from pyiceberg.transforms import IdentityTransform

    return IdentityTransform()


def watched(tmp_path):
    """The catalog of the fixture `catalog`, once more; it calls `before` before each commit."""
    from pyiceberg.catalog.sql import SqlCatalog

    class Watched(SqlCatalog):
        before = None

        def commit_table(self, *given, **named):
            if self.before:
                self.before()
            return super().commit_table(*given, **named)

    house = tmp_path / "warehouse"
    return Watched("rt", uri=f"sqlite:///{house}/catalog.db", warehouse=f"file://{house}")


@pytest.fixture
def catalog(tmp_path):
    """A catalog in a directory."""
    return local(str(tmp_path / "warehouse"))


def numbers(catalog):
    """The numbers in the table, in order."""
    return sorted(catalog.load_table(TABLE).scan().to_arrow()["number"].to_pylist())


@pytest.mark.parametrize("seed", range(3))
def test_every_message_is_in_the_table_once(tmp_path, catalog, seed):
    """First the rolled files, then what grew, then nothing."""
    with random_log(str(tmp_path / "data"), seed) as merging:
        rows = plain_rows(merging.directory)
        rolled = to_iceberg(merging.directory, TABLE, catalog)
        rest = to_iceberg(merging.directory, TABLE, catalog, ALL)
        again = to_iceberg(merging.directory, TABLE, catalog, ALL)
    assert (rolled.messages + rest.messages, again.messages) == (len(rows), 0)
    assert numbers(catalog) == [row.number for row in rows]
    payloads = catalog.load_table(TABLE).scan().to_arrow().sort_by("number")["payload"]
    assert payloads.to_pylist() == [row.payload for row in rows]


def test_a_run_that_dies_before_its_commit_has_added_nothing(tmp_path, catalog):
    """And one that dies after it is not repeated."""

    def die():
        raise KeyboardInterrupt

    dying = watched(tmp_path)
    dying.before = die
    with random_log(str(tmp_path / "data"), 1) as merging:
        rows = plain_rows(merging.directory)
        with pytest.raises(KeyboardInterrupt):
            to_iceberg(merging.directory, TABLE, dying, ALL)
        assert numbers(catalog) == []
        to_iceberg(merging.directory, TABLE, catalog, ALL)
        to_iceberg(merging.directory, TABLE, catalog, ALL)
    assert numbers(catalog) == [row.number for row in rows]


def test_of_two_runs_at_once_each_message_is_added_by_one(tmp_path, catalog):
    """The second is made while the first has its rows ready and has not committed yet."""
    nested, slow = [], watched(tmp_path)
    with random_log(str(tmp_path / "data"), 1) as merging:
        rows = plain_rows(merging.directory)
        to_iceberg(merging.directory, TABLE, catalog)

        def overtake():
            if not nested:
                nested.append(to_iceberg)
                to_iceberg(merging.directory, TABLE, catalog, ALL)

        slow.before = overtake
        done = to_iceberg(merging.directory, TABLE, slow, ALL)
    assert nested
    assert done.messages == 0
    assert numbers(catalog) == [row.number for row in rows]


def test_small_commits_and_partitions_lose_nothing(tmp_path, catalog):
    """A table may exist before, with partitions of its own; each commit adds to several."""
    small = ExportSettings(include_active=True, target_bytes=4000)
    with random_log(str(tmp_path / "data"), 2) as merging:
        rows = plain_rows(merging.directory)
        catalog.create_namespace("flights")
        table = catalog.create_table(TABLE, SCHEMA)
        with table.update_spec() as update:
            update.add_field("session", identity(), "session")
        done = to_iceberg(merging.directory, TABLE, catalog, small)
    assert done.messages == len(rows)
    assert len(catalog.load_table(TABLE).history()) > 1
    assert numbers(catalog) == [row.number for row in rows]


@pytest.mark.parametrize("partition", ["day", "month", "stream", "session"])
def test_a_table_has_the_partitions_that_were_asked_for(tmp_path, catalog, partition):
    """Each needs no package but pyiceberg; a session's messages have no merge time."""
    settings = ExportSettings(partition, include_active=True)
    with random_log(str(tmp_path / "data"), 2) as merging:
        rows = plain_rows(merging.directory)
        to_iceberg(merging.directory, TABLE, catalog, settings)
        session = str(tmp_path / "data" / STREAM / rows[0].session)
        done = to_iceberg(session, "flights.session", catalog, settings)
    assert numbers(catalog) == [row.number for row in rows]
    assert done.messages == sum(row.session == rows[0].session for row in rows)
    assert len(catalog.load_table("flights.session").scan().to_arrow()) == done.messages


def test_rows_without_a_value_have_a_partition_too(tmp_path, catalog):
    """Most messages have no key."""
    with random_log(str(tmp_path / "data"), 2) as merging:
        rows = plain_rows(merging.directory)
        assert len({row.key is None for row in rows}) == 2
        catalog.create_namespace("flights")
        table = catalog.create_table(TABLE, SCHEMA)
        with table.update_spec() as update:
            update.add_field("key", identity(), "key")
        to_iceberg(merging.directory, TABLE, catalog, ALL)
    assert numbers(catalog) == [row.number for row in rows]


def test_a_beginning_that_is_not_wanted_is_left_out(tmp_path, catalog):
    """By position."""
    with random_log(str(tmp_path / "data"), 2) as merging:
        rows = plain_rows(merging.directory)
        middle = Position(rows[len(rows) // 2].position)
        to_iceberg(
            merging.directory, TABLE, catalog, ExportSettings(include_active=True, start=middle)
        )
    assert numbers(catalog) == [row.number for row in rows[len(rows) // 2 :]]


def test_archived_messages_are_an_error_unless_allowed(tmp_path, catalog):
    """As for a Parquet export, and the message names the ways to go on."""
    with random_log(str(tmp_path / "data"), 1, rounds=10) as merging:
        log = merging.directory
        merging.archive(1)
    with pytest.raises(GapError, match="--allow-gaps"):
        to_iceberg(log, TABLE, catalog, ALL)
    done = to_iceberg(log, TABLE, catalog, ExportSettings(include_active=True, allow_gaps=True))
    assert done.gaps


def test_the_command_says_what_it_added(tmp_path):
    """And refuses in one line what it cannot do."""
    with Publisher(str(tmp_path), stream=STREAM, session="jfk") as publisher:
        publisher.publish_many([b"a", b"b"])
    log, warehouse = os.path.join(tmp_path, STREAM, "jfk"), str(tmp_path / "warehouse")
    command = ["export", "iceberg", log, TABLE, "--warehouse", warehouse, "--include-active"]
    found = CliRunner().invoke(rt, command)
    assert found.exit_code == 0
    assert "added 1 file with 2 messages to flights.messages" in found.stdout
    refused = CliRunner().invoke(rt, ["export", "iceberg", log, TABLE])
    assert refused.exit_code == 2
    assert "--warehouse DIR" in refused.stderr
    with pytest.raises(Misuse, match="namespace"):
        to_iceberg(log, "messages", local(warehouse))
