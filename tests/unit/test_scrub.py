"""Scrub: every damaged rolled file is found, kept from readers, and replaced by a proven copy."""

import errno
import os
import shutil
from random import Random
from types import SimpleNamespace

import pytest
from commands import publish
from faulty import FaultyDisk
from rot import flip_bit, rolled_files

from replicator.repair.file_fetch import FileFetch
from replicator.repair.mend import Mended, mend_file
from replicator.repair.scrub import Scrub, ScrubPorts
from replicator.repair.scrub_record import ScrubRecord
from replicator.source.cursor_file import CursorFile
from rt.errors import CorruptLog, ManifestError, Refused
from rt.format.checksum import crc32
from rt.format.frame import HEADER_BYTES, parse_header
from rt.format.manifest import Archived
from rt.inspect.verify import open_log
from rt.log.files.damaged_files import DamagedFiles
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import OsDisk, put_in_place
from rt.log.write.appender import Appender
from rt.log.write.rolled_check import RolledCheck, check_rolled
from rt.position import START, Position
from tests.logs import TIME_NS, MergedLog
from tests.sim.disk import PowerCut, SimDisk

FIRST, SECOND, THIRD = START, START.next_file(), START.next_file().next_file()


def build(directory, files=3, disk=None, carrier=b"AA"):
    """Make a merged log of rolled files, with their digests, as the sequencer does."""
    log = MergedLog(str(directory), disk or OsDisk())
    for number in range(files):
        log.merge("jfk", [carrier + b"%d" % number, b"B62"], [b"DL3"], keys=True)
        log.merge("ewr", [b"UA7"], level=3)
        log.next_file = log.appender.end.next_file()
        log.appender.roll(TIME_NS, digest=log.digest.hex())
    return log


def check(log, file):
    """Check a file of a log as a whole."""
    appender, known = log.appender, log.appender.manifest
    path = os.path.join(log.directory, file.file_name)
    check_rolled(appender.disk, path, appender.identity, known, known.rolled[file])


def test_every_bit_that_flips_in_a_rolled_file_is_found(tmp_path):
    """The body's CRC finds those in bodies, the header's CRC and the padding the others."""
    log = build(tmp_path / "out", files=2)
    check(log, SECOND)
    path, size = rolled_files(log.directory)[1]
    for offset in range(size):
        for bit in range(8):
            flip_bit(path, offset, bit)
            with pytest.raises(CorruptLog):
                check(log, SECOND)
            flip_bit(path, offset, bit)
    check(log, SECOND)
    log.appender.close()


def forged(path):
    """Change a message and make all checksums fit again; return the bytes."""
    with open(path, "rb") as file:
        data = bytearray(file.read())
    at = parse_header(bytes(data), 0).size  # the first frame of the first range
    header = parse_header(bytes(data), at)
    body = at + HEADER_BYTES
    data[body + header.length - 1] ^= 1
    data[at + 52 : at + 56] = crc32(data[body : body + header.length]).to_bytes(4, "little")
    data[at + 4 : at + 8] = crc32(data[at + 8 : at + HEADER_BYTES]).to_bytes(4, "little")
    parse_header(bytes(data), at)
    return bytes(data)


def test_a_file_whose_checksums_all_fit_and_that_is_another_one_is_found(tmp_path):
    """What a node sends for a repair is proven by the digest, and not by its own checksums."""
    log = build(tmp_path / "out")
    for path, _ in rolled_files(log.directory):
        data = forged(path)
        with open(path, "wb") as file:
            file.write(data)
    for file in (FIRST, SECOND, THIRD):
        with pytest.raises(CorruptLog, match="digest"):
            check(log, file)
    log.appender.close()


def test_a_whole_file_of_another_log_is_found(tmp_path):
    """All in it fits, its own digests too; only the manifest knows what the nodes agreed on."""
    log, other = build(tmp_path / "out"), build(tmp_path / "other", carrier=b"DL")
    shutil.copy(rolled_files(other.directory)[0][0], rolled_files(log.directory)[0][0])
    with pytest.raises(CorruptLog, match="its digest is not the one that the manifest lists"):
        check(log, FIRST)
    for each in (log, other):
        each.appender.close()


def test_a_file_that_is_short_missing_or_another_file_is_found(tmp_path):
    """A truncated file may end between two frames, and then no frame of it is bad."""
    log = build(tmp_path / "out")
    (first, size), (second, _), (third, _) = rolled_files(log.directory)
    os.truncate(first, size - 8)
    shutil.copy(third, second)
    os.unlink(third)
    for file, reason in ((FIRST, "shorter"), (SECOND, "written for"), (THIRD, "is missing")):
        with pytest.raises(CorruptLog, match=reason):
            check(log, file)
    log.appender.close()


