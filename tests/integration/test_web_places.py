"""The places of the HTTP port: a stranger that takes them all pushes out only itself."""

import contextlib
import http.client
import os
import shutil
import socket
import ssl
from types import SimpleNamespace

import pytest

from rt.net.authority.certificates import certificate_files, issue
from rt.net.authority.identity import CertificateRole
from rt.net.authority.revocation import revoke
from rt.node.settings.http import HttpSettings
from rt.web.serving.server import WebServer
from rt.web.serving.tls_upgrade import HttpPlaces
from tests.forged_certificates import CLIENT, LOCAL, SERVER, Authority
from tests.replicator_host import eventually
from tests.web_site import shown

STRANGERS = "127.0.0.9"
PAGE = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Holder:
    """A connection with a place."""

    def __init__(self, name, is_waiting=True):
        self.name, self.is_waiting, self.has_ended = name, is_waiting, False

    def end(self):
        self.has_ended = True


def test_a_newcomer_ends_the_oldest_idle_connection_of_the_largest_network():
    """Otherwise the first to come keep everyone else out."""
    places = HttpPlaces(4)
    probe = Holder("probe")
    page, stuck, newer = Holder("page", is_waiting=False), Holder("stuck"), Holder("newer")
    places.take(probe, "10.0.0.1")
    for each in (page, stuck, newer):
        places.take(each, "10.0.0.2")
    places.take(Holder("another"), "10.0.0.3")
    assert stuck.has_ended
    assert [each.has_ended for each in (probe, page, newer)] == [False] * 3


def test_where_all_of_the_largest_network_are_being_answered_the_oldest_goes():
    """A flood of open pages is a flood."""
    places = HttpPlaces(3)
    pages = [Holder(str(n), is_waiting=False) for n in range(3)]
    for each in pages:
        places.take(each, "2001:db8::1" if each.name != "2" else "2001:db8::ffff")
    places.take(Holder("another"), "10.0.0.3")
    assert [each.has_ended for each in pages] == [True, False, False]


