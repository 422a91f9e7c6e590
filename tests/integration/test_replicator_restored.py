"""Logs that are not what they were: restored from a backup, or acknowledged falsely."""

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from archive_cluster import STREAM, ArchiveCluster
from dialogue import Dialogue, Inbox, Log, NoWake, assert_equal, copy_all
from replicator_host import eventually, log_bytes

from replicator.push.connection import PushConnection
from replicator.push.progress import Release, SessionProgress
from replicator.push.session_book import SessionBook
from replicator.sink.channel import SinkChannel
from replicator.sink.sink import EMPTY_FILES_MAX
from replicator.source.gather_window import GatherWindow
from replicator.wire.codec import encode
from replicator.wire.dialer import Destination
from replicator.wire.frame_buffer import FrameBuffer
from replicator.wire.hello import PUSH
from replicator.wire.messages import Ack, Data, Refusal, RolledNotice, Standing
from rt.errors import FlushTimeout, Refused
from rt.format.manifest import Archived, Rolled
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import OsDisk
from rt.log.notify.confirmations import ConfirmationsFile, Level
from rt.names import parse_glob
from rt.position import START, Position
from rt.publisher import Publisher
from tests.links import Line

RUN_1 = Position.of(1, 0, 0)


@pytest.fixture
def backup(tmp_path):
    """Return a source that has published one run, and a backup of it."""
    source = tmp_path / "source"
    Log(source).write(100).roll()
    shutil.copytree(source, tmp_path / "backup")
    return source


def restore(source):
    """Put the backup back; return the log, ready for a run that publishes something else."""
    shutil.rmtree(source)
    shutil.copytree(source.parent / "backup", source)
    log = Log(source)
    log.salt, log.time_ns = 7, log.time_ns + 1
    return log


def second_run(source, sink, *, archive):
    """Publish and copy run 1, which the backup does not hold, and archive it at the sink."""
    Log(source).run().write(64).roll()
    assert not copy_all(source, sink).refusals
    if archive:
        inbox = Inbox(sink, Log(source).appender.identity, NoWake())
        inbox.appender.archive_all([Archived(each, 9, "merged") for each in (START, RUN_1)])
        inbox.release()


@pytest.mark.parametrize("archived", [False, True])
@pytest.mark.parametrize(
    "sizes", [(64,), (64, 64), (200, 200), (8,), ()], ids=["same", "more", "longer", "less", "none"]
)
@pytest.mark.parametrize("closed", [False, True])
def test_a_run_that_is_written_again_with_other_bytes_is_refused(
    backup, tmp_path, archived, sizes, closed
):
    """The positions are the same; what they name is not, and must not be confirmed."""
    sink = tmp_path / "sink"
    second_run(backup, sink, archive=archived)
    before = log_bytes(sink)
    log = restore(backup)
    if sizes:
        log.run().write(*sizes)
    if sizes and closed:
        log.roll()
    dialogue = copy_all(backup, sink)
    assert {(side, code) for side, code, _ in dialogue.refusals} == {
        ("source", "diverged"), ("sink", "diverged")
    }  # fmt: skip
    assert not dialogue.acks
    assert log_bytes(sink) == before


def test_large_frames_with_the_same_last_page_are_told_apart(backup, tmp_path):
    """Messages of constant size and padding end alike; the header of the last frame does not."""
    sink = tmp_path / "sink"
    log = Log(backup).run()
    log.write(100_000)
    assert not copy_all(backup, sink).refusals
    log = restore(backup)
    log.salt, log.time_ns = 0, log.time_ns + 1
    log.run().write(100_000)
    first, second = (log_bytes(each)["log.1.0"] for each in (backup, sink))
    assert first != second
    assert first[-4096:] == second[-4096:]
    assert {code for _, code, _ in copy_all(backup, sink).refusals} == {"diverged"}


