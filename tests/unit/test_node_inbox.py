"""Inboxes: the copies of sessions on a node, filled by one connection each, synced by any."""

import errno
import itertools
import os
import shutil
import threading
from types import SimpleNamespace

import pytest
from faulty import FaultyDisk

from rt.errors import CorruptLog, Misuse, Refused
from rt.events import SessionChange
from rt.format.manifest import SESSION, Archived, LogIdentity
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import OsDisk
from rt.log.notify.confirmations import Confirmations
from rt.log.write.writer import WriterSettings
from rt.node.ingest.inbox import NodeInbox
from rt.node.ingest.inboxes import Inboxes
from rt.node.ingest.session_epochs import SessionEpoch
from rt.position import START, Position
from rt.publisher import Publisher
from sequencer.ledger.instruction import decode_instruction, encode_instruction
from sequencer.ledger.life import ANY_LOG, Life
from sequencer.ledger.session_facts import Ownership
from tests.logs import make_frame

PATIENCE_S = 60


class NoGuard:
    """There is always room."""

    def demand_room(self):
        pass


class NoBell:
    """A bell that no thread waits for."""

    def set(self):
        pass


def opened(tmp_path, disk=None, told=lambda _end, _session: None):
    """Return the inboxes of a node that has none yet."""
    disk = disk or FaultyDisk()
    return Inboxes(disk, str(tmp_path / "in"), "flights", told, NoGuard(), alone=lambda: False)


def identity(name="jfk"):
    """Return the log that a publisher would push."""
    return LogIdentity(SESSION, "flights", name, "1" * 32, 0)


