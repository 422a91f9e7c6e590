"""A group divides a stream: each message goes to one member, and again if that dies."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
from archive_cluster import ArchiveCluster, connect
from commands import clean_environment, run

import rt
from rt.client import aio
from rt.errors import Misuse, Refused

PATIENCE_S = 60


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Three nodes that all tests share; each uses sessions and groups of its own."""
    with ArchiveCluster(tmp_path_factory.mktemp("cluster"), nodes=3) as running:
        running.set_policy()
        yield running


@pytest.fixture
def client(cluster, tmp_path):
    """A client with a directory of its own."""
    with connect(cluster, tmp_path / "client") as connected:
        yield connected


def published(client, session, count):
    """Publish numbered messages, and wait until they are merged."""
    with client.publisher(session) as publisher:
        publisher.publish_many([b"%d" % number for number in range(count)])
        publisher.flush("merged", PATIENCE_S)
    return {b"%d" % number for number in range(count)}


def test_members_divide_the_messages(client):
    """Twice the members must not mean twice the deliveries."""
    wanted = published(client, "divided", 3000)
    seen, both_work = [[], []], threading.Barrier(2, timeout=PATIENCE_S)
    group = rt.Group("dividing", silence_s=10.0)  # a busy machine is not to let one look dead

    def work(mine):
        with client.subscriber(group=group, sessions=["divided"], follow=False) as messages:
            for message in messages:
                if not mine:
                    both_work.wait()  # neither handles everything before the other has joined
                mine.append(message.payload)

    members = [threading.Thread(target=work, args=(mine,)) for mine in seen]
    for member in members:
        member.start()
    for member in members:
        member.join(PATIENCE_S)
    assert Counter(seen[0] + seen[1]) == Counter(dict.fromkeys(wanted, 1))
    assert all(seen), "one member had everything"
    with client.subscriber(group=group, sessions=["divided"], follow=False) as late:
        assert not list(late), "the group goes on where it is"


def test_a_member_takes_so_many_messages_at_a_time(client):
    """Those of one iteration are handled when it has ended, and do not come again."""
    wanted = published(client, "counted", 10)
    seen = []
    for most in (4, 20):
        with client.subscriber(group="counting", sessions=["counted"], follow=False) as member:
            seen += [message.payload for message in member.messages(max=most)]
    assert Counter(seen) == Counter(dict.fromkeys(wanted, 1))


def test_messages_that_come_while_a_member_waits_are_handed_to_it(client):
    """Most of the time a worker has nothing to do."""
    published(client, "before", 5)
    with client.subscriber(group="waiting", sessions=["later"], start="latest") as messages:
        found = []
        member = threading.Thread(target=lambda: found.append(next(iter(messages))))
        member.start()
        published(client, "later", 1)
        member.join(PATIENCE_S)
        assert (found[0].payload, found[0].redelivered) == (b"0", 0)


MEMBER = """
import sys, rt
with rt.connect(sys.argv[1], root=sys.argv[2]) as client:
    for message in client.subscriber(group=sys.argv[3], sessions=[sys.argv[4]]):
        print(int(message.payload), message.redelivered, flush=True)
        sys.stdin.readline()
"""


def member(cluster, root, group, session, most):
    """Start a member in a process of its own; it prints the messages delivered to it.

    It handles the last of these many messages until it is killed, however late that is.
    """
    clients = os.path.join(cluster.root, "clients.toml")
    process = subprocess.Popen(
        [sys.executable, "-c", MEMBER, clients, str(root), group, session],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean_environment(), text=True,
    )  # fmt: skip
    process.stdin.write("\n" * (most - 1))
    process.stdin.flush()
    return process


