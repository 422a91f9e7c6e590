"""`rt status`: what it concludes from what nodes report, and that no answer can end it."""

import io
from contextlib import redirect_stdout

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rt.cli.common.asking import NodeAnswer
from rt.cli.look.status import report_of
from rt.cli.look.status_report import (
    Health,
    NodeReport,
    cluster_report,
    node_report,
)
from rt.cli.look.status_tables import TOP_SHOWN, Top, merged_sessions, status_text
from rt.client.readers.settings import ConnectionSettings
from rt.errors import PeerError
from tests.node_answers import SECOND_NS, answer, busy, held


def report(*answers):
    """Return the report on nodes that answer so; None is a node that is down."""
    return cluster_report([
        NodeReport(f"host{place}:7420", "no answer") if each is None
        else node_report(f"host{place}:7420", each)
        for place, each in enumerate(answers)
    ])  # fmt: skip


def test_three_nodes_that_agree_are_healthy():
    """The exit code of a probe is 0 only then."""
    found = report(answer("n1"), answer("n2"), answer("n3"))
    assert (found.health, found.leader, found.problems) == (Health.HEALTHY, "n1", [])
    assert "3 of 3 nodes answer, quorum yes (n1 leads)" in status_text(found)


def test_two_nodes_without_a_leader_are_not_a_quorum():
    """Two of three answered, so it was called a quorum; nothing was merged all night."""
    lost = {"role": "candidate", "leader": ""}
    found = report(answer("n1", **lost), answer("n2", **lost), None)
    assert found.health is Health.NO_QUORUM
    assert "quorum NO" in status_text(found)


def test_one_node_that_is_asked_and_knows_its_leader_is_a_quorum():
    """The probe of a machine asks its own node, and not two others."""
    found = report(answer("n2"))
    assert (found.health, found.leader) == (Health.HEALTHY, "n1")
    assert "1 of 3 nodes answer, quorum yes" in status_text(found)


def test_a_leader_of_an_older_term_is_not_believed():
    """It was cut off, and steps down when it notices; the others are electing meanwhile."""
    newer = {"term": 4, "role": "candidate", "leader": ""}
    found = report(answer("n1"), answer("n2", **newer), answer("n3", **newer))
    assert found.health is Health.NO_QUORUM


def test_a_node_that_was_restored_says_why_it_does_not_count():
    """The operator has to learn what not to do again."""
    why = "this copy of the state lacks what the node had acknowledged"
    found = report(answer("n1"), answer("n2"), answer("n3", role="learner", lost_state=why))
    assert f"n3 lost its state: {why}; n3 is a learner and does not count yet" in status_text(found)
    waits = report(answer("n1"), answer("n2"), answer("n3", unconfirmed_by=1))
    assert "does not vote before another node confirmed" in status_text(waits)
    assert waits.health is Health.DEGRADED


def test_a_node_whose_log_has_ended_says_where_it_continues_before_it_is_sealed():
    """It refused every client, and status showed a healthy node."""
    word = {"moved_to": "b1:7420,b2:7420", "cut": "0.0.2048", "by": "rt standby promote on b1"}
    found = report(answer("n1", ended=word), None, None)
    says = "n1 refuses publishers and readers: its log has ended at 0.0.2048"
    assert says in status_text(found)
    assert "continues at b1:7420,b2:7420" in status_text(found)
    seal = {"at_ns": SECOND_NS, "by": "operator op", "moved_to": "b1:7420"}
    assert says not in status_text(report(answer("n1", ended=word, sealed=seal), None, None))


def test_a_forked_node_is_named_with_what_it_alone_has_merged():
    """The operator must know which node to empty, and what would be lost with it."""
    fork = {"since_ns": 1_700_000_000 * SECOND_NS, "position": "0.0.2048", "reason": "entry 9 is"}
    sessions = [
        {"session": "jfk", "pushed_by": "", "durable": "0.0.300", "merged": "0.0.200"},
        {"session": "lga", "pushed_by": "", "durable": "0.0.80", "merged": "0.0.80"},
    ]
    found = report(answer("n1"), answer("n2"), answer("n3", forked=fork, sessions=sessions))
    assert found.health is Health.DEGRADED
    text = status_text(found)
    assert (
        "n3 is FORKED since 2023-11-14T22:13:20Z: its log differs from 0.0.2048 on (entry 9 is)"
        in text
    )
    only = "session jfk from 0.0.100 to 0.0.200, of session lga from 0.0.0 to 0.0.80"
    assert f"only n3 has merged, of {only}" in text
    same = report(answer("n1"), answer("n2"), answer("n3", forked=fork))
    assert "FORKED" in text.splitlines()[3].split()
    assert "n3 has merged nothing of a session that the others lack" in status_text(same)