def test_a_disk_that_cannot_read_a_sector_has_lost_it(tmp_path):
    """EIO is how a disk says what a flipped bit does not say: the same has to follow."""
    build(tmp_path / "out").appender.close()
    calls = []

    def step(call):
        calls.append(call)
        if call == "pread":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    log = MergedLog(str(tmp_path / "out"))
    path = os.path.join(log.directory, "log.0.0")
    line = log.appender.manifest.rolled[FIRST]
    with pytest.raises(CorruptLog, match="cannot be read"):
        check_rolled(FaultyDisk(step), path, log.appender.identity, log.appender.manifest, line)
    log.appender.close()


@pytest.mark.parametrize("bytes_max", [1, 100, 1 << 20])
def test_a_file_that_is_checked_in_slices_passes_and_fails_as_at_once(tmp_path, bytes_max):
    """The rate is kept by reading little at a time."""
    log = build(tmp_path / "out")
    appender = log.appender
    path, size = rolled_files(log.directory)[1]
    line = appender.manifest.rolled[SECOND]

    def steps():
        checking = RolledCheck(appender.disk, path, appender.identity, appender.manifest, line)
        count = 1
        while not checking.step(bytes_max):
            count += 1
        return count

    assert (steps() > 1) == (bytes_max < size)
    flip_bit(path, size - 40)
    with pytest.raises(CorruptLog):
        steps()
    appender.close()


def test_a_file_that_was_archived_meanwhile_is_not_filled_again(tmp_path):
    """The archiver emptied it during the repair; the copy would stay for ever."""
    log = build(tmp_path / "out")
    path = os.path.join(log.directory, "log.0.0")
    fresh = str(tmp_path / "fresh")
    shutil.copy(path, fresh)
    log.appender.archive(Archived(FIRST, TIME_NS, "time"))
    assert log.appender.replace_rolled(FIRST, fresh) is None
    assert os.path.getsize(path) == 0
    log.appender.close()
    with pytest.raises(OSError, match="closed"):  # for example set aside meanwhile
        log.appender.replace_rolled(SECOND, fresh)


@pytest.mark.parametrize("cut", range(4))
@pytest.mark.parametrize("seed", range(4))
def test_a_power_cut_while_a_file_is_replaced_leaves_one_of_the_two(cut, seed):
    """Never none: a reader would pass over the file, and a node call its log shorter."""
    disk = SimDisk(Random(seed))
    disk.make_directory("d")
    for name, data in (("log.0.0", b"damaged!"), ("fresh", b"repaired")):
        file = disk.open(f"d/{name}", create=True)
        file.append([data])
        file.sync()
    calls = iter(range(99))

    def fault(_operation):
        if next(calls) == cut:
            raise PowerCut

    disk.fault = fault
    has_ended = True
    try:
        put_in_place(disk, "d/fresh", "d/log.0.0")
    except PowerCut:
        has_ended = False
    disk.fault = None
    disk.cut_power()
    found = disk.open_read("d/log.0.0").pread(99, 0)
    assert found == b"repaired" or (not has_ended and found == b"damaged!")


def test_damaged_files_that_were_replaced_do_not_fill_the_disk(tmp_path):
    """A failing disk damages file after file; a few are enough to look at."""
    log = build(tmp_path / "out")
    path = os.path.join(log.directory, "log.0.0")
    kept = []
    for number in range(12):
        shutil.copy(path, tmp_path / "fresh")
        kept.append(log.appender.replace_rolled(FIRST, str(tmp_path / "fresh")))
        assert (kept[-1] == "") == (number >= 8)
    assert len(set(kept)) == 9
    assert sum(name.startswith("quarantine.") for name in os.listdir(log.directory)) == 8
    log.appender.close()


class Shelf:
    """The source of copies: a file's bytes by node, or the error that fetching it raises."""

    def __init__(self, directory, answers):
        self.directory, self.answers = directory, answers

    def nodes(self):
        return list(self.answers)

    def fetch(self, node, log, line):
        answer = self.answers[node]
        if isinstance(answer, Exception):
            raise answer
        path = self.directory / line.file.file_name
        path.write_bytes(answer)
        return str(path)

    def clear(self):
        """Keep nothing between two nodes."""
        for path in self.directory.iterdir():
            path.unlink()


