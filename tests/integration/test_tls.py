"""TLS: real handshakes over loopback; every refusal ends with a clear line on both sides."""

import os
import socket
import ssl
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from rt.errors import Misuse, PeerError, Refused
from rt.net import tls
from rt.net.authority.certificates import issue
from rt.net.authority.grants import Grants, grants_path
from rt.net.authority.identity import CertificateRole
from rt.net.tls import Contexts, accept, client_context, connect, server_context
from tests.forged_certificates import CLIENT, LOCAL, SERVER, Authority
from tests.replicator_host import eventually

TIMEOUT_S = 10.0


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    """Return the authority that all good certificates of this file come from."""
    return Authority(str(tmp_path_factory.mktemp("authority") / "certs"))


@pytest.fixture(scope="session")
def stranger(tmp_path_factory):
    """Return an authority that is not trusted here."""
    return Authority(str(tmp_path_factory.mktemp("stranger") / "certs"))


@pytest.fixture(scope="session")
def node(authority):
    """Return the files of a good node."""
    return issue(authority.directory, "node-1", CertificateRole.NODE)


@pytest.fixture(scope="session")
def publisher(authority):
    """Return the files of a good publisher of the session jfk."""
    return issue(authority.directory, "jfk", CertificateRole.PUBLISHER)