def test_a_copy_that_has_begun_an_empty_file_proves_what_is_before_it(tmp_path):
    """A power cut leaves it; the CRC of its bytes would be the CRC of nothing."""
    source, sink = tmp_path / "source", tmp_path / "sink"
    log = Log(source).write(100).roll().write(100)
    copy_all(source, sink)
    os.truncate(sink / "log.0.1", 0)
    dialogue = Dialogue(source, sink)
    dialogue.talk().close()
    assert_equal(source, sink)
    os.truncate(sink / "log.0.1", 0)
    data = bytearray(Path(source, "log.0.0").read_bytes())
    data[-30] ^= 1
    Path(source, "log.0.0").write_bytes(data)
    refusals = copy_all(source, sink).refusals
    assert {code for _, code, _ in refusals} == {"diverged"}
    assert "from 0.0.0 to 0.0.184" in refusals[0][2]
    assert log.appender.end.roll == 1


@pytest.mark.parametrize("had", ["active", "rolled", "rolled and archived", "empty after archived"])
def test_a_copy_of_something_is_never_proved_by_nothing(tmp_path, had):
    """That is the invariant which the source relies on."""
    log = Log(tmp_path / "sink").write(100)
    if had != "active":
        log.roll()
    if "archived" in had:
        log.archive("0.0.0")
    if had.startswith("empty"):
        log.appender.begin_file(Position.of(0, 1, 0))
    log.appender.close()
    inbox = Inbox(tmp_path / "sink", log.appender.identity, NoWake())
    standing = SinkChannel(0, inbox).standing()
    assert standing.end
    assert bool(standing.spans) == ("archived" not in had)
    assert (standing.rolled is None) == (had == "active")
    inbox.release()


def test_the_time_of_a_roll_is_not_a_difference(tmp_path):
    """A publisher that is restored and writes the line of its last run again holds the same log."""
    source, sink = tmp_path / "source", tmp_path / "sink"
    Log(source).write(100)
    shutil.copytree(source, tmp_path / "backup")
    Log(source).roll()
    copy_all(source, sink)
    shutil.rmtree(source)
    shutil.copytree(tmp_path / "backup", source)
    log = Log(source)
    log.appender.roll(8)
    log.run().write(50)
    assert not copy_all(source, sink).refusals
    assert log_bytes(sink) == log_bytes(source)


@pytest.mark.parametrize("place", ["a file that has ended", "a gap"])
def test_frames_for_a_place_that_cannot_take_them_end_their_channel_only(tmp_path, place):
    """The connection carries other sessions, which a wrong one once starved by reconnects."""
    log = Log(tmp_path / "source").write(100)
    at = {"a file that has ended": log.appender.end, "a gap": Position(4096)}[place]
    code = {"a file that has ended": "diverged", "a gap": "protocol"}[place]
    if code == "diverged":
        log.roll()
    dialogue = Dialogue(log.directory, tmp_path / "sink").talk()
    dialogue.source_pipe.send(encode(Data(0, at, memoryview(bytes(64)))))
    dialogue.take()
    assert [(side, code) for side, code, _ in dialogue.refusals] == [("sink", code)]
    dialogue.close()
    assert_equal(log.directory, tmp_path / "sink")


def test_a_log_has_a_bounded_number_of_files_without_a_frame(tmp_path):
    """Each costs the sink two files and two syncs; 2,000 kept a node busy for a minute."""
    log = Log(tmp_path / "source").write(100).roll()
    dialogue = Dialogue(log.directory, tmp_path / "sink").talk()
    for roll in range(1, 2000):
        line = Rolled(Position.of(0, roll, 0), 0, 1, 1, 1, 1, 7)
        dialogue.source_pipe.send(encode(RolledNotice(0, line)))
        dialogue.take()
        if dialogue.refusals:
            break
    assert roll == EMPTY_FILES_MAX + 1
    assert dialogue.refusals[0][1] == "protocol"
    dialogue.close()


# Acknowledgements


