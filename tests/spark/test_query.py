"""`rt query`: SQL over a log gives what an independent decoder counts."""

import json
import os
import re
from collections import Counter

import pytest
from commands import run

from rt.node.founding.cluster_files import init_local_cluster
from tests.spark.random_logs import plain_rows, random_log
from tests.spark.test_batch_reading import damaged


def query(*arguments):
    """Run the command; return its outcome."""
    return run("query", *arguments)


def rows(*arguments):
    """Return the rows that it prints, which is all that it prints."""
    done = query(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return [json.loads(each) for each in done.stdout.splitlines()]


@pytest.mark.parametrize("seed", [0, 2])
def test_a_query_counts_as_a_plain_decoder_does(tmp_path, seed):
    """Once for each mention of the table, and with what the options choose."""
    with random_log(str(tmp_path), seed) as merging:
        place, plain = merging.directory, plain_rows(merging.directory)
        counted = Counter(row.session for row in plain)
        found = rows("select session, count(*) n from log group by 1", place)
        assert {each["session"]: each["n"] for each in found} == counted
        sizes = rows("select sum(octet_length(payload)) n, max(seq) m from log", place)
        assert sizes == [
            {"n": sum(len(row.payload) for row in plain), "m": max(row.seq for row in plain)}
        ]
        twice = "select count(*) n from log a join log b using (position)"
        assert rows(twice, place) == [{"n": len(plain)}]
        name = plain[0].session
        assert rows("select count(*) n from log", place, "--session", name) == [
            {"n": counted[name]}
        ]
        last = rows("select session, seq from log", place, "--from", "last:3")
        assert [(each["session"], each["seq"]) for each in last] == [
            (row.session, row.seq) for row in plain[-3:]
        ]


def test_a_query_takes_the_configuration_that_clients_have(tmp_path):
    """It read the table of pullers, and refused the nodes in it."""
    [first, *_] = init_local_cluster(str(tmp_path / "c"), "flights", 1)
    clients = os.path.join(os.path.dirname(first.config), "clients.toml")
    with random_log(str(tmp_path), 1) as merging:
        count = len(plain_rows(merging.directory))
        found = rows("select count(*) n from log", merging.directory, "--config", clients)
        assert found == [{"n": count}]


def test_a_column_that_only_a_condition_needs_is_decoded(tmp_path):
    """Others are left out; a query that names them without need still works."""
    with random_log(str(tmp_path), 1) as merging:
        place, plain = merging.directory, plain_rows(merging.directory)
        found = rows("select count(*) n from log where octet_length(payload) > 9", place)
        assert found == [{"n": sum(len(row.payload) > 9 for row in plain)}]
        inner = "select n from (select count(*) n, max(payload) p, max(key) k from log)"
        assert rows(inner, place) == [{"n": len(plain)}]
        assert rows("select 7 n", place) == [{"n": 7}]


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("select nope from log", 'Referenced column "nope" not found'),
        ("selec", "Parser Error"),
        ("select 1; select 2", "the query has 2 statements; give one"),
        ("", "the query has 0 statements; give one"),
        ("copy log to 'x.csv'", "disabled by configuration"),
        ("select * from read_csv('/etc/hostname')", "disabled by configuration"),
        ("select * from '/etc/hostname'", "does not exist"),
        ("install httpfs", "the query"),
    ],
)
def test_a_wrong_query_is_one_sentence(tmp_path, sql, words):
    """And no other file is read or written."""
    with random_log(str(tmp_path), 1) as merging:
        done = query(sql, merging.directory)
    assert done.exit_code == 2, done.output
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_damage_ends_a_query_with_its_own_words(tmp_path):
    """What DuckDB makes of an error is not shown, and no result either."""
    with random_log(str(tmp_path), 1) as merging:
        damaged(merging, 5)
        path = tmp_path / "out.parquet"
        assert query("select payload from log", merging.directory, "--parquet", path).exit_code == 1
        assert not path.exists()
        done = query("select sum(octet_length(payload)) from log", merging.directory)
    assert (done.exit_code, done.stdout) == (1, "")
    assert re.search(r"corrupt at|cannot be decoded", done.stderr)


def test_a_result_is_written_in_other_forms(tmp_path):
    """CSV with a header, Parquet in a new file, and a table of its first thousand rows."""
    parquet = pytest.importorskip("pyarrow.parquet")
    with random_log(str(tmp_path / "log"), 1) as merging:
        place, plain = merging.directory, plain_rows(merging.directory)
        done = query("select seq, session from log limit 2", place, "--csv")
        assert done.stdout.splitlines()[0] == "seq,session"
        assert len(done.stdout.splitlines()) == 3
        path = str(tmp_path / "out.parquet")
        assert query("select seq from log", place, "--parquet", path).exit_code == 0
        assert parquet.read_table(path).num_rows == len(plain)
        assert query("select seq from log", place, "--parquet", path).exit_code == 2
        shown = query("select unnest(range(1500)) n", place)
    assert "500 more rows are not shown" in shown.stdout
    assert "999" in shown.stdout
