"""Recovery: torn and damaged are told apart by what is known to have been durable."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logs import MergedLog, make_frame

from rt.format.recovery import Clean, Corrupt, Gone, Torn, judge
from rt.format.walk import Walk
from rt.position import Position


def session(*durable, payloads=2):
    """Return frames, each saying up to which frame (by number) the log was durable."""
    made, ends = [], [0]
    for place, mark in enumerate(durable):
        frame = make_frame(
            ends[-1], [b"AA1"] * payloads, sequence=place * payloads, durable=ends[mark]
        )
        made.append(b"".join(frame.parts))
        ends.append(ends[-1] + len(made[-1]))
    return made, ends


def judged(data, *, merged=False, **known):
    """Judge the bytes of a file from its start."""
    walk = Walk(Position(0), merged=merged)
    return judge(lambda length, offset: data[offset : offset + length], len(data), walk, **known)


def test_whole_frames_are_clean_and_an_empty_file_is_too():
    """The usual start of a writer must not look like an accident."""
    made, ends = session(0, 0, 1)
    assert judged(b"".join(made)) == Clean(Position(ends[-1]))
    assert judged(b"") == Clean(Position(0))


@given(st.data())
def test_an_incomplete_last_batch_is_torn_at_the_last_whole_frame(data):
    """After a power cut only what was never promised is cut."""
    made, ends = session(0, 0, 0, 0)
    cut = data.draw(st.integers(0, ends[-1] - 1))
    verdict = judged(b"".join(made)[:cut])
    whole = max(end for end in ends if end <= cut)
    assert verdict == Clean(Position(whole)) if whole == cut else verdict.at == whole
    assert not isinstance(verdict, Corrupt)


@pytest.mark.parametrize("durable", [1, 2, 3])
def test_damage_before_the_durable_mark_of_a_later_frame_is_corrupt(durable):
    """It was promised, so it was whole: cutting there would lose what was acknowledged."""
    made, _ = session(0, 0, 0, durable)
    made[0] = made[0][:70] + b"\xff" + made[0][71:]
    verdict = judged(b"".join(made))
    assert verdict == Corrupt(Position(0), verdict.reason)


def test_damage_after_every_durable_mark_is_torn_though_whole_frames_follow():
    """Blocks of one batch reach a disk in any order; none of it was promised."""
    made, ends = session(0, 1, 1, 1)
    made[1] = bytes(len(made[1]))
    assert judged(b"".join(made)) == Torn(Position(ends[1]), "no frame starts here")


@pytest.mark.parametrize("size", [30, 80, 500])
def test_a_frame_that_is_being_written_is_torn_whatever_follows_meanwhile(size):
    """A pusher looks while the publisher writes, syncs, and writes again."""
    made, ends = session(0, 1, 1, 3, 4, payloads=40)
    data, walk = b"".join(made), Walk(Position(0), merged=False)
    verdict = judge(lambda length, at: data[at : at + length], ends[1] + size, walk)
    assert verdict == Torn(Position(ends[1]), "the frame is incomplete")


@pytest.mark.parametrize("known", [{"durable": 88}, {"rolled_end": 176}])
def test_what_others_know_to_be_durable_proves_damage(known):
    """The last batch has no later frame: a peer's acknowledgement or the manifest must prove it."""
    made, _ = session(0, 0)
    data = b"".join(made)
    for damaged in (b"\xff" + data[1:], data[:10], b""):
        assert isinstance(judged(damaged, **known), Corrupt)


def test_a_rolled_file_may_have_a_torn_tail_after_its_end():
    """A publisher never cuts the files of its older runs; the manifest says where they end."""
    made, ends = session(0, 0)
    data = b"".join(made)
    assert judged(data + b"torn", rolled_end=ends[-1]) == Clean(Position(ends[-1]))
    assert isinstance(judged(data[:-1], rolled_end=ends[-1]), Corrupt)


def test_a_file_of_no_bytes_is_archived_only_if_the_manifest_says_so():
    """An accident looks the same: manifest x length, row by row."""
    made, ends = session(0)
    data, end = made[0], ends[-1]
    assert judged(b"", rolled_end=end, archived=True) == Gone()
    assert isinstance(judged(b"", rolled_end=end), Corrupt)
    assert judged(b"") == Clean(Position(0))
    assert judged(data, rolled_end=end, archived=True) == Clean(Position(end)), "not yet truncated"
    assert isinstance(judged(data[:-8], rolled_end=end, archived=True), Corrupt)


def test_the_image_of_a_frame_inside_a_payload_proves_nothing():
    """A publisher may well send log files as messages."""
    inner = b"".join(make_frame(0, [b"x"], durable=1 << 40).parts)
    outer = b"".join(make_frame(0, [inner]).parts)
    assert isinstance(judged(outer[:-1]), Torn)


def test_zeros_after_the_last_frame_are_not_frames():
    """File systems preallocate, and leave holes after a power cut."""
    made, ends = session(0, 0)
    for count in range(3):
        whole = b"".join(made[:count])
        for zeros in range(1, 4097):
            verdict = judged(whole + bytes(zeros))
            assert isinstance(verdict, Torn)
            assert verdict.at == ends[count]


def test_every_subset_of_lost_sectors_of_the_last_batch_is_torn():
    """A torn batch loses sectors in any order; it must never be called damage, nor be kept."""
    made, ends = session(0, 1, 1, payloads=120)
    data = b"".join(made)
    first = -(-ends[1] // 512) * 512
    sectors = range(first, len(data), 512)
    assert 5 <= len(sectors) <= 12
    for lost in range(1, 1 << len(sectors)):
        torn = bytearray(data)
        for bit, sector in enumerate(sectors):
            if lost >> bit & 1:
                torn[sector : sector + 512] = bytes(len(torn[sector : sector + 512]))
        verdict = judged(bytes(torn))
        assert isinstance(verdict, Torn), (lost, verdict)
        assert verdict.at in ends[1:3]


def test_the_headers_of_whole_frames_are_reported_in_order():
    """The index and the facts of the file are counted from them."""
    made, _ = session(0, 0, 0)
    told = []
    judged(b"".join(made)[:-1], seen=told.append)
    assert [header.sequence for header in told] == [0, 2]


def test_in_a_merged_log_a_later_range_shows_that_the_damage_is_not_a_tail(tmp_path):
    """Its frames carry the marks of other disks, which prove nothing here; its order does."""
    with MergedLog(str(tmp_path)) as log:
        for place in range(3):
            log.merge("jfk", [b"%d" % place])
    data = bytearray((tmp_path / "log.0.0").read_bytes())
    assert isinstance(judged(bytes(data), merged=True), Clean)
    data[8] ^= 1
    verdict = judged(bytes(data), merged=True)
    assert isinstance(verdict, Torn)
    assert verdict.followed
    assert isinstance(judged(bytes(data), merged=True, durable=8), Corrupt)
    assert not judged(bytes(data[:200]), merged=True).followed