def begun(work):
    """Return a thread that is at work."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_sync_that_fails_in_a_connection_lets_the_syncer_end(tmp_path):
    """A node whose disk fails has to stop, and waits for its syncer when it does."""
    disk = FaultyDisk()
    inboxes = opened(tmp_path, disk)
    inbox = inboxes.claim(identity(), "p", NoBell(), START)
    inbox.appender.begin_file(START)

    def step(call):
        if call == "sync":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk.step = step
    inbox.written()
    with pytest.raises(OSError, match="Input/output"):
        inboxes.syncer.sync_if_small()
    inbox.written()
    assert not inboxes.syncer.sync_if_small(), "nothing is synced, and so acknowledged, after it"
    synced = []
    disk.step = synced.append
    stopper = begun(inboxes.syncer.finish)
    stopper.join(PATIENCE_S)
    assert not stopper.is_alive()
    assert not synced


@pytest.mark.parametrize("group", ["g" * 300, "jfk\u00e9", "../g"])
def test_a_group_that_no_instruction_could_name_is_refused(tmp_path, group):
    """The publisher chooses it, and every node must be able to merge what one node takes."""
    inboxes = opened(tmp_path)
    with pytest.raises(Misuse, match="group"):
        inboxes.claim(identity()._replace(group=group), "p", NoBell(), START)
    assert not inboxes.found(), "nothing was made of it"
    inboxes.claim(identity()._replace(group="g"), "p", NoBell(), START)


def test_a_log_whose_id_instructions_take_for_none_is_refused(tmp_path):
    """The leader would bind the name to it and the other nodes to none, again with every sync."""
    inboxes = opened(tmp_path)
    with pytest.raises(Refused, match="zeros"):
        inboxes.claim(identity()._replace(id=ANY_LOG), "p", NoBell(), START)
    assert not inboxes.found(), "nothing was made of it"
    life = Life(1, SessionChange.OPENED, "jfk", START, log=ANY_LOG, owner="p")
    assert decode_instruction(encode_instruction(life)) != life, "or no reason to refuse it"


class Gate:
    """Blocks the first thread that reaches a disk call until it is opened."""

    def __init__(self, call):
        self.call, self.reached, self.opened = call, threading.Event(), threading.Event()

    def __call__(self, call):
        if call == self.call and not self.reached.is_set():
            self.reached.set()
            assert self.opened.wait(PATIENCE_S)


def claimed(inboxes, peer):
    """Return the inbox that a peer got, or the code of the refusal."""
    try:
        return inboxes.claim(identity(), peer, NoBell(), START)
    except Refused as why:
        return why.code


def test_two_connections_that_open_a_new_session_at_once_do_not_both_fill_it(tmp_path):
    """Each would append to the same file, with its own idea of where it ends."""
    disk = FaultyDisk()
    inboxes, got = opened(tmp_path, disk), []
    disk.step = gate = Gate("open")
    first = begun(lambda: got.append(claimed(inboxes, "p")))
    assert gate.reached.wait(PATIENCE_S)
    assert claimed(inboxes, "q") == "busy"
    gate.opened.set()
    first.join(PATIENCE_S)
    assert got == list(inboxes.every())
    assert claimed(inboxes, "q") == "busy"
    got[0].release()
    assert claimed(inboxes, "q") is got[0]


def test_a_damaged_copy_costs_no_descriptor_per_try(tmp_path):
    """Its publisher tries again, twice a minute, until somebody repairs it."""
    with Publisher(str(tmp_path), stream="flights", session="jfk") as publisher:
        publisher.publish(b"1")
        shutil.copytree(tmp_path / "flights", tmp_path / "in")  # its file is not rolled yet
    end = os.path.getsize(tmp_path / "in" / "jfk" / "log.0.0")
    os.truncate(tmp_path / "in" / "jfk" / "log.0.0", end - 1)
    log = LogDirectory(str(tmp_path / "in" / "jfk"))
    log.refresh()
    inboxes = Inboxes(OsDisk(), str(tmp_path / "in"), "flights", lambda *_: None, NoGuard())
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(CorruptLog):
            inboxes.claim(log.manifest.identity, "p", NoBell(), Position(end))
    assert len(os.listdir("/proc/self/fd")) == before
    log.close()


def test_a_copy_is_not_opened_while_it_is_set_aside(tmp_path):
    """The opened copy would lie in quarantine while the node claimed to hold it."""
    disk = FaultyDisk()
    inboxes = opened(tmp_path, disk)
    inboxes.claim(identity(), "p", NoBell(), START).release()
    disk.step = gate = Gate("replace")
    thread = begun(lambda: inboxes.give_up("jfk"))
    assert gate.reached.wait(PATIENCE_S)
    assert claimed(inboxes, "q") == "busy"
    gate.opened.set()
    thread.join(PATIENCE_S)
    assert claimed(inboxes, "q").appender.end == START
    assert sorted(os.listdir(tmp_path / "in")) == ["jfk", "quarantine.jfk.0"]


def test_a_connection_that_ends_while_it_is_notified_is_not_an_error():
    """The merging thread notifies connections of what it confirms, and must carry on."""
    rung = []

    class Released(NodeInbox):
        looks = iter([SimpleNamespace(set=lambda: rung.append(1))])
        _wake = property(lambda self: next(self.looks, None), lambda *_: None)

    appender = SimpleNamespace(identity=SimpleNamespace(name="jfk"))
    Released(appender, START, None).confirm(Confirmations(received=Position(8)))
    assert rung == [1]


def test_what_is_not_merged_is_still_needed(tmp_path):
    """An instruction may name it, on this node too."""
    inbox = opened(tmp_path).claim(identity(), "p", NoBell(), START)
    assert inbox.needs(Position(64))
    inbox.merged = Position(64)
    assert not inbox.needs(Position(64))
    assert inbox.needs(Position(128))


def copied(tmp_path, told, *, alone=False):
    """Return the inbox of a copy of two files, the first of them rolled."""
    writer = WriterSettings(file_bytes_max=70_000)
    source = Publisher(str(tmp_path), stream="flights", session="jfk", writer=writer)
    with source as publisher:
        for _number in range(3):
            publisher.publish(bytes(30_000))
            publisher.flush("synced")
        shutil.copytree(tmp_path / "flights", tmp_path / "in")  # the last file is still active
    inboxes = Inboxes(
        OsDisk(), str(tmp_path / "in"), "flights", lambda *_: None, NoGuard(), alone=lambda: alone,
        damaged=told,
    )  # fmt: skip
    assert not inboxes.open_all(lambda _session: START)
    return inboxes.get("jfk")


def flip(path, place):
    """Flip a bit."""
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 4]))


def test_a_copy_that_its_source_doubts_is_checked_and_its_damage_named(tmp_path):
    """Otherwise its source is refused for ever, since both keep their bytes."""
    told = []
    inbox = copied(tmp_path, told.append)
    inbox.doubted()
    assert not told, "it is whole: the source's may be damaged"
    flip(tmp_path / "in" / "jfk" / "log.0.0", 40_000)
    flip(tmp_path / "in" / "jfk" / "log.0.1", 100)
    inbox.doubted()
    inbox.merged = Position.of(0, 1, 0)
    inbox.doubted()
    assert [found.damage.path[-7:] for found in told] == ["log.0.0", "log.0.1"]
    assert all(found.log is inbox.appender for found in told)
    assert [found.damage.position for found in told] == [Position(30_080), Position.of(0, 1, 0)]


def test_a_copy_that_cannot_be_fetched_again_is_not_set_aside_on_a_doubt(tmp_path, caplog):
    """A single node continues with its other sessions and reports what is wrong with this one."""
    told = []
    inbox = copied(tmp_path, told.append, alone=True)
    flip(tmp_path / "in" / "jfk" / "log.0.1", 100)
    inbox.doubted()
    assert not told
    assert "log.0.1: corrupt at 0.1.0" in caplog.text
    assert "is refused until it is mended" in caplog.text


def test_a_copy_that_was_set_aside_meanwhile_is_not_checked(tmp_path, caplog):
    """The merging thread may have found the damage first."""
    told = []
    inbox = copied(tmp_path, told.append)
    shutil.rmtree(tmp_path / "in" / "jfk")
    inbox.doubted()
    assert not told
    assert "session jfk cannot be checked" in caplog.text


def test_a_copy_that_is_set_aside_while_it_is_opened_is_not_registered(tmp_path):
    """Its directory was gone, and the session could not be filled until the node was restarted."""
    disk = FaultyDisk()
    inboxes = opened(tmp_path, disk)

    def set_it_aside(call):
        if call != "sync":
            return
        disk.step = lambda _call: None
        inboxes.give_up("jfk")
        with pytest.raises(Refused, match="is being opened"):
            inboxes.claim(identity(), "other", NoBell(), START)

    disk.step = set_it_aside
    with pytest.raises(Refused, match="was set aside just now"):
        inboxes.claim(identity(), "p", NoBell(), START)
    assert inboxes.get("jfk") is None
    inboxes.claim(identity(), "p", NoBell(), START).appender.begin_file(START)
    assert sorted(os.listdir(tmp_path / "in")) == ["jfk", "quarantine.jfk.0"]


def test_a_copy_whose_directory_is_moved_while_it_is_opened_is_busy(tmp_path):
    """Its publisher was told that the node's disk had failed, and tried again only later."""
    disk = FaultyDisk()
    inboxes, make_directory = opened(tmp_path, disk), disk.make_directory

    def make_and_move(path):
        make_directory(path)
        disk.make_directory = make_directory
        inboxes.give_up("jfk")

    disk.make_directory = make_and_move
    with pytest.raises(Refused, match="was set aside just now") as refused:
        inboxes.claim(identity(), "p", NoBell(), START)
    assert refused.value.code == "busy"
    inboxes.claim(identity(), "p", NoBell(), START)