@pytest.fixture
def listener():
    """Return a listening socket of 127.0.0.1."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(TIMEOUT_S)
        yield listening


@pytest.fixture(scope="module")
def pool():
    """Return the thread in which the other side runs."""
    with ThreadPoolExecutor(1) as executor:
        yield executor


def server_of(files):
    """Return a server context of issued or forged files."""
    return server_context(files.ca, files.cert, files.key)


def client_of(files):
    """Return a client context of issued or forged files."""
    return client_context(files.ca, files.cert, files.key)


def outcome(action):
    """Return what `action` returned, its socket closed, or the error that it raised."""
    try:
        sock, identity = action()
    except (OSError, PeerError, Refused) as error:
        return error
    sock.close()
    return identity


def accept_one(listener, context, **options):
    """Accept one connection and return its socket and identity."""
    plain, _ = listener.accept()
    return accept(plain, context, **({"timeout_s": TIMEOUT_S} | options))


@pytest.fixture
def meet(pool, listener):
    """Return a function that lets two contexts shake hands: an identity or an error for each."""

    def run(server, client, **options):
        serving = pool.submit(outcome, lambda: accept_one(listener, server, **options))
        dialled = outcome(lambda: connect(listener.getsockname(), client, TIMEOUT_S))
        return serving.result(TIMEOUT_S), dialled

    return run


def clear_line(error, words):
    """Check that an error is one readable line which says `words`, of a class that is ours."""
    assert isinstance(error, (PeerError, Refused)), repr(error)
    line = str(error)
    assert words in line
    assert line.startswith("127.0.0.1:")
    assert "\n" not in line
    assert "_ssl.c" not in line
    assert len(line) < 300


def test_good_certificates_make_two_known_peers(meet, node, publisher):
    """The matrix of refusals below means nothing unless the good pair gets through."""
    served, dialled = meet(server_of(node), client_of(publisher))
    assert (dialled.name, dialled.role) == ("node-1", CertificateRole.NODE)
    assert (served.name, served.role, served.sessions) == ("jfk", CertificateRole.PUBLISHER, ())


class Unreadable(Grants):
    """Grants that say no when they are asked."""

    def granted(self, holder):
        """Refuse it."""
        raise Refused("grants", f"{holder.name} has no grant that can be read")


def test_what_a_peer_is_granted_is_read_before_it_hears_that_it_is_welcome(
    meet, node, publisher, authority
):
    """A change right after the welcome was taken for what had been granted from the beginning."""
    grants = Unreadable(grants_path(authority.directory))
    served, dialled = meet(server_of(node), client_of(publisher), grants=grants)
    clear_line(served, "jfk has no grant that can be read")
    clear_line(dialled, "the other side says: jfk has no grant that can be read")


def test_valid_certificate_does_not_open_another_session(meet, node, publisher):
    """The TLS library accepts any certificate of the authority; the identity must not."""
    grants = Grants(grants_path(node.ca))
    served, _ = meet(server_of(node), client_of(publisher), grants=grants)
    assert served.may_push("jfk")
    assert not served.may_push("lga")
    assert not served.may_pull("flights")
    assert not served.is_node


TEN_YEARS = {"days": 3650}
QUARTER = {"days": 92}  # docs/SECURITY.md promises 90 days at most
# What is wrong with the client's certificate; what the server says; what the client says.
BAD_CLIENTS = {
    "expired": ({"start_days": -40}, "has expired", "refused our certificate as expired"),
    "not yet valid": ({"start_days": 1}, "not yet valid; compare the clocks", "refused our"),
    "server usage only": ({"usages": [SERVER]}, "another purpose", "another purpose or role"),
    "mail usage only": (
        {"usages": [ExtendedKeyUsageOID.EMAIL_PROTECTION]},
        "another purpose",
        "another purpose or role",
    ),
    "any usage": (
        {"usages": [ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE]},
        "purpose",
        "another purpose or role",
    ),
    "no usage": ({"usages": ()}, "lacks client authentication", "says: certificate refused"),
    "no alternative name": ({"uris": ()}, "names no role", "names no role"),
    "host names only": ({"uris": (), "hosts": LOCAL}, "names no role", "names no role"),
    "sessions without role": ({"uris": ["rt://session/*"]}, "no role", "no role"),
    "role in the common name": (
        {"uris": (), "common_name": "rt://publisher/jfk"},
        "names no role",
        "names no role",
    ),
    "two roles": (
        {"uris": ["rt://publisher/jfk", "rt://subscriber/jfk"]},
        "more than one role",
        "more than one role",
    ),
    "two names": (
        {"uris": ["rt://publisher/jfk", "rt://publisher/lga"]},
        "more than one role",
        "more than one role",
    ),
    "unknown word": ({"uris": ["rt://admin/jfk"]}, "is none of session", "is none of session"),
    "hostile name": ({"uris": ["rt://publisher/../x"]}, "not a peer name", "not a peer name"),
    "hostile glob": (
        {"uris": ["rt://publisher/jfk", "rt://session/(a+)+*"]},
        "not a glob",
        "not a glob",
    ),
    "ten years": (TEN_YEARS, "valid for 3650 days", "valid for 3650 days"),
    "a quarter of a year": (QUARTER, "valid for 92 days, at most 90", "valid for 92 days"),
    "no issuer's key": ({"key_identifier": False}, "certificate was refused", "refused our"),
    "its own authority": (
        {"may_sign": True, "signer": (None, None)},
        "signed by",
        "another authority",
    ),
}


@pytest.mark.parametrize("fault", BAD_CLIENTS)
def test_client_with_a_bad_certificate_is_refused(fault, meet, authority, node, tmp_path):
    """Each row is a certificate that somebody could really hold."""
    changes, server_says, client_says = BAD_CLIENTS[fault]
    files = authority.forge(str(tmp_path / "x"), **changes)
    served, dialled = meet(server_of(node), client_of(files))
    clear_line(served, server_says)
    clear_line(dialled, client_says)


NODE = {"uris": ["rt://node/n"], "hosts": LOCAL, "usages": [SERVER, CLIENT]}
# What is wrong with the server's certificate; what the client says; what the server says.
BAD_SERVERS = {
    "expired": ({"start_days": -40}, "has expired", "refused our certificate as expired"),
    "not yet valid": ({"start_days": 1}, "not yet valid; compare the clocks", "refused our"),
    "client usage only": ({"usages": [CLIENT]}, "another purpose", "another purpose or role"),
    "no usage": ({"usages": ()}, "lacks server authentication", "lacks server authentication"),
    "other host": (
        {"hosts": [x509.DNSName("example.org")]},
        "for another address",
        "refused our certificate",
    ),
    "host in the common name": (
        {"hosts": (), "common_name": "127.0.0.1"},
        "for another address",
        "refused our certificate",
    ),
    "no role": ({"uris": ()}, "names no role", "names no role"),
    "a publisher's": (
        {"uris": ["rt://publisher/n"]},
        "it is a publisher's; a node is wanted",
        "it is a publisher's; a node is wanted",
    ),
    "two roles": (
        {"uris": ["rt://node/n", "rt://publisher/n"]},
        "more than one role",
        "more than one role",
    ),
    "ten years": (TEN_YEARS, "valid for 3650 days", "valid for 3650 days"),
    "its own authority": (
        {"may_sign": True, "signer": (None, None)},
        "signed by",
        "another authority",
    ),
}


@pytest.mark.parametrize("fault", BAD_SERVERS)
def test_node_with_a_bad_certificate_is_refused(fault, meet, authority, publisher, tmp_path):
    """A publisher must not hand its data to a stranger that answers at the address."""
    changes, client_says, server_says = BAD_SERVERS[fault]
    files = authority.forge(str(tmp_path / "n"), **(NODE | changes))
    served, dialled = meet(server_of(files), client_of(publisher))
    clear_line(dialled, client_says)
    clear_line(served, server_says)


def test_host_is_never_taken_from_the_common_name(pool, listener, authority, publisher, tmp_path):
    """Names in the common name are not under the authority's rules (RFC 6125, 6.4.4)."""
    files = authority.forge(
        str(tmp_path / "n"), **(NODE | {"hosts": (), "common_name": "localhost"})
    )
    serving = pool.submit(outcome, lambda: accept_one(listener, server_of(files)))
    address = ("localhost", listener.getsockname()[1])
    dialled = outcome(lambda: connect(address, client_of(publisher), TIMEOUT_S))
    assert isinstance(dialled, PeerError)
    assert "for another host than the one dialled" in str(dialled)
    clear_line(serving.result(TIMEOUT_S), "refused our certificate")


