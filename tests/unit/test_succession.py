"""An authority's word that another cluster continues a log, and what copies make of it."""

import json
import os
import random
import shutil
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pytest

from replicator.pull.local_copy import LocalCopy
from replicator.pull.promoted import SUCCESSION_NAME, promoted_to
from rt.bridge.bridge import Bridge, BridgeChoice
from rt.client.promotion import succession
from rt.client.readers.checkpoint import Values
from rt.client.readers.cursor import LocalCursor, read_cursors
from rt.client.readers.held_cursor import HeldCursor
from rt.client.readers.last_value import LastValue
from rt.client.readers.rejoin import LISTING_NAME, rejoin
from rt.client.readers.settings import ConnectionSettings
from rt.client.readers.subscription import Subscription
from rt.client.standby import STATE_NAME, carried_here
from rt.errors import Misuse, Refused, SupersededError
from rt.events import Superseded
from rt.format.ranges import EMPTY_DIGEST
from rt.inspect.verify import open_log, verify_log
from rt.log.files.continued import ContinuedLog
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import OsDisk
from rt.log.read.proof import boundaries, last_proof
from rt.net.authority.certificates import AUTHORITY, certificate_files, init_authority
from rt.net.authority.succession import Succession, parse_succession, said_in
from rt.net.authority.trust import trust_of
from rt.node.founding.carried_state import CarriedState
from rt.position import START, Position
from rt.subscriber import Subscriber
from sequencer.ledger.ledger import Ledger
from tests.logs import MergedLog
from tests.replicator_host import eventually

STREAM = "flights"
OLD, NEW = "3" * 32, "1" * 32
WORD = Succession(STREAM, OLD, NEW, "0.0.0", 0, "0" * 32, "b1:7420", "ops@site-b", 7)


def authorities(directory):
    """Return the authorities that a directory trusts."""
    return trust_of(certificate_files(str(directory), AUTHORITY).ca).facts.authorities


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """Make an authority."""
    directory = tmp_path_factory.mktemp("authority")
    init_authority(str(directory))
    return directory


def test_only_the_words_that_a_trusted_authority_signed_count(authority, tmp_path):
    """Any peer may bring them, and none can change them."""
    text = WORD.signed(str(authority))
    assert parse_succession(text, authorities(authority)) == WORD
    init_authority(str(tmp_path))
    with pytest.raises(Refused, match="no authority that is trusted here"):
        parse_succession(text, authorities(tmp_path))
    for name, value in {"old": NEW[:-1] + "2", "cut": "0.0.9", "moved_to": "evil:7420",
                        "number": 1, "at_ns": 8, "by": "x"}.items():  # fmt: skip
        with pytest.raises(Refused):
            parse_succession(json.dumps({**json.loads(text), name: value}), authorities(authority))


def test_whatever_a_peer_sends_is_refused_in_a_sentence(authority):
    """A request is hostile until it is checked."""
    fields, chance = json.loads(WORD.signed(str(authority))), random.Random(1)
    trusted = authorities(authority)
    values = [None, True, -1, 1e999, "", "x" * 301, "\n", [], {}, 1 << 70, "0.0", "é"]
    for _ in range(2000):
        wrong = {**fields, chance.choice([*fields, "more"]): chance.choice(values)}
        if chance.random() < 0.2:
            del wrong[chance.choice([*wrong])]
        with pytest.raises((Misuse, Refused)):
            parse_succession(json.dumps(wrong), trusted)
    for text in ("", "[]", "null", "[" * 4000, "x" * 5000, '{"signature":"é"}'):
        with pytest.raises(Misuse):
            parse_succession(text, trusted)


@pytest.fixture
def copy(tmp_path):
    """Write a copy of rolled files, of two sessions."""
    path = tmp_path / STREAM / "out"
    path.mkdir(parents=True)
    with MergedLog(str(path), log_id=OLD) as log:
        for number in range(3):
            log.merge("jfk", [b"%d %d" % (number, each) for each in range(5)])
            log.merge("lga", [b"%d" % number])
            if number < 2:
                log.roll()
    return tmp_path