def test_a_learner_is_named_and_does_not_make_a_quorum():
    """Its state was lost: it neither votes nor counts, and its word on the leader is not enough."""
    found = report(answer("n1"), answer("n2"), answer("n3", role="learner"))
    assert found.health is Health.DEGRADED
    assert "learners, which neither vote nor count: n3" in status_text(found)
    assert report(answer("n3", role="learner")).health is Health.NO_QUORUM


def test_a_node_that_is_being_added_is_called_a_learner_whether_it_answers_or_not():
    """An operator was told to replace it, or to move its directory out of the way."""
    more = {"learners": ["n4"], "addresses": {"n4": "host3:7420"}}
    missed = {"unreachable": {"n4": "connection refused"}}
    nodes = [answer(each, **more, **missed) for each in ("n1", "n2", "n3")]
    found = report_of(
        [NodeAnswer(f"host{place}:7420", each) for place, each in enumerate(nodes)]
        + [NodeAnswer("host3:7420", error="no answer")]
    )
    [silent] = found.problems
    assert silent.said == (
        "n4 at host3:7420 does not answer; it is a learner, so no majority needs it"
    )
    assert silent.advice.startswith("start it on its machine: rt node --config n4.toml; if it is")
    assert "3 of 3 nodes answer" in status_text(found)
    assert "learners, which neither vote nor count: n4" in status_text(found)
    nodes = [answer(each, **more) for each in ("n1", "n2", "n3")]
    there = report(*nodes, answer("n4", role="learner", **more))
    [joining] = there.problems
    assert joining.said == "n4 is a learner: it is being added, and does not vote yet"
    assert joining.advice.startswith("rt cluster add n4 --address host3:7420 has it vote")
    assert "3 of 3 nodes answer" in status_text(there)
    assert "learners, which neither vote nor count: n4" in status_text(there)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"unreachable": {"n3": "connection refused"}}, "n2 cannot reach n3"),
        (
            {"takes_data": False, "disk_free": 5000, "disk_reserve": 6000},
            "n2 refuses new data, as its disk is nearly full: 4.9 KiB are left, and it keeps "
            "5.9 KiB free; with 7.3 KiB it takes data again",
        ),
        ({"copying_to": "0.0.7"}, "n2 is copying the merged log, at 0.0.7"),
        ({"waiting_for": {"session": "jfk", "end": "0.0.9"}}, "n2 waits for session jfk"),
        ({"refusal": "n9: not a member"}, "n2 refused a peer: n9: not a member"),
    ],
)
def test_whatever_ails_a_node_degrades_the_cluster_and_is_named(changed, problem):
    """A probe sees it before the second failure does."""
    found = report(answer("n1"), answer("n2", **changed), answer("n3"))
    assert found.health is Health.DEGRADED
    assert problem in status_text(found)
    assert report(answer("n1"), answer("n2"), None).health is Health.DEGRADED


def test_a_full_disk_comes_before_what_it_causes():
    """The note said that the node is copying, and the operator looked for a network."""
    full = answer(
        "n2", copying_to="0.0.7", takes_data=False, merging_paused="/d: no space left",
        waiting_for={"session": "jfk", "end": "0.0.9"},
    )  # fmt: skip
    [node] = [each for each in report(full).nodes if each.name == "n2"]
    [problem] = node.problems
    assert problem.said.startswith("refuses new data, as its disk is nearly full")
    assert problem.effects == (
        "cannot write its merged log: /d: no space left",
        "is copying the merged log, at 0.0.7",
        "waits for session jfk",
    )
    assert "; so it cannot write its merged log" in status_text(report(full))
    assert "rt archive plan" in problem.advice


def test_a_reader_that_takes_nothing_is_no_effect_of_a_full_disk():
    """It would be taken for one cause, and go on once there is room."""
    stalls = {"merge": "what is synced is not merged", "pull": "what is merged is not taken"}
    full = answer("n2", takes_data=False, stalls=stalls)
    disk, reader = report(full).problems
    assert disk.effects == ("does not move: what is synced is not merged",)
    assert reader.said == "n2 does not move: what is merged is not taken"