def test_a_copy_is_set_aside_once_though_two_threads_find_it_damaged(tmp_path):
    """The merging and the receiving thread may find it at the same time."""
    inboxes = opened(tmp_path)
    inboxes.claim(identity(), "p", NoBell(), START).release()
    inboxes.give_up("jfk")
    inboxes.give_up("jfk")
    assert os.listdir(tmp_path / "in") == ["quarantine.jfk.0"]


def test_a_log_that_is_retired_while_its_copy_is_opened_leaves_nothing(tmp_path):
    """Its directory was made after the removal: the next log was refused as another one."""
    disk = FaultyDisk()
    inboxes, make_directory = opened(tmp_path, disk), disk.make_directory

    def drop_and_make(path):
        disk.make_directory = make_directory
        ended = {"jfk": SessionEpoch(7, identity().id)}
        inboxes.drop_all(ended, lambda _session, _begun: True)
        make_directory(path)

    disk.make_directory = drop_and_make
    with pytest.raises(Refused, match="was set aside just now"):
        inboxes.claim(identity(), "p", NoBell(), START)
    following = identity()._replace(id="2" * 32)
    assert inboxes.claim(following, "p", NoBell(), START).appender.identity == following


def test_a_copy_is_not_removed_while_its_files_are_being_emptied(tmp_path):
    """Emptied a moment later, they would be those of the next log under the same name."""
    disk, order = FaultyDisk(), []
    inboxes = opened(tmp_path, disk)
    log = inboxes.claim(identity(), "p", NoBell(), START).appender
    log.begin_file(START)
    log.roll(1)
    disk.step = gate = Gate("truncate")
    path = tmp_path / "in" / "jfk" / "log.0.0"
    path.write_bytes(b"x")

    def archive():
        log.archive_all([Archived(START, 1, "merged")])
        order.append("emptied")

    def drop():
        inboxes.drop_all({"jfk": SessionEpoch(7)}, lambda _session, _begun: True)
        order.append("dropped")

    archiving = begun(archive)
    assert gate.reached.wait(PATIENCE_S)
    dropping = begun(drop)
    dropping.join(0.2)
    gate.opened.set()
    for thread in (archiving, dropping):
        thread.join(PATIENCE_S)
    assert order == ["emptied", "dropped"]


