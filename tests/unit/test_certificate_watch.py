"""CertificateWatch: the first look after a certificate stops being good ends its connection."""

import gc
import os
import shutil
import socket
import time
import weakref

import pytest

from rt.net.authority.certificates import init_authority, issue, load_certificate
from rt.net.authority.grants import Grants
from rt.net.authority.identity import CertificateRole, PeerIdentity
from rt.net.authority.revocation import revoke
from rt.net.authority.trust import Trust
from rt.net.certificate_watch import PERIOD_S, CertificateWatch
from rt.net.contexts import Contexts, client_context

CONNECTIONS = 512  # as many as a node serves by default
LOOK_CPU_S = 0.3  # two looks and a pause are within the second that is promised


class FinishedError(Exception):
    """Ends the loop of a watch when no plan is left."""


class Clock:
    """Time that passes only while the watch pauses; what is planned happens halfway."""

    def __init__(self, now_s, plans=()):
        self.now_s, self.plans, self.pauses = now_s, list(plans), 0

    def __call__(self):
        return self.now_s

    def pause(self, seconds):
        self.now_s += seconds / 2
        self.pauses += 1
        if not self.plans:
            raise FinishedError
        self.plans.pop(0)()
        self.now_s += seconds / 2


class Watched:
    """A watch with one connection."""

    def __init__(self, top):
        self.authority, self.there = str(top / "authority"), str(top / "there")
        init_authority(self.authority)
        self.files = issue(self.authority, "spark", CertificateRole.SUBSCRIBER)
        os.mkdir(self.there)
        shutil.copy(self.files.ca, self.there)
        self.certificate = load_certificate(self.files.cert)
        self.trust = Trust(os.path.join(self.there, "ca.pem"))
        self.why, self.seen = "", []
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)

    def look(self):
        """Note whether the connection is there."""
        try:
            self.seen.append(self.ours.recv(1) != b"")
        except BlockingIOError:
            self.seen.append(True)

    def run(self, change, now_s=None):
        """Call `change` between the second check and the third; return what was logged."""

        def both():
            self.look()
            change()

        clock = Clock(time.time() if now_s is None else now_s, [self.look, both, self.look])
        watch = CertificateWatch(clock, clock.pause)
        watch.watch(self.theirs, "spark", self.certificate, self.trust, lambda: self.why)
        with pytest.raises(FinishedError):
            watch.run()
        return self.seen


@pytest.fixture
def watched(tmp_path):
    """Return a connection to watch."""
    watched = Watched(tmp_path)
    yield watched
    watched.ours.close()
    watched.theirs.close()


def distrust(watched):
    """Put another authority in the place of ours."""
    other = os.path.join(watched.authority, "other")
    init_authority(other)
    shutil.copy(os.path.join(other, "ca.pem"), watched.there)


def revoke_spark(watched):
    """Revoke the certificate, and copy the list where it is looked for."""
    shutil.copy(revoke(watched.authority, "spark")[0], watched.there)


def change_grant(watched):
    """Change something on our side."""
    watched.why = "what it is granted has changed"


@pytest.mark.parametrize("change", [revoke_spark, distrust, change_grant])
def test_the_next_look_ends_a_connection_that_may_not_go_on(watched, change):
    """So a second is kept by arithmetic: one pause and two looks."""
    assert watched.run(lambda: change(watched)) == [True, True, False]


def test_the_next_look_ends_a_connection_whose_certificate_has_expired(watched):
    """The clock alone ends it; no file has to change."""
    expires_s = watched.certificate.not_valid_after_utc.timestamp()
    began_s = expires_s - 1.75 * PERIOD_S
    assert watched.run(lambda: None, began_s) == [True, True, False]


def test_a_pause_and_two_looks_at_every_connection_are_within_a_second(watched):
    """All connections of a full node are verified again when the files change."""
    pairs = [socket.socketpair() for _ in range(CONNECTIONS)]
    watch = CertificateWatch()
    for number, (_, theirs) in enumerate(pairs):
        name = f"spark {number}"
        watch.watch(theirs, name, watched.certificate, watched.trust, lambda: "")
    watch.check()
    costs = []
    for _ in range(3):
        os.utime(os.path.join(watched.there, "ca.pem"))
        began_s = time.thread_time()
        watch.check()
        costs.append(time.thread_time() - began_s)
    revoke_spark(watched)
    began_s = time.thread_time()
    watch.check()
    costs.append(time.thread_time() - began_s)
    for ours, theirs in pairs:
        ours.settimeout(0)
        assert ours.recv(1) == b"", "it was ended"
        ours.close()
        theirs.close()
    assert min(costs[:3]) < LOOK_CPU_S
    assert costs[3] < LOOK_CPU_S
    assert PERIOD_S + 2 * LOOK_CPU_S <= 1.0


def test_a_look_at_many_connections_looks_once_at_the_files_that_they_share(watched):
    """A hundred streams of three nodes have two hundred connections with the same files."""
    watch = CertificateWatch()
    contexts = [Contexts(watched.files, client_context, watch=watch) for _ in range(3)]
    first, *others = [each.current() for each in contexts]
    assert first.change() == ""
    os.utime(watched.files.cert, (1, 1))
    assert [each.change() for each in others] == [""] * 2, "the first has looked for all"
    watch.check()
    assert all(each.change() for each in (first, *others))


def test_a_connection_that_ended_by_itself_is_forgotten(watched):
    """A process that dials for years must not remember every connection."""
    watch = CertificateWatch()
    there = weakref.ref(trust := Trust(os.path.join(watched.there, "ca.pem")))
    watch.watch(watched.theirs, "spark", watched.certificate, trust, lambda: "")
    del trust
    watch.check()
    assert there() is not None
    watched.theirs.close()
    watch.check()
    gc.collect()
    assert there() is None


def hide(directory):
    """Put a file in the place of a directory: what was in it cannot even be looked for."""
    os.rename(directory, f"{directory}.away")
    with open(directory, "w", encoding="utf-8"):
        pass


def show(directory):
    """Put the directory back."""
    os.unlink(directory)
    os.rename(f"{directory}.away", directory)


def test_a_directory_that_disappears_does_not_end_the_watch(watched):
    """The thread died of it, and nothing that was revoked later was ever cut off."""

    def restore():
        watched.look()
        show(watched.there)
        revoke_spark(watched)

    def vanish():
        watched.look()
        hide(watched.there)

    clock = Clock(time.time(), [vanish, restore, watched.look])
    watch = CertificateWatch(clock, clock.pause)
    watch.watch(watched.theirs, "spark", watched.certificate, watched.trust, lambda: "")
    with pytest.raises(FinishedError):
        watch.run()
    assert watched.seen == [True, True, False]


def test_what_was_loaded_stays_in_use_while_its_directory_is_away(watched):
    """Our own files and the grants are looked at by the same thread."""
    contexts = Contexts(watched.files, client_context)
    holder = PeerIdentity("spark", CertificateRole.SUBSCRIBER)
    grants = Grants(os.path.join(watched.authority, "grants.toml"))
    granted, context = grants.granted(holder), contexts.current()
    hide(watched.authority)
    assert contexts.current() is context
    assert contexts.warning()
    grants.refresh()
    assert grants.granted(holder) == granted
    show(watched.authority)
    assert contexts.current() is not None
    assert not contexts.warning()