def test_client_of_another_authority_is_refused(meet, node, authority, stranger):
    """Two clusters on one network must not mix."""
    files = issue(stranger.directory, "jfk", CertificateRole.PUBLISHER, force=True)
    served, dialled = meet(server_of(node), client_context(node.ca, files.cert, files.key))
    clear_line(served, "signed by another authority; give both sides the same ca.pem")
    clear_line(dialled, "of another authority; give both sides the same ca.pem")


def test_node_of_another_authority_is_refused(meet, publisher, stranger):
    """A stranger that took over the address gets nothing."""
    files = issue(stranger.directory, "node-1", CertificateRole.NODE, force=True)
    served, dialled = meet(server_of(files), client_of(publisher))
    clear_line(dialled, "signed by another authority; give both sides the same ca.pem")
    clear_line(served, "of another authority; give both sides the same ca.pem")


@pytest.mark.parametrize("may_sign", [False, True])
def test_leaf_signed_by_a_leaf_is_refused(may_sign, meet, authority, node, tmp_path):
    """Otherwise every publisher could make nodes; only the authority itself may sign."""
    middle = authority.forge(str(tmp_path / "m"), may_sign=may_sign, common_name="middle")
    with open(middle.cert, "rb") as file:
        chain = file.read()
    with open(middle.key, "rb") as file:
        key = serialization.load_pem_private_key(file.read(), None)
    signer = (x509.load_pem_x509_certificate(chain).subject, key)
    files = authority.forge(str(tmp_path / "x"), signer=signer, common_name="below")
    with open(files.cert, "ab") as file:
        file.write(chain)
    served, dialled = meet(server_of(node), client_of(files))
    clear_line(served, "authority below the authority" if may_sign else "no authority")
    clear_line(dialled, "refused our certificate")


def test_client_without_a_certificate_learns_that_it_needs_one(meet, node):
    """The client's handshake succeeds in TLS 1.3; the helper must not report success."""
    context = ssl.create_default_context(cafile=node.ca)
    served, dialled = meet(server_of(node), context)
    clear_line(served, "the other side sent no certificate")
    clear_line(dialled, "it wants a certificate and we sent none")


def test_role_that_is_not_served_here_is_refused_on_both_sides(meet, node, publisher):
    """A server may be for nodes only."""
    served, dialled = meet(server_of(node), client_of(publisher), roles=(CertificateRole.NODE,))
    clear_line(served, "it is a publisher's; a node is wanted here")
    clear_line(dialled, "the other side says: certificate refused: it is a publisher's")
    assert isinstance(served, Refused)
    assert isinstance(dialled, Refused)


def test_tls_1_2_client_is_refused(meet, node, publisher):
    """An old client must hear the version, not a reset."""
    context = ssl.create_default_context(cafile=node.ca)
    context.load_cert_chain(publisher.cert, publisher.key)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    served, dialled = meet(server_of(node), context)
    clear_line(served, "no TLS 1.3")
    clear_line(dialled, "both sides need TLS 1.3")