@pytest.mark.parametrize("beyond", ["written", "durable", "replicated", "merged"])
def test_an_acknowledgement_of_what_was_never_sent_ends_the_channel(tmp_path, beyond):
    """Files are truncated on its strength: one node's lie once took two of them."""
    log = Log(tmp_path / "source").write(100)
    dialogue = Dialogue(log.directory, tmp_path / "sink").talk()
    taken, end = len(dialogue.acks), log.appender.end
    ends = dict.fromkeys(("written", "durable", "replicated", "merged"), end)
    ends[beyond] = Position((1 << 63) - 1)
    dialogue.sink_pipe.send(encode(Ack(0, *ends.values(), START)))
    dialogue.source.turn()
    assert len(dialogue.acks) == taken
    code = "diverged" if beyond in ("replicated", "merged") else "protocol"
    assert [(side, each) for side, each, _ in dialogue.refusals] == [("source", code)]
    dialogue.close()


def test_a_node_may_have_merged_what_it_was_not_sent_here(tmp_path):
    """It came there by another node, or as merged bytes; the log does reach that far."""
    log = Log(tmp_path / "source").write(100)
    dialogue = Dialogue(log.directory, tmp_path / "sink").talk()
    end = dialogue.outlet.position
    log.write(100)
    dialogue.sink_pipe.send(encode(Ack(0, end, end, end, log.appender.end, START)))
    dialogue.source.turn()
    assert dialogue.acks[-1].merged == log.appender.end
    assert not dialogue.refusals
    dialogue.close()


def test_a_sink_sends_its_standing_once(tmp_path):
    """Saying it again would have the source send everything again, as often as the sink likes."""
    log = Log(tmp_path / "source").write(100)
    dialogue = Dialogue(log.directory, tmp_path / "sink").talk()
    dialogue.sink_pipe.send(encode(Standing(0, START)))
    dialogue.source.turn()
    assert [(side, code) for side, code, _ in dialogue.refusals] == [("source", "protocol")]
    dialogue.close()


def said(durable, merged):
    """Return an acknowledgement of a node that knows of no majority."""
    return Ack(0, Position(durable), Position(durable), START, Position(merged), START)


@pytest.mark.parametrize(
    ("release", "released"), [(Release.MERGED, 200), (Release.ALL, 100), (Release.NEVER, 0)]
)
def test_files_are_released_by_as_many_nodes_as_the_setting_says(tmp_path, release, released):
    """A majority of the nodes that were sent the bytes has to say so; one node's word is one."""
    progress = SessionProgress(str(tmp_path), 3, release)
    for node, end in (("n1", 300), ("n2", 200), ("n3", 100)):
        assert progress.released == START
        progress.record(node, said(end, end))
        if node == "n1":
            assert progress.released == START
        if release is Release.MERGED and node == "n2":
            break
    assert progress.released == released
    progress.save()
    assert ConfirmationsFile(str(tmp_path)).read().released == released


def test_merged_files_are_kept_for_as_long_as_the_setting_says(tmp_path):
    """A standby that is promoted without its cluster is sent again what it lacks."""
    now_s = 1000.0
    progress = SessionProgress(str(tmp_path), 1, keep_s=60, clock=lambda: now_s)
    first, second = Position.of(0, 1, 50), Position.of(0, 2, 10)
    progress.record("n1", said(first, first))
    assert progress.released == START
    now_s += 30
    progress.record("n1", said(second, second))
    assert progress.released == START
    now_s += 31
    assert progress.released == first, "the files before the one it was in may go"
    now_s += 30
    assert progress.released == second


def test_merged_files_are_kept_until_a_standby_has_them(tmp_path):
    """Time says nothing of a standby that was down for longer."""
    standby = Position(0)
    progress = SessionProgress(str(tmp_path), 1, standby=lambda: standby)
    first, second = Position.of(0, 1, 50), Position.of(0, 2, 10)
    progress.record("n1", said(first, first)._replace(merged_at=Position(1000)))
    assert progress.released == START
    standby = Position(999)
    assert progress.released == START
    progress.record("n1", said(second, second)._replace(merged_at=Position(2000)))
    assert progress.released == START
    standby = Position(1500)
    assert progress.released == first, "the standby has what was merged by then, and no more"
    standby = Position(2000)
    assert progress.released == second