def places(copy):
    """Return every place where a range of the copy ends, and the proof there."""
    log = LogDirectory(str(copy / STREAM / "out"))
    log.refresh()
    found = [each for start in log.files() for each in boundaries(log, start)]
    assert last_proof(log) == found[-1]
    ends = {
        start.next_file(): found[at][1] for start, at in zip(log.files()[:-1], (1, 3), strict=True)
    }
    log.close()
    return [*found, *ends.items()]


def read(copy):
    """Return what the copy holds."""
    with Subscriber(str(copy), stream=STREAM, follow=False) as subscriber:
        return [(each.session, bytes(each.payload)) for each in subscriber]


@pytest.mark.parametrize("number", range(8))
def test_a_copy_is_cut_where_the_logs_part_and_nothing_is_deleted(copy, number):
    """At the end of a range, of a file, and of the copy."""
    whole, at = read(copy), places(copy)[number]
    word = replace(WORD, cut=str(at[0]), number=at[1].number, digest=at[1].digest.hex())
    expected = rejoin(str(copy), STREAM, word, is_dry=True)
    assert read(copy) == whole
    found = rejoin(str(copy), STREAM, word)
    assert found == expected
    assert read(copy) == whole[: word.number]
    log = open_log(str(copy / STREAM / "out"))
    assert log.manifest.identity.id == NEW
    assert not verify_log(log, lambda _size: None).is_wrong
    log.close()
    assert found.messages == len(whole) - word.number
    if found.aside:
        listing = os.path.join(found.aside, LISTING_NAME)
        with open(listing, encoding="utf-8") as file:
            rows = [line.split("\t") for line in file.read().splitlines()[1:]]
        assert sum(int(last) - int(first) + 1 for _, first, last in rows) == found.messages
        os.rename(copy / STREAM / "out", copy / "new")
        os.rename(found.aside, copy / STREAM / "out")
        assert read(copy) == whole
        os.rename(copy / STREAM / "out", found.aside)
        os.rename(copy / "new", copy / STREAM / "out")
    again = rejoin(str(copy), STREAM, word)  # as after a kill: it says the same, and does nothing
    assert (again.beyond, again.aside) == (found.beyond, found.aside)


@pytest.mark.parametrize("on_gap", ["notify", "raise", "skip"])
def test_a_running_reader_past_the_cut_is_told_which_numbers_are_not_in_the_next_log(copy, on_gap):
    """It goes on from where the logs part, or stops: the numbers there are of other messages."""
    at, proof = places(copy)[3]
    word = replace(WORD, cut=str(at), number=proof.number, digest=proof.digest.hex())
    events = []
    with Subscriber(
        str(copy), stream=STREAM, on_gap=on_gap, on_event=events.append, watch="poll"
    ) as reader:
        whole = [bytes(each.payload) for each in reader.messages(max=18)]
        was = reader.position
        found = rejoin(str(copy), STREAM, word)
        with MergedLog(str(copy / STREAM / "out"), log_id=NEW, number=word.number) as log:
            log.merge("ewr", [b"after"])
        if on_gap == "raise":
            with pytest.raises(SupersededError, match="messages 12 to 17 are not part"):
                next(reader.messages(timeout_s=60))
        assert [bytes(each.payload) for each in reader.messages(max=1, timeout_s=60)] == [b"after"]
    expected = Superseded(was, at, 12, 18, found.aside)
    assert [each for each in events if isinstance(each, Superseded)] == (
        [expected] if on_gap == "notify" else []
    )
    assert len(whole) == 18


