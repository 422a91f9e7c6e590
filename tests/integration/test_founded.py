"""A cluster that was lost is founded again from a copy of its merged log."""

import os
import re
import shutil
from dataclasses import replace
from itertools import count

import pytest

from replicator.push.client import PushClient
from rt import Publisher, SessionChange, Subscriber
from rt.config.settings import load
from rt.errors import CorruptLog, Misuse
from rt.format.frame import HEADER_BYTES
from rt.format.manifest import Archived, encode_entry
from rt.inspect.verify import open_log, verify_log
from rt.log.files.disk import OsDisk
from rt.net.authority.certificates import issue
from rt.net.authority.identity import CertificateRole
from rt.node.founding.cluster_files import founding_lines, init_local_cluster
from rt.node.founding.from_copy import parse_groups, read_founding
from rt.node.host.state import found_state, open_state
from rt.node.settings.node import NodeSettings
from rt.position import FILE_BYTES_MAX, START, Position
from sequencer.ledger.founded import FOUNDED_NOTE, Founded, obstacle
from sequencer.ledger.ledger import Ledger
from sequencer.ledger.life import Life
from tests.archive_cluster import STREAM, ArchiveCluster
from tests.replicator_host import eventually
from tests.rot import flip_bit
from tests.unit.test_sequencing import Bench, publish


def messages(root):
    """Everything that a merged log holds: positions, sessions and payloads, in order."""
    with Subscriber(root, stream=STREAM, follow=False) as subscriber:
        return [(each.position, each.session, bytes(each.payload)) for each in subscriber]


@pytest.fixture
def lost(tmp_path):
    """What is left of a cluster: a copy of its merged log that lacks the end, and publishers."""
    clients = tmp_path / "clients"
    with ArchiveCluster(tmp_path / "old", nodes=3, clients=clients) as old:
        push, pull = old.push(), old.pull()
        for name in ("jfk", "lga"):
            publisher = old.publisher(name)
            texts = [b"%s %d " % (name.encode(), each) for each in range(300)]
            publisher.publish_many([text.ljust(1000, b".") for text in texts])
            end = publisher.flush("merged", timeout_s=60).merged_at  # a node may say it later
        assert eventually(lambda: pull.status().position >= end, 60)
        pull.stop()
        publisher.publish(b"merged by the old cluster, and not copied")
        publisher.flush("merged", timeout_s=60)
        push.stop()
    return tmp_path, str(clients / "sub" / STREAM / "out")


def test_a_new_cluster_continues_after_the_copy_and_nothing_is_lost_or_doubled(lost):
    """Positions go on, and each publisher with what the copy lacks."""
    root, copy = lost
    before = messages(str(root / "clients" / "sub"))
    lines = founding_lines(copy, STREAM, [])
    interrupted = root / "new" / "n1" / STREAM / "out.founding"
    interrupted.mkdir(parents=True)
    (interrupted / "log.0.0").write_bytes(b"half of it")
    with ArchiveCluster(root / "new", nodes=3, clients=root / "clients", founded=lines) as new:
        new.push()
        publisher = new.publisher("jfk")
        publisher.publish(b"after")
        publisher.flush("merged", timeout_s=60)
        whole = len(before) + 2  # "after", and what another session has to ship again
        assert eventually(lambda: {new.ledger(each).number for each in new.nodes} == {whole}, 60)
        for name in ("n1", "n2", "n3"):
            report = verify_log(open_log(new.out(name)), lambda _size: None)
            assert not report.is_wrong, report
        new.stop("n2")
        new.start("n2")
        assert eventually(lambda: new.ledger("n2").number == new.ledger("n1").number, 60)
        after = messages(os.path.join(new.root, "n1"))
    assert after[: len(before)] == before
    late = [payload for _, _, payload in after[len(before) :]]
    assert sorted(late) == [b"after", b"merged by the old cluster, and not copied"]


class PowerCutError(Exception):
    """The machine of a node stops."""


class FailingDisk(OsDisk):
    """A disk whose machine loses power at its `last`th change of a name."""

    def __init__(self, last):
        super().__init__()
        self.left = last

    def replace(self, source, target):
        """Count, and stop before or after the rename."""
        if not self.left:
            raise PowerCutError
        self.left -= 1
        super().replace(source, target)


