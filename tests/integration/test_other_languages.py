"""Readers and writers in other languages agree with rt on the golden logs, and with each other."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import closing

import pytest
from archive_cluster import ArchiveCluster
from golden_logs import EXAMPLES, SHOWN, contents, lines, write_example

import rt
from rt.format.manifest import Archived
from rt.inspect.verify import open_log, verify_log
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import OsDisk
from rt.log.write.appender import Appender
from rt.log.write.writer import Fsync, SessionWriter, WriterSettings
from rt.position import Position

SOURCES = os.path.join(os.path.dirname(SHOWN), "languages")
PATIENCE_S = 60
pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def no_options_of_java(monkeypatch):
    """Take away the options that Java names on stderr before a program's own first line."""
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)


def source(name):
    """Return the path of a program's source."""
    return os.path.join(SOURCES, name)


def build_c(target, name, *flags):
    """Compile a C program; return the command that runs it."""
    for needed in ("zlib.h", *(["zstd.h"] if "-DZSTD" in flags else [])):
        if not os.path.exists(f"/usr/include/{needed}"):
            pytest.skip(f"no {needed} is installed")
    made = str(target / name.removesuffix(".c"))
    strict = ["-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined"]
    run("cc", *strict, *(each for each in flags if each != "-lzstd"), "-o", made, source(name),
        "-lz", *(each for each in flags if each == "-lzstd"))  # fmt: skip
    return [made]


def build_go(target, name):
    """Compile a Go program; return the command that runs it."""
    made = str(target / name.removesuffix(".go"))
    # The compiled standard library is kept: it takes half a minute of processor time.
    cache = os.path.join(sys.prefix, "compiled-go")
    settings = {"GOCACHE": cache, "GO111MODULE": "off", "GOPROXY": "off", "GOTOOLCHAIN": "local"}
    run(found("go"), "build", "-o", made, source(name), env={**os.environ, **settings})
    return [made]


def build_java(target, name):
    """Compile a Java program; return the command that runs it."""
    run("javac", "-d", str(target), source(name))
    return ["java", "-cp", str(target), name.removesuffix(".java")]


READERS = {
    "c": lambda target: build_c(target, "reader.c"),
    "c-zstd": lambda target: build_c(target, "reader.c", "-DZSTD", "-lzstd"),
    "go": lambda target: build_go(target, "reader.go"),
    "java": lambda target: build_java(target, "Reader.java"),
    "javascript": lambda _target: ["node", source("reader.mjs")],
}
WRITERS = {
    "c": lambda target: build_c(target, "writer.c"),
    "go": lambda target: build_go(target, "writer.go"),
}
TOOLS = {"c": "cc", "c-zstd": "cc", "go": "go", "java": "javac", "javascript": "node"}


def run(*command, check=True, **options):
    """Run a command; return what it printed."""
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=150, **options
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def found(tool):
    """Return the path of a tool, beside this Python or in PATH; None if it is not installed."""
    beside = os.path.dirname(sys.executable)
    return shutil.which(tool, path=os.pathsep.join((beside, os.environ["PATH"])))


def built(language, programs, target):
    """Return the command of a program; skip without the tools to build it."""
    if found(TOOLS[language]) is None:
        pytest.skip(f"no {TOOLS[language]} is installed")
    return programs[language](target)


@pytest.fixture(scope="module", params=READERS)
def reader(request, tmp_path_factory):
    """Return the command of a reader."""
    return built(request.param, READERS, tmp_path_factory.mktemp("reader"))


@pytest.fixture(scope="module", params=WRITERS)
def writer(request, tmp_path_factory):
    """Return the command of a writer."""
    return built(request.param, WRITERS, tmp_path_factory.mktemp("writer"))


def golden(kind):
    """Return the directory of a golden log, and its messages as lines."""
    with open(os.path.join(SHOWN, f"{kind}.tsv")) as file:
        return os.path.join(SHOWN, kind, "flights", EXAMPLES[kind][1]), file.read()


@pytest.mark.parametrize("kind", EXAMPLES)
def test_rt_reads_its_own_golden_logs_so(kind):
    """What other programs are checked against is what rt itself gives out."""
    directory, expected = golden(kind)
    assert lines(directory) == expected


@pytest.mark.parametrize("kind", sorted(EXAMPLES.keys() - {"packed"}))
def test_the_golden_logs_are_what_rt_writes(kind, tmp_path):
    """A reader that is tested against them is tested against today's writer."""
    write_example(kind, tmp_path / "log")
    assert contents(tmp_path / "log") == contents(golden(kind)[0])


def test_each_golden_log_is_read_as_rt_reads_it(reader):
    """Keys, headers, repeats, events, rolls, drops, archived files and a torn end."""
    for kind in EXAMPLES:
        directory, expected = golden(kind)
        done = run(*reader, directory, check=False)
        if kind == "packed" and done.returncode == 2:
            assert "is compressed" in done.stderr
            assert expected.startswith(done.stdout)
            continue
        assert (done.returncode, done.stdout) == (0, expected), (kind, done.stderr)
        assert ("log.0.0 is archived" in done.stderr) == (kind in {"archived", "dropped"})


def test_a_flipped_bit_ends_a_reader_with_its_place(reader, tmp_path):
    """What is damaged is never skipped, and never given out."""
    directory, expected = golden("merged")
    copy = tmp_path / "flights" / "out"
    shutil.copytree(directory, copy)
    for offset in (70, 150, 600):
        data = bytearray((copy / "log.0.0").read_bytes())
        data[offset] ^= 1
        (copy / "log.0.0").write_bytes(data)
        done = run(*reader, str(copy), check=False)
        assert done.returncode == 1
        assert expected.startswith(done.stdout)
        assert len(done.stdout) < len(expected)
        assert done.stderr.startswith("0.0.")
        data[offset] ^= 1
        (copy / "log.0.0").write_bytes(data)


