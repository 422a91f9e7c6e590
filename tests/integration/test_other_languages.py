"""Readers and writers in other languages agree with rt on the golden logs, and with each other."""

import os
import shutil
import signal
import subprocess

import pytest
from archive_cluster import ArchiveCluster
from golden_logs import EXAMPLES, SHOWN, contents, lines, write_example

import rt
from rt.inspect.verify import open_log, verify_log

SOURCES = os.path.join(os.path.dirname(SHOWN), "languages")
PATIENCE_S = 60
pytestmark = pytest.mark.process


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
    settings = {"GOCACHE": str(target / "cache"), "GO111MODULE": "off", "GOPROXY": "off"}
    run("go", "build", "-o", made, source(name), env={**os.environ, **settings})
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


def built(language, programs, target):
    """Return the command of a program; skip without the tools to build it."""
    if shutil.which(TOOLS[language]) is None:
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