def test_a_copy_that_was_begun_before_its_name_was_given_to_another_log_is_removed(tmp_path):
    """Two publishers may come at once to different nodes; its owner would be refused here."""
    told = []
    inboxes = opened(tmp_path, told=lambda end, session: told.append((session, end)))
    inbox = inboxes.claim(identity(), "bob", NoBell(), START)
    agreed = Ownership("alice", "2" * 32, 7)
    assert inboxes.bind({"jfk": agreed}, 7) == ["jfk"]
    assert inbox.leave.code == "owned"
    assert inboxes.get("jfk") is None
    assert claimed(inboxes, "bob") == "owned"
    assert claimed(inboxes, "alice") == "other-log", "from before its directory was made again"
    following = identity()._replace(id="2" * 32)
    assert inboxes.claim(following, "alice", NoBell(), START).appender.identity == following
    assert inboxes.bind({"jfk": agreed}, 7) == []


def test_a_copy_begun_after_an_instruction_that_is_to_be_repeated_is_kept(tmp_path):
    """A node that had lost its state in a power cut removed what it had said it held durably."""
    inboxes = opened(tmp_path)
    inboxes.drop_all({"jfk": SessionEpoch(9, "1" * 32)}, lambda _session, _begun: True)
    following = identity()._replace(id="2" * 32)
    inboxes.claim(following, "alice", NoBell(), START)
    assert inboxes.bind({"jfk": Ownership("alice", "1" * 32, 7)}, 8) == []
    assert inboxes.get("jfk").appender.identity == following
    assert inboxes.bind({"jfk": Ownership("alice", "3" * 32, 10)}, 10) == ["jfk"]


def test_a_copy_of_another_log_than_the_agreed_one_is_refused_with_a_reason(tmp_path, caplog):
    """Its connection broke without a word, and the node's log said nothing."""
    inboxes = opened(tmp_path)
    inbox = inboxes.claim(identity(), "alice", NoBell(), START)
    assert inboxes.bind({"jfk": Ownership("alice", "2" * 32, 7)}, 7) == ["jfk"]
    assert inbox.leave.code == "other-log"
    assert "session jfk: another log has this name; the copy is removed" in caplog.text


