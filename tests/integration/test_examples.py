"""The examples run unchanged: they are what a reader copies first."""

import os
import subprocess
import sys

import pytest

from tests.commands import PATIENCE_S, Process

EXAMPLES = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "examples")

pytestmark = pytest.mark.process


def example(name, *arguments):
    """Run an example; return its exit code, output and what it said."""
    done = subprocess.run(
        [sys.executable, os.path.join(EXAMPLES, name), *map(str, arguments)],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_what_the_publisher_says_to_run_next_prints_its_messages(tmp_path):
    """The two files are one tour; the first names the second."""
    code, out, _ = example("publish.py", tmp_path)
    assert code == 0
    assert out.splitlines()[-1].strip() == f"python examples/subscribe.py {tmp_path} jfk"
    code, out, err = example("subscribe.py", tmp_path, "jfk")
    assert code == 0, err
    lines = out.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"jfk {number}" for number in range(100)]
    assert "read 100 messages" in err


def test_second_run_of_the_subscriber_gets_what_is_new_and_nothing_twice(tmp_path):
    """Resuming is the point of a position."""
    example("publish.py", tmp_path)
    example("subscribe.py", tmp_path, "jfk")
    assert example("subscribe.py", tmp_path, "jfk")[1] == ""
    example("publish.py", tmp_path)
    _, out, _ = example("subscribe.py", tmp_path, "jfk")
    assert [line.split(":")[0] for line in out.splitlines()] == [
        f"jfk {number}" for number in range(100, 200)
    ]


def test_counts_are_exact_however_often_the_reader_is_killed(tmp_path):
    """Position and result commit together, or not at all."""
    killed = 0
    for _ in range(2):
        example("publish.py", tmp_path)
        command = [sys.executable, os.path.join(EXAMPLES, "exactly_once.py"), tmp_path, "jfk"]
        for delay_s in (0.1, 0.16, 0.22):
            with Process(command, stdout=subprocess.DEVNULL) as reader:
                try:
                    reader.wait(delay_s)
                except subprocess.TimeoutExpired:
                    reader.kill()
                    killed += 1
    code, out, err = example("exactly_once.py", tmp_path, "jfk")
    assert code == 0, err
    assert sum(int(line.split()[1]) for line in out.splitlines()) == 200
    assert killed


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_workers_divide_a_session_among_processes(tmp_path, method):
    """Together they have every message once."""
    example("publish.py", tmp_path)
    code, out, err = example("workers.py", tmp_path, "jfk", 3, method)
    assert code == 0, err
    counts = [int(line.split()[-2]) for line in out.splitlines()]
    assert len(counts) == 3
    assert sum(counts) == 100


def started(name, *arguments):
    """Start an example whose output is read as it comes."""
    command = [sys.executable, os.path.join(EXAMPLES, name), *map(str, arguments)]
    return Process(command, stdout=subprocess.PIPE, text=True)


def test_a_flow_is_buffered_on_disk_and_goes_on_after_a_kill(tmp_path):
    """A consumer that dies has every item that it had not handled, in order."""
    with started("flow.py", tmp_path, "ticks", 5000) as flow:
        first = [flow.stdout.readline().split()[1] for _ in range(100)]
        flow.kill()
        first += [line.split()[1] for line in flow.stdout if line.endswith("\n")]
    code, out, err = example("flow.py", tmp_path, "ticks", 0)
    assert code == 0, err
    rest = [line.split()[1] for line in out.splitlines()]
    handled = int(rest[0]) if rest else len(first)
    assert handled in {len(first), len(first) - 1}, "at most the last one comes twice"
    assert [*first[:handled], *rest] == [str(each) for each in range(handled + len(rest))]
    assert handled + len(rest) >= 100


def test_a_flow_whose_consumer_fails_does_not_end_with_0(tmp_path):
    """What it had taken is still there; that nothing was printed must not look like success."""
    with open("/dev/full", "w") as full:
        command = [sys.executable, os.path.join(EXAMPLES, "flow.py"), str(tmp_path), "ticks", "10"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 1
    assert b"flow: " in done.stderr
    code, out, _ = example("flow.py", tmp_path, "ticks", 0)
    assert code == 0
    lines = out.splitlines()  # the flow ended with its consumer, so there may be fewer than ten
    assert 1 <= len(lines) <= 10
    assert lines == [f"{number} {number}" for number in range(len(lines))]


def test_a_fix_session_goes_on_with_the_next_number_however_often_it_is_killed(tmp_path):
    """A number that is used twice, or never, ends a FIX session."""
    sent = []
    for lines in (1, 7, 23):
        with started("fix_store.py", tmp_path, "us-them", 1000) as engine:
            sent += [int(engine.stdout.readline().split()[1]) for _ in range(lines)]
            engine.kill()
            sent += [int(line.split()[1]) for line in engine.stdout if line.endswith("\n")]
        code, out, err = example("fix_store.py", tmp_path, "us-them", 0)
        assert code == 0, err
        following = int(out.split()[3].strip(","))
        # the last one may have been kept without being sent: then the other side asks for it
        assert following - 1 - sent[-1] in {0, 1}
        sent += range(sent[-1] + 1, following)
    assert sent == list(range(1, len(sent) + 1))
    again = [line.split("|34=")[1].split("|")[0] for line in out.splitlines()[1:]]
    assert again == [str(number) for number in sent[-2:]]


def test_a_fix_session_resends_what_it_sent_since_the_last_reset(tmp_path):
    """The other side asks by numbers, and those begin again."""
    sys.path.insert(0, EXAMPLES)
    try:
        from fix_store import FixStore, order
    finally:
        sys.path.remove(EXAMPLES)
    store = FixStore(str(tmp_path), "us-them")
    for number in (1, 2, 3):
        store.sent(order(number))
    with pytest.raises(ValueError, match="message 3 is not the next one, 4"):
        store.sent(order(3))
    store.reset()
    store.received(4)
    assert not list(store.again(1))
    for number in (1, 2, 3, 4):
        store.sent(order(number))
    for _ in "live", "read back":
        assert list(store.again(2, 3)) == [order(2), order(3)]
        assert list(store.again(3)) == list(store.again(3, 99)) == [order(3), order(4)]
        assert not list(store.again(5))
        assert (store.next_sent, store.next_expected) == (5, 5)
        store.close()
        store = FixStore(str(tmp_path), "us-them")
    store.close()


@pytest.mark.parametrize(
    "name",
    ["publish.py", "subscribe.py", "exactly_once.py", "workers.py", "fix_store.py", "flow.py"],
)  # fmt: skip
@pytest.mark.parametrize("arguments", [(), ("root", "../jfk")])
def test_wrong_use_of_an_example_is_a_sentence(tmp_path, name, arguments):
    """A traceback is a poor first impression."""
    code, out, err = example(name, *(tmp_path / each if each == "root" else each
                                     for each in arguments))  # fmt: skip
    assert code == 1
    assert not out
    assert err
    assert "Traceback" not in err