def test_what_a_node_was_not_sent_releases_nothing(tmp_path):
    """It may have merged more by way of others; what it holds of this session is what counts."""
    progress = SessionProgress(str(tmp_path), 1)
    progress.record("n1", said(100, 500))
    assert progress.released == 100


def test_one_certificate_has_one_voice_at_however_many_addresses(tmp_path):
    """A node that is named twice, or answers for one that is down, was a majority by itself."""
    progress = SessionProgress(str(tmp_path), 3)
    progress.record("localhost:7420", said(300, 300), holder="n1")
    progress.record("127.0.0.1:7420", said(300, 300), holder="n1")
    assert progress.released == START
    progress.record("localhost:7421", said(100, 100), holder="n2")
    assert progress.released == 100


# Nodes


@pytest.mark.parametrize(("count", "nodes"), [(5, 1), (60, 1), (60, 3)])
def test_a_publisher_restored_from_a_backup_confirms_nothing_and_starves_no_session(
    tmp_path, caplog, count, nodes
):
    """It got confirmations for lost messages, or took down every session's connection."""
    caplog.set_level("INFO")
    directory = tmp_path / "pub" / STREAM / "jfk"

    def life(messages, text):
        publisher = Publisher(str(tmp_path / "pub"), stream=STREAM, session="jfk")
        for number in range(messages):
            publisher.publish(b"%s%d" % (text, number))
            publisher.flush("written")
        return publisher

    with ArchiveCluster(tmp_path, nodes=nodes) as cluster:
        other = cluster.publisher("lga")
        push = cluster.push()
        with life(10, b"a") as publisher:
            publisher.flush(Level.MERGED, 60)
        push.stop()
        shutil.copytree(directory, tmp_path / "backup")
        push = cluster.push()
        with life(5, b"b") as publisher:
            publisher.flush(Level.MERGED, 60)
        copy = tmp_path / "n1" / STREAM / "in" / "jfk" / "log.1.0"

        def is_archived():
            other.publish(
                b"x"
            )  # inputs are archived after a snapshot, and that needs something new
            other.flush(Level.MERGED, 60)
            return copy.exists() and copy.stat().st_size == 0  # n1 may be the last to be reached

        assert eventually(is_archived)
        push.stop()
        shutil.rmtree(directory)
        shutil.copytree(tmp_path / "backup", directory)
        caplog.clear()
        with life(count, b"c") as publisher:
            push = cluster.push()

            def refusing():
                every = [each.error for each in push.status() if each.session == "jfk"]
                return [each for each in every if "log.1.0" in each]

            assert eventually(lambda: caplog.text.count("connected") >= nodes)
            assert eventually(refusing), push.status()
            began_s = time.monotonic()
            with pytest.raises(FlushTimeout):
                publisher.flush(Level.MERGED, 2)
            while time.monotonic() - began_s < 3:
                other.publish(b"x")
                other.flush(Level.MERGED, 60)
            assert refusing(), push.status()
            push.stop()
    assert caplog.text.count("connected") == nodes


def test_what_only_releases_files_is_not_written_for_every_message(tmp_path):
    """Nothing waits for it, and each write would wake the process that watches the session."""
    progress = SessionProgress(str(tmp_path), 3)
    file = ConfirmationsFile(str(tmp_path))
    progress.record("n1", said(300, 300))
    progress.save(whole=False)
    assert progress.record("n2", said(300, 300))
    progress.save(whole=False)
    assert (file.read().merged, file.read().released) == (300, 0)
    progress.record("n2", said(400, 400))
    progress.save(whole=False)
    assert file.read().merged == 400
    progress.record("n3", said(400, 400))
    progress.save()
    assert file.read().released == 400


