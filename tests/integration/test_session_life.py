"""The life of a session: adopted by decision of the nodes, and every reader hears of it."""

import json
import os
from dataclasses import replace

import pytest

from rt import Position, Publisher, SessionChange, SessionEvent, Subscriber
from rt.errors import CorruptLog, FrameError, Misuse, PeerError
from rt.format.ranges import Range
from rt.format.scan import Scan
from rt.format.session_event import decode_event, event_frame, is_event
from rt.format.walk import Walk
from rt.inspect.verify import open_log, verify_log
from rt.log.notify.confirmations import Level
from rt.position import START
from sequencer.ledger.instruction import decode_instruction, encode_instruction
from sequencer.ledger.ledger import decode_ledger
from sequencer.ledger.life import Life
from tests.archive_cluster import STREAM, ArchiveCluster
from tests.commands import run
from tests.replicator_host import eventually
from tests.unit.test_sequencing import Bench, publish

PATIENCE_S = 60
AT = Position.of(3, 0, 0)
ADOPT = Life(5, SessionChange.ADOPTED, "jfk", Position(64), AT)


def events_of(root, **options):
    """Read a merged log to its end; return the session events that a subscriber receives."""
    events = []
    with Subscriber(
        str(root), stream=options.pop("stream", "s"), follow=False, on_gap="notify",
        on_event=events.append, **options,
    ) as subscriber:  # fmt: skip
        count = sum(1 for _ in subscriber)
    return [each for each in events if isinstance(each, SessionEvent)], count


@pytest.mark.parametrize("change", SessionChange)
def test_a_change_of_a_session_is_read_back_as_it_was_written(change):
    """Every node carries out the same one."""
    life = Life(5, change, "jfk", Position(64), AT)
    assert decode_instruction(encode_instruction(life)) == life


@pytest.mark.parametrize(
    "command",
    [
        encode_instruction(ADOPT)[:-4],
        encode_instruction(ADOPT)[:20],
        encode_instruction(ADOPT).replace(b"jfk", b"../"),
        encode_instruction(ADOPT)[:11] + b"\x63" + encode_instruction(ADOPT)[12:],
        encode_instruction(ADOPT)[:20] + b"\x01" + encode_instruction(ADOPT)[21:],
    ],
)
def test_a_change_that_no_node_could_execute_is_a_peers_fault(command):
    """A command comes from another machine; one of a later version is refused, not skipped."""
    try:
        found = decode_instruction(command)
    except PeerError:
        return
    assert found != ADOPT  # a shorter name is another session


def test_a_session_continues_at_the_start_of_a_file_and_further_on():
    """Elsewhere there may be no frame, and every node would call its copy damaged."""
    with pytest.raises(Misuse, match="start of a file"):
        replace(ADOPT, after=Position(AT + 8))
    with pytest.raises(Misuse, match="merged up to"):
        replace(ADOPT, before=AT)


@pytest.fixture
def adopted(tmp_path):
    """A merged log in which session a was adopted at a later file of its second run."""
    publish(tmp_path)
    bench = Bench(tmp_path)
    bench.merge_all("bxy")
    bench.order(Life(7, SessionChange.ADOPTED, "a", START, Position.of(1, 0, 0)))
    bench.merge_all("a")
    return bench


def test_a_subscriber_hears_that_a_session_was_adopted_and_gets_what_follows(adopted, tmp_path):
    """What is missing is never missing in silence."""
    events, count = events_of(tmp_path)
    assert count == 2000 + 800 + 3000, "b, the group, and the second run of a"
    assert [(each.change, each.session, each.before, each.after) for each in events] == [
        (SessionChange.ADOPTED, "a", START, Position.of(1, 0, 0))
    ]
    assert "archived before they were merged" in str(events[0])
    assert events[0].number == 2800
    again, after = events_of(tmp_path, start=Position(events[0].position + 8))
    assert (again, after) == ([], 3000), "a reader that has passed it is not told again"
    assert events_of(tmp_path, start=events[0].position) == (events, 3000)
    assert events_of(tmp_path, sessions=["b"]) == ([], 2000)


def test_a_log_with_events_verifies_and_its_last_messages_are_counted(adopted, tmp_path):
    """An event is part of the digest and adds no message, also where it ends the log."""
    adopted.order(Life(8, SessionChange.FORGOTTEN, "a", adopted.ledger.merged_to("a")))
    report = verify_log(open_log(str(tmp_path / "s" / "out")), lambda _bytes: None)
    assert not report.faults
    assert events_of(tmp_path, start="last:3")[1] == 3
    assert [each.change for each in events_of(tmp_path)[0]] == ["adopted", "forgotten"]


def test_a_log_that_was_retired_meanwhile_does_not_get_the_name(adopted):
    """A new leader may decide it before it has executed what retired the log."""
    log = "0f" * 16
    adopted.order(Life(8, SessionChange.FORGOTTEN, "a", adopted.ledger.merged_to("a"), log=log))
    adopted.order(Life(9, SessionChange.OPENED, "a", START, log=log, owner="alice"))
    assert "a" not in adopted.ledger.opened
    adopted.order(Life(9, SessionChange.OPENED, "a", START, log="1f" * 16, owner="alice"))
    assert adopted.ledger.opened["a"].owner == "alice"


def test_a_change_is_repeated_to_the_same_bytes_after_a_cut_at_any_of_them(adopted):
    """A node that crashes while it writes the event must come to the same log as the others."""
    adopted.order(Life(8, SessionChange.FORGOTTEN, "a", adopted.ledger.merged_to("a")))
    state, active = adopted.ledger.encode(), adopted.top / "out" / adopted.ledger.end.file_name
    gold = active.read_bytes()
    for cut in range(len(gold) - 300, len(gold), 7):
        with active.open("r+b") as file:
            file.truncate(cut)
        adopted.repeat()
        assert adopted.ledger.encode() == state
        assert active.read_bytes() == gold