def test_a_node_whose_copy_cannot_be_used_is_passed_over(tmp_path):
    """Whatever it sends, or makes of the fetched log, the next node may have the file whole."""
    log = build(tmp_path / "out")
    path = os.path.join(log.directory, "log.0.1")
    whole = (tmp_path / "out" / "log.0.1").read_bytes()
    flip_bit(path, 100)
    (tmp_path / "repair").mkdir()
    answers = {
        "rotten": CorruptLog("repair/out/manifest", START, "a line is damaged"),
        "odd": ManifestError("a line is damaged"),
        "longer": whole + b"x" * 4096,
        "shorter": whole[:-8],
        "good": whole,
    }
    line, shelf = log.appender.manifest.rolled[SECOND], Shelf(tmp_path / "repair", answers)
    mended = mend_file(shelf, log.appender, line)
    assert mended.node == "good"
    assert (tmp_path / "out" / "log.0.1").read_bytes() == whole
    del answers["good"]
    with pytest.raises(Refused, match=r"longer: what it sent is not the log\.0\.1 .* longer than"):
        mend_file(shelf, log.appender, line)
    log.appender.close()


class Pulling:
    """What stands for a pull client; `status` says what comes of it."""

    running = has_tried = True

    def __init__(self, *_args, **_options):
        pass

    def start(self):
        pass

    def stop(self):
        return True

    def status(self, at=START, error=""):
        return SimpleNamespace(
            error=error, has_all=False, is_ahead=False, position=at, next_place=at
        )


def test_a_connection_that_does_not_end_is_waited_for_before_the_next_begins(tmp_path):
    """Each holds descriptors and a lock; one in every attempt would use them up."""
    log, begun = build(tmp_path / "out"), []

    class Slow(Pulling):
        ends = False

        def start(self):
            begun.append(self)

        def stop(self):
            return self.ends

        def status(self):
            return super().status(error="it cannot be reached")

    nodes = [("n1", 1), ("n2", 2)]
    fetch = FileFetch(log.directory, lambda: nodes, None, OsDisk(), pull=Slow)
    line = log.appender.manifest.rolled[SECOND]
    for _ in range(2):
        with pytest.raises(Refused, match="n2:2: the last connection has not ended yet"):
            mend_file(fetch, log.appender, line)
    assert len(begun) == 1
    begun[0].ends = Slow.ends = True
    with pytest.raises(Refused, match="n2:2: it cannot be reached"):
        mend_file(fetch, log.appender, line)
    assert len(begun) == 3
    log.appender.close()


def test_a_node_that_has_not_answered_yet_is_waited_for(tmp_path):
    """What a dial says while it is under way was taken for a refusal by the node."""
    log = build(tmp_path / "out")
    said = [("connection refused", True), ("no answer yet", False), ("not connected yet", False)]

    class Dialling(Pulling):
        def status(self):
            error, self.has_tried = said.pop()
            return super().status(error=error)

    fetch = FileFetch(log.directory, lambda: [("n1", 1)], None, OsDisk(), pull=Dialling)
    with pytest.raises(Refused, match="n1:1: connection refused"):
        mend_file(fetch, log.appender, log.appender.manifest.rolled[SECOND])
    log.appender.close()


def test_a_node_that_sends_a_file_byte_by_byte_is_passed_over(tmp_path):
    """Meanwhile nothing else would be read or repaired, for years at a byte every nine seconds."""
    log, clock = build(tmp_path / "out"), SimpleNamespace(now_s=0.0)

    class Dripping(Pulling):
        at = SECOND

        def status(self):
            clock.now_s += 9
            self.at = Position(self.at + 1)
            return super().status(self.at)

    fetch = FileFetch(
        log.directory, lambda: [("n1", 1)], None, OsDisk(), pull=Dripping,
        clock=lambda: clock.now_s,
    )  # fmt: skip
    with pytest.raises(Refused, match="n1:1: it sends less than 32 KiB a second"):
        mend_file(fetch, log.appender, log.appender.manifest.rolled[SECOND])
    assert clock.now_s < 60
    log.appender.close()


def test_a_file_that_is_replaced_while_it_is_looked_up_is_opened_again(tmp_path):
    """The damaged one that was open must not be read once more when it is served again."""
    log = build(tmp_path / "out")

    class JustReplaced(DamagedFiles):
        def demand_whole(self, file):
            self.clear(file)
            super().demand_whole(file)

    directory = LogDirectory(log.directory)
    cursor = CursorFile(directory)
    before = cursor.open(FIRST).inode
    shutil.copy(log.directory + "/log.0.0", tmp_path / "fresh")
    log.appender.replace_rolled(FIRST, str(tmp_path / "fresh"))
    directory.damaged = JustReplaced()
    assert cursor.open(FIRST).inode != before
    cursor.close()
    log.appender.close()