def test_of_a_session_the_first_and_the_last_copy_that_were_set_aside_are_kept(tmp_path):
    """A failing disk, or a publisher with other bytes, filled the node's disk with them."""
    inboxes = opened(tmp_path)
    for number in range(5):
        inboxes.claim(identity()._replace(created_ns=number), "alice", NoBell(), START)
        inboxes.give_up("jfk")
    inboxes.claim(identity("lga"), "alice", NoBell(), START)
    inboxes.give_up("lga")
    kept = sorted(name for name in os.listdir(tmp_path / "in") if name.startswith("quarantine."))
    assert kept == ["quarantine.jfk.0", "quarantine.jfk.1", "quarantine.lga.0"]
    logs = [LogDirectory(str(tmp_path / "in" / name)) for name in kept[:2]]
    for log in logs:
        log.refresh()
    assert [log.manifest.identity.created_ns for log in logs] == [0, 4]


def test_a_node_that_relays_needs_no_name_of_its_own_and_brings_only_the_agreed_log(tmp_path):
    """A session reaches nodes that its owner does not."""
    inboxes = opened(tmp_path)
    inboxes.bind({"jfk": Ownership("alice", "2" * 32, 7)}, 7)
    with pytest.raises(Refused, match="is log 22222222 here") as refused:
        inboxes.claim(identity(), "n2", NoBell(), START, relays=True)
    assert refused.value.code == "other-log"
    following = identity()._replace(id="2" * 32)
    inboxes.claim(following, "n2", NoBell(), START, relays=True)
    inboxes.bind({"jfk": None}, 8)
    assert inboxes.opened == {}


def synced_together(tmp_path, disk, names):
    """Return inboxes with unsynced bytes each, and what their syncer reports of them."""
    told = {}
    inboxes = opened(tmp_path, disk, lambda end, session: told.update({session: end}))
    for name in names:
        inbox = inboxes.claim(identity(name), "p", NoBell(), START)
        inbox.appender.begin_file(START)
        inbox.written()
    told.clear()
    return inboxes, told


def test_each_inbox_of_a_batch_is_synced_once_and_reported(tmp_path):
    """Several threads take from one batch; one of them may be slower than all others together."""
    disk, names = FaultyDisk(), [f"s{number}" for number in range(50)]
    inboxes, told = synced_together(tmp_path, disk, names)
    syncs = []
    disk.step = lambda call: syncs.append(call) if call == "sync" else None
    inboxes.syncer.finish()
    assert len(syncs) == len(names)
    assert sorted(told) == sorted(names)


def test_a_flush_makes_what_copies_received_durable_and_reports_nothing(tmp_path):
    """The instructions that carried these bytes are dropped next; no other node may have them."""
    disk, syncs = FaultyDisk(), []
    inboxes, told = synced_together(tmp_path, disk, ["jfk", "lga"])
    for inbox in inboxes.every():
        frame, after = (
            make_frame(START, [b"one"], session=inbox.session),
            inbox.appender.walk.copy(),
        )
        after.step(frame.header)
        inbox.appender.append(frame.parts, [frame.header], after)
    disk.step = lambda call: syncs.append(call) if call == "sync" else None
    inboxes.flush()
    assert (syncs, told) == (["sync", "sync"], {})
    inboxes.syncer.finish()
    assert sorted(told) == ["jfk", "lga"], "the syncer reports them in its own time"


@pytest.mark.parametrize("nth", [1, 2, 9, 30])
def test_nothing_of_a_batch_is_reported_if_any_of_its_syncs_failed(tmp_path, nth):
    """Whichever thread it failed in: what the disk has kept is unknown."""
    disk, syncs = FaultyDisk(), itertools.count(1)
    inboxes, told = synced_together(tmp_path, disk, [f"s{number}" for number in range(30)])

    def step(call):
        if call == "sync" and next(syncs) == nth:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk.step = step
    with pytest.raises(OSError, match="Input/output"):
        inboxes.syncer.finish()
    inboxes.close()
    assert not told