def test_a_change_decided_on_another_state_is_left_out_on_every_node(adopted):
    """The session was merged further meanwhile: the decision was about something else."""
    state = replace(adopted.ledger)
    adopted.order(Life(9, SessionChange.ADOPTED, "a", START, Position.of(2, 0, 0)))
    assert adopted.ledger.end == state.end
    assert adopted.ledger.merged_to("a") == state.merged_to("a")
    assert decode_ledger(adopted.ledger.encode()) == adopted.ledger


@pytest.mark.parametrize("is_redundant", [True, False])
def test_an_adopted_session_is_compared_with_its_group_as_one_that_joins(adopted, is_redundant):
    """Messages of its own under old numbers would be taken for repeats, and be lost in silence."""
    payloads = [b"g%d" % n if is_redundant else b"own-%d" % n for n in range(800)]
    for begin in (0, 400):
        with Publisher(str(adopted.top.parent), stream="s", session="late", group="g") as each:
            each.publish_many(payloads[begin : begin + 400])
    at = Position.of(1, 0, 0)
    adopted.order(Life(8, SessionChange.ADOPTED, "late", START, at))
    adopted.merge_all(["late"])
    assert [each.is_refused for each in adopted.logs.records.stuck.values()] == [True] * (
        not is_redundant
    )
    assert (adopted.ledger.merged_to("late") > at) == is_redundant


def test_other_bytes_where_an_event_was_agreed_on_are_damage(adopted):
    """Existing bytes are never taken for the agreed ones."""
    place = next(
        n for n, each in enumerate(adopted.commands) if isinstance(decode_instruction(each), Life)
    )
    life = decode_instruction(adopted.commands[place])
    adopted.commands[place] = encode_instruction(replace(life, time_ns=life.time_ns + 10**9))
    with pytest.raises(CorruptLog, match="not the event"):
        adopted.repeat()


def test_a_publisher_cannot_forge_an_event():
    """A range with messages, or with repeats, holds frames of its session, whatever they say."""
    frame = event_frame(SessionChange.ADOPTED, "jfk", START, AT, 5)
    data = b"".join(frame.parts)
    merged = Range(1, 1, 5, "jfk", AT, len(data), 0, 0, 0)
    assert is_event(merged)
    assert not is_event(merged._replace(messages=1))
    assert not is_event(merged._replace(skip=1))
    body = Scan(lambda length, offset: data[offset : offset + length], Walk(AT, merged=False))
    found = body.next(len(data))
    assert decode_event(found.header, found.body, merged, AT).after == AT
    for text in (
        b"",
        b"[]",
        b'{"event":"adopted"}',
        b'{"event":1,"before":-1,"after":0}',
        b'{"event":[],"before":0,"after":0}',
        b"{" * 900,
    ):
        with pytest.raises(FrameError):
            decode_event(found.header, text, merged, AT)
    later = b'{"event":"married","before":0,"after":0}'
    assert decode_event(found.header, later, merged, AT) is None, "a later version's"


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_session_whose_beginning_is_archived_is_adopted_by_an_operator(tmp_path, nodes):
    """After a cluster is lost and founded again, such a session never merged, in silence."""
    with ArchiveCluster(tmp_path / "old", clients=tmp_path / "clients") as cluster:
        push, publisher = cluster.push(), cluster.publisher()
        for _ in range(3):
            publisher.publish_many([bytes(1000)] * 200)
            publisher.flush(Level.MERGED, PATIENCE_S)
        first = os.path.join(cluster.clients, "pub", STREAM, "jfk", "log.0.0")
        assert eventually(lambda: os.path.getsize(first) == 0, PATIENCE_S)
        publisher.close()
        push.stop()
    with ArchiveCluster(tmp_path / "new", nodes=nodes, clients=tmp_path / "clients") as cluster:
        publisher = cluster.publisher()
        push = cluster.push()
        publisher.publish(b"last")
        assert eventually(lambda: "rt session adopt jfk" in publisher.shipping_note, PATIENCE_S)
        config = ["--config", os.path.join(cluster.root, "clients.toml")]
        assert eventually(lambda: stuck(config), PATIENCE_S)
        assert "rt session adopt jfk" in run("status", *config).output
        refused = run("session", "adopt", "jfk", *config, "--identity", "subscriber")
        assert refused.exit_code == 3
        wrong = run("session", "adopt", "jfk", *config, "--at", "0.9.0")
        assert (wrong.exit_code, "has no file at 0.9.0" in wrong.output) == (2, True)
        done = run("session", "adopt", "jfk", *config, "--json")
        assert done.exit_code == 0, done.output
        publisher.flush(Level.MERGED, PATIENCE_S)
        again = run("session", "adopt", "jfk", *config)
        assert (again.exit_code, "needs no adoption" in again.output) == (2, True)
        assert not stuck(config)
        pull = cluster.pull()
        assert pull.wait_caught_up(PATIENCE_S)
        events, count = events_of(tmp_path / "clients" / "sub", stream=STREAM)
        events = [each for each in events if each.change is SessionChange.ADOPTED]
        assert len(events) == 1
        assert str(events[0].after) == json.loads(done.stdout)["after"]
        assert 0 < count < 601
        written = [path.read_text() for path in (tmp_path / "new").glob("*/*.audit.jsonl")]
        assert any('"adopt-session"' in text for text in written)


def stuck(config):
    """Why session jfk is not merged, as `rt session` says."""
    answer = run("session", "show", "jfk", *config, "--json")
    return answer.exit_code == 0 and json.loads(answer.stdout)["stuck"]
