"""InProcessNotify: in its process, readers of a log hear from its writer, not the file system."""

import gc
import itertools
import os
import threading
import time
import weakref
from contextlib import suppress
from types import SimpleNamespace

from replicator.push.headers_news import HeadersNews
from replicator.push.progress import Release
from replicator.push.session_book import SessionBook
from replicator.push.session_watcher import SessionWatcher
from replicator.source.gather_window import GatherWindow
from rt import Publisher, Subscriber
from rt.log.notify import in_process_notify as news_module
from rt.log.notify.in_process_notify import Announcer, NewsPlace, in_process_notify, place_of
from rt.log.notify.watch import POLL_S
from rt.names import parse_glob
from rt.position import Position

PATIENCE_S = 60.0
MANY = 40  # with polls they would take ten seconds


class Listener:
    """Keeps what it hears."""

    def __init__(self):
        self.news = []

    def heard(self, name, news, /):
        """Take one piece of news, and the thread that brought it."""
        self.news.append((name, news.alone, threading.get_ident()))


class Connection:
    """Keeps what a watcher announces."""

    name = "n1"

    def __init__(self):
        self.offers = []
        self.frames = []
        self.looks = []  # whether each was urgent

    def offer(self, session, frame):
        """Take a session that grew, and the thread that says so."""
        self.offers.append((session, threading.get_ident()))
        self.frames.append(frame)

    def check_soon(self, *, urgent):
        """Take when all sessions are to be looked at."""
        self.looks.append(urgent)


def wait_for(ready):
    """Wait until `ready` says so."""
    deadline = time.monotonic() + PATIENCE_S
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def watching(root, loop, gather=None, mode="auto", others=()):
    """Return a started watcher of stream `s`, and the last connection that it announces to."""
    book = SessionBook(str(root), "s", [parse_glob("*")], 1, Release.MERGED)
    connection = Connection()
    headers, every = HeadersNews(book.directory), [*others, connection]
    watcher = SessionWatcher(book, every, gather or GatherWindow(1), headers, mode)
    watcher.start(loop)
    return watcher, connection


def is_watched(directory):
    """Whether an inotify instance of this process watches a directory."""
    mark, lines = f"ino:{os.stat(directory).st_ino:x} ", []
    for fd in os.listdir("/proc/self/fdinfo"):
        with suppress(OSError), open(f"/proc/self/fdinfo/{fd}") as file:
            lines += [line for line in file if line.startswith("inotify")]
    return any(mark in line for line in lines)


def is_announced(connection, directory):
    """Whether a session is announced, and by a publisher in this process."""
    return directory.name in sessions(connection) and not is_watched(directory)


def forget(connection, loop):
    """Forget what was announced, once the loop has announced all that was done before."""
    for _ in range(2):  # the second begins when what the first was called for is done
        loop.call(lambda: None)
    connection.offers.clear()
    connection.frames.clear()


def after_pauses():
    """Return a clock by which each message comes after a pause."""
    return itertools.count(10**18, 10**9).__next__


def test_news_reaches_those_who_listen_to_the_stream(tmp_path):
    """A place is a real path, so a link to the directory is the same place."""
    (tmp_path / "s").mkdir()
    os.symlink(tmp_path, tmp_path / "link")
    listener, other = Listener(), Listener()
    in_process_notify.listen(str(tmp_path / "s"), listener.heard)
    in_process_notify.listen(str(tmp_path / "t"), other.heard)
    writer = Announcer(str(tmp_path / "link" / "s" / "jfk"))
    assert in_process_notify.is_written(place_of(str(tmp_path / "s" / "jfk")))
    writer.grown_alone(None)
    writer.close()
    writer.close()
    assert not in_process_notify.is_written(NewsPlace(str(tmp_path / "s"), "jfk"))
    assert [each[:2] for each in listener.news] == [
        ("jfk", False), ("jfk", True), ("jfk", False),
    ]  # fmt: skip
    in_process_notify.ignore(str(tmp_path / "s"), listener.heard)
    writer.grown()
    assert len(listener.news) == 3
    assert not other.news


def test_a_writer_that_ends_late_takes_nothing_from_the_next_one(tmp_path):
    """A session may be opened again before the thread that closed it has announced that."""
    first = Announcer(str(tmp_path / "s" / "jfk"))
    second = Announcer(str(tmp_path / "s" / "jfk"))
    first.close()
    assert in_process_notify.is_written(place_of(str(tmp_path / "s" / "jfk")))
    second.close()
    assert not in_process_notify.is_written(place_of(str(tmp_path / "s" / "jfk")))


def test_a_listener_that_is_gone_is_not_kept(tmp_path):
    """A subscriber that was never closed must not be held by the process for ever."""
    listener = Listener()
    in_process_notify.listen(str(tmp_path), listener.heard)
    kept = weakref.ref(listener)
    del listener
    gc.collect()
    assert kept() is None
    in_process_notify.grown(NewsPlace(str(tmp_path), "jfk"))


