"""Helpers for tests of replication: a node that only stores, certificates, and logs to ship."""

import logging
import os
import threading
import time

from replicator.limits.quotas import NO_QUOTA
from replicator.serve.client_record import ServerRecord
from replicator.serve.streams import ServedStream, Streams
from replicator.wire.decoder import Decoder
from replicator.wire.messages import HeadersNotice, Hello
from rt.errors import FrameError, Refused
from rt.format.frame import parse_header
from rt.format.manifest import MERGED, LogIdentity
from rt.format.ranges import EMPTY_DIGEST, Range
from rt.log.files.damaged_files import DamagedFiles
from rt.log.files.disk import OsDisk
from rt.log.files.listing import log_files
from rt.log.notify.confirmations import Confirmations
from rt.log.write.appender import Appender
from rt.net.authority.certificates import init_authority, issue
from rt.net.authority.identity import CertificateRole
from rt.net.tls import Contexts, client_context, server_context
from rt.position import Position
from rt.traffic import Traffic

STREAM = "flights"


class Inbox:
    """One session's copy on the test node."""

    def __init__(self, host, appender):
        self.host, self.appender = host, appender
        self.durable, self.traffic = appender.sync(), Traffic()
        self.peer, self.wake = "", None
        self.keep, self.leave = False, None

    def written(self):
        with self.host.changed:
            self.host.dirty.add(self)
            self.host.changed.notify()

    @property
    def confirmations(self):
        return Confirmations(self.durable, self.durable)

    def keeps(self, _entry):
        return self.keep

    def needs(self, _end):
        return False

    def doubted(self, _why):
        pass

    def release(self):
        self.peer, self.wake = "", None


class Feed:
    """The merged log of the test node."""

    def __init__(self, host, wake):
        self.host, self.wake = host, wake
        self.directory, self.damaged = host.out, DamagedFiles()

    def end(self):
        return self.host.merged_end()

    def recent(self, _first, _end):
        return None

    def is_whole(self):
        return True

    def release(self):
        self.host.feeds.remove(self)


class DiskHost:
    """Keeps copies under `root/<stream>/in`, serves `root/<stream>/out`; syncs in a thread."""

    is_first = True
    members = None  # every node is a member
    quotas = NO_QUOTA  # for every publisher
    no_headers = ""  # why no message may have headers

    def is_member(self, name):
        return self.members is None or name in self.members

    def __init__(self, root, stream=STREAM, disk=None):
        self.stream, self.disk = stream, disk or OsDisk()
        self.root = os.path.join(root, stream, "in")
        self.out = os.path.join(root, stream, "out")
        self.inboxes, self.dirty, self.feeds = {}, set(), []
        self.lock = threading.Lock()
        self.changed = threading.Condition()
        self.stopping = False
        self.limit = None
        self.found = []  # damage, and whether it is in the active file
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def quota(self, _publisher):
        return self.quotas

    def why_no_headers(self):
        return self.no_headers

    def claim(self, identity, peer, wake, *, relays):
        with self.lock:
            inbox = self.inboxes.get(identity.name)
            if inbox is None:
                path = os.path.join(self.root, identity.name)
                appender = Appender(self.disk, path, identity)
                appender.recover()
                inbox = self.inboxes[identity.name] = Inbox(self, appender)
            if inbox.appender.identity.id != identity.id:
                raise Refused("other-log", f"session {identity.name!r} is another log here")
            if inbox.peer:
                raise Refused("busy", f"session {identity.name!r} is being pushed by {inbox.peer}")
            inbox.peer, inbox.wake = peer, wake
            return inbox

    def handle_appends(self):
        pass

    def feed(self, wake, *, relays):
        feed = Feed(self, wake)
        self.feeds.append(feed)
        return feed

    def damaged(self, error, growing):
        self.found.append((error, growing))

    def merged_end(self):
        if self.limit is not None:
            return self.limit
        newest = max(log_files(self.disk, self.out), default=Position(0))
        path = os.path.join(self.out, newest.file_name)
        return Position(newest + (os.stat(path).st_size if os.path.exists(path) else 0))

    def ring(self):
        for feed in list(self.feeds):
            feed.wake.set()

    def stop(self):
        with self.changed:
            self.stopping = True
            self.changed.notify()
        self.thread.join()
        for inbox in self.inboxes.values():
            inbox.appender.close()

    def _run(self):
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.dirty or self.stopping)
                if self.stopping:
                    return
                batch, self.dirty = self.dirty, set()
            for inbox in batch:
                inbox.durable = inbox.appender.sync()
                if inbox.wake:
                    inbox.wake.set()


