"""Which certificate may do what at a gateway, for every kind of certificate and of request."""

import http.client
import json
import ssl
from contextlib import closing

import pytest
from archive_cluster import ArchiveCluster
from replicator_host import eventually

from rt.client.client import connect
from rt.gateway.gateway import Gateway
from rt.gateway.settings import GatewaySettings
from rt.net.admin import AdminClient
from rt.net.authority.certificates import init_authority, issue
from rt.net.authority.identity import CertificateRole
from rt.net.authority.revocation import revoke

WRITES = {
    "create": ("PUT", "/v1/stream/new"), "append": ("POST", "/v1/stream/doors"),
    "delete": ("DELETE", "/v1/stream/none"),
}  # fmt: skip
READS = {
    "read": ("GET", "/v1/stream/doors?offset=-1"), "look": ("HEAD", "/v1/stream/doors"),
    "log": ("GET", "/v1/log?max=1"), "cursor": ("PUT", "/v1/cursors/etl?from=earliest"),
    "describe": ("GET", "/openapi.json"),
}  # fmt: skip
CLOSED = "the connection is closed"
MAY_WRITE, MAY_READ, NOTHING = "write", "read", "nothing"
HOLDERS = {
    "publisher": MAY_WRITE, "subscriber": MAY_READ, "mirror": MAY_READ, "operator": MAY_READ,
    "n1": MAY_READ, "none": NOTHING, "other-authority": NOTHING, "revoked": NOTHING,
}  # fmt: skip


class Site:
    """A gateway that asks for certificates, and certificates of every kind."""

    def __init__(self, cluster, root):
        self.certs = f"{cluster.root}/certs"
        issue(self.certs, "mirror", CertificateRole.MIRROR, streams=["*"])
        issue(self.certs, "revoked", CertificateRole.PUBLISHER)
        revoke(self.certs, "revoked")
        self.other = f"{root}-other"
        init_authority(self.other)
        issue(self.other, "other-authority", CertificateRole.PUBLISHER)
        settings = GatewaySettings(
            "127.0.0.1:0", append=True, tls_cert=f"{self.certs}/n1.pem",
            tls_key=f"{self.certs}/n1.key", tls_ca=f"{self.certs}/ca.pem",
        )  # fmt: skip
        nodes = AdminClient(cluster.addresses, cluster.contexts("subscriber"), keep=True)
        client = connect(f"{cluster.root}/clients.toml", root=root)
        self.gateway = Gateway(settings, client, root, nodes)

    def ask(self, holder, method, path):
        """Ask with a certificate; return the status, or that the connection was closed."""
        context = ssl.create_default_context(cafile=f"{self.certs}/ca.pem")
        context.check_hostname = False
        if holder != "none":
            where = self.other if holder == "other-authority" else self.certs
            context.load_cert_chain(f"{where}/{holder}.pem", f"{where}/{holder}.key")
        host, _, port = self.gateway.url.split("/")[2].partition(":")
        body = json.dumps([1]) if method == "POST" else None
        headers = {"Content-Type": "application/json"}
        with closing(
            http.client.HTTPSConnection(host, int(port), timeout=60, context=context)
        ) as connection:
            try:
                connection.request(method, path, body, headers)
                answer = connection.getresponse()
                answer.read()
            except (OSError, http.client.HTTPException):
                return CLOSED
            return answer.status


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site with a stream."""
    with ArchiveCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        made = Site(cluster, str(tmp_path_factory.mktemp("edge") / "root"))
        with made.gateway:
            first = ("publisher", "PUT", "/v1/stream/doors")
            assert eventually(lambda: made.ask(*first) in {200, 201}, 60)
            yield made


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_certificate_opens_what_its_role_grants_at_a_gateway(site, holder):
    """Who was removed, or never belonged, gets no answer; who may only read changes nothing."""
    may = HOLDERS[holder]
    for kind, request in {**WRITES, **READS}.items():
        found = site.ask(holder, *request)
        if may == NOTHING:
            assert found == CLOSED, kind
        elif kind in WRITES and may == MAY_READ:
            assert found == 403, kind
        elif kind == "delete":
            assert found == 404, kind  # it may, and there is nothing to delete
        else:
            assert found in {200, 201, 204}, (kind, found)