def open_below(top):
    """Return the files there that are open; threads of earlier tests have others."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # another thread has closed it
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [each for each in found if each.startswith(f"{top}/")]


def test_the_file_of_confirmations_stays_open_while_its_session_is_busy(tmp_path):
    """Opening it for each message costs more than writing it; a quiet one needs no descriptor."""

    def opened():
        return open_below(tmp_path).count(str(tmp_path / "confirmed"))

    progress = SessionProgress(str(tmp_path), 1)
    for end in (100, 200):
        progress.record("n1", said(end, end))
        progress.save(whole=False)
        assert ConfirmationsFile(str(tmp_path)).read().merged == end
        assert opened() == 1
    progress.save(whole=True)
    assert ConfirmationsFile(str(tmp_path)).read().released == 200
    assert opened() == 1
    progress.rest()
    assert opened() == 0
    progress.record("n1", said(300, 300))
    progress.save(whole=False)
    assert opened() == 1
    progress.rest()


@pytest.mark.parametrize("way", ["deleted", "replaced"])
def test_a_note_that_was_deleted_is_there_again_after_a_look_at_its_session(tmp_path, way):
    """The file stays open; what is written to one without a name confirms nothing to anybody."""
    progress, other = SessionProgress(str(tmp_path), 1), tmp_path / "other"
    progress.record("n1", said(100, 100))
    progress.save()
    other.write_bytes(b"")
    if way == "deleted":
        (tmp_path / "confirmed").unlink()
    else:
        other.rename(tmp_path / "confirmed")
    progress.save()
    progress.record("n1", said(200, 200))
    progress.save(whole=False)
    assert ConfirmationsFile(str(tmp_path)).read().merged == 200
    progress.rest()


def test_what_was_noted_in_a_file_that_had_gone_is_noted_again(tmp_path):
    """The last confirmation may be the one that a flush waits for."""
    progress = SessionProgress(str(tmp_path), 1)
    progress.record("n1", said(100, 100))
    progress.save()
    os.link(tmp_path / "confirmed", tmp_path / "backup")  # as `cp -al` makes one
    (tmp_path / "confirmed").unlink()
    progress.record("n1", said(200, 200))
    progress.save(whole=False)
    progress.save()
    assert ConfirmationsFile(str(tmp_path)).read().merged == 200
    progress.rest()


def pushed(tmp_path):
    """Return a connection that ships one session to a node that has nothing yet, and its line."""
    book = SessionBook(str(tmp_path / "pub"), STREAM, [parse_glob("*")])
    push = PushConnection(
        Destination([("localhost", 1)], SimpleNamespace(successions=None), PUSH, STREAM),
        book,
        GatherWindow(1),
    )
    return push, Line().shipping(push)


def confirm(push, line):
    """Let the node confirm all that it was sent."""
    end, _ = push.sent("jfk")
    line.answers.append(said(end, end))
    push.turn()


def test_a_session_rests_once_nothing_was_sent_between_two_looks(tmp_path):
    """One that publishes every second would be opened, compared and closed each time."""
    log = Log(tmp_path / "pub" / STREAM / "jfk").write(100)
    push, line = pushed(tmp_path)

    def look():
        push.check_soon()
        push.turn()
        return len(open_below(tmp_path))

    confirm(push, line)
    busy = look()
    assert look() == busy - 3, "the log, its manifest, and the note of what is confirmed"
    log.write(100)
    push.offer("jfk")
    push.turn()
    confirm(push, line)
    assert look() == busy
    line.answers.append(Refusal(0, "busy", "later"))
    push.turn()
    assert push.sent("jfk") == (None, 0)
    assert len(open_below(tmp_path)) == busy - 3
    push.end()


def test_what_is_confirmed_of_a_session_made_again_is_noted_in_its_new_directory(tmp_path):
    """The file that is open may be one of the directory that was deleted."""
    directory = tmp_path / "jfk"
    directory.mkdir()
    progress = SessionProgress(str(directory), 1)
    progress.record("n1", said(300, 300), "a" * 32)
    progress.save(whole=False)
    shutil.rmtree(directory)
    directory.mkdir()
    progress.record("n1", said(100, 100), "b" * 32)
    progress.save(whole=False)
    assert ConfirmationsFile(str(directory)).read().merged == 100
    progress.rest()


@pytest.mark.parametrize("rested", [False, True], ids=["awake", "rested"])
@pytest.mark.parametrize("closed", [False, True], ids=["killed", "closed"])
@pytest.mark.parametrize("runs", [1, 2])
def test_a_backup_that_is_put_back_while_it_is_pushed_is_not_sent_on(
    tmp_path, rested, closed, runs
):
    """The next run would be merged as if the messages of the last had never been numbered."""
    source, sink = tmp_path / "source", tmp_path / "sink"
    log = Log(source).write(100)
    shutil.copytree(source, tmp_path / "backup")
    log.write(100, 100)
    for _ in range(runs - 1):
        log.roll().run().write(100)
    if closed:
        log.roll()
    dialogue = Dialogue(source, sink).talk()
    before = log_bytes(sink)
    assert not dialogue.refusals
    if rested:
        dialogue.outlet.rest()
    log = restore(source).roll().run().write(100).roll().run().write(100)
    dialogue.talk().close()
    assert {(side, code) for side, code, _ in dialogue.refusals} == {
        ("source", "diverged"), ("sink", "diverged")
    }  # fmt: skip
    assert log_bytes(sink) == before
    assert {code for _, code, _ in copy_all(source, sink).refusals} == {"diverged"}


@pytest.mark.parametrize("rested", [False, True], ids=["awake", "rested"])
def test_a_backup_whose_manifest_is_as_long_is_noticed_at_the_next_look(tmp_path, rested):
    """The open file is the deleted one, and never grows: its session would wait for ever."""
    source, sink = tmp_path / "source", tmp_path / "sink"
    log = Log(source).write(100)
    shutil.copytree(source, tmp_path / "backup")
    log.write(100)
    dialogue = Dialogue(source, sink).talk()
    assert dialogue.log.is_as_read()
    if rested:
        dialogue.outlet.rest()
    restore(source)
    assert not dialogue.log.is_as_read()
    dialogue.talk().close()
    assert [code for _, code, why in dialogue.refusals if "put back" in why] == ["diverged"] * 2


class WatchedDirectory(LogDirectory):
    """A log's directory that counts the looks at its manifest, and the files that it opens."""

    def __init__(self, path, disk):
        super().__init__(path, disk)
        self.calls = []

    def is_as_read(self):
        self.calls.append("is_as_read")
        return super().is_as_read()

    def is_continued(self):
        self.calls.append("is_continued")
        return super().is_continued()

    def refresh(self):
        self.calls.append("refresh")
        return super().refresh()

    def open_file(self, start):
        self.calls.append("open_file")
        return super().open_file(start)