def test_a_node_alone_restarts_while_it_is_sent_again_what_its_log_began_with(tmp_path):
    """Merging proves what a copy held here, and not what the copies of the lost cluster held."""
    clients = tmp_path / "clients"
    with ArchiveCluster(tmp_path / "old", clients=clients) as old:
        push, pull, publisher = old.push(), old.pull(), old.publisher("jfk")
        publisher.publish_many([b"%d".ljust(1000, b".") % each for each in range(50)])
        publisher.flush("merged", timeout_s=60)
        shutil.copytree(clients / "pub", tmp_path / "early" / "pub")
        publisher.publish_many([b"%d".ljust(1000, b".") % each for each in range(50, 100)])
        end = publisher.flush("merged", timeout_s=60).merged_at
        assert eventually(lambda: pull.status().position >= end, 60)
        push.stop()
    lines = founding_lines(str(clients / "sub" / STREAM / "out"), STREAM, [])
    with ArchiveCluster(tmp_path / "new", clients=tmp_path / "early", founded=lines) as new:
        push, part = new.push(), os.path.join(new.root, "n1", STREAM, "in", "jfk", "log.0.0")
        assert eventually(lambda: os.path.exists(part) and os.path.getsize(part) > 50_000, 60)
        push.stop()
        new.stop("n1")
        assert new.start("n1") == []
        rest = new.push()
        shutil.copytree(clients / "pub", tmp_path / "early" / "pub", dirs_exist_ok=True)
        assert eventually(lambda: rest.drained(merged=True), 60), rest.status()


def test_a_founding_that_is_interrupted_anywhere_is_completed_by_the_next(lost, tmp_path):
    """The second run was refused, with advice that makes a learner of a founding member."""
    _, copy = lost
    lines = founding_lines(copy, STREAM, [])
    places = init_local_cluster(str(tmp_path / "next"), STREAM, 3, lines)
    settings = load(NodeSettings, places[0].config, "node", {}, {})
    tops = []
    for last in count():
        tops.append(top := str(tmp_path / f"node{last}" / STREAM))
        disk = FailingDisk(last)
        disk.make_directory(top)
        try:
            found_state(disk, settings, top)
            break
        except PowerCutError:
            with pytest.raises(Misuse, match=r"was interrupted.* run rt node found once more"):
                open_state(OsDisk(), settings, top, founding=False)
        found_state(OsDisk(), settings, top)
        with pytest.raises(Misuse, match="only started, with rt node"):
            found_state(OsDisk(), settings, top)
    states = []
    for top in tops:
        opened = open_state(OsDisk(), settings, top, founding=False)
        opened.journal.close()
        assert not opened.damage
        states.append((opened.state.snapshot, opened.state.founders))
        assert sorted(os.listdir(top)) == ["out", "state"]
    assert len(states) > 4, "the log, its index or ballots, the snapshot, and the identity"
    assert all(state == states[0] for state in states)


def test_a_merged_log_in_the_way_of_a_founding_is_kept_and_refused(lost, tmp_path):
    """It may be a node's; only a copy of the very same log is taken for what was interrupted."""
    _, copy = lost
    places = init_local_cluster(str(tmp_path / "next"), STREAM, 3, founding_lines(copy, STREAM, []))
    settings = load(NodeSettings, places[0].config, "node", {}, {})
    top = tmp_path / "n1" / STREAM
    (top / "state.founding").mkdir(parents=True)
    shutil.copytree(copy, top / "out")
    last = open_log(copy).files()[-1].file_name
    os.truncate(top / "out" / last, os.path.getsize(top / "out" / last) - 100)
    with pytest.raises(Misuse, match=r"out is not the log that this cluster was founded from"):
        found_state(OsDisk(), settings, str(top))
    assert (top / "out" / last).exists()


def test_copies_of_the_old_log_are_refused(lost):
    """Its copies may hold other messages at positions that the new cluster gives out again."""
    root, copy = lost
    with ArchiveCluster(
        root / "new", nodes=1, clients=root / "clients", founded=founding_lines(copy, STREAM, [])
    ) as new:
        pull = new.pull()
        assert eventually(lambda: "another" in pull.status().error), pull.status().error