def test_what_a_copying_node_waits_for_is_no_problem_of_its_own():
    """Each line that had to be read at night was one more that might be the cause."""
    copying = answer("n2", copying_to="0.0.7", waiting_for={"session": "jfk", "end": "0.0.9"})
    [problem] = report(copying).problems
    assert problem.text == ("n2 is copying the merged log, at 0.0.7; so it waits for session jfk")


def test_a_dead_node_is_one_problem_and_not_one_for_each_that_misses_it():
    """Three findings for one dead node hide the second fault among them."""
    missing = {"unreachable": {"n3": "connection refused"}}
    known = {"addresses": {"n3": "host2:7420"}}
    found = report_of(
        [
            NodeAnswer("host0:7420", answer("n1", **missing, **known)),
            NodeAnswer("host1:7420", answer("n2", **missing, **known)),
            NodeAnswer("host2:7420", {}, "no answer"),
        ]
    ).problems
    [(said, advice, _)] = found
    assert said == "n3 at host2:7420 does not answer, and n1 and n2 cannot reach it"
    assert "rt node --config n3.toml" in advice
    assert "rt cluster replace n3 NEW" in advice


def test_an_update_in_progress_is_shown_and_is_no_fault():
    """Paging for it would page for every update; not seeing it would leave one unfinished."""
    newer = {"version": "0.2.0", "speaks": {"nodes": [7, 8], "wire": [2, 2]}}
    shown = report(answer("n1", version="0.1.0"), answer("n2", **newer))
    assert shown.health is Health.HEALTHY
    assert (
        "versions differ: n1: rt 0.1.0, nodes' protocol 7, wire 2; "
        "n2: rt 0.2.0, nodes' protocol 7 or 8, wire 2 (they work together)"
    ) in status_text(shown)
    newest = {"version": "9.0", "speaks": {"nodes": [9], "wire": [2, 3]}}
    shown = report(answer("n1", version="0.1.0"), answer("n2", **newest))
    assert "wire 2 or 3 (n1 and n2 cannot work together)" in status_text(shown)


def test_a_node_that_has_merged_nothing_is_not_57_years_behind():
    """It said 1795328754.0 s, which is the age of the epoch."""
    found = report(answer("n1"), answer("n2", merged_end="0.0.0", messages=0, merge_time_ns=0))
    rows = status_text(found).splitlines()
    assert "4.0 KiB " in rows[2]
    assert " s" not in rows[2].split("4.0 KiB")[1]


def test_a_node_that_is_known_by_two_addresses_is_counted_once():
    """`localhost` and `127.0.0.1` made two nodes of one, and a quorum of it."""
    assert "1 of 3 nodes answer" in status_text(report(answer("n1"), answer("n1"), None))
    settings = ConnectionSettings(nodes=("localhost:7420", "localhost:7420"))
    assert settings.addresses() == [("localhost", 7420)]


def test_bytes_that_wait_to_be_merged_are_shown():
    """Which session is stuck is the first question."""
    assert "200 B" in status_text(report(answer("n1")))


def names(text, heading):
    """Return the first column of the table whose first heading is this."""
    block = next(each for each in text.split("\n\n") if each.startswith(heading))
    return [line.split()[0] for line in block.splitlines()[1:]]


def test_sessions_have_bytes_rate_and_age_and_clients_their_lag():
    """Volume, readers and lag can be seen without another tool."""
    text = status_text(report(busy("n1"), busy("n2"), busy("n3")))
    clients, sessions = text.split("\n\n")[2:4]
    publisher, spark = (" ".join(line.split()) for line in clients.splitlines()[1:])
    assert publisher == "publisher push n1 n2 n3 200 B 12 s 1 h 10.0.0.7:4000"
    assert spark == "spark pull n2 3.9 KiB 4.2 s 1 h 10.0.0.7:4000"
    first = " ".join(sessions.splitlines()[1].split())
    assert first == "aaa publisher 2.0 KiB 2.9 MiB/s 7 s ago 0 B - 0.0.300 0.0.300"