@pytest.mark.parametrize("rested", [False, True], ids=["awake", "rested"])
def test_a_manifest_that_has_not_changed_is_looked_at_once(tmp_path, rested):
    """Each system call hands the interpreter on, and each update is sent by three connections."""
    log = Log(tmp_path / "source").write(100)
    dialogue = Dialogue(tmp_path / "source", tmp_path / "sink")
    watched = dialogue.log = WatchedDirectory(str(tmp_path / "source"), OsDisk())
    watched.refresh()
    dialogue.talk()
    if rested:
        dialogue.outlet.rest()
        dialogue.talk()
    log.write(100)
    watched.calls.clear()
    dialogue.outlet.pump(lambda _data: None, FrameBuffer())
    assert watched.calls == ["is_as_read"]
    dialogue.close()


def test_a_directory_whose_log_goes_on_is_sent_on_after_a_rest(tmp_path):
    """The writer only appends to its manifest."""
    source, sink = tmp_path / "source", tmp_path / "sink"
    log = Log(source).write(100).roll().write(100)
    dialogue = Dialogue(source, sink).talk()
    for _ in range(3):
        dialogue.outlet.rest()
        log.write(100).roll().run().write(50)
        dialogue.talk()
    dialogue.close()
    assert not dialogue.refusals
    assert_equal(source, sink)


def test_what_was_confirmed_of_a_log_says_nothing_of_the_backup_in_its_place(tmp_path):
    """Both have the same positions; the backup's own note is what is known of it."""
    progress = SessionProgress(str(tmp_path))
    progress.record("n1", Ack(0, RUN_1, RUN_1, RUN_1, RUN_1, RUN_1), "a" * 32)
    progress.forget()
    assert (progress.known.merged, progress.released) == (START, START)
    assert progress.record("n1", Ack(0, RUN_1, RUN_1, RUN_1, RUN_1, RUN_1), "a" * 32)