def test_a_small_message_is_announced_with_its_frame(tmp_path, loop):
    """No connection has to read the log for it; and no thread that publishes sends anything."""
    watcher, connection = watching(tmp_path, loop)
    try:
        with Publisher(tmp_path, stream="s", session="jfk", clock=after_pauses()) as publisher:
            wait_for(lambda: is_announced(connection, tmp_path / "s" / "jfk"))
            forget(connection, loop)
            path = tmp_path / "s" / "jfk" / "log.0.0"
            for payloads in ([b"x"], [b"y", b"z"]):
                publisher.publish_many(payloads)
                wait_for(
                    lambda: b"".join(each.data for each in connection.frames) == path.read_bytes()
                )
            assert sum(each.messages for each in connection.frames) == 3
            assert threading.get_ident() not in {thread for _, thread in connection.offers}
    finally:
        watcher.stop()


def sessions(connection):
    """Return which sessions were announced."""
    return [session for session, _ in connection.offers]


def test_the_node_that_confirms_first_is_sent_an_update_first(tmp_path, loop):
    """The others journal what the leader sends them before they need what a publisher sends."""
    (tmp_path / "s").mkdir()
    gather, order, follower = GatherWindow(3), [], Connection()
    follower.name = "n2"
    watcher, leader = watching(tmp_path, loop, gather, others=[follower])
    for each in (leader, follower):
        each.offer = lambda _session, _frame, name=each.name: order.append(name)
    gather.sent("jfk", Position(8))
    gather.merged("jfk", Position(8), leader.name)
    writer = Announcer(str(tmp_path / "s" / "jfk"))
    try:
        writer.grown()
        wait_for(lambda: len(order) >= 2)  # four if the loop heard of the writer first
        assert order[:2] == ["n1", "n2"]
    finally:
        writer.close()
        watcher.stop()


def test_a_session_that_is_made_is_announced_and_the_others_are_not_looked_at(tmp_path, loop):
    """A thousand that are made one after another would each cost a look at all before it."""
    (tmp_path / "s").mkdir()
    watcher, connection = watching(tmp_path, loop)
    try:
        wait_for(lambda: connection.looks)
        for number in range(5):
            name = f"jfk{number}"
            (tmp_path / "s" / name).mkdir()
            (tmp_path / "s" / name / "manifest").write_bytes(b"x")
            wait_for(lambda name=name: name in sessions(connection))
            connection.offers.clear()
            (tmp_path / "s" / name / "log.0.0").write_bytes(b"x")
            wait_for(lambda name=name: name in sessions(connection))
        (tmp_path / "s" / "in").mkdir()
        (tmp_path / "s" / "jfk").symlink_to(tmp_path / "s" / "jfk0")
        (tmp_path / "s" / "last").mkdir()
        wait_for(lambda: "last" in sessions(connection))
        assert not {"in", "jfk"} & set(sessions(connection))
        assert connection.looks.count(True) == 1
    finally:
        watcher.stop()


def test_a_directory_in_the_place_of_one_that_was_moved_away_is_watched(tmp_path, loop):
    """A session may be restored beside the copy of it that is kept for people to look at."""
    session = tmp_path / "s" / "jfk"
    session.mkdir(parents=True)
    watcher, connection = watching(tmp_path, loop)
    try:
        wait_for(lambda: connection.looks)
        session.rename(tmp_path / "old")
        session.mkdir()
        wait_for(lambda: "jfk" in sessions(connection))
        connection.offers.clear()
        (session / "log.0.0").write_bytes(b"x")
        wait_for(lambda: "jfk" in sessions(connection))
    finally:
        watcher.stop()


def test_while_the_nodes_do_not_keep_up_messages_are_gathered(tmp_path, loop):
    """Several are sent as one, where each alone would cost every node as much."""
    gather = SimpleNamespace(gap_s=0.0, leader="")
    watcher, connection = watching(tmp_path, loop, gather)
    try:
        with Publisher(tmp_path, stream="s", session="jfk", clock=after_pauses()) as publisher:
            wait_for(lambda: is_announced(connection, tmp_path / "s" / "jfk"))
            forget(connection, loop)
            gather.gap_s = 3600.0  # as if merging took so long
            for _ in range(3):
                publisher.publish(b"x")
                for _ in range(2):  # the loop has heard of it, and has had a turn
                    loop.call(lambda: None)
            gather.gap_s = 0.0
            path = tmp_path / "s" / "jfk" / "log.0.0"
            wait_for(
                lambda: (
                    b"".join(each.data for each in connection.frames if each) == path.read_bytes()
                )
            )
            assert len([*filter(None, connection.frames)]) == 1
    finally:
        watcher.stop()