def test_tls_1_2_server_is_refused(meet, node, publisher):
    """A downgrade by the server is no better than one by the client."""
    context = server_of(node)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    served, dialled = meet(context, client_of(publisher))
    clear_line(dialled, "TLS 1.3")
    clear_line(served, "no TLS 1.3")


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "plain HTTP"),
        (b"\0" * 64, "does not speak TLS"),
        (b"RTFRAME1" * 8, "does not speak TLS"),
        (b"", "hung up"),
        (b"\x16\x03\x01", "hung up"),
    ],
)
def test_plaintext_client_is_named_as_such(sent, words, pool, listener, node):
    """The most common wrong setting of all, on the side that can know it."""
    serving = pool.submit(outcome, lambda: accept_one(listener, server_of(node)))
    with socket.create_connection(listener.getsockname(), TIMEOUT_S) as plain:
        plain.sendall(sent)
        plain.shutdown(socket.SHUT_WR)
        clear_line(serving.result(TIMEOUT_S), words)


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01"])
def test_client_that_resets_before_it_is_accepted_is_one_line_too(sent, listener, node):
    """Port scanners do this all day."""
    plain = socket.create_connection(listener.getsockname(), TIMEOUT_S)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    plain.sendall(sent)
    plain.close()
    error = outcome(lambda: accept_one(listener, server_of(node)))
    assert isinstance(error, PeerError)
    assert "hung up before TLS began" in str(error)


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak TLS"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "does not speak TLS"),
        (b"", "hung up"),
    ],
)
def test_plaintext_server_is_named_as_such(sent, words, pool, listener, publisher):
    """A client that dialled the wrong port must say so."""

    def answer():
        plain, _ = listener.accept()
        with plain:
            plain.recv(65536)
            plain.sendall(sent)

    answering = pool.submit(answer)
    clear_line(outcome(lambda: connect(listener.getsockname(), client_of(publisher))), words)
    answering.result(TIMEOUT_S)


def test_silent_client_is_given_up_at_the_deadline(pool, listener, node):
    """Netty had no handshake timeout: a silent peer held a thread for ever."""
    serving = pool.submit(outcome, lambda: accept_one(listener, server_of(node), timeout_s=0.05))
    with socket.create_connection(listener.getsockname(), TIMEOUT_S) as plain:
        error = serving.result(TIMEOUT_S)
        assert isinstance(error, TimeoutError)
        assert "not agreed on in time" in str(error)
        assert plain.recv(1) == b""


def test_silent_server_is_given_up_at_the_deadline(listener, publisher):
    """The kernel accepts connections for a node that hangs; the client must not wait for it."""
    error = outcome(lambda: connect(listener.getsockname(), client_of(publisher), 0.05))
    assert isinstance(error, TimeoutError)
    assert "not agreed on in time" in str(error)


@pytest.mark.parametrize("sent", [b"\xff\xff", b"\x01\x02" + b"x" * 513, b"\x05\0ab", b""])
def test_server_that_gives_no_proper_verdict_is_refused(sent, pool, listener, node, publisher):
    """A node may be hostile too: a length is checked before it is believed."""

    def answer():
        plain, _ = listener.accept()
        with server_of(node).wrap_socket(plain, server_side=True) as sock:
            sock.sendall(sent)

    answering = pool.submit(answer)
    error = outcome(lambda: connect(listener.getsockname(), client_of(publisher)))
    clear_line(error, "claims" if len(sent) != 4 and sent else "hung up")
    answering.result(TIMEOUT_S)


def test_verdict_of_a_hostile_peer_is_shown_escaped(pool, listener, node, publisher):
    """Its text goes into our log and our terminal."""
    words = "\x1b[2J\nall is well\u202e".encode()

    def answer():
        plain, _ = listener.accept()
        with server_of(node).wrap_socket(plain, server_side=True) as sock:
            sock.sendall(len(words).to_bytes(2, "little") + words)

    answering = pool.submit(answer)
    error = outcome(lambda: connect(listener.getsockname(), client_of(publisher)))
    answering.result(TIMEOUT_S)
    clear_line(error, r"the other side says: \x1b[2J\nall is well\u202e")


def test_a_node_that_is_down_is_the_plain_error_of_the_system(publisher):
    """A node that is down has nothing to do with TLS, and a client treats the two differently."""
    with socket.create_server(("127.0.0.1", 0)) as closing:
        address = closing.getsockname()
    assert isinstance(
        outcome(lambda: connect(address, client_of(publisher))), ConnectionRefusedError
    )


def test_data_flows_both_ways_after_the_verdicts(pool, listener, node, publisher):
    """The verdicts must leave nothing behind in the stream, and the timeout must be set."""

    def echo():
        sock, _ = accept_one(listener, server_of(node))
        with sock:
            while data := sock.recv(65536):
                sock.sendall(data)

    echoing = pool.submit(echo)
    sent = os.urandom(1 << 18)
    sock, _ = connect(listener.getsockname(), client_of(publisher), TIMEOUT_S)
    with sock:
        assert sock.version() == "TLSv1.3"
        assert sock.gettimeout() == TIMEOUT_S
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        received = b""
        for start in range(0, len(sent), 1 << 14):
            sock.sendall(sent[start : start + (1 << 14)])
            received += sock.recv(1 << 14)
        while len(received) < len(sent):
            received += sock.recv(1 << 16)
    assert received == sent
    echoing.result(TIMEOUT_S)