def test_a_publisher_restored_beside_a_running_pusher_is_told(tmp_path):
    """200 messages are merged, the backup holds 100, and others are published in their place."""
    with ArchiveCluster(tmp_path) as cluster:
        cluster.push()
        pub, backup = tmp_path / "pub", tmp_path / "backup"
        mine = pub / STREAM / "jfk"
        with Publisher(pub, stream=STREAM, session="jfk") as publisher:
            publisher.publish_many([b"%d" % each for each in range(100)])
            publisher.flush("merged", 60)
            shutil.copytree(mine, backup)
            publisher.publish_many([b"%d" % each for each in range(100, 200)])
            publisher.flush("merged", 60)
        shutil.rmtree(mine)
        backup.rename(mine)
        with Publisher(pub, stream=STREAM, session="jfk") as publisher:
            assert publisher.next_sequence == 100
            publisher.publish_many([b"never merged"] * 200)
            why = "put back from a backup"
            assert eventually(lambda: why in publisher.shipping_note)
            with pytest.raises(FlushTimeout, match=why):
                publisher.flush("merged", 1)


def restore_from_journal(source, backup, way):
    """Restore a directory: moved there, copied over what is there, or deleted only."""
    if way != "copied":
        shutil.rmtree(source)
    if way == "moved":
        shutil.copytree(backup, source)
    elif way == "copied":
        shutil.copytree(backup, source, dirs_exist_ok=True)


@pytest.mark.parametrize("way", ["moved", "copied", "deleted"])
def test_an_acknowledgement_that_was_under_way_says_nothing_of_the_backup(tmp_path, way):
    """It is about the log that is gone; the same positions mean other messages now."""
    source, backup = tmp_path / "pub" / STREAM / "jfk", tmp_path / "backup"
    log = Log(source).write(100)
    shutil.copytree(source, backup)
    log.roll().run().write(100).roll()
    dialogue = Dialogue(source, tmp_path / "sink").talk()
    end = dialogue.outlet.position
    dialogue.outlet.check(said(end, end))
    restore_from_journal(source, backup, way)
    with pytest.raises(Refused, match="was deleted or put back from a backup"):
        dialogue.outlet.check(said(end, end))


@pytest.mark.parametrize("way", ["moved", "copied", "deleted"])
def test_what_was_still_to_be_noted_of_a_log_is_not_noted_in_the_backup(tmp_path, way):
    """What may be archived is noted later than the rest, when the session is looked at."""
    source, backup = tmp_path / "pub" / STREAM / "jfk", tmp_path / "backup"
    log = Log(source).write(100)
    shutil.copytree(source, backup)
    log.write(100).roll()
    push, line = pushed(tmp_path)
    confirm(push, line)
    restore_from_journal(source, backup, way)
    before = ConfirmationsFile(str(source)).read()
    push.check_soon()
    push.turn()
    assert "was deleted or put back from a backup" in push.error("jfk")
    assert ConfirmationsFile(str(source)).read() == before
    assert not before.released


def test_a_publisher_that_lost_what_the_nodes_have_uses_no_position_again(tmp_path):
    """A late acknowledgement was noted in the backup: it would confirm what is published now."""
    with Publisher(tmp_path, stream=STREAM, session="jfk") as publisher:
        publisher.publish(b"before")
    late = Position.of(4, 0, 8_000)
    directory = str(tmp_path / STREAM / "jfk")
    file = ConfirmationsFile(directory)
    file.write(file.read()._replace(received=late, replicated=late, merged=late))
    file.close()
    with Publisher(tmp_path, stream=STREAM, session="jfk") as publisher:
        publisher.publish(b"after")
        assert publisher.flush("synced").position > late
        with pytest.raises(FlushTimeout):
            publisher.flush("merged", 0.05)
