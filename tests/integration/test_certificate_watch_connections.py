"""CertificateWatch: a certificate that is no longer good ends connections within a second."""

import os
import shutil
import socket
import ssl
import threading
import time
import weakref

import pytest

from replicator.pull.client import PullClient
from replicator.pull.mirror import Mirror
from replicator.push.client import PushClient
from replicator.wire.codec import PULL, PUSH, VERSION, Hello, encode
from rt import Publisher
from rt.errors import Refused, RtError
from rt.net.admin import ADMIN_ALPN
from rt.net.authority.certificates import (
    CertificateFiles,
    certificate_files,
    issue,
    load_certificate,
)
from rt.net.authority.grants import GRANTS_NAME
from rt.net.authority.identity import CertificateRole
from rt.net.authority.renewal import renew
from rt.net.authority.revocation import revoke
from rt.net.authority.trust import trust_of
from rt.net.certificate_watch import certificate_watch
from rt.net.question import STATUS_ALPN
from rt.net.tls import Contexts, client_context, connect, offering, server_context
from tests.forged_certificates import CLIENT, LOCAL, SERVER, Authority
from tests.live_site import PEER_ALPN, Site
from tests.replicator_host import STREAM, HostEnd, Merge, eventually

PATIENCE_S = 60.0  # one look is enough, and takes under a second: test_certificate_watch.py
DAY_S = 86_400
ROLES = {
    "node": ["rt://node/n2"],
    "publisher": ["rt://publisher/jfk", "rt://session/*"],
    "subscriber": ["rt://subscriber/spark", "rt://stream/*"],
}
# The protocol that each role is met with, and what it says to be served.
PROTOCOLS = {
    "push": ("publisher", None, encode(Hello(VERSION, VERSION, PUSH, STREAM, "test"))),
    "pull": ("subscriber", None, encode(Hello(VERSION, VERSION, PULL, STREAM, "test"))),
    "peer": ("node", PEER_ALPN, b""),
    "status": ("subscriber", STATUS_ALPN, b""),
    "admin": ("subscriber", ADMIN_ALPN, b"{"),
    "kept": ("subscriber", ADMIN_ALPN, b'{"do": "policy", "keep": true}\n'),  # as groups have
}


def slow_status(sock, _identity):
    """A status that takes long: nothing is sent until the client has gone."""
    sock.settimeout(20)
    sock.recv(1)


def dial(site, protocol, files):
    """Connect, say what the protocol says first, and return the socket."""
    _, alpn, first = PROTOCOLS[protocol]
    context = client_context(files.ca, files.cert, files.key)
    sock, _ = connect(site.address, offering(context, alpn) if alpn else context)
    sock.sendall(first)
    return sock


@pytest.fixture
def site(tmp_path):
    """Return a node and its certificates."""
    site = Site(tmp_path, slow_status)
    yield site
    site.stop()


def demand_ended(sock, caplog, why):
    """Wait until the connection has ended, and for the log to say that this is why."""
    sock.settimeout(PATIENCE_S)
    received, began_s = [], time.monotonic()
    try:
        while data := sock.recv(65536):
            received.append(data)
    except (ConnectionError, ssl.SSLError) as error:  # and not a TimeoutError
        received.append(error)
    lines = [each.getMessage() for each in caplog.records]
    met = (lines, received, f"{time.monotonic() - began_s:.3f} s")
    assert any("was ended: " in line and why in line for line in lines), met


def client_files(site, role, **options):
    """Issue a client's certificate into our directory."""
    options = {"usages": [CLIENT, SERVER], "hosts": LOCAL} | options
    forged = site.authority.forge(os.path.join(site.here, role), uris=ROLES[role], **options)
    return site.files(role, site.here) if forged else None


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_certificate_that_expires_ends_its_connection(site, protocol, caplog):
    """A thief who had connected once stayed for as long as the connection was busy."""
    sock, expires_s = dial_before_expiry(site, protocol)
    with sock:
        demand_ended(sock, caplog, "its certificate has expired")
    assert time.time() >= expires_s


def dial_before_expiry(site, protocol):
    """Connect with a certificate that expires in seconds; return the socket, and when that is."""
    lasts_s = 2
    while True:
        files = client_files(site, PROTOCOLS[protocol][0], days=1 + lasts_s / DAY_S)
        expires_s = load_certificate(files.cert).not_valid_after_utc.timestamp()
        try:
            return dial(site, protocol, files), expires_s
        except (RtError, OSError):
            if time.time() < expires_s:
                raise
        lasts_s *= 2  # the handshake has taken too long


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_revoked_certificate_ends_its_connection(site, protocol, caplog):
    """A stolen key can be cut off, on every protocol, without a restart."""
    role = PROTOCOLS[protocol][0]
    name = ROLES[role][0].rpartition("/")[2]
    issue(site.authority.directory, name, CertificateRole(role))
    for ending in ("pem", "key"):
        shutil.copy(site.path("authority", f"{name}.{ending}"), site.here)
    with dial(site, protocol, site.files(name, site.here)) as sock:
        path, count = revoke(site.authority.directory, name)
        shutil.copy(path, site.there)
        demand_ended(sock, caplog, "it was revoked on")
    assert count == 1
    with pytest.raises(Refused, match="certificate refused: it was revoked on"):
        dial(site, protocol, site.files(name, site.here))