class Bench:
    """A log that is scrubbed without a thread; whole copies of its files are in `store`."""

    def __init__(self, tmp_path, *, every_s=100.0, files=3):
        self.log = build(tmp_path / "out", files)
        self.store = tmp_path / "store"
        shutil.copytree(self.log.directory, self.store)
        self.files = rolled_files(self.log.directory)
        self.now_s, self.now_ns = 0.0, TIME_NS
        self.logs, self.reported, self.barred = [self.log.appender], [], DamagedFiles()
        self.error, self.mends, self.every_s = None, [], every_s
        self.begin()

    def begin(self):
        """Start scrubbing, as a process does."""
        ports = ScrubPorts(
            lambda: self.logs, self.mend, lambda *found: self.reported.append(found),
            self.barred, lambda: self.now_ns,
        )  # fmt: skip
        self.scrub = Scrub(ports, ScrubRecord(self.log.directory), every_s=self.every_s)

    def mend(self, log, line):
        """Replace a file by the one in the store, unless that cannot be reached."""
        self.mends.append(line.file)
        with pytest.raises(CorruptLog):  # not served from here until it is whole
            self.barred.demand_whole(line.file)
        if self.error is not None:
            raise self.error
        shutil.copy(self.store / line.file.file_name, self.log.directory + "/fresh")
        kept = log.replace_rolled(line.file, self.log.directory + "/fresh")
        return None if kept is None else Mended("n2", kept)

    def run(self, seconds=0.0):
        """Let time pass, then scrub until there is nothing to read."""
        self.now_s += seconds
        self.now_ns += int(seconds * 1e9)
        while self.scrub.turn(self.now_s, 64):
            pass
        return self.scrub.state

    def flip(self, place, offset=100):
        """Damage a file."""
        flip_bit(self.files[place][0], offset)


def test_a_round_reads_every_file_and_repairs_what_is_damaged(tmp_path, caplog):
    """And the next one begins only when it is due."""
    bench = Bench(tmp_path)
    bench.flip(1)
    state = bench.run()
    assert (state.files, state.corrupt, state.repaired, state.unrepaired) == (3, 1, 1, {})
    assert state.finished_ns == bench.now_ns
    assert bench.mends == [SECOND]
    bench.barred.demand_whole(SECOND)
    check(bench.log, SECOND)
    assert "repaired with the copy of n2; the damaged file is kept as quarantine." in caplog.text
    assert bench.run(99).files == 3
    assert bench.run(1).files == 6


def test_a_file_that_no_node_has_is_kept_not_served_reported_and_asked_for_again(tmp_path, caplog):
    """The only copy, however damaged, may hold what nothing else holds."""
    bench = Bench(tmp_path)
    bench.flip(1)
    bench.error = Refused("unrepaired", "n2: it has archived the file")
    state = bench.run()
    path = bench.files[1][0]
    assert state.unrepaired == {path: "n2: it has archived the file"}
    with pytest.raises(CorruptLog):
        bench.barred.demand_whole(SECOND)
    bench.run(31), bench.run(31)
    assert bench.mends == [SECOND] * 3
    assert caplog.text.count("it is tried again") == 1
    bench.error = OSError(errno.ENOSPC, "No space left on device")
    assert bench.run(31).unrepaired == {path: "no space left on device"}
    assert os.path.getsize(path) == bench.files[1][1]
    bench.error = None
    state = bench.run(31)
    assert (state.corrupt, state.repaired, state.unrepaired) == (1, 1, {})
    bench.barred.demand_whole(SECOND)


def test_a_damaged_file_that_someone_puts_back_is_served_again(tmp_path):
    """An operator restores it by hand where no node has it."""
    bench = Bench(tmp_path)
    bench.flip(1)
    bench.error = Refused("unrepaired", "there is no other node")
    bench.run()
    bench.flip(1)  # back
    assert bench.run(31).unrepaired == {}
    bench.barred.demand_whole(SECOND)