def test_a_running_reader_before_the_cut_goes_on_and_hears_of_nothing(copy):
    """What it has read is the same in both logs."""
    at, proof = places(copy)[3]
    word = replace(WORD, cut=str(at), number=proof.number, digest=proof.digest.hex())
    with Subscriber(str(copy), stream=STREAM, watch="poll") as reader:
        first = [bytes(each.payload) for each in reader.messages(max=6)]
        rejoin(str(copy), STREAM, word)
        rest = [bytes(each.payload) for each in reader.messages(timeout_s=0.2)]
    assert first + rest[:6] == [payload for _, payload in read(copy)]


def test_a_copy_that_differs_or_is_of_another_log_is_left_alone(copy):
    """The digest decides."""
    at, proof = places(copy)[1]
    word = replace(WORD, cut=str(at), number=proof.number, digest=proof.digest.hex())
    for wrong, why in {
        replace(word, digest="f" * 32): "not equal to the log that goes on",
        replace(word, cut=str(Position(at + 1))): "not equal to the log that goes on",
        replace(word, old="2" * 32): "is a copy of the log 3333",
    }.items():
        with pytest.raises(Misuse, match=why):
            rejoin(str(copy), STREAM, wrong)
    with pytest.raises(Misuse, match="holds no log"):
        rejoin(str(copy / "nowhere"), STREAM, word)
    (copy / STREAM / f"quarantine.out.{OLD[:8]}").mkdir()
    with pytest.raises(Misuse, match="is there already; move it away"):
        rejoin(str(copy), STREAM, word)
    assert sorted(os.listdir(copy / STREAM)) == ["out", f"quarantine.out.{OLD[:8]}"]


def test_a_promoted_copy_takes_nothing_until_it_has_rejoined(copy, authority):
    """Whatever program pulls into it; and a state of the log that ended continues no other."""
    at, proof = places(copy)[1]
    word = replace(WORD, cut=str(at), number=proof.number, digest=proof.digest.hex())
    out = str(copy / STREAM / "out")
    (copy / STREAM / SUCCESSION_NAME).write_text(word.signed(str(authority)))
    ledger = Ledger()
    state = CarriedState(STREAM, OLD, 1, {}, ("n1",), ledger.encode())
    (copy / STREAM / STATE_NAME).write_bytes(state.encode())
    for _ in range(2):  # the directory is free again
        with pytest.raises(Misuse, match="takes nothing more: it was promoted"):
            LocalCopy(out, lambda _file: False, lambda _log: None, OsDisk(), lambda: None)
    assert carried_here(str(copy), STREAM) == state
    rejoin(str(copy), STREAM, word)
    LocalCopy(out, lambda _file: False, lambda _log: None, OsDisk(), lambda: None).close()
    assert not promoted_to(out)
    with pytest.raises(Misuse, match=f"is of the log {OLD}, and the copy of {NEW}"):
        carried_here(str(copy), STREAM)


def test_a_copy_that_rejoined_can_be_promoted_and_keeps_the_earlier_word(copy, authority):
    """For copies of the first log, which have yet to follow."""
    at, proof = places(copy)[1]
    word = replace(WORD, cut=str(at), number=proof.number, digest=proof.digest.hex())
    beside = copy / STREAM / SUCCESSION_NAME
    beside.write_text(word.signed(str(authority)))
    settings = ConnectionSettings(root=str(copy), stream=STREAM)
    with (
        pytest.raises(Misuse, match="two clusters must not continue one log"),
        succession(settings, OLD, ["c:1"], str(authority)),
    ):
        pass
    rejoin(str(copy), STREAM, word)
    with succession(settings, NEW, ["c:1"], str(authority)) as newest:
        assert said_in(beside.read_text()) == word
    made = said_in(beside.read_text())
    assert (made.old, made.new, made.cut, made.digest) == (NEW, newest, word.cut, word.digest)
    assert said_in((copy / STREAM / f"{SUCCESSION_NAME}.{OLD[:8]}").read_text()) == word


