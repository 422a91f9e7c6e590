"""What a standby keeps, and what a cluster is founded from with it."""

import json
import os
import threading
from contextlib import closing
from dataclasses import replace

import pytest
from logs import MergedLog

from rt import Misuse, Refused
from rt.client.standby import RECORD_NAME, STATE_NAME, StateCarrier, pause_s, read_record
from rt.errors import PeerError
from rt.format.manifest import Archived
from rt.log.files.directory import LogDirectory
from rt.log.read.proof import NOTHING, Proof, proof_at
from rt.node.founding.carried_state import CarriedState, carried_state, read_carried
from rt.node.founding.from_copy import read_founding
from rt.node.readers.cursor_lag import bytes_between
from rt.position import FILE_BYTES_MAX, START, Position
from sequencer.ledger.founded import CERTIFICATES_NOTE, FOUNDED_NOTE, Founded, obstacle
from sequencer.ledger.instruction import Note, Roll
from sequencer.ledger.ledger import Ledger
from sequencer.ledger.seal import (
    SEALED_NOTE,
    Seal,
    demand_unsealed,
    may_follow,
    moved_away,
    parse_seal,
    seal_of,
)
from tests.replicator_host import eventually

STREAM = "flights"


class Cluster:
    """Answers as nodes would, from a log that is copied at once."""

    def __init__(self, root, log_id="0" * 32):
        self.root = str(root)
        self.log = MergedLog(os.path.join(self.root, STREAM, "out"), log_id=log_id)
        self.states = []  # after each range
        self.now_ns = 1_000_000_000_000
        self.lag = 0  # how many ranges the copy lacks
        self.error = None

    @property
    def out(self):
        """Return the directory of the merged log."""
        return self.log.directory

    def merge(self, session, *payloads):
        """Merge a range; the state after it is saved."""
        self.log.merge(session, [*payloads])
        self.save()

    def save(self, **notes):
        """Save the state as of now."""
        log = self.log
        ledger = Ledger(
            index=log.index, end=log.appender.end, number=log.number, digest=log.digest,
            sessions={name: source.position for name, source in log.sources.items()},
            watermarks={"group feed": 4, "jfk": 2},
            notes={"policy": '{"time": 5}', CERTIFICATES_NOTE: "c" * 32, **notes},
        )  # fmt: skip
        identity = log.appender.identity
        groups = {"red": "feed"} if "red" in log.sources else {}
        self.states.append(
            CarriedState(STREAM, identity.id, 1, groups, ("n1", "n2"), ledger.encode())
        )

    def ask(self, request):
        """Answer a question."""
        if self.error is not None:
            raise self.error
        self.now_ns += 1_000_000_000
        if request["do"] == "standby-state":
            return json.loads(json.dumps(self.states[-1].fields()))
        last = self.states[-1].state()
        since = Position.parse(request["since"])
        return {
            "end": str(last.end), "number": last.number, "digest": last.digest.hex(),
            "bytes": bytes_between(self.log.appender.manifest, since, last.end),
        }  # fmt: skip

    def position(self):
        """Return where the copy ends."""
        return self.states[-1 - self.lag].state().end

    def carrier(self):
        """Return what keeps the state."""
        return StateCarrier(self.root, STREAM, self.ask, self.position, now_ns=lambda: self.now_ns)

    def kept(self):
        """Return the state that was kept."""
        return read_carried(os.path.join(self.root, STREAM, STATE_NAME))


@pytest.fixture
def cluster(tmp_path):
    """Give a cluster whose log has two ranges."""
    made = Cluster(tmp_path)
    with made.log:
        made.merge("jfk", b"a", b"b")
        made.merge("red", b"c")
        yield made


def test_a_state_is_kept_once_the_copy_has_come_to_its_end(cluster):
    """A state that is newer than the copy would be of no use when the cluster is lost."""
    carrier = cluster.carrier()
    cluster.lag = 1
    carrier.turn()
    record = read_record(cluster.root, STREAM)
    assert (record.state_index, record.behind, record.complete_as_of_ns) == (0, 3, 0)
    assert record.behind_bytes == cluster.states[-1].state().end - cluster.position() > 0
    assert record.behind_s(cluster.now_ns) == float("inf")
    with pytest.raises(FileNotFoundError):
        cluster.kept()
    cluster.lag = 0
    carrier.turn()
    record = read_record(cluster.root, STREAM)
    assert cluster.kept() == cluster.states[-1]
    assert (record.state_index, record.behind, record.error) == (2, 0, "")
    assert record.proven_to == record.end == record.cluster_end == str(cluster.position())
    assert record.proven_digest == cluster.log.digest.hex()
    assert record.behind_s(cluster.now_ns + 5_000_000_000) == pytest.approx(5, abs=2)


