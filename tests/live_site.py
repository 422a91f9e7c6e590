"""A single node that serves every protocol, to test certificates."""

import logging
import os
import shutil

from replicator.serve.client_record import ServerRecord
from replicator.serve.server import Server
from replicator.serve.streams import ServedStream, Streams
from rt.net.admin import ADMIN_ALPN
from rt.net.authority.certificates import CertificateFiles, issue
from rt.net.authority.granting import write_grant
from rt.net.authority.grants import GRANTS_NAME
from rt.net.authority.identity import CertificateRole, PeerIdentity
from rt.net.loop.event_loop import EventLoop
from rt.net.question import STATUS_ALPN
from rt.net.tls import Contexts, offering, server_context
from sequencer.peers.connections import Peers
from sequencer.peers.versions import alpn_of
from tests.control_fuzz import node_admin
from tests.forged_certificates import Authority
from tests.replicator_host import DiskHost

PEER_ALPN = alpn_of("flights", 7)  # of the version in which messages come first


class Site:
    """A node that serves every protocol, and two directories of certificates: its own and ours."""

    def __init__(self, top, status=None):
        self.top, self.messages = str(top), []
        self.authority = Authority(self.path("authority"))
        self.there, self.here = self.path("there"), self.path("here")
        for directory in (self.there, self.here):
            os.mkdir(directory, 0o700)
            shutil.copy(self.authority.files.ca, directory)
        issue(self.authority.directory, "n1", CertificateRole.NODE)
        for holder in (
            PeerIdentity("jfk", CertificateRole.PUBLISHER, sessions=("*",)),
            PeerIdentity("spark", CertificateRole.SUBSCRIBER, streams=("*",)),
            PeerIdentity("edge", CertificateRole.MIRROR, streams=("*",)),
        ):
            write_grant(self.authority.directory, holder)
        os.symlink(self.path("authority", GRANTS_NAME), self.path("there", GRANTS_NAME))
        for name in ("n1.pem", "n1.key"):
            shutil.copy(self.path("authority", name), self.there)
        self.host = DiskHost(self.path("node"))
        self.host.members = {"n1", "n2"}
        self.loop = EventLoop()
        self.peers = Peers(
            self.loop, "n1", {"n2": [("localhost", 1)]}, self.nothing, self.heard,
            gone=lambda _member: None, objection=lambda *_peer, **_how: "",
        )  # fmt: skip
        others = {
            PEER_ALPN: self.peers.serve,
            ADMIN_ALPN: node_admin().serve,
            STATUS_ALPN: status or self.status,
        }
        contexts = Contexts(
            self.files("n1", self.there),
            lambda *paths: offering(server_context(*paths), *others),
        )
        self.record = ServerRecord(logging.getLogger("site"))
        served = ServedStream(self.host, self.record, others)
        self.server = Server(("localhost", 0), contexts, Streams(served), loop=self.loop)
        self.server.start()
        self.address = ("localhost", self.server.address[1])

    def path(self, *names):
        return os.path.join(self.top, *names)

    def files(self, name, directory):
        stem = os.path.join(directory, name)
        return CertificateFiles(os.path.join(directory, "ca.pem"), f"{stem}.pem", f"{stem}.key")

    def nothing(self):
        raise OSError("nothing is dialled here")

    def heard(self, _sender, messages):
        self.messages += messages

    def status(self, sock, _identity):
        with sock:
            sock.sendall(b"{}")

    def stop(self):
        self.server.stop()
        self.peers.stop()
        self.loop.stop()
        self.host.stop()