def test_a_puller_that_left_stays_listed_until_it_is_back():
    """One that froze was gone after 25 seconds, and nothing was wrong any more."""
    now_ns = 1_700_000_100 * SECOND_NS
    gone = {
        "peer": "etl", "kind": "pull", "address": "10.0.0.8:4000", "lag_bytes": 4000,
        "left_ns": now_ns - 44 * SECOND_NS, "since_ns": now_ns - 90 * SECOND_NS, "waiting_s": 0.0,
    }  # fmt: skip
    before = gone | {"left_ns": now_ns - 90 * SECOND_NS}
    away = [
        answer(name, now_ns=now_ns, left=[each]) for name, each in (("n1", before), ("n2", gone))
    ]
    [line] = [each for each in status_text(report(*away)).splitlines() if each.startswith("etl")]
    assert " ".join(line.split()) == "etl pull away 3.9 KiB - left 44 s ago 10.0.0.8:4000"
    back = {name: value for name, value in gone.items() if name != "left_ns"}
    found = report(*away, answer("n3", now_ns=now_ns, clients=[back]))
    [line] = [each for each in status_text(found).splitlines() if each.startswith("etl")]
    assert " ".join(line.split()) == "etl pull n3 3.9 KiB - 1 min 30 s 10.0.0.8:4000"


@pytest.mark.parametrize(
    ("top", "first"), [(None, "aaa"), ("rate", "aaa"), ("lag", "ccc"), ("bytes", "bbb")]
)
def test_top_sorts_sessions_by_what_is_asked_for(top, first):
    """At a thousand sessions the one that matters has to come first."""
    text = status_text(report(busy("n1")), None if top is None else Top(top))
    assert names(text, "session")[0] == first


def test_top_shows_twenty_and_says_how_many_more_there_are():
    """A list that is cut must not look whole."""
    many = answer("n1", sessions=[held(f"s{each:03}", bytes=each) for each in range(1000)])
    text = status_text(report(many), Top.BYTES)
    assert names(text, "session")[:TOP_SHOWN] == [f"s{each:03}" for each in range(999, 979, -1)]
    assert text.endswith("980 more sessions; without --top all are shown")
    assert len(names(status_text(report(many)), "session")) == 1000


def test_a_session_is_shown_as_far_as_any_node_has_it():
    """A node that is behind must not hide what the others have."""
    behind = busy("n2", sessions=[held("aaa", pushed_by="", durable="0.0.10", merged="0.0.10",
                                       bytes=9, waiting_s=3.0)])  # fmt: skip
    [aaa, *_] = merged_sessions(report(behind, busy("n1")).answering)
    assert (aaa.pushed_by, str(aaa.durable), aaa.bytes, aaa.waiting_s, aaa.seen_s) == (
        "publisher", "0.0.300", 2048, 3.0, 7.0,
    )  # fmt: skip


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_every_table_fits_its_terminal(columns, monkeypatch):
    """A phone's terminal has 60 columns, and a wrapped table cannot be read."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    with redirect_stdout(Terminal()):
        text = status_text(report(busy("n1"), busy("n2", takes_data=False), None), Top.LAG)
    tables = [each for each in text.split("\n\n") if not each.startswith("stream")]
    assert max(len(line) for each in tables for line in each.splitlines()) <= columns
    assert [each.split()[0] for each in tables] == ["node", "client", "session"]


class Terminal(io.StringIO):
    """A stdout that is one."""

    def isatty(self):
        """Say so."""
        return True


def test_a_stall_is_a_problem_that_names_its_hop():
    """Quorum alone says nothing of the data."""
    words = "what is synced is not merged (session jfk): no node leads"
    found = report(answer("n1"), answer("n2", stalls={"merge": words}), answer("n3"))
    assert f"n2 does not move: {words}" in status_text(found)
    assert found.health is Health.DEGRADED


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)


@given(
    st.one_of(values, st.dictionaries(st.sampled_from(sorted(busy("n1"))), values)),
    st.one_of(values, st.dictionaries(st.sampled_from(sorted(held("x"))), values)),
)
def test_no_answer_of_a_node_can_end_the_command(broken, entry):
    """One bad node must not hide the others, nor show a traceback instead of them."""
    for each in (broken, busy("n1", sessions=[entry]), busy("n1", clients=[entry])):
        if isinstance(broken, dict) and each is broken:
            each = busy("n1") | broken
        try:
            shown = status_text(report(answer("n2"), each))
        except PeerError as error:
            shown = str(error)
        assert "n" in shown
