"""Every cut and every flipped bit of a log: nothing wrong is read, nothing goes unnoticed."""

import os
import shutil
from bisect import bisect_right
from itertools import permutations

import pytest
from dialogue import cut_everywhere
from logs import MergedLog, make_frame

from rt import CorruptLog, Subscriber
from rt.format.frame import FrameKind, parse_header
from rt.format.message import Batch
from rt.format.recovery import Clean, Corrupt, Torn, judge
from rt.format.walk import Walk
from rt.log.write.writer import Fsync, SessionWriter, WriterSettings
from rt.position import Position

KIB = 1024
LEVELS = pytest.mark.parametrize("level", [0, 3], ids=["none", "zstd"])


class Log:
    """The bytes of one log file, where its frames end, and what its messages are."""

    def __init__(self, data, *, merged):
        self.data, self.merged = bytes(data), merged
        self.headers, self.ends, self.messages = [], [0], []
        assert judge_bytes(self, self.data, self.headers) == Clean(Position(len(data)))
        for header in self.headers:
            self.ends.append(self.ends[-1] + header.size)

    def before(self, offset):
        """Return the end of the last whole frame that ends at or before `offset`."""
        return self.ends[bisect_right(self.ends, offset) - 1]


def judge_bytes(log, data, seen=None, at=0, **known):
    """Judge bytes as recovery does, from a frame boundary on."""
    walk = Walk(Position(at), merged=log.merged, session="" if log.merged else "jfk")
    view = memoryview(data)
    return judge(
        lambda length, offset: bytes(view[offset : offset + length]), len(data), walk,
        seen=None if seen is None else seen.append, **known,
    )  # fmt: skip


def payloads(place, count):
    """Return the messages of a frame: text that compresses a little, and differs everywhere."""
    return [b"%d/%d departed " % (place, each) * 3 for each in range(count)]


def session_log(size, level, messages=6):
    """Return a session of at least `size` bytes whose frames mark the one before as durable."""
    data, sequence, durable = b"", 0, 0
    while len(data) < size:
        texts = payloads(sequence, messages)
        keys = [text[:2] for text in texts] if sequence % 4 else None
        frame = make_frame(
            len(data), texts, sequence=sequence, durable=durable, level=level, keys=keys
        )
        durable, sequence = len(data), sequence + messages
        data += b"".join(frame.parts)
    return Log(data, merged=False)


def merged_log(path, size, level, messages=6):
    """Return a merged log of at least `size` bytes, two frames a range, two sessions by turns."""
    place = 0
    with MergedLog(str(path)) as log:
        while log.appender.end < size:
            texts = payloads(place, messages)
            log.merge(
                ("jfk", "lga")[place % 2], texts[:2], texts[2:], keys=place % 3 == 0, level=level
            )
            place += 1
    return Log((path / "log.0.0").read_bytes(), merged=True)


def check_cuts(log, cuts):
    """Cut the file everywhere: frames before the cut hold; the rest is an end, not damage."""
    for cut in cuts:
        at = log.before(cut)
        # from the frame before on: what comes earlier is the same in every cut
        begin = log.ends[max(0, bisect_right(log.ends, at) - 3)]
        while log.merged and begin and not starts_range(log, begin):
            begin = log.ends[log.ends.index(begin) - 1]
        verdict = judge_bytes(log, log.data[:cut], at=begin)
        assert verdict.at == at if isinstance(verdict, Torn) else verdict == Clean(Position(cut))
        assert (at == cut) == isinstance(verdict, Clean)
        if at != cut:
            assert isinstance(judge_bytes(log, log.data[:cut], at=begin, durable=cut), Corrupt)


def starts_range(log, offset):
    """Whether a range frame begins there."""
    return parse_header(log.data, offset).kind == FrameKind.RANGE


def check_flips(log, bits):
    """Flip each bit: its frame is refused, and called damaged where that is known."""
    data = bytearray(log.data)
    last = log.headers[-1].durable
    for bit in bits:
        offset = bit // 8
        at = log.before(offset)
        data[offset] ^= 1 << bit % 8
        verdict = judge_bytes(log, data, at=at if not log.merged else range_of(log, at))
        data[offset] ^= 1 << bit % 8
        assert verdict.at == at, f"bit {bit} went unnoticed"
        if log.merged:
            later = any(end > at and starts_range(log, end) for end in log.ends[:-1])
            assert isinstance(verdict, Torn)
            assert verdict.followed == later
        else:
            assert isinstance(verdict, Corrupt if at < last else Torn), f"bit {bit}: {verdict}"


def range_of(log, at):
    """Return the start of the range that holds the frame at `at`."""
    place = log.ends.index(at)
    while not starts_range(log, log.ends[place]):
        place -= 1
    return log.ends[place]


@LEVELS
def test_a_slice_of_all_cuts_and_flips_of_a_session(level):
    """The quick part of what follows, on every save."""
    log = session_log(4 * KIB, level)
    check_cuts(log, range(len(log.data)))
    check_flips(log, range(0, 8 * len(log.data), 5))