def test_a_copy_follows_a_log_that_went_on_from_nothing(copy):
    """The standby had copied nothing yet when the site was lost."""
    whole = read(copy)
    word = replace(WORD, cut=str(START), number=0, digest=EMPTY_DIGEST.hex())
    found = rejoin(str(copy), STREAM, word)
    assert (found.end, found.messages) == (START, len(whole))
    assert not read(copy)


def test_cursors_go_on_and_those_beyond_are_moved_back(copy):
    """Their readers see the messages after the cut as the new log has them."""
    at, proof = places(copy)[1]
    for name, place in {"before": Position(at - 10), "beyond": Position(at + (1 << 40))}.items():
        cursor = LocalCursor(str(copy), STREAM, name)
        cursor.open_at(place, OLD)
        if name == "before":
            cursor.close()
    word = replace(WORD, cut=str(at), number=proof.number, digest=proof.digest.hex())
    found = rejoin(str(copy), STREAM, word)
    assert list(found.cursors) == ["beyond"]
    assert read_cursors(str(copy), STREAM)["beyond"].log_id == OLD, "its reader carries it"
    cursor.close()  # as if that was killed before
    LocalCursor(str(copy), STREAM, "beyond").close()
    states = read_cursors(str(copy), STREAM)
    assert {name: (state.position, state.log_id) for name, state in states.items()} == {
        "before": (Position(at - 10), NEW), "beyond": (at, NEW),
    }  # fmt: skip


def test_a_cursor_that_was_opened_before_its_copy_began_is_moved_back_too(copy):
    """It does not name its log, and would pass over what the new log has after the cut."""
    at, proof = places(copy)[1]
    with closing(LocalCursor(str(copy), STREAM, "early")) as cursor:
        cursor.open_at(Position(0), "")
        cursor.ack(Position(at + (1 << 40)))
    word = replace(WORD, cut=str(at), number=proof.number, digest=proof.digest.hex())
    rejoin(str(copy), STREAM, word)
    state = read_cursors(str(copy), STREAM)["early"]
    assert (state.position, state.log_id) == (at, NEW)


def _subscribed(copy):
    """Return a subscription that acknowledges explicitly, which does not wait for new messages."""
    subscriber = Subscriber(str(copy), stream=STREAM, on_gap="notify", on_event=lambda _event: None)
    return Subscription(subscriber, LocalCursor(str(copy), STREAM, "mine"), "explicit")


def _word(place):
    at, proof = place
    return replace(WORD, cut=str(at), number=proof.number, digest=proof.digest.hex())


@pytest.mark.parametrize("messages", [4, 12], ids=["before the cut", "past the cut"])
def test_what_was_handed_out_before_the_cut_is_acknowledged_only_by_its_program(copy, messages):
    """It was acknowledged as soon as the reader came to the end of the log that goes on."""
    place = places(copy)[1]  # the end of the sixth message
    with _subscribed(copy) as reader:
        begun = reader.messages(timeout_s=5)
        handed = [next(begun) for _ in range(messages)]
        rejoin(str(copy), STREAM, _word(place))
        more = list(reader.messages(timeout_s=0.2))
        assert len(more) == max(0, 6 - messages), "to the cut, where the log ends"
        assert reader.acked == START, "nothing was acknowledged"
        reader.ack(handed[1])
        assert reader.acked == handed[1].next_position, "late, and before the cut"
        reader.ack(handed[0])
        assert reader.acked == handed[1].next_position, "it never goes back"
        reader.ack(handed[-1])
        assert reader.acked == min(handed[-1].next_position, place[0])
        reader.ack()
        end = min([*handed, *more][-1].next_position, place[0])
        assert reader.acked == end, "all that was handed out, of the log that goes on"
    state = read_cursors(str(copy), STREAM)["mine"]
    assert (state.position, state.log_id) == (end, NEW)