def test_a_message_that_comes_while_the_loop_announces_the_one_before_is_announced_too(
    tmp_path, loop
):
    """It was sent with the next look at all sessions only, a second later or more."""
    watcher, connection = watching(tmp_path, loop)
    place = place_of(str(tmp_path / "s" / "jfk"))

    class News:
        """Its publisher has begun to announce it when the loop takes a turn."""

        @property
        def frame(self):
            watcher.ready()
            connection.offers.clear()

    def is_announced_at_once():
        looks = len(connection.looks)
        loop.call(lambda: (in_process_notify.grown(place), in_process_notify.grown(place, News())))
        wait_for(lambda: "jfk" in sessions(connection))
        return len(connection.looks) == looks

    try:
        with Publisher(tmp_path, stream="s", session="jfk"):
            wait_for(lambda: is_announced(connection, tmp_path / "s" / "jfk") and connection.offers)
            # a look at all sessions may be due just then
            assert any(is_announced_at_once() for _ in range(10)), "only a look has found it"
    finally:
        watcher.stop()


def test_a_session_is_watched_again_when_its_publisher_here_is_closed(tmp_path, loop):
    """Another process may publish it next, and announces nothing here."""
    watcher, connection = watching(tmp_path, loop)
    try:
        with Publisher(tmp_path, stream="s", session="jfk"):
            wait_for(lambda: is_announced(connection, tmp_path / "s" / "jfk"))
        wait_for(lambda: is_watched(tmp_path / "s" / "jfk"))
        connection.offers.clear()
        (tmp_path / "s" / "jfk" / "log.9.0").write_bytes(b"x")  # as another process would
        wait_for(lambda: connection.offers)
    finally:
        watcher.stop()


def test_a_subscriber_is_woken_by_the_writer_of_its_log(tmp_path):
    """It needs no watch while a writer of its own process announces what it writes."""
    with (
        Publisher(tmp_path, stream="s", session="jfk") as publisher,
        Subscriber(tmp_path, stream="s", session="jfk") as subscriber,
    ):
        publisher.publish(b"first")
        messages = subscriber.messages()
        assert next(messages).payload == b"first"
        published_s, took_s = [], []

        def publish():
            published_s.append(time.monotonic())
            publisher.publish(b"second")

        for _ in range(MANY):
            later = threading.Timer(0.01, publish)
            later.start()
            assert next(messages).payload == b"second"
            took_s.append(time.monotonic() - published_s[-1])
            later.join()
        # a machine that does other work prolongs some
        assert sorted(took_s)[MANY // 2] < POLL_S / 2, "it polls"
        assert not is_watched(tmp_path / "s" / "jfk")


def test_a_subscriber_watches_when_the_writer_here_has_closed(tmp_path):
    """The next writer may be another process."""
    with Subscriber(tmp_path, stream="s", session="jfk") as subscriber:
        with Publisher(tmp_path, stream="s", session="jfk") as publisher:
            publisher.publish(b"first")
            assert subscriber.next_batch(PATIENCE_S) is not None
        assert subscriber.next_batch(0.1) is None
        assert is_watched(tmp_path / "s" / "jfk")


def test_a_forked_child_announces_nothing_to_its_parents_listeners(tmp_path):
    """Its copies of sockets and descriptors belong to the parent."""
    listener = Listener()
    in_process_notify.listen(str(tmp_path), listener.heard)
    pid = os.fork()
    if not pid:
        news_module.in_process_notify.grown(NewsPlace(str(tmp_path), "jfk"))
        os._exit(len(listener.news))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class Intruder:
    """What the registry takes for a bound method, and calls `act` while it looks at it."""

    __func__ = test_a_forked_child_announces_nothing_to_its_parents_listeners

    def __init__(self, act):
        self.act = act

    @property
    def __self__(self):
        self.act()
        return self


def test_a_subscriber_is_abandoned_though_the_registry_is_in_use(tmp_path):
    """The collector runs in any thread; in a forked child, the one that uses it does not exist."""
    with Publisher(tmp_path, stream="flights", session="jfk") as publisher:
        publisher.publish(b"first")
        owned = [Subscriber(tmp_path, stream="flights", session="jfk")]
        assert owned[0].next_batch(PATIENCE_S) is not None
        assert owned[0].next_batch(0.1) is None  # so it listens
        gone = weakref.ref(owned[0])
        listening = threading.Thread(
            target=in_process_notify.listen,
            args=[str(tmp_path), Intruder(owned.clear)],
            daemon=True,
        )
        listening.start()
        listening.join(60)
        assert not listening.is_alive()
        assert gone() is None


def test_a_look_at_all_is_urgent_only_where_a_change_may_have_been_missed(tmp_path, loop):
    """At the start; later each is looked at in its turn, at leisure, and a new one is announced."""
    (tmp_path / "s").mkdir()
    watcher, connection = watching(tmp_path, loop)
    try:
        wait_for(lambda: connection.looks[-2:] == [False, False])
        assert connection.looks[0]
        del connection.looks[:]
        (tmp_path / "s" / "new").mkdir()
        wait_for(lambda: "new" in sessions(connection))
        assert True not in connection.looks
    finally:
        watcher.stop()


def test_every_look_is_urgent_where_the_file_system_says_nothing(tmp_path, loop):
    """Looking is the only way there to learn of a message."""
    watcher, connection = watching(tmp_path, loop, mode="poll")
    try:
        wait_for(lambda: len(connection.looks) >= 3)
        assert all(connection.looks)
    finally:
        watcher.stop()