def end(process):
    """End a member, and close its pipes."""
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_another_member_takes_over_from_one_that_is_killed(client, cluster, tmp_path):
    """Within a second, where the nodes know the messages to be; and they are marked."""
    published(client, "taken", 2000)
    process = member(cluster, tmp_path / "killed", "taking", "taken", most=300)
    try:
        seen = [tuple(map(int, process.stdout.readline().split())) for _ in range(300)]
        process.send_signal(signal.SIGKILL)
        killed_s = time.monotonic()
        with client.subscriber(group="taking", sessions=["taken"], follow=False) as messages:
            again = [(int(message.payload), message.redelivered) for message in messages]
            taken_s = time.monotonic() - killed_s
    finally:
        end(process)
    assert {number for number, _ in seen + again} == set(range(2000))
    first_time = Counter(number for number, redelivered in seen + again if not redelivered)
    assert max(first_time.values()) == 1, "a repeat was not marked"
    assert any(redelivered for _, redelivered in again)
    assert taken_s < 30  # 1 s on two cores: 0.75 s of silence, and what was left


def test_nothing_stays_unhandled_in_a_storm_of_kills(client, cluster, tmp_path):
    """Members die at any moment; what they held goes to others, marked."""
    published(client, "stormy", 2000)
    seen, running = [], []
    try:
        for number in range(4):
            count = 100 + 60 * number
            process = member(
                cluster, tmp_path / str(number % 2), "storming", "stormy", most=count + 100
            )
            running.append(process)
            lines = [process.stdout.readline() for _ in range(count)]
            process.send_signal(signal.SIGKILL)
            lines += process.stdout.read().splitlines(keepends=True)  # it may have handled more
            seen += [tuple(map(int, line.split())) for line in lines if line.endswith("\n")]
        with client.subscriber(group="storming", sessions=["stormy"], follow=False) as messages:
            seen += [(int(message.payload), message.redelivered) for message in messages]
    finally:
        for process in running:
            end(process)
    assert {number for number, _ in seen} == set(range(2000))
    first_time = Counter(number for number, redelivered in seen if not redelivered)
    assert max(first_time.values()) == 1, "a repeat was not marked"


def test_what_no_handler_can_handle_becomes_a_dead_letter(client):
    """The rest goes on; the letter says where the message is, and can be handled by people."""
    published(client, "poisonous", 50)
    tried = []

    def handle(message):
        if message.payload == b"7":
            tried.append(message.redelivered)
            raise ValueError("unlucky")
        handled.append(message.payload)

    handled = []
    group = rt.Group("burying", member="m1", max_deliveries=3, dead_letters="dead", retry_s=0.05)
    with client.subscriber(group=group, sessions=["poisonous"], follow=False) as messages:
        messages.run(handle, reject=ValueError)
    assert Counter(handled) == Counter(b"%d" % number for number in range(50) if number != 7)
    assert tried == [0, 1, 2]
    (found,) = client.subscriber(sessions=["dead-*"], follow=False)
    letter = rt.DeadLetter.parse(found.payload)
    assert (letter.payload, letter.session, letter.sequence) == (b"7", "poisonous", 7)
    assert (letter.group, letter.deliveries) == ("burying", 3)
    assert found.key == str(letter.position).encode()


def test_an_error_that_was_not_named_ends_the_loop_and_the_message_comes_again(client):
    """A program's own fault is not the message's."""
    published(client, "failing", 3)
    group = rt.Group("failing", retry_s=0.0)
    failure = pytest.raises(FileNotFoundError)
    with client.subscriber(group=group, sessions=["failing"]) as messages, failure:
        messages.run(lambda _message: os.stat("/nowhere"))
    with client.subscriber(group=group, sessions=["failing"], follow=False) as messages:
        found = {message.payload: message.redelivered for message in messages}
    assert found == {b"0": 1, b"1": 0, b"2": 0}


def test_only_what_was_acknowledged_is_handled(client):
    """With explicit acknowledgements a message that was merely seen comes again."""
    published(client, "explicit", 10)
    group = rt.Group("explicitly", silence_s=0.3)
    reading = {"group": group, "sessions": ["explicit"], "ack": "explicit"}
    with client.subscriber(**reading) as messages:
        first = [message for _, message in zip(range(10), messages, strict=False)]
        messages.ack(first[3], sync=True)
    with client.subscriber(**{**reading, "ack": "auto"}, follow=False) as messages:
        again = {int(message.payload): message.redelivered for message in messages}
    assert set(again) == set(range(4, 10))
    assert all(again.values()), "they may have been handled"