class HostEnd:
    """Answers where the merged log of a test node ends (`replicator.pull.end_asks.EndAsks`)."""

    def __init__(self, host):
        self.host = host

    def latest(self, _node, hops=0):
        return self.host.merged_end()

    def served(self, _node):
        return self.host.merged_end()

    def close(self):
        pass


class Merge:
    """Writes a merged log from sessions' frames, a range for each frame."""

    def __init__(self, directory, stream=STREAM, log_id="0" * 32, disk=None):
        identity = LogIdentity(MERGED, stream, "out", log_id, 0)
        self.appender = Appender(disk or OsDisk(), directory, identity)
        self.appender.recover()
        self.number = 0
        self.frames_per_range = 1

    def add(self, session, data):
        """Append the frames of a session's bytes."""
        batch, headers = [], []
        for header, raw in frames(data):
            batch.append(raw)
            headers.append(header)
            if len(batch) == self.frames_per_range:
                self._range(session, headers, batch)
                batch, headers = [], []
        if batch:
            self._range(session, headers, batch)

    def roll(self):
        return self.appender.roll(time.time_ns())

    def _range(self, session, headers, batch):
        appender = self.appender
        if not appender.is_open:
            begun = bool(appender.manifest.order)
            appender.begin_file(appender.end.next_file() if begun else Position(0))
        messages = sum(header.messages for header in headers)
        first = Position(headers[0].position)
        length = sum(map(len, batch))
        entry = Range(1, 1, 1, session, first, length, self.number, messages, 0, EMPTY_DIGEST)
        frame = entry.frame(appender.end)
        after = appender.walk.copy()
        after.step(frame.header, frame.parts[1])
        for header in headers:
            after.step(header)
        appender.append([*frame.parts, *batch], [frame.header, *headers], after)
        self.number += messages


def frames(data):
    """Split a file's bytes into frames."""
    offset = 0
    while offset < len(data):
        try:
            header = parse_header(data, offset)
        except FrameError:
            return
        yield header, data[offset : offset + header.size]
        offset += header.size


class Certificates:
    """An authority and the certificates it has issued."""

    def __init__(self, directory):
        self.directory = directory
        init_authority(directory)
        self.node = issue(directory, "node-1", CertificateRole.NODE)

    def server(self):
        return Contexts(self.node, server_context)

    def publisher(self, name="pub", sessions=("*",)):
        return Contexts(
            issue(self.directory, name, CertificateRole.PUBLISHER, sessions=sessions),
            client_context,
        )

    def subscriber(self, name="sub", streams=("*",)):
        return Contexts(
            issue(self.directory, name, CertificateRole.SUBSCRIBER, streams=streams), client_context
        )


def log_bytes(directory):
    """Return the bytes of each log file in a directory, by name."""
    found = {}
    for start in log_files(OsDisk(), directory):
        with open(os.path.join(directory, start.file_name), "rb") as file:
            found[start.file_name] = file.read()
    return found


def manifest_lines(directory):
    """Return the bytes of the manifest in a directory."""
    with open(os.path.join(directory, "manifest"), "rb") as file:
        return file.read()


def eventually(check, timeout_s=60.0):
    """Wait until `check()` is true; return whether it became true.

    A slow check is made less often: it may be a status request, whose work at the nodes delays what
    the test waits for.
    """
    end_s = time.monotonic() + timeout_s
    while True:
        began_s = time.monotonic()
        if check():
            return True
        now_s = time.monotonic()
        if now_s > end_s:
            return False
        time.sleep(min(0.25, max(0.005, 2 * (now_s - began_s))))


def first_answer(sock, beside=(Hello,)):
    """Return the first message that a node sends, ignoring some kinds.

    A `HeadersNotice` is ignored too: a node may send it at any time, and it is never an answer.
    """
    decoder = Decoder()
    sock.settimeout(60)
    while True:
        while (message := decoder.next()) is None:
            count = sock.recv_into(decoder.space())
            assert count, "it hung up"
            decoder.end += count
        if not isinstance(message, (*beside, HeadersNotice)):
            return message


def only(host, kind=Streams):
    """Return the streams of a server of one stream that speaks only the replication protocol."""
    return kind(ServedStream(host, ServerRecord(logging.getLogger("replicator.server"))))