def test_a_mirror_cuts_off_a_revoked_certificate(site, caplog):
    """`rt pull --serve` takes the certificates of the same authority, and serves the same log."""
    issue(site.authority.directory, "edge", CertificateRole.MIRROR)
    issue(site.authority.directory, "spark", CertificateRole.SUBSCRIBER)
    files = certificate_files(site.authority.directory, "edge")
    for path in (files.cert, files.key):
        shutil.copy(path, site.there)
    out = site.path("copy", STREAM, "out")
    edge = Mirror(
        ("localhost", 0), Contexts(site.files("edge", site.there), server_context), STREAM, out
    )
    with edge:
        mine = certificate_files(site.authority.directory, "spark")
        context = client_context(mine.ca, mine.cert, mine.key)
        address = ("localhost", edge.address[1])
        sock, _ = connect(address, context, roles=(CertificateRole.MIRROR,))
        with sock:
            sock.sendall(PROTOCOLS["pull"][2])
            assert sock.recv(1)
            shutil.copy(revoke(site.authority.directory, "spark")[0], site.there)
            demand_ended(sock, caplog, "it was revoked on")
        with pytest.raises(Refused, match="certificate refused: it was revoked on"):
            connect(address, context, roles=(CertificateRole.MIRROR,))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_authority_that_is_removed_ends_its_connections(site, protocol, caplog):
    """A cluster that drops an authority drops every certificate that it signed."""
    other = Authority(site.path("other"))
    ca = os.path.join(site.there, "ca.pem")
    with open(ca, "rb") as file:
        before = file.read()
    with open(other.files.ca, "rb") as file:
        replace(ca, before + file.read())
    role = PROTOCOLS[protocol][0]
    stem = os.path.join(site.here, role)
    forged = other.forge(stem, uris=ROLES[role], usages=[CLIENT, SERVER], hosts=LOCAL)
    files = CertificateFiles(os.path.join(site.here, "ca.pem"), forged.cert, forged.key)
    with dial(site, protocol, files) as sock:
        replace(ca, before)
        demand_ended(sock, caplog, "its authority is no longer trusted")


def test_an_authority_that_is_removed_during_the_handshake_ends_the_connection(site):
    """The new list was taken for the one that the certificate had been verified with."""
    ours, theirs = socket.socketpair()
    other = Authority(site.path("other")).forge(site.path("stray"), uris=ROLES["node"])
    trust = trust_of(os.path.join(site.there, "ca.pem"))
    with ours, theirs:
        certificate_watch.watch(theirs, "stray", load_certificate(other.cert), trust, lambda: "")
        certificate_watch.start()
        ours.settimeout(60)
        assert ours.recv(1) == b""


def replace(path, data):
    """Replace a file as a deployment does."""
    with open(f"{path}.new", "wb") as file:
        file.write(data)
    os.replace(f"{path}.new", path)


def test_a_node_that_was_revoked_loses_its_clients(site, caplog):
    """A stolen node's key answers for the node; its clients have to leave it, too."""
    files = client_files(site, "subscriber")
    with dial(site, "pull", files) as sock:
        path, _ = revoke(site.authority.directory, "n1")
        shutil.copy(path, site.here)
        demand_ended(sock, caplog, "it was revoked on")
    with pytest.raises(Refused, match="it was revoked on"):
        dial(site, "pull", files)


def test_a_good_certificate_keeps_its_connection_when_another_is_revoked(site):
    """Cutting off one peer must not disturb the others."""
    files = client_files(site, "subscriber")
    issue(site.authority.directory, "thief", CertificateRole.PUBLISHER)
    with dial(site, "admin", files) as sock:
        shutil.copy(revoke(site.authority.directory, "thief")[0], site.there)
        sock.settimeout(1.0)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        sock.settimeout(PATIENCE_S)
        sock.sendall(b'"do": "policy"}\n')
        assert sock.recv(65536)


def grant(site, holder, line):
    """Replace the file of grants by one of this entry."""
    replace(site.path("authority", GRANTS_NAME), f"[{holder}]\n{line}\n".encode())


@pytest.mark.parametrize("protocol", ["push", "pull", "admin"])
def test_a_grant_that_changes_ends_the_connections_it_served(site, protocol, caplog):
    """What is no longer granted ends within a second, without a restart; others go on."""
    role = PROTOCOLS[protocol][0]
    holder = "publisher.jfk" if role == "publisher" else "subscriber.spark"
    files, node = client_files(site, role), client_files(site, "node")
    with dial(site, protocol, files) as sock, dial(site, "peer", node) as other:
        grant(site, holder, "")
        demand_ended(sock, caplog, "what it is granted has changed")
        other.settimeout(0.5)
        with pytest.raises(TimeoutError):
            other.recv(1)