def test_a_session_or_group_of_which_too_little_is_known_is_not_merged():
    """What the old cluster has merged of it could be merged again."""
    ledger = Ledger(sessions={"a": Position(8)}, watermarks={"a": 3, "group known": 5})
    founded = Founded("f" * 32, 1000, frozenset({"known"}), frozenset({"gone"}), False)
    assert not obstacle(ledger, "gone", "", 0), "not founded from a log"
    ledger.set_note(FOUNDED_NOTE, founded.text())
    assert not obstacle(ledger, "a", "", 0)
    assert not obstacle(ledger, "b", "known", 0)
    assert not obstacle(ledger, "new", "", 0)
    assert "--group known=a" in obstacle(ledger, "a", "known", 0)
    assert "--group feed=b" in obstacle(ledger, "b", "feed", 0)
    assert "rt session reset gone" in obstacle(ledger, "gone", "", 2000)
    ledger.begun["gone"] = (9, "")
    assert not obstacle(ledger, "gone", "", 2000)
    assert "rt session reset gone" in obstacle(ledger, "gone", "", 1000), "another old log of it"
    del ledger.sessions["a"]
    ledger.begun["a"] = (10, "")
    assert "rt session reset a" in obstacle(ledger, "a", "", 1000), "merged, and forgotten since"
    assert not obstacle(ledger, "a", "", 1001)
    ledger.set_note(FOUNDED_NOTE, replace(founded, is_partial=True).text())
    assert "may have messages that were merged before" in obstacle(ledger, "new", "", 1000)
    assert not obstacle(ledger, "new", "", 1001)


def test_the_state_that_is_read_from_a_log_is_the_one_that_led_to_it(lost):
    """Groups are named by the operator, since a merged log does not."""
    _, copy = lost
    founding = read_founding(copy, ["feed=jfk"], FILE_BYTES_MAX)
    ledger = founding.ledger
    assert (ledger.number, ledger.watermarks) == (600, {"group feed": 300, "lga": 300})
    assert (ledger.archived_to, ledger.end.file) == (0, Position.of(0, len(files(copy)) - 1, 0))
    log = open_log(copy)
    first = log.files()[0]
    with open(os.path.join(copy, "manifest"), "ab") as manifest:
        manifest.write(encode_entry(Archived(first, 1, "time", 1)))
    partial = read_founding(copy, ["feed=jfk"], FILE_BYTES_MAX).ledger
    assert partial.archived_to == first.next_file()
    assert (partial.end, partial.digest, partial.sessions.keys()) == (
        ledger.end, ledger.digest, {"jfk", "lga"},
    )  # fmt: skip
    assert '"partial":true' in partial.notes[FOUNDED_NOTE]
    os.remove(os.path.join(copy, "log.0.1"))
    with pytest.raises(Misuse, match=r"log\.0\.1 is missing"):
        read_founding(copy, [], FILE_BYTES_MAX)


def files(directory):
    """The log files in a directory."""
    return [name for name in os.listdir(directory) if re.fullmatch(r"log\.\d+\.\d+", name)]


def test_a_node_is_founded_from_the_same_log_as_the_others_or_not_at_all(lost):
    """Two nodes with different logs would disagree from the first message on."""
    root, copy = lost
    lines = founding_lines(copy, STREAM, [])
    other = [*lines[:1], 'founded_at = "0.0.800 00"', lines[2]]
    with pytest.raises(Misuse, match=r"not the log that this cluster was founded from: it ends at"):
        ArchiveCluster(root / "other", nodes=1, clients=root / "clients", founded=other)
    with pytest.raises(Misuse, match="is of stream flights"):
        founding_lines(copy, "trains", [])


def test_a_log_with_damage_in_any_file_is_refused(lost):
    """Also in the last range, whose bytes no manifest vouches for."""
    _, copy = lost
    for start in open_log(copy).files():
        path = os.path.join(copy, start.file_name)
        with open(path, "r+b") as file:
            last = os.path.getsize(path) - 1  # of a body, or its padding
            good = os.pread(file.fileno(), 1, last)
            os.pwrite(file.fileno(), bytes([good[0] ^ 1]), last)
            with pytest.raises((Misuse, CorruptLog), match=r"is not whole|CRC"):
                founding_lines(copy, STREAM, [])
            os.pwrite(file.fileno(), good, last)
    assert founding_lines(copy, STREAM, [])