def test_no_session_is_ever_resumed(pool, listener, node, publisher):
    """A ticket would let a peer in on the strength of a certificate that has expired since."""
    serving = pool.submit(accept_one, listener, server_of(node))
    sock, _ = connect(listener.getsockname(), client_of(publisher), TIMEOUT_S)
    served, _ = serving.result(TIMEOUT_S)
    with sock, served:
        assert sock.session is None or not sock.session.has_ticket


def test_context_is_loaded_again_when_its_files_change(authority):
    """Certificates live for days; renewing one must not need a restart."""
    files = issue(authority.directory, "renewed", CertificateRole.NODE)
    contexts = Contexts(files, server_context)
    first = contexts.current()
    assert contexts.current() is first
    issue(authority.directory, "renewed", CertificateRole.NODE, force=True)
    assert contexts.current() is not first


@pytest.mark.parametrize("damage", ["missing", "empty", "other key"])
def test_files_that_cannot_be_loaded_leave_the_last_good_context(damage, authority, publisher):
    """A half-done renewal must not stop a running node, and must be reported."""
    files = issue(authority.directory, "half", CertificateRole.NODE, force=True)
    contexts = Contexts(files, server_context)
    first = contexts.current()
    os.unlink(files.key)
    if damage == "empty":
        os.close(os.open(files.key, os.O_CREAT, 0o600))
    elif damage == "other key":
        os.link(publisher.key, files.key)
    assert contexts.current() is first
    assert "half.key" in contexts.problem
    issue(authority.directory, "half", CertificateRole.NODE, force=True)
    assert contexts.current() is not first
    assert contexts.problem is None


@pytest.mark.parametrize("make", [server_context, client_context])
def test_wrong_files_are_named_at_the_start(make, node, publisher, tmp_path):
    """An operator who confused two paths must see which one is wrong."""
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(Misuse, match=r"missing\.pem: no such file"):
        make(missing, node.cert, node.key)
    with pytest.raises(Misuse, match=r"jfk\.key: no certificate can be read"):
        make(publisher.key, node.cert, node.key)
    with pytest.raises(Misuse, match=r"jfk\.key: not a certificate and its"):
        make(node.ca, node.cert, publisher.key)


def test_key_that_everyone_may_read_is_not_used(authority, tmp_path):
    """Assume that it was stolen."""
    files = authority.forge(str(tmp_path / "open"))
    os.chmod(files.key, 0o644)
    with pytest.raises(Misuse, match="everyone may read this key"):
        client_of(files)


def test_key_that_its_group_may_write_is_not_used(authority, tmp_path):
    """A group that can replace the key can speak in our name; one that reads it is common."""
    files = authority.forge(str(tmp_path / "open"))
    os.chmod(files.key, 0o660)
    with pytest.raises(Misuse, match="its group may write this key"):
        client_of(files)
    os.chmod(files.key, 0o640)
    client_of(files)


def test_encrypted_key_is_refused_without_asking_the_terminal(authority, tmp_path):
    """A service that waits for a password at a terminal waits for ever."""
    files = authority.forge(str(tmp_path / "locked"))
    with open(files.key, "rb+") as file:
        key = serialization.load_pem_private_key(file.read(), None)
        file.seek(0)
        file.truncate()
        encryption = serialization.BestAvailableEncryption(b"secret")
        file.write(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
            )
        )
    with pytest.raises(Misuse, match="unencrypted key"):
        client_of(files)


def test_refusals_leave_no_socket_and_no_thread_behind(meet, node):
    """A thousand refused strangers must not cost a thousand descriptors."""
    context = ssl.create_default_context(cafile=node.ca)
    server = server_of(node)
    meet(server, context)
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(20):
        meet(server, context)
    # fewer if something of an earlier test was ending
    assert eventually(lambda: len(os.listdir("/proc/self/fd")) <= before[0])
    assert eventually(lambda: threading.active_count() <= before[1])


def test_every_described_reason_is_a_sentence_with_a_remedy_or_a_pointer():
    """The tables are what operators read at night."""
    from rt.net import tls_errors

    for table in (tls_errors.OBJECTIONS, tls_errors.ALERTS, tls_errors.REASONS):
        for words in table.values():
            assert 20 < len(words) < 120
    unknown = ssl.SSLError(1, "[SSL: TLSV1_ALERT_INTERNAL_ERROR] x")
    unknown.reason = "TLSV1_ALERT_INTERNAL_ERROR"
    assert tls.describe_tls_error(unknown).endswith("its TLS alert is 'internal error'")