def test_a_place_that_was_given_back_is_free():
    """An end that ends another connection would thin out the honest ones."""
    places = HttpPlaces(1)
    first, second = Holder("first"), Holder("second")
    places.take(first, "10.0.0.1")
    places.leave(first)
    places.leave(first)
    places.take(second, "10.0.0.1")
    assert [first.has_ended, second.has_ended] == [False, False]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A node, and an authority for the port."""
    here = tmp_path_factory.mktemp("places")
    with shown(here) as node:
        yield SimpleNamespace(node=node, authority=Authority(str(here / "web")), here=str(here))


@pytest.fixture
def https(site, request):
    """The HTTPS port of the node, without http_ca; a test may change its deadline."""
    own = certificate_files(site.node.cluster.root + "/certs", "n1")
    options = getattr(request, "param", {})
    web = WebServer(HttpSettings("127.0.0.1:0", own.cert, own.key), site.node.site, **options)
    web.start()
    host, port = web.url.removeprefix("https://").split(":")
    yield SimpleNamespace(address=(host, int(port)), ca=own.ca)
    web.stop()


def trusting(https):
    """How a client speaks TLS to the port."""
    context = ssl.create_default_context(cafile=https.ca)
    context.check_hostname = False
    return context


def health(https, context=None):
    """The status that a probe gets from its own address."""
    context = context or trusting(https)
    connection = http.client.HTTPSConnection(*https.address, timeout=30, context=context)
    with contextlib.closing(connection):
        connection.request("GET", "/healthz")
        return connection.getresponse().status


def ended(sock):
    """Whether the other end has closed a connection."""
    sock.settimeout(0.2)
    try:
        while sock.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def test_strangers_that_never_finish_a_handshake_keep_no_probe_out(https):
    """HTTPS without http_ca admits everyone; uvicorn let a handshake take a minute."""
    with contextlib.ExitStack() as stack:
        idle = [
            stack.enter_context(socket.create_connection(https.address, 30, (STRANGERS, 0)))
            for _ in range(100)
        ]
        assert health(https) == 200
        assert eventually(lambda: ended(idle[0]), 60)  # it made room for a later one


@pytest.mark.parametrize("https", [{"request_s": 0.3}], indirect=True)
def test_a_handshake_has_a_deadline(https):
    """A descriptor that is never given back is one less for the log."""
    with socket.create_connection(https.address, 30) as idle:
        assert eventually(lambda: ended(idle), 60)


@pytest.mark.parametrize("said", [b"", b"GET /healthz HTTP/1.1\r\n", PAGE])
def test_strangers_that_take_every_place_keep_no_probe_out_and_end_no_page(https, said):
    """The sixty-fifth connection was answered with 503, and a node was restarted for it."""
    context = trusting(https)
    with contextlib.ExitStack() as stack:

        def opened(source, request):
            plain = socket.create_connection(https.address, 30, source)
            sock = stack.enter_context(context.wrap_socket(plain))
            sock.sendall(request)
            return sock

        page = opened(None, PAGE)
        assert page.recv(4096).startswith(b"HTTP/1.1 200")
        for _ in range(80):
            opened((STRANGERS, 0), said)
        assert health(https) == 200
        assert not ended(page)


@pytest.mark.parametrize(
    ("fault", "is_served"),
    [
        ({}, True),
        ({"start_days": -40}, False),
        ({"days": 399}, False),
        ({"start_days": 1}, False),
        ({"usages": [SERVER]}, False),
        ({"signer": (None, None)}, False),
        (None, False),
    ],
)
def test_http_ca_admits_only_valid_client_certificates_of_its_own(site, fault, is_served):
    """The port shows positions and names to every client that is admitted."""
    own = certificate_files(site.node.cluster.root + "/certs", "n1")
    settings = HttpSettings("127.0.0.1:0", own.cert, own.key, site.authority.files.cert)
    options = {"uris": [], "usages": [CLIENT], "hosts": LOCAL}
    web = WebServer(settings, site.node.site)
    web.start()
    try:
        host, port = web.url.removeprefix("https://").split(":")
        https = SimpleNamespace(address=(host, int(port)), ca=own.ca)
        context = trusting(https)
        if fault is not None:
            files = site.authority.forge(f"{site.here}/client", **(options | fault))
            context.load_cert_chain(files.cert, files.key)
        if is_served:
            assert health(https, context) == 200
        else:
            with pytest.raises((OSError, http.client.HTTPException)):
                health(https, context)
    finally:
        web.stop()


def distrust(site, ca):
    """Put another authority in the place of the port's."""
    shutil.copy(os.path.join(site.node.cluster.root, "certs", "ca.pem"), ca)


def revoke_eve(site, ca):
    """Revoke a certificate; the list is beside the authority of the port."""
    shutil.copy(revoke(site.authority.directory, "eve")[0], os.path.dirname(ca))


@pytest.mark.parametrize("change", [distrust, revoke_eve])
def test_a_client_of_the_http_port_is_cut_off_with_its_certificate(site, tmp_path, change, caplog):
    """It kept its page for as long as it liked, and came back until a restart."""
    own = certificate_files(os.path.join(site.node.cluster.root, "certs"), "n1")
    ca = str(shutil.copy(site.authority.files.ca, tmp_path))
    issue(site.authority.directory, "eve", CertificateRole.SUBSCRIBER, force=True)
    files = certificate_files(site.authority.directory, "eve")
    web = WebServer(HttpSettings("127.0.0.1:0", own.cert, own.key, ca), site.node.site)
    web.start()
    try:
        host, port = web.url.removeprefix("https://").split(":")
        https = SimpleNamespace(address=(host, int(port)), ca=own.ca)
        context = trusting(https)
        context.load_cert_chain(files.cert, files.key)
        assert health(https, context) == 200
        with context.wrap_socket(socket.create_connection(https.address, 30)) as page:
            page.sendall(PAGE)
            assert page.recv(4096).startswith(b"HTTP/1.1 200")
            change(site, ca)
            assert eventually(lambda: ended(page), 60)
        assert "HTTP client 127.0.0.1" in caplog.text
        with pytest.raises((OSError, http.client.HTTPException)):
            health(https, context)
        assert "its certificate is refused: it" in caplog.text
    finally:
        web.stop()