def test_a_state_is_kept_as_soon_as_the_copy_has_come_to_its_end(cluster):
    """After slow answers the next question is up to a minute away, and the state was here."""
    slow, has_asked = threading.Event(), threading.Event()

    def ask(request):
        slow.wait(1.0)  # so that the next question is due after 40 s
        answer = cluster.ask(request)
        if request["do"] == "standby-state":
            has_asked.set()
        return answer

    cluster.lag = 1
    with StateCarrier(cluster.root, STREAM, ask, cluster.position, every_s=0.01):
        assert has_asked.wait(60)
        cluster.lag = 0
        assert eventually(lambda: os.path.exists(f"{cluster.root}/{STREAM}/{STATE_NAME}"), 20)
    assert cluster.kept() == cluster.states[-1]


def test_a_copy_that_lags_is_behind_by_what_was_merged_since(cluster):
    """Seconds are what an operator is woken for; that there is a connection says nothing."""
    carrier = cluster.carrier()
    carrier.turn()
    complete_ns = read_record(cluster.root, STREAM).complete_as_of_ns
    cluster.merge("jfk", b"d", b"e")
    cluster.lag = 1
    for _ in range(3):
        carrier.turn()
    record = read_record(cluster.root, STREAM)
    assert (record.behind, record.complete_as_of_ns) == (2, complete_ns)
    assert record.behind_s(cluster.now_ns) >= 3


def test_a_copy_that_differs_is_said_and_its_state_is_not_kept(cluster):
    """Another cluster would be founded from what was never agreed on."""
    state = cluster.states[-1].state()
    state.digest = bytes(16)
    cluster.states[-1] = CarriedState(STREAM, "0" * 32, 1, {}, ("n1",), state.encode())
    cluster.carrier().turn()
    record = read_record(cluster.root, STREAM)
    assert "the copy differs from the cluster's log" in record.error
    assert not record.state_index


def test_a_copy_that_was_whole_and_differs_now_has_nothing_that_counts(cluster):
    """It went on to be zero seconds behind, with exit code 0, until its state was a minute old."""
    carrier = cluster.carrier()
    carrier.turn()
    before = carrier.record
    assert before.behind_s(cluster.now_ns) < 10
    cluster.merge("jfk", b"d")
    state = cluster.states[-1].state()
    state.digest = bytes(16)
    cluster.states[-1] = replace(cluster.states[-1], ledger=state.encode())
    carrier.turn()
    assert carrier.record.behind_s(cluster.now_ns) == float("inf")
    assert before.behind_s(cluster.now_ns) < 10, "other threads read a record that does not change"


def test_a_long_lag_does_not_lose_count(cluster):
    """An hour behind, and the page must not say that everything is missing."""
    carrier = cluster.carrier()
    carrier.turn()
    cluster.merge("jfk", b"d")
    cluster.lag = 1
    for _ in range(520):
        carrier.turn()
    assert read_record(cluster.root, STREAM).behind == 1


def test_a_cluster_that_cannot_be_asked_is_asked_again_soon():
    """Three addresses that do not answer take 30 s; twenty times that was a wait of ten minutes."""
    assert pause_s(5.0, cost_s=30.0, failed=True) == 5.0
    assert pause_s(5.0, cost_s=0.01, failed=False) == 5.0
    assert pause_s(5.0, cost_s=1.0, failed=False) == 20.0
    assert pause_s(5.0, cost_s=30.0, failed=False) == 60.0


def test_a_state_of_another_log_is_not_kept(cluster):
    """As after a mistake in the addresses."""
    cluster.states[-1] = CarriedState(STREAM, "1" * 32, 1, {}, ("n1",), cluster.states[-1].ledger)
    cluster.carrier().turn()
    assert "the state of 1111" in read_record(cluster.root, STREAM).error


@pytest.mark.parametrize("is_new", [False, True], ids=["the same program", "one started later"])
def test_what_was_carried_of_the_log_before_counts_no_more_once_the_copy_has_rejoined(
    cluster, tmp_path, is_new
):
    """The next state was passed over if it had the same index, and status went on to say ok."""
    carrier = cluster.carrier()
    carrier.turn()
    assert carrier.record.state_index == 2
    later = Cluster(tmp_path / "later", "1" * 32)
    with later.log:
        later.merge("jfk", b"a", b"b")
        later.merge("red", b"d")
        os.rename(cluster.out, f"{cluster.out}.before")
        os.rename(later.out, cluster.out)
        cluster.error = Refused("not-leader", "no node leads now")
        if is_new:
            with cluster.carrier() as carrier:
                pass
        carrier.turn()
        assert carrier.record.state_index == 0
        assert carrier.record.proven_to == "0.0.0"
        assert carrier.record.behind_s(cluster.now_ns) == float("inf")
        cluster.error, cluster.states = None, later.states
        carrier.turn()
        assert carrier.record.state_index == 2
        assert cluster.kept() == later.states[-1]