def test_the_asyncio_twin_divides_too(cluster, client, tmp_path):
    """The same names, awaited; a cancelled wait loses nothing."""
    wanted = published(client, "awaited", 200)

    async def main():
        async with aio.connect(
            os.path.join(cluster.root, "clients.toml"), root=tmp_path / "aio"
        ) as connected:
            reading = {"group": "awaiting", "sessions": ["awaited"], "follow": False}
            messages = await connected.subscriber(**reading)
            task = asyncio.ensure_future(anext(aiter(messages)))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return [message.payload async for message in messages]

    assert Counter(asyncio.run(main())) == Counter(dict.fromkeys(wanted, 1))


def test_wrong_arguments_of_a_group_are_named(client):
    """One sentence that says what to do."""
    with pytest.raises(Misuse, match="is not a name for a cursor"):
        client.subscriber(group="A B")
    with pytest.raises(Misuse, match="a group divides the stream, and remembers its place"):
        client.subscriber(group="a", cursor="b")
    with pytest.raises(Misuse, match="ack is 'never'; use auto or explicit"):
        client.subscriber(group="a", ack="never")
    with pytest.raises(Misuse, match="max_deliveries is 0"):
        client.subscriber(group=rt.Group("a", max_deliveries=0))
    client.subscriber(group="settled").close()
    with pytest.raises(Refused, match="was begun with silence_s = "):
        client.subscriber(group=rt.Group("settled", silence_s=2.0))


def test_the_commands_list_show_reset_and_forget(client, cluster):
    """For operators, from any machine with a certificate."""
    published(client, "operated", 20)
    options = ("--config", os.path.join(cluster.root, "clients.toml"))
    with client.subscriber(group="etl", sessions=["operated"], ack="explicit") as messages:
        next(iter(messages))
        shown = run("group", "show", "etl", *options)
        assert "messages behind" in shown.output
        assert "deliveries" in shown.output, shown.output
    moved = run("group", "reset", "etl", "--to", "latest", *options)
    assert "group etl moved to" in moved.output
    row = json.loads(run("group", "show", "etl", "--json", *options).stdout)
    assert (row["messages"], row["claims"]) == (0, [])
    assert "etl" in run("group", "list", *options).output
    assert "forgotten" in run("group", "forget", "etl", *options).output
    gone = run("group", "show", "etl", *options)
    assert gone.exit_code == 2
    assert "there is no group 'etl'" in gone.output


def test_an_acknowledgement_of_a_paused_member_is_refused(cluster, client, tmp_path):
    """It returned as if the nodes had agreed, while another member worked on the message."""
    published(client, "refused", 1)
    events = []
    settings = {"silence_s": 0.4, "work_s_max": 0.2}
    slow, quick = (rt.Group("refusing", name, **settings) for name in ("slow", "quick"))
    with (
        client.subscriber(
            group=slow, sessions=["refused"], ack="explicit", on_event=events.append
        ) as late,
        connect(cluster, tmp_path / "quick") as other,
    ):
        message = next(late.messages(PATIENCE_S))
        with other.subscriber(group=quick, sessions=["refused"], ack="explicit") as messages:
            again = next(messages.messages(PATIENCE_S))  # the handler of the first takes too long
            assert again.redelivered == 1
            with pytest.raises(rt.ClaimLost, match="does not count") as lost:
                late.ack(message, sync=True)
            assert not lost.value.may_count
            messages.ack(again, sync=True)
            with pytest.raises(rt.ClaimLost):
                late.ack(message, sync=True)
        assert next(late.messages(0.5), None) is None
    (event,) = (each for each in events if isinstance(each, rt.RangeLost))
    assert event.begin <= message.position < event.end