def test_a_new_cursor_in_a_copy_that_was_cut_begins_at_its_start(copy):
    """It was moved to the cut of a log that it had never read: its start was ignored."""
    rejoin(str(copy), STREAM, _word(places(copy)[1]))
    with closing(LocalCursor(str(copy), STREAM, "new")) as cursor:
        assert cursor.is_new


def test_a_cut_at_the_beginning_of_the_next_file_is_proved(tmp_path):
    """The copy ends there by another name; any digest was believed."""
    path = tmp_path / STREAM / "out"
    path.mkdir(parents=True)
    with MergedLog(str(path), log_id=OLD) as log:
        log.merge("jfk", [b"1", b"2"])
        log.roll()
        cut = log.next_file
    wrong = replace(WORD, cut=str(cut), number=2, digest="f" * 32)
    with pytest.raises(Misuse, match="not equal to the log that goes on"):
        rejoin(str(tmp_path), STREAM, wrong, is_dry=True)


def test_an_answer_about_the_old_log_counts_for_nothing_in_the_next():
    """The acknowledgements up to that place were never sent to the nodes of the next log."""
    held = HeldCursor("etl", 1, Position(10), 0.0)
    held.log = OLD
    held.ack(Position(1000))
    request = held.said(5.0)
    held.carry(ContinuedLog(OLD, NEW, Position(500), 5, 10, ""))
    held.record_done(request)  # the old cluster answers late
    held.ack(Position(800))
    assert held.said(100.0, is_sign=True)["position"] == str(Position(800))


def old_log(copy):
    """Write a log of two ranges; return its path, and the word that cuts it after the first."""
    path = copy / STREAM / "out"
    shutil.rmtree(path)
    path.mkdir()
    with MergedLog(str(path), log_id=OLD) as log:
        log.merge("jfk", [b"k0 kept"], keys=True)
        log.merge("jfk", [b"k1 lost", b"k2 lost"], keys=True)
    with closing(LogDirectory(str(path))) as directory:
        directory.refresh()
        cut = next(iter(boundaries(directory, START)))
    return str(path), _word(cut)


def test_last_values_end_where_a_log_continues_without_what_they_have(copy):
    """They kept values that no log has, and were taken for those of the stream."""
    path, word = old_log(copy)

    def reader(place, meet):
        return Subscriber(
            str(copy), stream=STREAM, start=place, on_gap="notify", on_event=meet, watch="poll"
        )

    kept = SimpleNamespace(store=lambda _values: None, close=lambda: None)
    values = LastValue(
        reader, kept, Values(START, {}), lambda _timeout_s: START, keys_max=10, checkpoint_s=60
    )
    with closing(values):
        assert eventually(lambda: len(values) == 3)
        rejoin(str(copy), STREAM, word)
        with MergedLog(path, log_id=NEW, number=word.number) as log:
            log.merge("ewr", [b"k3 new"], keys=True)

        def is_ended():
            try:
                return b"k3" in values
            except SupersededError:
                return True

        assert eventually(is_ended)
        with pytest.raises(SupersededError, match="messages 1 to 2 are not part"):
            values.get(b"k1")


def test_a_bridge_passes_over_nothing_of_a_log_that_continues_its_source(copy):
    """New messages under numbers that it had forwarded were taken for the forwarded ones."""
    path, word = old_log(copy)
    (copy / STREAM / "bridge.log").write_text(OLD)  # as its last run left it
    rejoin(str(copy), STREAM, word)
    session = SimpleNamespace(next_sequence=3)  # numbers 0, 1 and 2 of the old log
    target = SimpleNamespace(publisher=lambda *_names, **_options: session)
    source = SimpleNamespace(stream=STREAM, subscriber=Subscriber)  # never called
    bridge = Bridge(source, path, target, "", BridgeChoice("bridge"))
    with pytest.raises(Misuse, match=r"source's from message 1, .* up to 2 of"):
        bridge.run(follow=False)