def test_a_missing_file_is_damage(reader, tmp_path):
    """A file that the manifest names, and that is not archived, was lost; the rest is not all."""
    directory, _ = golden("merged")
    shutil.copytree(directory, tmp_path / "out")
    os.remove(tmp_path / "out" / "log.0.0")
    done = run(*reader, str(tmp_path / "out"), check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "0.0.0: the file is missing" in done.stderr


def test_a_directory_that_is_no_log_is_refused_in_a_sentence(reader, tmp_path):
    """An empty answer would be read as an empty log."""
    done = run(*reader, str(tmp_path), check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "it is not a log" in done.stderr


def test_the_merged_log_of_a_node_is_read(reader, tmp_path):
    """The golden logs are made by tests; this one by a node, with its decisions on sessions."""
    with ArchiveCluster(tmp_path) as cluster:
        cluster.push()
        for session in ("jfk", "lga"):
            publisher = cluster.publisher(session, compression=0)
            publisher.publish_many([b"flight %d" % each for each in range(500)])
            publisher.flush("merged", PATIENCE_S)
        directory = cluster.nodes["n1"].pipeline.feeds.directory
        expected = lines(directory)
        assert expected.count("\n") == 1000
        assert run(*reader, directory).stdout == expected


def test_a_session_written_by_another_program_is_one_of_rts(writer, tmp_path):
    """It is started again, killed, and followed by rt: each message once, with the next number."""
    directory = tmp_path / "stream" / "counter"
    command = [*writer, str(tmp_path), "stream", "counter"]
    assert run(*command, input="one\ntwo\n\n").stdout == "0\n1\n2\n"
    assert run(*command, input="four").stdout == "3\n"
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as live:
        live.stdin.write("five\n")
        live.stdin.flush()
        assert live.stdout.readline() == "4\n"
        second = run(*command, input="x", check=False)
        assert second.returncode == 1
        assert "live writer" in second.stderr
        live.send_signal(signal.SIGKILL)
    with open(directory / "log.2.0", "ab") as file:
        file.write(b"RTF\x01half a frame")
    assert run(*command, input="six\n").stdout == "5\n"
    assert not verify_log(open_log(str(directory)), lambda _count: None).is_wrong
    with rt.Publisher(str(tmp_path), stream="stream", session="counter") as publisher:
        publisher.publish(b"seven")
    with rt.Subscriber(
        str(tmp_path), stream="stream", session="counter", follow=False
    ) as subscriber:
        found = [(each.sequence, each.payload) for each in subscriber]
    words = [b"one", b"two", b"", b"four", b"five", b"six", b"seven"]
    assert found == list(enumerate(words))


def test_what_one_program_writes_every_other_reads(writer, reader, tmp_path):
    """Two programs that agree with rt, but not with each other, would show a hole in the page."""
    command = [*writer, str(tmp_path), "stream", "counter"]
    run(*command, input="one\n\nthree")
    run(*command, input="four\n")
    directory = str(tmp_path / "stream" / "counter")
    assert run(*reader, directory).stdout == lines(directory)


@pytest.mark.parametrize("archived", [0, 2])
def test_a_writer_goes_on_after_files_that_rt_rolled_and_archived(writer, tmp_path, archived):
    """A number that is given twice makes two messages one: the second is taken for a repeat."""
    session = SessionWriter(
        str(tmp_path), "stream", "counter", WriterSettings(fsync=Fsync.NEVER, file_age_s=1e-9)
    )
    for _ in range(2):
        session.write([1], [b"ours"], None)
    session.close()
    log = LogDirectory(str(tmp_path / "stream" / "counter"))
    log.refresh()
    with closing(Appender(OsDisk(), log.path, log.manifest.identity)) as appender:
        appender.recover()
        for roll in range(archived):
            appender.archive(Archived(Position.of(0, roll, 0), 1, "limit"))
    assert run(*writer, str(tmp_path), "stream", "counter", input="its\n").stdout == "2\n"
    assert {"log.0.0", "log.0.1", "log.1.0"} <= set(os.listdir(log.path))
    assert not verify_log(open_log(log.path), lambda _count: None).is_wrong
    log.close()


def test_a_writer_cuts_half_a_line_off_its_manifest(writer, tmp_path):
    """A line after it would be one damaged line with it, and the session would be lost."""
    command = [*writer, str(tmp_path), "stream", "counter"]
    manifest = tmp_path / "stream" / "counter" / "manifest"
    manifest.parent.mkdir(parents=True)
    manifest.write_bytes(b'{"rt":1,"what":"lo')
    assert run(*command, input="one\n").stdout == "0\n"
    with manifest.open("ab") as file:
        file.write(b'{"rt":1,"what":"rol')
    assert run(*command, input="two\n").stdout == "1\n"
    assert not verify_log(open_log(str(manifest.parent)), lambda _count: None).is_wrong


@pytest.mark.parametrize("name", ["../out", 'a"b', "A", "", "a--b", "a.", "-a", "a" * 64])
def test_a_writer_refuses_a_name_that_is_none(writer, tmp_path, name):
    """It would lead out of the root, or make an unreadable line of the manifest."""
    for stream, session in ((name, "counter"), ("stream", name)):
        done = run(*writer, str(tmp_path / "root"), stream, session, input="x\n", check=False)
        assert done.returncode == 1
        assert "name" in done.stderr
    assert os.listdir(tmp_path) == []
