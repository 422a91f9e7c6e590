"""A source and a sink talk over a pipe in memory that a test cuts, alters and repeats."""

import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from dialogue import (
    DISK,
    SESSION_ID,
    Dialogue,
    Inbox,
    Log,
    NoWake,
    assert_equal,
    assert_prefix,
    copy_all,
    cut_everywhere,
    written,
)
from logs import MergedLog, make_frame
from replicator_host import log_bytes, manifest_lines

from replicator.wire import messages
from replicator.wire.codec import encode
from replicator.wire.link import HungUp
from replicator.wire.messages import CONNECTION, Data
from rt.errors import CorruptLog, PeerError, Refused
from rt.format.manifest import SESSION, LogIdentity, Rolled
from rt.log.files.directory import LogDirectory
from rt.log.notify.in_process_notify import WrittenFrame
from rt.position import START, Position


@pytest.fixture
def source(tmp_path):
    """Return a source of about 4 KiB."""
    return written(tmp_path / "source", (600, 1, 300), (500, 8), (700, 64, 900))


@pytest.fixture
def sink(tmp_path):
    """Return the directory of the copy."""
    return tmp_path / "sink"


def written_frame(log, size):
    """Append a frame, and return what its writer announces."""
    position = log.appender.end
    log.write(size)
    data = log.appender.read(position, log.appender.end - position)
    return WrittenFrame(log.appender.identity.id, position, data, 1)


def test_a_copy_has_the_files_the_history_and_the_identity_of_its_source(source, sink):
    """Everything downstream (merge, archive, verify) reads the copy as if it were the source."""
    dialogue = copy_all(source, sink)
    assert_equal(source, sink)
    assert dialogue.acks[-1].durable == dialogue.outlet.position
    assert [each.position for each in dialogue.caught_up] == [dialogue.outlet.position]
    assert not dialogue.refusals


def test_a_dialogue_cut_at_any_byte_reaches_the_same_end(tmp_path):
    """A connection may break anywhere, in both directions; nothing is lost, doubled or invented.

    Here it breaks at every fifth byte, and in `make faults` at each.
    """
    assert cut_everywhere(tmp_path, 5) > 300


def test_a_copy_follows_a_source_that_grows_and_rolls(tmp_path, sink):
    """The usual case: what is appended is copied, and so is the line of a roll."""
    log = Log(tmp_path / "source").write(10)
    dialogue = Dialogue(log.directory, sink).talk()
    for _ in range(5):
        log.write(100, 200)
        dialogue.talk()
        log.roll()
        dialogue.talk()
    dialogue.close()
    assert_equal(log.directory, sink)


def test_a_frame_larger_than_a_read_comes_whole(tmp_path, sink):
    """A message of 16 MiB is one frame, and a read is 1 MiB."""
    log = Log(tmp_path / "source").write(10, 3 << 20, 10)
    copy_all(log.directory, sink)
    assert_equal(log.directory, sink)


def test_a_torn_tail_is_not_shipped_and_what_replaces_it_is(tmp_path, sink):
    """A torn tail was never promised; the next run begins after a line that cuts it."""
    log = Log(tmp_path / "source").write(100, 100)
    end = log.appender.end
    path = Path(log.directory, "log.0.0")
    with path.open("ab") as file:
        file.write(path.read_bytes()[:50])
    dialogue = Dialogue(log.directory, sink).talk()
    assert log_bytes(sink)["log.0.0"] == path.read_bytes()[: end.offset]
    assert not dialogue.refusals
    log.roll().run().write(30)
    dialogue.talk().close()
    assert manifest_lines(sink) == manifest_lines(log.directory)
    assert log_bytes(sink)["log.0.0"] == path.read_bytes()[: end.offset]
    assert log_bytes(sink)["log.1.0"] == log_bytes(log.directory)["log.1.0"]


def test_no_byte_after_the_end_of_a_feed_is_sent(tmp_path, sink):
    """A node serves only what it can write again after a crash, not what it may still cut."""
    log = Log(tmp_path / "source").write(100)
    end = log.appender.end
    log.write(100).roll()
    dialogue = Dialogue(log.directory, sink, end=lambda: end).talk()
    assert dialogue.inbox.appender.end == end
    end = log.appender.end
    dialogue.talk().close()
    assert_equal(log.directory, sink)