def test_a_node_whose_copy_of_the_log_says_something_else_is_not_founded(lost):
    """It reads headers and events only; if one of them has changed, its state would differ."""
    _, copy = lost
    event = b'"event":"opened","before":'
    for each in open_log(copy).files():  # messages may have come before it
        path = os.path.join(copy, each.file_name)
        with open(path, "rb") as file:
            whole = file.read()
        if event in whole:
            break
    at = whole.index(event) + len(event)
    number = HEADER_BYTES + 8  # in the first range
    for place in (at, number):
        with open(path, "wb") as file:
            file.write(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises((Misuse, CorruptLog), match=r"CRC|digest"):
            read_founding(copy, [], FILE_BYTES_MAX)


def test_a_copy_that_ends_inside_a_range_is_founded_from_what_comes_before(lost):
    """A puller that was killed leaves such a copy; it is cut, as the puller would."""
    _, copy = lost
    end, path = open_log(copy).files()[-1], os.path.join(copy, open_log(copy).files()[-1].file_name)
    os.truncate(path, os.path.getsize(path) - 100)
    assert f'"{Position(end)} ' in founding_lines(copy, STREAM, [])[1]


def test_what_was_decided_of_sessions_is_read_as_the_nodes_executed_it(tmp_path):
    """A session that is opened or closed goes on where it was; one that begins again, from 0."""
    publish(tmp_path)
    bench = Bench(tmp_path)
    bench.order(Life(7, SessionChange.OPENED, "c", START, log="0f" * 16, owner="carl"))
    bench.merge_all("ab")
    for session in "ab":
        at = bench.ledger.merged_to(session)
        bench.order(Life(8, SessionChange.OPENED, session, at, log="0f" * 16, owner="alice"))
        since = bench.ledger.opened[session].since
        bench.order(Life(9, SessionChange.CLOSED, session, at, since=since))
    known = bench.ledger.opened["b"]
    bench.order(
        Life(
            10, SessionChange.TAKEN, "b", bench.ledger.merged_to("b"), log=known.log, owner="bob",
            since=known.since, begins_again=True,
        )
    )  # fmt: skip
    found, ledger = (
        read_founding(str(tmp_path / "s" / "out"), [], FILE_BYTES_MAX).ledger,
        bench.ledger,
    )
    assert found.sessions == ledger.sessions
    assert found.watermarks == ledger.watermarks
    assert found.tails == ledger.tails
    assert (found.end, found.digest) == (ledger.end, ledger.digest)
    assert "rt session reset b" in obstacle(found, "b", "", 0), "its log might be merged again"
    opened = ledger.opened
    assert found.opened == {name: opened[name]._replace(log="") for name in "abc"}
    assert [opened[name].owner for name in "abc"] == ["alice", "bob", "carl"]


def test_a_name_belongs_to_its_owner_in_the_new_cluster_too(lost):
    """The first publisher to come got it, and its owner was refused from then on."""
    root, copy = lost
    lines = founding_lines(copy, STREAM, [])
    with ArchiveCluster(root / "new", nodes=1, clients=root / "clients", founded=lines) as new:
        opened = new.ledger("n1").opened
        assert {name: known.owner for name, known in opened.items()} == {
            "jfk": "publisher", "lga": "publisher",
        }  # fmt: skip
        issue(
            os.path.join(new.root, "certs"), "stranger", CertificateRole.PUBLISHER, sessions=["*"]
        )
        elsewhere = str(root / "elsewhere")
        with Publisher(elsewhere, stream=STREAM, session="jfk") as other:
            other.publish(b"taken")
        push = PushClient(elsewhere, STREAM, new.addresses, new.contexts("stranger"))
        push.start()
        new.undo.callback(push.stop)
        refused = "'jfk' belongs to 'publisher'"
        assert eventually(lambda: refused in str(push.status())), push.status()


def test_a_node_is_not_founded_from_a_copy_with_a_damaged_payload(lost):
    """It read headers only: what it copied was served as it was, and found a day later."""
    root, copy = lost
    lines = founding_lines(copy, STREAM, [])
    with Subscriber(str(root / "clients" / "sub"), stream=STREAM, follow=False) as subscriber:
        at = next(iter(subscriber)).position  # of its frame
    flip_bit(os.path.join(copy, at.file_name), at.offset + HEADER_BYTES + 3)
    with pytest.raises(CorruptLog, match=r"CRC.*; replace the file by that of another copy"):
        ArchiveCluster(root / "new", nodes=1, clients=root / "clients", founded=lines)
    assert not os.path.exists(root / "new" / "n1" / STREAM / "out")


@pytest.mark.parametrize("text", ["", "=a", "feed=../a"])
def test_a_group_that_cannot_be_read_is_refused(text):
    """Taken for none, its messages would be doubled."""
    with pytest.raises(Misuse):
        parse_groups([text])


def test_a_group_or_session_is_named_once():
    """It would have two numbers."""
    with pytest.raises(Misuse, match="names something twice"):
        parse_groups(["feed=a", "other=a"])