@LEVELS
def test_a_slice_of_all_cuts_and_flips_of_a_merged_log(tmp_path, level):
    """Its frames hold places of another log, and its ranges hold them together."""
    log = merged_log(tmp_path, 4 * KIB, level)
    check_cuts(log, range(0, len(log.data), 3))
    check_flips(log, range(0, 8 * len(log.data), 7))


@pytest.mark.faults
@LEVELS
def test_every_cut_of_64_kib_of_a_session(level):
    """A power cut may end a file at any byte."""
    log = session_log(64 * KIB, level)
    check_cuts(log, range(len(log.data) + 1))


@pytest.mark.faults
@LEVELS
def test_every_cut_of_64_kib_of_a_merged_log(tmp_path, level):
    """The same for what a node or a subscriber holds."""
    log = merged_log(tmp_path, 64 * KIB, level)
    check_cuts(log, range(len(log.data) + 1))


@pytest.mark.faults
@LEVELS
def test_every_flipped_bit_of_16_kib_of_a_session(level):
    """131,072 flips, 0 undetected: before the durable mark each is damage, after it none is."""
    log = session_log(16 * KIB, level)
    check_flips(log, range(8 * 16 * KIB))


@pytest.mark.faults
@LEVELS
def test_every_flipped_bit_of_16_kib_of_a_merged_log(tmp_path, level):
    """The same; and later ranges prove to a reader that it is not a tail."""
    log = merged_log(tmp_path, 16 * KIB, level)
    check_flips(log, range(8 * 16 * KIB))


def publish(root, level=0, lives=2):
    """Publish runs of three files each; return the directory."""
    settings = WriterSettings(fsync=Fsync.NEVER, file_bytes_max=64 * KIB, compression=level)
    for life in range(lives):
        writer = SessionWriter(str(root), "flights", "jfk", settings)
        for place in range(20):
            number = writer.next_sequence
            # half of it does not compress
            texts = [b"%d" % (number + each) + os.urandom(4000) + bytes(4000) for each in range(2)]
            writer.write([life * 1000 + place] * 2, texts, None)
        writer.close()
    return root / "flights" / "jfk"


def read(root):
    """Return the numbers of the session's messages; each payload begins with its own."""
    with Subscriber(str(root), stream="flights", session="jfk", follow=False) as subscriber:
        found = []
        for message in subscriber:
            text = b"%d" % message.sequence
            assert message.payload[: len(text)] == text
            assert len(message.payload) == 8000 + len(text)
            found.append(message.sequence)
        return found


@LEVELS
def test_cuts_around_a_roll_lose_only_what_they_cut(tmp_path, level):
    """The file before a roll is durable, so cutting it is damage; the one after it is torn."""
    directory = publish(tmp_path / "whole", level, lives=1)
    names = sorted(name for name in os.listdir(directory) if name.count(".") == 2)
    assert len(names) >= 2
    every = read(tmp_path / "whole")
    for name in names:
        for short in (1, 7, 8, 63, 64, 65, 200, 4000, 9000):
            root = tmp_path / "cut"
            shutil.copytree(tmp_path / "whole", root)
            path = root / "flights" / "jfk" / name
            os.truncate(path, max(0, path.stat().st_size - short))
            found = []
            with pytest.raises(CorruptLog) as error:
                found = read(root)
            assert found == []
            assert error.value.position.file_name == name
            shutil.rmtree(root)
    assert every == list(range(40))


def forget_last_roll(directory):
    """Remove the manifest's last line, as if the writer had been killed before it."""
    manifest = directory / "manifest"
    lines = manifest.read_bytes().splitlines(keepends=True)
    manifest.write_bytes(b"".join(lines[:-1]))


@pytest.mark.parametrize("step", [257, pytest.param(8, marks=pytest.mark.faults)])
def test_a_writer_opens_after_each_cut_with_a_new_run_after_the_last_whole_frame(ram_path, step):
    """Numbers continue after what is left: none twice, none left out."""
    tmp_path = ram_path
    root = tmp_path / "whole"
    settings = WriterSettings(fsync=Fsync.NEVER)
    writer = SessionWriter(str(root), "flights", "jfk", settings)
    ends = [0]
    for place in range(12):
        writer.write([place] * 3, payloads(place, 3), None)
        ends.append(int(writer.end))
    writer.close()
    directory = root / "flights" / "jfk"
    forget_last_roll(directory)
    kept = {
        name: (directory / name).read_bytes() for name in ("manifest", "log.0.0", "log.0.0.idx")
    }
    for cut in [*range(0, ends[-1], step), *ends]:
        for name in os.listdir(directory):
            if name != "lock":
                os.remove(directory / name)
        for name, data in kept.items():
            (directory / name).write_bytes(data[:cut] if name == "log.0.0" else data)
        again = SessionWriter(str(root), "flights", "jfk", settings)
        whole = 3 * (bisect_right(ends, cut) - 1)
        assert again.next_sequence == whole
        again.write([0], [b"next"], None)
        again.close()
        assert os.path.getsize(directory / "log.0.0") == cut
        with Subscriber(str(root), stream="flights", session="jfk", follow=False) as subscriber:
            found = list(subscriber)
        assert [message.sequence for message in found] == list(range(whole + 1))
        assert found[-1].position.run == 1