def test_repeated_data_is_acknowledged_and_not_appended(source, sink):
    """A source that lost its place may start over; equal bytes do no harm."""
    dialogue = Dialogue(source, sink).talk()
    for name, data in log_bytes(source).items():
        at = Position.parse(f"{name.removeprefix('log.')}.0")
        dialogue.source_pipe.send(encode(Data(0, at, memoryview(data))))
        dialogue.take()
    assert not dialogue.refusals
    dialogue.close()
    assert_equal(source, sink)


def test_repeated_data_that_reaches_further_is_appended_from_where_it_is_new(tmp_path, sink):
    """Of data that is half known and half new, the new half is taken, once."""
    log = Log(tmp_path / "source").write(100)
    dialogue = Dialogue(log.directory, sink).talk()
    log.write(200)
    data = log_bytes(log.directory)["log.0.0"]
    dialogue.source_pipe.send(encode(Data(0, START, memoryview(data))))
    dialogue.take()
    dialogue.close()
    assert_equal(log.directory, sink)


def test_other_bytes_at_a_position_the_sink_has_end_the_channel(tmp_path, sink):
    """Two histories of one position are never mixed; both are kept for a human to inspect."""
    log = Log(tmp_path / "source").write(100)
    dialogue = Dialogue(log.directory, sink).talk()
    before = log_bytes(sink)
    other = make_frame(START, [b"z" * 100])
    dialogue.source_pipe.send(encode(Data(0, START, memoryview(b"".join(other.parts)))))
    dialogue.take()
    assert [(side, code) for side, code, _ in dialogue.refusals] == [("sink", "diverged")]
    dialogue.close()
    assert log_bytes(sink) == before


def test_every_flipped_bit_of_a_frame_in_transit_is_refused(tmp_path, sink):
    """TLS protects the wire; bad memory or a bad disk at the source is caught before a write."""
    frame = b"".join(make_frame(START, [b"message"]).parts)
    Log(tmp_path / "source")
    for bit in range(8 * len(frame)):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        dialogue = Dialogue(tmp_path / "source", sink).talk()
        dialogue.source_pipe.send(encode(Data(0, START, memoryview(bytes(damaged)))))
        dialogue.take()
        assert [(side, code) for side, code, _ in dialogue.refusals] == [("sink", "corrupt")]
        assert not any(log_bytes(sink).values())
        assert all(ack.durable == START for ack in dialogue.acks)
        dialogue.close()
        shutil.rmtree(sink)


def test_the_sink_takes_none_of_a_message_whose_second_frame_is_damaged(tmp_path, sink):
    """Half a message would be an end that no source ever had."""
    log = Log(tmp_path / "source").write(100, 100)
    data = bytearray(log_bytes(log.directory)["log.0.0"])
    data[-20] ^= 1
    Path(log.directory, "log.0.0").write_bytes(data)
    dialogue = copy_all(log.directory, sink)
    assert [(side, code) for side, code, _ in dialogue.refusals] == [
        ("sink", "corrupt"), ("source", "corrupt")
    ]  # fmt: skip
    assert not any(log_bytes(sink).values())