def test_a_repair_goes_on_with_the_log_that_was_opened_again(tmp_path):
    """A node closes its merged log while it copies; the old one can never be repaired."""
    bench = Bench(tmp_path)
    bench.flip(1)
    bench.error = Refused("unrepaired", "n2: it cannot be reached")
    bench.run()
    bench.error = None
    bench.log.appender.close()
    bench.logs = [MergedLog(bench.log.directory).appender]
    state = bench.run(31)
    assert (state.repaired, state.unrepaired) == (1, {})
    bench.logs[0].close()


def test_files_that_cannot_be_repaired_do_not_keep_the_others_from_being_read(tmp_path):
    """An attempt reads a file at a set rate: that takes longer than the pause between two."""
    bench = Bench(tmp_path, every_s=1.0)
    bench.flip(0), bench.flip(1)
    bench.error = Refused("unrepaired", "there is no other node")
    bench.run()
    bench.flip(2)
    for _ in range(60):
        bench.now_s += 40  # each slice of an attempt
        bench.scrub.turn(bench.now_s, 64)
    assert all(bench.mends.count(file) > 5 for file in (FIRST, SECOND, THIRD))


def test_a_damaged_merged_file_is_not_served_because_a_session_was_mended(tmp_path):
    """Files of all logs have the same names."""
    bench = Bench(tmp_path)
    directory = publish(tmp_path / "pub", [b"x" * 100] * 3)
    session = Appender(OsDisk(), directory, open_log(directory).manifest.identity)
    bench.logs.append(session)
    bench.flip(0)
    path, _ = rolled_files(directory)[0]
    flip_bit(path, 100)
    bench.error = Refused("unrepaired", "there is no other node")
    assert len(bench.run().unrepaired) == 2
    flip_bit(path, 100)  # back
    assert set(bench.run(31).unrepaired) == {bench.files[0][0]}
    with pytest.raises(CorruptLog):
        bench.barred.demand_whole(FIRST)
    session.close()


def test_what_others_met_is_checked_first_and_between_two_rounds(tmp_path):
    """A puller that was sent a damaged frame must not meet it again for a day."""
    bench = Bench(tmp_path)
    bench.run()
    bench.flip(2)
    path = bench.files[2][0]
    for _ in range(3):
        bench.scrub.suspect(CorruptLog(path, THIRD, "a puller says so"))
    assert bench.run(1).repaired == 1
    assert bench.mends == [THIRD]
    assert bench.scrub.state.files == 4


def test_scrubbing_that_is_turned_off_still_repairs_what_others_met(tmp_path):
    """The setting is about the load of reading everything."""
    bench = Bench(tmp_path, every_s=None)
    bench.flip(0)
    assert bench.run(1000).files == 0
    bench.scrub.suspect(CorruptLog(bench.files[0][0], FIRST, "a puller says so"))
    assert bench.run().repaired == 1


def test_a_damaged_file_that_is_archived_needs_no_repair(tmp_path):
    """Its bytes are about to go on all nodes."""
    bench = Bench(tmp_path)
    bench.flip(0)
    bench.error = Refused("unrepaired", "there is no other node")
    bench.run()
    bench.log.appender.archive(Archived(FIRST, TIME_NS, "time"))
    state = bench.run(1)
    assert (state.unrepaired, state.repaired) == ({}, 0)
    bench.barred.demand_whole(FIRST)


def test_a_round_goes_on_where_the_last_process_ended(tmp_path):
    """A log that takes days to read would otherwise never be read to its end."""
    bench = Bench(tmp_path)
    while bench.scrub.state.files < 2:
        bench.scrub.turn(bench.now_s, 1 << 20)
    bench.scrub.turn(bench.now_s, 1)
    bench.scrub.close()
    bench.begin()
    assert bench.run().files == 1
    bench.scrub.close()
    bench.begin()
    assert bench.scrub.state.finished_ns == bench.now_ns
    assert bench.run(99).files == 0
    assert bench.run(1).files == 3


@pytest.mark.parametrize("text", ["", "x", "[1]", '{"finished_ns": "1", "next": "../x"}'])
def test_a_record_that_cannot_be_read_is_no_record(tmp_path, text):
    """It only says where to begin."""
    bench = Bench(tmp_path)
    with open(os.path.join(bench.log.directory, "scrub"), "w") as file:
        file.write(text)
    bench.begin()
    assert bench.run().files == 3


def test_a_log_that_was_set_aside_during_the_read_is_not_damaged(tmp_path):
    """Its files are gone because a node copies the log again, and are whole there later."""
    bench = Bench(tmp_path)
    bench.scrub.turn(0.0, 1)
    bench.log.appender.close()
    shutil.rmtree(bench.log.directory)
    assert bench.run().corrupt == 0