def frames_of(log):
    """Return the bytes of each frame."""
    return [log.data[a:b] for a, b in zip(log.ends, log.ends[1:], strict=False)]


def check_rearranged(log, frames, changed):
    """The walk must refuse the first frame that was not written there."""
    data = b"".join(frames)
    verdict = judge_bytes(log, data)
    assert not isinstance(verdict, Clean)
    assert verdict.at == log.ends[changed]


@LEVELS
@pytest.mark.parametrize("kind", ["session", "merged"])
def test_swapped_duplicated_stale_and_zeroed_frames_are_refused(tmp_path, level, kind):
    """Each is whole with a valid CRC; only its position is wrong."""
    log = (
        session_log(3 * KIB, level, messages=2)
        if kind == "session"
        else merged_log(tmp_path / "log", 3 * KIB, level)
    )
    frames = frames_of(log)
    count = len(frames)
    assert count >= 12
    for one, other in permutations(range(count), 2):
        swapped = list(frames)
        swapped[one], swapped[other] = frames[other], frames[one]
        check_rearranged(log, swapped, min(one, other))
        copied = list(frames)
        copied[one] = frames[other]
        check_rearranged(log, copied, one)
    for place in range(count):
        check_rearranged(log, [*frames[: place + 1], *frames[place:]], place + 1)
        check_rearranged(log, [*frames[:place], *frames[place + 1 :], b""], place) if (
            place < count - 1
        ) else None
        zeroed = list(frames)
        zeroed[place] = bytes(len(frames[place]))
        check_rearranged(log, zeroed, place)


def test_frames_of_equal_place_and_size_of_two_sessions_are_told_apart(tmp_path):
    """Sessions in lockstep: swapped inside a merged log, every position and CRC still fits."""
    with MergedLog(str(tmp_path)) as merged:
        for place in range(4):
            for session in ("jfk", "lga"):
                merged.merge(session, [b"%s%d" % (session.encode(), place)])
    log = Log((tmp_path / "log.0.0").read_bytes(), merged=True)
    frames = frames_of(log)
    swapped = list(frames)
    swapped[1], swapped[3] = frames[3], frames[1]
    one, other = parse_header(frames[1]), parse_header(frames[3])
    assert (one.position, one.size) == (other.position, other.size)
    check_rearranged(log, swapped, 1)
    assert isinstance(judge_bytes(Log(frames[1], merged=False), frames[1]), Clean)
    lga = Walk(Position(0), merged=False, session="lga")
    verdict = judge(lambda length, offset: frames[1][offset : offset + length], 88, lga)
    assert isinstance(verdict, Torn)


def test_an_older_state_of_a_sector_is_never_a_whole_log():
    """A disk that lost one write shows what was there before: zeros, or another run's frame."""
    log = session_log(8 * KIB, 0)
    old = session_log(8 * KIB, 3)
    shifted = bytearray()
    for header, end in zip(log.headers, log.ends, strict=False):
        older = make_frame(
            Position.of(1, 0, end), payloads(7, header.messages), sequence=header.sequence
        )
        shifted += b"".join(older.parts).ljust(header.size, b"\0")[: header.size]
    for image in (bytes(len(log.data)), old.data, bytes(shifted)):
        for sector in range(0, len(log.data) - 512, 512):
            torn = bytearray(log.data)
            piece = image[sector : sector + 512].ljust(512, b"\0")
            if torn[sector : sector + 512] == piece:
                continue
            torn[sector : sector + 512] = piece
            verdict = judge_bytes(log, bytes(torn))
            assert not isinstance(verdict, Clean)
            assert verdict.at <= sector + 512
            if verdict.at < log.headers[-1].durable:
                assert isinstance(verdict, Corrupt)


@LEVELS
def test_a_reader_gives_out_no_wrong_message_whatever_is_flipped(tmp_path, level):
    """The same through the real files and the real reader: right messages, then a stop."""
    with MergedLog(str(tmp_path / "flights" / "out")) as log:
        for place in range(8):
            log.merge(("jfk", "lga")[place % 2], payloads(place, 3), keys=True, level=level)
    path = tmp_path / "flights" / "out" / "log.0.0"
    data = path.read_bytes()
    expected = [row.payload for row in log.expected]
    for bit in range(0, 8 * len(data), 61):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        found = []
        with Subscriber(str(tmp_path), stream="flights", follow=False) as subscriber:
            try:
                for batch in subscriber.batches():
                    assert isinstance(batch, Batch)
                    found += batch.payloads()
            except CorruptLog:
                pass
        assert found == expected[: len(found)]
        assert len(found) < len(expected), f"bit {bit} went unnoticed"


@pytest.mark.faults
def test_a_dialogue_cut_at_each_byte_reaches_the_same_end(tmp_path):
    """A connection may break anywhere; `tests/unit` cuts it at every fifth byte."""
    assert cut_everywhere(tmp_path, 1) > 1500