def test_a_source_damaged_before_its_durable_mark_is_refused_by_the_source(tmp_path, sink):
    """The source reads only headers; where one is invalid, recovery decides what that means."""
    log = Log(tmp_path / "source").write(100, 100)
    log.roll()
    path = Path(log.directory, "log.0.0")
    data = bytearray(path.read_bytes())
    data[len(data) // 2 + 9] ^= 1
    path.write_bytes(data)
    dialogue = copy_all(log.directory, sink)
    assert [(side, code) for side, code, _ in dialogue.refusals] == [
        ("source", "corrupt"), ("sink", "corrupt")
    ]  # fmt: skip
    assert_prefix(log.directory, sink)
    assert log_bytes(sink)["log.0.0"]


def shorter_source(source):
    """Lose the last frame."""
    path = source / "log.1.0"
    os.truncate(path, path.stat().st_size - 900)


def empty_source_file(source):
    """Lose all bytes of the last file."""
    os.truncate(source / "log.1.0", 0)


def missing_source_file(source):
    """Lose the last file."""
    os.unlink(source / "log.1.0")


def flipped_byte_in_the_tail(source):
    """Rot."""
    path = source / "log.1.0"
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


def another_log(source):
    """Delete the log and make another of its name."""
    shutil.rmtree(source)
    Log(source, LogIdentity(SESSION, "flights", "jfk", "b" * 32, 2)).write(100)


def same_log_written_again(source):
    """Write other messages with the same identity."""
    shutil.rmtree(source)
    log = Log(source)
    log.sequence = 5
    log.write(600, 1, 300).roll().write(500, 8).roll().run().write(700, 64, 900)


def rolled_earlier(source):
    """Restore a state in which the second file ended earlier."""
    shutil.rmtree(source)
    Log(source).write(600, 1, 300).roll().write(500).roll()


def only_the_first_file(source):
    """Restore a state of long ago."""
    shutil.rmtree(source)
    Log(source).write(600, 1, 300)


DIVERGENCES = [
    (shorter_source, "diverged", "up to 1.0.1912, and this log ends at 1.0.1012: it was"),
    (empty_source_file, "diverged", "and this log ends at 1.0.0"),
    (missing_source_file, "diverged", "this log has no log.1.0"),
    (flipped_byte_in_the_tail, "diverged", "from 1.0.0 to 1.0.1912 are not those of the source"),
    (another_log, "other-log", "another log has this name"),
    (same_log_written_again, "diverged", "the sink's log.0.1 is not the source's"),
    (rolled_earlier, "diverged", "this log has no log.1.0"),
    (only_the_first_file, "diverged", "this log has no log.1.0"),
]


@pytest.mark.parametrize(("change", "code", "words"), DIVERGENCES)
def test_a_source_that_is_not_what_it_was_is_named_and_both_are_kept(
    source, sink, change, code, words
):
    """After a restored backup or a recreated directory no byte of either side is touched."""
    copy_all(source, sink)
    copied = log_bytes(sink)
    change(source)
    ours = log_bytes(source)
    dialogue = copy_all(source, sink)
    assert {(side, each) for side, each, _ in dialogue.refusals} == {
        ("source", code), ("sink", code)
    }  # fmt: skip
    assert all(words in said for _, _, said in dialogue.refusals)
    assert log_bytes(sink) == copied
    assert log_bytes(source) == ours


def test_a_source_that_shrinks_while_it_is_served_is_named(tmp_path, sink):
    """Somebody truncates the file of a running publisher."""
    log = Log(tmp_path / "source").write(100, 100)
    dialogue = Dialogue(log.directory, sink).talk()
    os.truncate(Path(log.directory, "log.0.0"), 100)
    dialogue.talk().close()
    assert {code for _, code, _ in dialogue.refusals} == {"diverged"}


def test_a_merged_copy_that_is_ahead_of_this_node_is_referred_to_another(tmp_path, sink):
    """A subscriber may have been served by a node that was further ahead; that is not damage."""
    with MergedLog(str(tmp_path / "out"), DISK) as log:
        log.merge("jfk", [b"one"])
        early = log.appender.end
        log.merge("jfk", [b"two"], [b"three"])
        copy_all(tmp_path / "out", sink)
        assert_equal(tmp_path / "out", sink)
        end, dialogue = log.appender.end, copy_all(tmp_path / "out", sink, end=lambda: early)
    wanted = f"it ends at {early} and the copy at {end}: it is behind, and another node is asked"
    for _, code, words in dialogue.refusals:
        assert (code, words.endswith(wanted)) == ("behind", True), words


def test_a_merged_log_cut_inside_a_range_goes_on_there(tmp_path, sink):
    """A range may be larger than one message; walking through it survives a restart."""
    with MergedLog(str(tmp_path / "out"), DISK) as log:
        log.merge("jfk", [b"a" * 300], [b"b" * 300], [b"c" * 300])
        log.roll()
        log.merge("ewr", [b"d"], [b"e"])
        ends = [Position(0)]
        data = log_bytes(tmp_path / "out")["log.0.0"]
        for place in range(0, len(data), 8):
            shutil.rmtree(sink, ignore_errors=True)
            copy_all(tmp_path / "out", sink, end=lambda at=place: Position(at))
            ends.append(Inbox(sink, log.appender.identity, NoWake()).appender.end)
            copy_all(tmp_path / "out", sink)
            assert_equal(tmp_path / "out", sink)
    assert len(set(ends)) == 4


@pytest.mark.parametrize("known", [False, True])
def test_a_file_that_ended_elsewhere_at_the_source_ends_the_channel(tmp_path, sink, known):
    """The end of a file is a fact of the log; two different ends mean two logs."""
    log = Log(tmp_path / "source").write(100, 100)
    if known:
        log.roll()
    dialogue = Dialogue(log.directory, sink).talk()
    end = log.appender.end.offset - 8
    line = Rolled(START, end, 0, 2, 1, 1, 7)
    dialogue.source_pipe.send(encode(messages.RolledNotice(0, line)))
    dialogue.take()
    assert [(side, code) for side, code, _ in dialogue.refusals] == [("sink", "diverged")]
    dialogue.close()
    assert_equal(log.directory, sink)


@pytest.mark.parametrize("had", ["nothing", "part of the first", "all of the first", "all"])
def test_archived_files_are_facts_and_not_losses(tmp_path, sink, had):
    """A sink that was away while files were archived gets their lines, and continues after them."""
    log = Log(tmp_path / "source").write(100)
    if had == "part of the first":
        copy_all(log.directory, sink)
    log.write(100).roll()
    if had == "all of the first":
        copy_all(log.directory, sink)
    log.write(200).roll().write(300)
    if had == "all":
        copy_all(log.directory, sink)
    log.archive("0.0.0").archive("0.1.0")
    dialogue = copy_all(log.directory, sink)
    assert not dialogue.refusals
    assert log_bytes(sink) == log_bytes(log.directory)
    ours, theirs = LogDirectory(str(sink), DISK), LogDirectory(log.directory, DISK)
    ours.refresh(), theirs.refresh()
    assert ours.manifest.rolled == theirs.manifest.rolled
    assert ours.manifest.archived == theirs.manifest.archived
    again = copy_all(log.directory, sink)
    assert not again.refusals


def test_bytes_that_the_host_still_needs_are_not_given_up(tmp_path, sink):
    """A source that archives too early, on purpose or not, must not empty all nodes."""
    log = Log(tmp_path / "source").write(100)
    copy_all(log.directory, sink)
    had = log_bytes(sink)
    log.write(100).roll().write(200).archive("0.0.0")
    dialogue = Dialogue(log.directory, sink, needed=True).talk().close()
    assert {code for _, code, _ in dialogue.refusals} == {"busy"}
    assert log_bytes(sink) == had
    assert not copy_all(log.directory, sink).refusals
    assert log_bytes(sink) == log_bytes(log.directory)


def test_a_file_archived_while_it_is_connected_is_archived_here_too(tmp_path, sink):
    """Subscribers follow the cluster's decisions without a restart."""
    log = Log(tmp_path / "source").write(100).roll().write(100)
    dialogue = Dialogue(log.directory, sink).talk()
    log.archive("0.0.0")
    dialogue.talk().close()
    assert log_bytes(sink)["log.0.0"] == b""
    assert_equal(log.directory, sink)


def test_a_policy_may_keep_what_the_source_has_archived(tmp_path, sink):
    """A subscriber may keep more than the cluster does."""
    log = Log(tmp_path / "source").write(100).roll().write(100)
    dialogue = Dialogue(log.directory, sink).talk()
    dialogue.inbox.kept = True
    log.archive("0.0.0")
    dialogue.talk().close()
    assert log_bytes(sink)["log.0.0"]
    assert not dialogue.refusals


MISSTEPS = {
    "a channel that was not opened": lambda: Data(7, START, memoryview(bytes(64))),
    "an acknowledgement by a source": lambda: messages.Ack(0, START, START, START, START, START),
    "a channel opened twice": lambda: messages.Open(0, SESSION_ID),
    "a channel beyond the limit": lambda: messages.Open(4096, SESSION_ID),
    "a second hello": lambda: messages.Hello(1, 1, messages.PUSH, "flights", "rt"),
}


@pytest.mark.parametrize("misstep", MISSTEPS)
def test_a_source_that_breaks_the_protocol_is_a_peer_error(tmp_path, sink, misstep):
    """No guess is made about a peer that is out of step."""
    log = Log(tmp_path / "source").write(100)
    dialogue = Dialogue(log.directory, sink).talk()
    dialogue.source_pipe.send(encode(MISSTEPS[misstep]()))
    with pytest.raises(PeerError):
        dialogue.take()
    dialogue.close()
    assert_equal(log.directory, sink)


@pytest.mark.parametrize(
    "message",
    [
        Data(0, START, memoryview(bytes(64))),
        messages.Ack(7, START, START, START, START, START),
        messages.CaughtUpNotice(0, START),
        messages.Hello(1, 1, messages.PUSH, "flights", "rt"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_sink_that_breaks_the_protocol_is_a_peer_error(tmp_path, sink, message):
    """The same the other way round."""
    dialogue = Dialogue(Log(tmp_path / "source").write(100).directory, sink).talk()
    dialogue.sink_pipe.send(encode(message))
    with pytest.raises(PeerError):
        dialogue.source.turn()
    dialogue.close()


@pytest.mark.parametrize("channel", [0, CONNECTION])
@pytest.mark.parametrize("side", ["source", "sink"])
def test_what_a_peer_says_is_one_line(source, sink, side, channel):
    """It ends up in a node's log, and on the terminal of an operator who reads it."""
    dialogue, said = Dialogue(source, sink).talk(), []
    pipe = {"source": dialogue.sink_pipe, "sink": dialogue.source_pipe}[side]
    pipe.send(
        encode(messages.Refusal(channel, "x\r", "gone \u00e0\n2026 CRITICAL \x1b[2J\x9b2J\u2028"))
    )
    try:
        getattr(dialogue, side).turn()
    except Refused as error:
        said = [error.code, str(error)]
    dialogue.close()
    words = "the other side says: gone \u00e0\\x0a2026 CRITICAL \\x1b[2J\\x9b2J\\u2028"
    assert (said or [*dialogue.refusals[0][1:]]) == ["x\\x0d", words]


def test_one_refused_channel_leaves_the_others_alone(tmp_path, sink):
    """One session's damage must not stop a thousand others."""
    good = Log(tmp_path / "good").write(100)
    bad = Log(tmp_path / "bad").write(100).roll()
    os.truncate(Path(bad.directory, "log.0.0"), 8)
    dialogue = Dialogue(bad.directory, sink).talk()
    assert {code for _, code, _ in dialogue.refusals} == {"corrupt"}
    dialogue.sink_directory = tmp_path / "second"
    dialogue.log = LogDirectory(good.directory, DISK)
    dialogue.log.refresh()
    dialogue.outlet = None
    dialogue.talk().close()
    assert_equal(good.directory, tmp_path / "second")


def test_a_small_update_can_be_sent_at_once(source, sink):
    """A lone message need not wait for the connection's thread; anything else does."""
    log = Log(source)
    dialogue = Dialogue(source, sink).talk()
    assert not dialogue.source.send_now(dialogue.outlet)  # nothing is new
    log.write(100, 200)
    assert dialogue.source.send_now(dialogue.outlet)
    assert not dialogue.outlet.has_news()
    dialogue.take()
    assert log_bytes(sink) == log_bytes(source)
    log.write(9 * 1024)
    assert not dialogue.source.send_now(dialogue.outlet)
    log.write(100).roll()
    assert not dialogue.source.send_now(dialogue.outlet)  # a file's end is announced by its line
    dialogue.talk().close()
    assert_equal(source, sink)


def test_a_frame_at_hand_is_sent_without_a_look_at_its_file(source, sink):
    """Its writer is in this process; reading it again costs as much as sending it."""
    log = Log(source).write(100)
    dialogue = Dialogue(source, sink).talk()
    frame = written_frame(log, 200)
    path, away = Path(source), Path(source).with_name("away")
    whole = {each: each.read_bytes() for each in path.glob("log.*")}
    path.rename(away)
    for each in whole:  # the open file has nothing any more, and no name leads to it
        os.truncate(away / each.name, 0)
    assert dialogue.source.send_now(dialogue.outlet, frame)
    for each, data in whole.items():
        (away / each.name).write_bytes(data)
    away.rename(path)
    assert not dialogue.outlet.has_news()
    dialogue.take()
    assert log_bytes(sink) == log_bytes(source)
    log.roll()
    dialogue.talk().close()
    assert_equal(source, sink)


def test_a_frame_at_hand_that_does_not_come_next_is_read_from_the_log(source, sink):
    """Two threads may announce in the wrong order, and the channel may be of an earlier log."""
    log = Log(source).write(100)
    dialogue = Dialogue(source, sink).talk()
    first, second = written_frame(log, 200), written_frame(log, 300)
    assert dialogue.source.send_now(dialogue.outlet, second)
    assert not dialogue.source.send_now(dialogue.outlet, first)
    other = written_frame(log, 200)._replace(log="b" * 32, data=b"of another log")
    assert dialogue.source.send_now(dialogue.outlet, other)
    dialogue.take()
    assert log_bytes(sink) == log_bytes(source)
    dialogue.source_pipe.has_left = True
    assert not dialogue.source.send_now(dialogue.outlet, written_frame(log, 100))
    dialogue.source_pipe.has_left = False
    dialogue.talk().close()
    assert_equal(source, sink)


def test_a_file_beside_a_log_that_has_ended_is_not_news(source, sink):
    """What nodes confirm is noted there, and a drain must not take that for something to ship."""
    log = Log(source).write(100).roll()
    dialogue = Dialogue(source, sink).talk()
    Path(source, "confirmed").touch()
    assert not dialogue.outlet.has_news()
    log.write(100)
    assert dialogue.outlet.has_news()
    dialogue.talk().close()
    assert_equal(source, sink)


def test_what_is_being_sent_is_news_until_it_was_sent(source, sink):
    """A drain may look at any moment, and the peer may take its time."""
    log = Log(source)
    dialogue, asked = Dialogue(source, sink).talk(), []

    def bend(data):
        asked.append(dialogue.outlet.has_news())
        return bytes(data)

    dialogue.source_pipe.bend = bend
    log.write(100)
    assert dialogue.source.send_now(dialogue.outlet)
    log.write(20_000)
    dialogue.talk()
    log.roll()
    dialogue.talk()
    assert asked == [True] * 3
    assert not dialogue.outlet.has_news()
    dialogue.close()
    assert_equal(source, sink)


def test_half_a_frame_is_not_sent_at_once(source, sink):
    """Its writer may be in the middle of it; the rest is sent at the next look."""
    log = Log(source)
    dialogue = Dialogue(source, sink).talk()
    path = Path(source, log.appender.end.file_name)
    before = path.stat().st_size
    log.write(300)
    whole = path.read_bytes()
    path.write_bytes(whole[: before + 150])
    assert not dialogue.source.send_now(dialogue.outlet)
    path.write_bytes(whole)
    dialogue.talk().close()
    assert_equal(source, sink)


def test_damage_met_by_a_small_update_ends_the_channel(source, sink):
    """The thread that sends at once leaves the report to the connection's thread."""
    log = Log(source)
    dialogue = Dialogue(source, sink).talk()
    path = Path(source, log.appender.end.file_name)
    begin = path.stat().st_size
    log.write(300)
    end = log.appender.end  # was durable, says the next frame
    later = make_frame(end, [b"x"], sequence=log.sequence, durable=end)
    after = log.appender.walk.copy()
    after.step(later.header)
    log.appender.append(later.parts, [later.header], after)
    data = bytearray(path.read_bytes())
    data[begin + 9] ^= 1
    path.write_bytes(data)
    assert not dialogue.source.send_now(dialogue.outlet)
    dialogue.talk().close()
    assert [(side, code) for side, code, _ in dialogue.refusals] == [
        ("source", "corrupt"), ("sink", "corrupt")
    ]  # fmt: skip


def test_what_came_right_before_the_source_hung_up_is_settled(source, sink):
    """Otherwise it would be synced and merged only when another session brings something."""
    settled = []
    dialogue = Dialogue(
        source, sink, handle_appends=lambda: settled.append(dialogue.inbox.appender.end)
    )
    dialogue.talk()
    settled.clear()
    end = Log(source).write(100).appender.end
    dialogue.source.send_now(dialogue.outlet)
    came = dialogue.sink_pipe.receive

    def hang_up():
        yield from came()
        raise HungUp("it did")

    dialogue.sink_pipe.receive = hang_up
    with pytest.raises(HungUp):
        dialogue.take()
    dialogue.close()
    assert settled == [end]


def test_an_acknowledgement_waits_a_little_for_the_merge(source, sink):
    """One acknowledgement then serves for two, and durability is still confirmed in time."""
    clock = SimpleNamespace(now_s=100.0)
    options = {"patience_s": 0.01, "clock": lambda: clock.now_s}
    dialogue = Dialogue(source, sink, **options)
    dialogue.talk()
    assert [each.durable for each in dialogue.acks] == [START]  # that it was opened
    assert 0 < dialogue.sink.pause_s < 0.02
    clock.now_s += 0.01
    dialogue.talk()
    end = dialogue.outlet.position
    assert [(each.durable, each.merged) for each in dialogue.acks[1:]] == [(end, START)]
    assert dialogue.sink.pause_s > 1
    dialogue.inbox.merged = end
    dialogue.inbox.bell.set()
    dialogue.talk().close()
    assert [(each.durable, each.merged) for each in dialogue.acks[2:]] == [(end, end)]


def test_a_sink_that_merges_later_acknowledges_many_merges_at_once(source, sink):
    """The leader has acknowledged each; doing so here again would cost all nodes as much."""
    clock = SimpleNamespace(now_s=100.0)
    options = {"patience_s": 0.01, "clock": lambda: clock.now_s}
    dialogue = Dialogue(
        source, sink, **options, rank=SimpleNamespace(is_first=False), later_s=0.025
    )
    dialogue.talk()
    end = dialogue.outlet.position
    dialogue.inbox.merged = end
    for _ in range(3):
        dialogue.inbox.bell.set()
        dialogue.talk()
    clock.now_s += 0.02  # it merges at its next tick
    dialogue.talk()
    assert dialogue.acks == []
    clock.now_s += 0.01
    dialogue.talk().close()
    assert [(each.durable, each.merged) for each in dialogue.acks] == [(end, end)]


def merging_later(source, sink):
    """Return the clock of a dialogue with a follower, and the dialogue once all is acknowledged."""
    clock = SimpleNamespace(now_s=100.0)
    options = {"patience_s": 0.01, "later_s": 0.025, "clock": lambda: clock.now_s}
    dialogue = Dialogue(source, sink, **options, rank=SimpleNamespace(is_first=False)).talk()
    clock.now_s += 1
    return clock, dialogue.talk()


def test_a_sink_that_merges_later_is_not_woken_for_the_merge(source, sink):
    """It looks in time anyway; the wake was a turn, and a system call, of every message."""
    clock, dialogue = merging_later(source, sink)
    acked, sets = len(dialogue.acks), dialogue.schedule.wake.sets
    dialogue.inbox.written = lambda: None  # it rings when the message is merged, and not before
    Log(source).write(100)
    dialogue.talk()
    assert 0.02 < dialogue.sink.pause_s < 0.03
    dialogue.inbox.merged = end = dialogue.outlet.position
    dialogue.inbox.bell.set()
    assert (dialogue.schedule.wake.sets, len(dialogue.acks)) == (sets, acked)
    clock.now_s += 0.025
    dialogue.talk().close()
    assert [(each.written, each.merged) for each in dialogue.acks[acked:]] == [(end, end)]


def test_a_sink_that_merges_late_acknowledges_the_merge_at_once_and_nothing_before(source, sink):
    """On a busy machine each message was acknowledged twice, the first time without news."""
    clock, dialogue = merging_later(source, sink)
    acked, sets = len(dialogue.acks), dialogue.schedule.wake.sets
    dialogue.inbox.written = lambda: None
    Log(source).write(100)
    dialogue.talk()
    clock.now_s += 0.025
    dialogue.talk()
    assert dialogue.sink.pause_s > 1
    assert len(dialogue.acks) == acked
    dialogue.inbox.merged = end = dialogue.outlet.position
    dialogue.inbox.bell.set()
    dialogue.source.turn()
    assert [each.merged for each in dialogue.acks[acked:]] == [end]
    assert dialogue.schedule.wake.sets == sets
    dialogue.close()


def test_a_copy_that_ends_in_a_file_that_is_damaged_here_has_not_diverged(source, sink):
    """It may be whole, and another node has the rest."""
    copy_all(source, sink)
    dialogue = Dialogue(source, sink)
    path = os.path.join(source, "log.1.0")
    with open(path, "r+b") as file:
        file.write(b"rot")
    dialogue.log.damaged.bar(CorruptLog(path, Position.of(1, 0, 0), "rot"))
    dialogue.talk().close()
    assert dialogue.refusals[0][1] == "corrupt"


def test_a_new_leader_acknowledges_a_merge_at_once(source, sink):
    """A publisher may be waiting for it."""
    clock = SimpleNamespace(now_s=100.0)
    options = {"patience_s": 0.01, "clock": lambda: clock.now_s}
    rank = SimpleNamespace(is_first=False)
    dialogue = Dialogue(source, sink, **options, rank=rank).talk()
    rank.is_first = True
    dialogue.inbox.merged = end = dialogue.outlet.position
    dialogue.inbox.bell.set()
    dialogue.talk().close()
    assert dialogue.acks[-1].merged == end


def in_another_thread(work):
    """Do something in a thread of its own, and wait for it."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    "obstacle", ["", "its turn", "other thread", "no room", "part sent", "asked to leave"]
)
def test_the_loop_acknowledges_as_it_merges_unless_something_is_in_its_way(source, sink, obstacle):
    """Another turn of the connection costs a lone message a tenth of a millisecond."""
    dialogue = Dialogue(source, sink, patience_s=10.0).talk()
    schedule, pipe, end = dialogue.schedule, dialogue.sink_pipe, dialogue.outlet.position
    assert [each.durable for each in dialogue.acks] == [START]
    dialogue.inbox.merged = end
    if obstacle == "its turn":
        dialogue.sink.is_lent = True
    elif obstacle == "other thread":
        dialogue.loop.is_own_thread = False
    elif obstacle == "no room":
        pipe.has_left = True
    elif obstacle == "part sent":
        pipe.post = lambda data: setattr(pipe, "has_left", True) or pipe.send(data)
    elif obstacle == "asked to leave":
        dialogue.inbox.leave = Refused("busy", "this session is left to another connection")
    sets = schedule.wake.sets
    in_another_thread(dialogue.inbox.bell.set)
    assert schedule.wake.sets - sets == (1 if obstacle else 0)
    dialogue.source.turn()
    is_sent = obstacle in {"", "part sent"}
    assert (dialogue.acks[-1].merged == end) == is_sent
    dialogue.sink.is_lent = pipe.has_left = False
    dialogue.talk()
    if obstacle == "asked to leave":
        assert dialogue.refusals[-1][1] == "busy"
    else:
        assert [each.merged for each in dialogue.acks[1:]] == [end]
    dialogue.close()


def test_a_turn_that_sends_the_rest_of_what_was_posted_also_acknowledges(source, sink):
    """Nothing would wake the connection again before the next heartbeat, in five seconds."""
    dialogue = Dialogue(source, sink, patience_s=10.0).talk()
    pipe, end = dialogue.sink_pipe, dialogue.outlet.position
    dialogue.inbox.merged = end
    pipe.has_left = True
    pipe.beat = lambda: setattr(pipe, "has_left", False)
    in_another_thread(dialogue.inbox.bell.set)
    dialogue.take()
    dialogue.source.turn()
    assert dialogue.acks[-1].merged == end
    dialogue.close()


def test_another_thread_does_not_acknowledge_what_can_wait(source, sink):
    """What is durable is soon merged, and one acknowledgement serves for both."""
    dialogue = Dialogue(source, sink, patience_s=10.0).talk()
    Log(source).write(100)
    dialogue.talk()
    in_another_thread(lambda: dialogue.sink.acknowledge(dialogue.outlet.channel))
    dialogue.source.turn()
    assert [each.durable for each in dialogue.acks] == [START]
    dialogue.close()
    in_another_thread(dialogue.inbox.bell.set)  # too late, and harmless
    assert dialogue.sink_pipe.total


def test_what_is_due_waits_for_a_peer_that_reads_nothing(source, sink):
    """A sink that kept checking would spin on a core for that long."""
    clock = SimpleNamespace(now_s=100.0)
    options = {"patience_s": 0.01, "clock": lambda: clock.now_s}
    dialogue = Dialogue(source, sink, **options, rank=SimpleNamespace(is_first=False)).talk()
    clock.now_s += 1
    dialogue.sink_pipe.has_left = True
    dialogue.talk()
    assert dialogue.acks == []
    assert dialogue.sink.pause_s > 0
    dialogue.sink_pipe.has_left = False
    dialogue.talk().close()
    assert len(dialogue.acks) == 1


def test_an_acknowledgement_that_found_no_room_is_sent_once_there_is_some(tmp_path):
    """It waited for the next message, or a heartbeat: up to 5 s in which the peer had long read."""
    dialogue = Dialogue(Log(tmp_path / "log").write(100).directory, tmp_path / "copy").talk()
    acked = len(dialogue.acks)
    dialogue.inbox.merged = Position(64)
    dialogue.sink_pipe.has_left = True
    dialogue.inbox.bell.set()
    dialogue.take()
    assert dialogue.sink.pause_s < 0.1, "or it would not look again"
    dialogue.sink_pipe.has_left = False
    dialogue.take()
    assert dialogue.sink.pause_s > 10
    assert len(dialogue.talk().acks) == acked + 1
    dialogue.close()