def issued(site, name, role, **options):
    """Issue a certificate beside the authority; return contexts of it."""
    return Contexts(issue(site.authority.directory, name, role, **options), client_context)


def test_a_pusher_whose_files_change_reconnects_with_them(site):
    """A renewal needs no restart, and what was granted since is used at once."""
    grant(site, "publisher.jfk", 'sessions = ["jfk"]')
    contexts = issued(site, "jfk", CertificateRole.PUBLISHER)
    for name in ("jfk", "lga"):
        with Publisher(site.path("pub"), stream=STREAM, session=name) as publisher:
            publisher.publish(b"hello")
    client = PushClient(site.path("pub"), STREAM, [site.address], contexts)
    client.start()
    assert eventually(
        lambda: any("does not grant" in each.error for each in client.status()), PATIENCE_S
    )
    grant(site, "publisher.jfk", 'sessions = ["jfk", "lga"]')
    renew(site.authority.directory, "jfk")
    assert client.stop(drain_s=PATIENCE_S)
    assert sorted(os.listdir(site.path("node", STREAM, "in"))) == ["jfk", "lga"]


def test_a_puller_whose_files_change_reconnects_with_them(site):
    """The old certificate would end the connection in the middle of the night."""
    contexts = issued(site, "spark", CertificateRole.SUBSCRIBER)
    merge = Merge(site.path("node", STREAM, "out"))
    client = PullClient(
        site.path("copy"), STREAM, [site.address], contexts, asks=HostEnd(site.host)
    )
    try:
        with Publisher(site.path("pub"), stream=STREAM, session="jfk") as publisher:
            publisher.publish(b"hello")
        with open(site.path("pub", STREAM, "jfk", "log.0.0"), "rb") as file:
            merge.add("jfk", file.read())
        client.start()
        assert client.wait_caught_up(PATIENCE_S)
        assert len(site.record.clients()) == 1
        renew(site.authority.directory, "spark")
        assert eventually(lambda: len(site.record.clients()) == 2, PATIENCE_S), "and one that left"
        assert eventually(lambda: client.status().caught_up, PATIENCE_S)
    finally:
        client.stop()
        merge.appender.close()


def test_a_refused_puller_comes_in_with_new_files(site):
    """Copying the right files is all that an operator has to do."""
    contexts = issued(site, "spark", CertificateRole.SUBSCRIBER)
    shutil.copy(revoke(site.authority.directory, "spark")[0], site.there)
    merge = Merge(site.path("node", STREAM, "out"))
    merge.appender.begin_file(merge.appender.end)
    client = PullClient(site.path("copy"), STREAM, [site.address], contexts)
    client.start()
    try:
        assert eventually(lambda: "revoked" in client.status().error)
        issue(site.authority.directory, "spark", CertificateRole.SUBSCRIBER, force=True)
        assert eventually(lambda: client.status().node, PATIENCE_S)
    finally:
        client.stop()
        merge.appender.close()


def test_a_process_warns_about_its_certificate_once(site, caplog):
    """With a third of its life left, in the log of every process that uses it."""
    files = client_files(site, "publisher", start_days=-25, days=30)
    # a node uses its files for three purposes, and a client for each request
    contexts, *_others = [Contexts(files, client_context) for _ in range(4)]
    assert eventually(lambda: "renew it with rt certs renew" in caplog.text, PATIENCE_S)
    time.sleep(0.5)
    assert sum("rt certs renew" in each.message for each in caplog.records) == 1
    assert "publisher.pem: expires on" in contexts.warning()


@pytest.mark.parametrize("kind", [PullClient, PushClient])
def test_a_client_that_has_stopped_does_not_miss_its_certificate(site, kind):
    """A program that had removed its directory was told to run `rt certs init`."""
    contexts = Contexts(client_files(site, "subscriber"), client_context)
    client = kind(site.path("copy"), STREAM, [site.address], contexts)
    reminded = weakref.ref(contexts)
    del contexts
    client.start()
    client.stop()
    assert eventually(lambda: reminded() is None)


def test_a_certificate_is_read_again_only_when_its_file_has_changed(site):
    """Every process looks five times a second, for each purpose; reading and parsing cost 0.3 %."""
    files = client_files(site, "publisher", start_days=-25, days=30)
    contexts, before = Contexts(files, client_context), os.stat(files.cert)
    words = "renew it with rt certs renew"
    assert words in contexts.warning()
    with open(files.cert, "r+b") as file:
        file.write(b"?" * before.st_size)
    os.utime(files.cert, ns=(before.st_atime_ns, before.st_mtime_ns))  # it looks as it did
    assert words in contexts.warning()
    os.utime(files.cert)
    assert words not in contexts.warning()
    client_files(site, "publisher")
    assert not contexts.warning()


def test_one_thread_watches_all_connections(site):
    """A thread for each would cost as much as the connections."""
    files = client_files(site, "subscriber")
    socks = [dial(site, "pull", files) for _ in range(5)]
    names = [each.name for each in threading.enumerate()]
    assert names.count("certificates") == 1
    for sock in socks:
        sock.close()