@pytest.mark.parametrize(
    "error", [Refused("sealed", "moved away"), PeerError("nonsense"), OSError(111, "refused")]
)
def test_an_error_is_written_down_and_the_last_state_stays(cluster, error):
    """Status must not say that all is well because the last answer was."""
    carrier = cluster.carrier()
    carrier.turn()
    before = read_record(cluster.root, STREAM)
    cluster.error = error
    carrier.turn()
    after = read_record(cluster.root, STREAM)
    assert after.error
    assert after.state_index == before.state_index
    assert after.complete_as_of_ns == before.complete_as_of_ns


def test_a_record_that_is_missing_or_malformed_is_said_in_a_sentence(tmp_path):
    """Somebody asks for the status in the wrong directory."""
    with pytest.raises(Misuse, match="rt pull --standby writes it"):
        read_record(str(tmp_path), STREAM)
    os.makedirs(tmp_path / STREAM)
    for text in ("", "[]", '{"strange": 1}', "[" * 9999, '{"at_ns": "x"}', '{"end": "x"}'):
        (tmp_path / STREAM / RECORD_NAME).write_text(text)
        with pytest.raises(Misuse, match="cannot be read"):
            read_record(str(tmp_path), STREAM)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2}, {"version": None}, {"stream": None, "term": "x"}, {"groups": []},
        {"groups": {"../up": "feed"}}, {"groups": {"red": ".."}}, {"members": ["../n1"]},
        {"members": 3}, {"ledger": "{}"}, {"ledger": 5}, {"ledger": "[" * 9999},
    ],
)  # fmt: skip
def test_a_state_of_a_peer_is_hostile_until_it_was_checked(cluster, change):
    """It becomes the state of a cluster."""
    fields = {**cluster.states[-1].fields(), **change}
    with pytest.raises(Misuse):
        carried_state(fields)
    for name in fields:
        with pytest.raises(Misuse):
            carried_state({each: value for each, value in fields.items() if each != name})


def test_a_cluster_goes_on_from_the_state_and_what_the_log_says_after_it(cluster):
    """Policy, groups and numbers are those of the state; the rest of the log continues them."""
    old = cluster.states[0]
    for carried in (old, cluster.states[-1]):
        founding = read_founding(cluster.out, [], FILE_BYTES_MAX, carried)
        ledger = founding.ledger
        assert (ledger.end, ledger.digest) == (cluster.log.appender.end, cluster.log.digest)
        assert (ledger.number, ledger.index) == (3, 2)
        assert ledger.notes["policy"] == '{"time": 5}'
        assert CERTIFICATES_NOTE not in ledger.notes
        assert founding.fingerprint.endswith(carried.fingerprint)
    assert FOUNDED_NOTE not in ledger.notes, "nothing is unknown"
    assert ledger.watermarks == {"group feed": 4, "jfk": 2}


def test_a_session_that_began_after_the_state_holds_up_the_groups_until_it_is_named(cluster):
    """It may be a member of one, whose messages another member would send again."""
    carried = CarriedState(STREAM, "0" * 32, 1, {"blue": "feed"}, ("n1",), cluster.states[0].ledger)
    ledger = read_founding(cluster.out, [], FILE_BYTES_MAX, carried).ledger
    assert "--group feed=blue" in obstacle(ledger, "blue", "feed", 0)
    assert not obstacle(ledger, "jfk", "", 0)
    for named in ("feed=red", "-=red"):
        ledger = read_founding(cluster.out, [named], FILE_BYTES_MAX, carried).ledger
        assert not obstacle(ledger, "blue", "feed", 0)
    ledger = read_founding(cluster.out, ["feed=red"], FILE_BYTES_MAX, carried).ledger
    assert ledger.watermarks == {"group feed": 4, "jfk": 2}


