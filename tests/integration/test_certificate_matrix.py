"""The matrix: every kind of certificate on every protocol of a node's port, over real TLS."""

import json
import os
import shutil
import struct
import time
from contextlib import suppress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from replicator.wire.codec import PULL, PUSH, VERSION, Hello, encode
from replicator.wire.decoder import Decoder
from rt.errors import PeerError, Refused
from rt.net.admin import ADMIN_ALPN
from rt.net.authority.revocation import revoke
from rt.net.question import STATUS_ALPN
from rt.net.tls import client_context, connect, offering
from tests.forged_certificates import CLIENT, LOCAL, SERVER, Authority
from tests.live_site import PEER_ALPN, Site
from tests.replicator_host import STREAM

URIS = {
    "node": ["rt://node/n2"],
    "publisher": ["rt://publisher/jfk", "rt://session/*"],
    "subscriber": ["rt://subscriber/spark", "rt://stream/*"],
    "operator": ["rt://operator/alice"],
    "mirror": ["rt://mirror/edge", "rt://stream/*"],
}
EVERYONE = set(URIS)
ASKING = {"do": "policy"}, {"do": "set-policy", "policy": {"time": 60}, "stream": STREAM}
# ALPN name, what is said first, and the roles that are served.
PROTOCOLS = {
    "push": (None, encode(Hello(VERSION, VERSION, PUSH, STREAM, "test")), {"publisher", "node"}),
    "pull": (
        None,
        encode(Hello(VERSION, VERSION, PULL, STREAM, "test")),
        {"subscriber", "node", "mirror"},
    ),
    "peer": (PEER_ALPN, struct.pack("<I", 4) + b"vote", {"node"}),
    "status": (STATUS_ALPN, b"", EVERYONE),
    "admin": (ADMIN_ALPN, json.dumps(ASKING[0]).encode() + b"\n", EVERYONE - {"publisher"}),
    "change": (ADMIN_ALPN, json.dumps(ASKING[1]).encode() + b"\n", {"operator", "node"}),
}
USAGE = ExtendedKeyUsageOID
# What is wrong with a certificate; the role's own URIs are kept unless others are given.
FAULTS = {
    "expired": {"start_days": -40},
    "not yet valid": {"start_days": 1},
    "ten years": {"days": 3650},
    "92 days": {"days": 92},
    "server usage only": {"usages": [SERVER]},
    "mail usage only": {"usages": [USAGE.EMAIL_PROTECTION]},
    "any usage": {"usages": [USAGE.ANY_EXTENDED_KEY_USAGE]},
    "no usage": {"usages": ()},
    "no alternative name": {"uris": (), "hosts": ()},
    "hosts only": {"uris": ()},
    "two roles": {"uris": ["rt://node/n2", "rt://publisher/jfk"]},
    "two names": {"uris": ["rt://node/n1", "rt://node/n2"]},
    "unknown word": {"uris": ["rt://root/n2"]},
    "hostile name": {"uris": ["rt://node/../n2"]},
    "name in upper case": {"uris": ["rt://node/N2"]},
    "no issuer's key": {"key_identifier": False},
    "signed by itself": {"signer": (None, None)},
}
SPECIAL = ("good", "another authority", "signed by a leaf", "revoked")
CASES = [*FAULTS, *SPECIAL]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return one node for the whole matrix; its clients are few and short."""
    site = Site(tmp_path_factory.mktemp("matrix"))
    yield site
    site.stop()


@pytest.fixture(scope="module")
def stranger(site):
    """Return an authority that the node does not trust."""
    return Authority(site.path("stranger"))


def forged(site, stranger, role, case):
    """Return the files of a certificate of this role, with this fault."""
    stem = os.path.join(site.here, f"{role}-{CASES.index(case)}")
    options = {"uris": URIS[role], "usages": [CLIENT, SERVER], "hosts": LOCAL}
    if case == "another authority":
        files = stranger.forge(stem, **options)
    elif case == "signed by a leaf":
        files = below_a_leaf(site, stem, options)
    else:
        files = site.authority.forge(stem, **(options | FAULTS.get(case, {})))
    if case == "revoked":
        name = URIS[role][0].rpartition("/")[2]
        shutil.copy(files.cert, site.path("authority", f"{name}.pem"))
        path, _ = revoke(site.authority.directory, name)
        shutil.copy(path, site.there)
    return type(files)(os.path.join(site.here, "ca.pem"), files.cert, files.key)


def below_a_leaf(site, stem, options):
    """Return a certificate that a publisher has signed, and the chain to prove it."""
    middle = site.authority.forge(f"{stem}-middle", may_sign=True, common_name="middle")
    with open(middle.cert, "rb") as file:
        chain = file.read()
    with open(middle.key, "rb") as file:
        key = serialization.load_pem_private_key(file.read(), None)
    signer = (x509.load_pem_x509_certificate(chain).subject, key)
    files = site.authority.forge(stem, signer=signer, **options)
    with open(files.cert, "ab") as file:
        file.write(chain)
    return files


def served(site, protocol, files):
    """Whether a node serves the holder of these files on a protocol; the reason if not."""
    alpn, first, _ = PROTOCOLS[protocol]
    context = client_context(files.ca, files.cert, files.key)
    before = len(site.messages)
    try:
        sock, _ = connect(site.address, offering(context, alpn) if alpn else context)
    except (PeerError, Refused) as error:
        return False, str(error)
    with sock:
        sock.settimeout(60)
        if first:
            sock.sendall(first)
        if protocol == "peer":
            return answered_peer(site, sock, before)
        return read_answer(sock, protocol)


def answered_peer(site, sock, before):
    """A member's message is received without an answer; a stranger is disconnected."""
    sock.settimeout(0.05)
    end = time.monotonic() + 60
    while len(site.messages) == before and time.monotonic() < end:
        with suppress(TimeoutError):
            if not sock.recv(1):
                return False, "hung up"
    return len(site.messages) > before, ""


def read_answer(sock, protocol):
    """Read the first message, or all of a JSON answer."""
    if protocol in ("push", "pull"):
        decoder = Decoder()
        while (message := decoder.next()) is None:
            data = sock.recv(4096)
            if not data:
                return False, "hung up"
            space = decoder.space()
            space[: len(data)] = data
            decoder.end += len(data)
        return isinstance(message, Hello), str(message)
    data = b""
    while part := sock.recv(65536):
        data += part
    answer = json.loads(data)
    return "error" not in answer, answer.get("error", "")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("role", URIS)
def test_a_certificate_opens_what_it_grants_and_nothing_else(site, stranger, role, case):
    """A hundred and five certificates on six doors: one wrong answer is a hole."""
    files = forged(site, stranger, role, case)
    for protocol, (_, _, roles) in PROTOCOLS.items():
        is_served, why = served(site, protocol, files)
        assert is_served == (case == "good" and role in roles), (protocol, why)
        if not is_served:
            assert why == "hung up" or len(why.splitlines()) == 1, why