def test_what_the_old_cluster_did_not_know_is_not_known_to_the_new_one_either(cluster):
    """It was founded from a log itself, and a session of then could be merged twice."""
    limits = Founded("1" * 32, 2000, frozenset({"feed"}), frozenset({"lga"}), is_partial=True)
    cluster.states.clear()
    cluster.save(**{FOUNDED_NOTE: limits.text()})
    cluster.merge("ewr", b"d")
    carried = cluster.states[0]
    for groups, why in (([], "--group feed=x"), (["feed=ewr"], "")):
        ledger = read_founding(cluster.out, groups, FILE_BYTES_MAX, carried).ledger
        assert "rt session reset lga" in obstacle(ledger, "lga", "", 1000)
        assert "may have messages that were merged before" in obstacle(ledger, "old", "", 1000)
        assert why in obstacle(ledger, "x", "feed", 3000)


def test_a_state_that_does_not_fit_the_log_is_refused(cluster):
    """A newer one, one of another log, and one whose files are gone."""
    newer = cluster.states[-1].state()
    newer.end = Position(newer.end + 100)
    other = cluster.states[0].state()
    other.digest = bytes(16)
    for state, words in ((newer, "is newer than"), (other, "they differ at")):
        carried = CarriedState(STREAM, "0" * 32, 1, {}, ("n1",), state.encode())
        with pytest.raises(Misuse, match=words):
            read_founding(cluster.out, [], FILE_BYTES_MAX, carried)
    first = cluster.states[0]
    cluster.log.roll()
    cluster.merge("jfk", b"d")
    cluster.log.appender.archive_all([Archived(START, 1, "time")])
    with pytest.raises(Misuse, match="are gone; use a later state"):
        read_founding(cluster.out, [], FILE_BYTES_MAX, first)
    assert read_founding(cluster.out, [], FILE_BYTES_MAX, cluster.states[-1]).ledger.number == 4


def test_a_state_from_just_after_a_roll_is_proven_by_the_file_before(cluster):
    """Its end is the start of a file that has nothing yet."""
    cluster.log.roll()
    state = cluster.states[-1].state()
    state.end = state.end.next_file()
    carried = CarriedState(STREAM, "0" * 32, 1, {"red": "feed"}, ("n1",), state.encode())
    assert read_founding(cluster.out, [], FILE_BYTES_MAX, carried).ledger.end == state.end
    cluster.merge("jfk", b"d")
    ledger = read_founding(cluster.out, [], FILE_BYTES_MAX, carried).ledger
    assert (ledger.end, ledger.number) == (cluster.log.appender.end, 4)


def test_a_proof_is_found_at_each_boundary_and_nowhere_else(cluster):
    """At the start of the log, between two ranges, at the end of a file, and after it."""
    ends = [each.state() for each in cluster.states]
    cluster.log.roll()
    cluster.merge("jfk", b"d")
    ends.append(cluster.states[-1].state())
    with closing(LogDirectory(cluster.out)) as log:
        log.refresh()
        for each in ends:
            assert proof_at(log, each.end) == Proof(each.number, each.digest)
        next_file = ends[1].end.next_file()
        assert proof_at(log, next_file) == Proof(ends[1].number, ends[1].digest)
        assert proof_at(log, START) == NOTHING
        for place in (Position(ends[0].end + 1), Position(ends[-1].end + 8)):
            assert proof_at(log, place) is None


def test_a_seal_is_read_as_it_was_written_and_nothing_else_is():
    """It is agreed on, and every node must be able to read it."""
    seal = Seal("operator ops", 7, "b1:7420")
    assert parse_seal(seal.text()) == seal
    for text in ("", "{}", "[]", '{"by":1,"at_ns":1,"moved_to":""}', "[" * 9999,
                 '{"by":"a","at_ns":"1","moved_to":""}', '{"by":"a","at_ns":1}'):  # fmt: skip
        with pytest.raises(Misuse):
            parse_seal(text)
    for texts in (("x" * 301, ""), ("", "x" * 301), ("a\nb", "")):
        with pytest.raises(Misuse):
            Seal(texts[0], 1, texts[1])


def test_in_a_sealed_cluster_only_the_seal_may_be_changed():
    """A note that a later version wrote ends the log all the same."""
    assert seal_of({}) is None
    assert moved_away({}) is None
    seal = Note(1, SEALED_NOTE, "")
    for notes in ({SEALED_NOTE: Seal("operator ops", 7).text()}, {SEALED_NOTE: "later"}):
        assert may_follow(notes, seal)
        demand_unsealed(notes, seal)
        for other in (Roll(1), Note(1, "policy", "{}")):
            assert not may_follow(notes, other)
            with pytest.raises(Refused, match="sealed by"):
                demand_unsealed(notes, other)
        assert moved_away(notes) is None
    demand_unsealed({}, Roll(1))
    moved = moved_away({SEALED_NOTE: Seal("operator ops", 7, "b1:7420").text()})
    assert "it continues at b1:7420" in str(moved)
