"""The gateway: programs that speak HTTP read and append to the streams of a merged log."""

import asyncio
import hashlib
import http.client
import json
import socket
import ssl
import threading
import tracemalloc
from contextlib import ExitStack, closing

import pytest
from archive_cluster import STREAM
from replicator_host import eventually

from rt.client.client import connect
from rt.errors import Misuse
from rt.gateway.access import read_tokens
from rt.gateway.gateway import Gateway
from rt.gateway.settings import GatewaySettings
from rt.net.admin import AdminClient
from rt.net.authority.certificates import issue
from rt.net.authority.identity import CertificateRole

JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain"}


@pytest.fixture(scope="module")
def client_of(cluster):
    """Make clients of the cluster."""

    def make(root):
        return connect(f"{cluster.root}/clients.toml", root=root)

    return make


@pytest.fixture(scope="module")
def gateway_of(cluster, client_of):
    """Make gateways of the cluster."""

    def make(settings, root):
        nodes = AdminClient(cluster.addresses, cluster.contexts("subscriber"), keep=True)
        return Gateway(settings, client_of(root), root, nodes)

    return make


@pytest.fixture(scope="module")
def gateway(gateway_of, tmp_path_factory):
    """A gateway that appends, open to all on this machine."""
    root = str(tmp_path_factory.mktemp("edge"))
    with gateway_of(GatewaySettings("127.0.0.1:0", append=True), root) as running:
        yield running


def ask(gateway, method, path, body=None, context=None, **headers):
    """Make a request; return the status, the headers and the body."""
    address = gateway.url.split("/")[2]
    made = http.client.HTTPConnection if context is None else http.client.HTTPSConnection
    options = {} if context is None else {"context": context}
    with closing(made(address, timeout=60, **options)) as connection:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, f"/v1/stream/{path}", body, named)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()


def make(gateway, name, **headers):
    """Make a stream; nodes that have just started may need seconds to agree on headers."""
    assert eventually(lambda: ask(gateway, "PUT", name, **headers)[0] in {200, 201}, 60)


def test_what_is_appended_is_read_in_order(gateway):
    """One message, several in one array, and what follows an offset."""
    make(gateway, "gates", **JSON)
    assert ask(gateway, "PUT", "gates", **JSON)[0] == 200
    assert ask(gateway, "PUT", "gates", **TEXT)[0] == 409
    status, headers, _ = ask(gateway, "POST", "gates", '{"gate": 7}', **JSON)
    assert status == 204
    ask(gateway, "POST", "gates", '[{"gate": 8}, {"gate": 9}]', **JSON)
    _, all_headers, body = ask(gateway, "GET", "gates")
    assert [each["gate"] for each in json.loads(body)] == [7, 8, 9]
    assert all_headers["stream-up-to-date"] == "true"
    _, _, body = ask(gateway, "GET", f"gates?offset={headers['stream-next-offset']}")
    assert [each["gate"] for each in json.loads(body)] == [8, 9]


def test_programs_of_rt_and_of_http_share_a_stream(gateway, client_of, tmp_path):
    """The key of a message is the stream's name."""
    make(gateway, "mixed", **TEXT)
    with client_of(tmp_path / "other") as client:
        publisher = client.publisher("jfk")
        publisher.publish(b"from rt ", key=b"mixed", confirm="merged")
        ask(gateway, "POST", "mixed", "from http", **TEXT)
        seen = [each for each in client.subscriber(follow=False) if each.key == b"mixed"]
    assert [(each.session[:4], each.payload) for each in seen] == [
        ("http", b""), ("jfk", b"from rt "), ("http", b"from http"),
    ]  # fmt: skip
    assert ask(gateway, "GET", "mixed")[2] == b"from rt from http"


def test_a_long_poll_ends_with_what_comes(gateway):
    """No client has to ask again and again."""
    make(gateway, "news", **TEXT)
    got = []
    path = "news?offset=now&live=long-poll"
    waiting = threading.Thread(target=lambda: got.append(ask(gateway, "GET", path)))
    waiting.start()
    while not got:
        ask(gateway, "POST", "news", "x", **TEXT)
        waiting.join(0.1)
    status, headers, body = got[0]
    assert (status, set(body)) == (200, {ord("x")})
    assert headers["stream-cursor"]


def test_events_follow_a_stream_to_its_end(gateway):
    """And every line of a message has its own field, as the format of events wants it."""
    make(gateway, "lines", **TEXT)
    ask(gateway, "POST", "lines", "one\n two", **TEXT)
    ask(gateway, "POST", "lines", stream_closed="true")
    status, headers, body = ask(gateway, "GET", "lines?offset=-1&live=sse")
    assert (status, headers["content-type"]) == (200, "text/event-stream")
    data, control = body.decode().split("\n\n")[:2]
    assert data == "event: data\ndata:one\ndata:  two"
    assert json.loads(control.partition("data:")[2])["streamClosed"] is True


def test_an_append_may_be_repeated(gateway):
    """Also after the gateway has ended: what it knows is in the log."""
    producer = {"Producer_Id": "p", "Producer_Epoch": "0", "Producer_Seq": "0"}
    make(gateway, "once", **TEXT)
    assert ask(gateway, "POST", "once", "a", **TEXT, **producer)[0] == 200
    status, headers, _ = ask(gateway, "POST", "once", "a", **TEXT, **producer)
    assert (status, headers["producer-seq"]) == (204, "0")
    late = {**producer, "Producer_Seq": "2"}
    status, headers, _ = ask(gateway, "POST", "once", "c", **TEXT, **late)
    assert (status, headers["producer-expected-seq"]) == (409, "1")
    assert ask(gateway, "GET", "once")[2] == b"a"


def test_two_gateways_answer_alike(gateway, gateway_of, tmp_path):
    """The merged log decides which of two appends was first, and all of them follow it."""
    producer = {"Producer_Id": "p", "Producer_Epoch": "0"}
    make(gateway, "both", **TEXT)
    settings = GatewaySettings("127.0.0.1:0", append=True)
    with gateway_of(settings, str(tmp_path / "two")) as other:
        assert eventually(lambda: ask(other, "HEAD", "both")[0] == 200)
        found = []
        for number in range(10):
            threads = [
                threading.Thread(
                    target=lambda each=each, number=number: found.append(
                        ask(each, "POST", "both", f"{number} ", **TEXT, **producer,
                            Producer_Seq=str(number))[0]
                    )
                )
                for each in (gateway, other)
            ]  # fmt: skip
            for each in threads:
                each.start()
            for each in threads:
                each.join()
        wanted = b"0 1 2 3 4 5 6 7 8 9 "
        assert ask(gateway, "GET", "both")[2] == wanted
        assert eventually(lambda: ask(other, "GET", "both")[2] == wanted)
        assert sorted(found) == [200] * 10 + [204] * 10


def test_a_gateway_that_is_started_again_knows_its_streams(gateway_of, tmp_path):
    """Without its file, it makes them from the log again."""
    settings, root = GatewaySettings("127.0.0.1:0", append=True), str(tmp_path / "edge")
    with gateway_of(settings, root) as first:
        make(first, "kept", **TEXT)
        ask(first, "POST", "kept", "a", **TEXT)
    for delete in (False, True):
        if delete:
            (tmp_path / "edge" / STREAM / "gateway.sqlite").unlink()
        with gateway_of(settings, root) as again:
            assert eventually(lambda again=again: ask(again, "HEAD", "kept")[0] == 200)
            assert eventually(lambda again=again: ask(again, "GET", "kept")[2] == b"a")


def test_one_gateway_serves_a_directory(gateway_of, tmp_path):
    """Two would write one file of streams, each as far as it has read."""
    settings, root = GatewaySettings("127.0.0.1:0"), str(tmp_path / "edge")
    refused = pytest.raises(Misuse, match="another gateway serves")
    with gateway_of(settings, root), refused:
        gateway_of(settings, root)
    with gateway_of(settings, root) as again:
        assert not again.failure


@pytest.mark.parametrize("name", ["%E2%82%AC%20a", "a%3Fb", "a/b%2523"])
def test_the_location_of_a_stream_leads_to_it(gateway, name):
    """Whatever letters its name has."""
    make(gateway, "first", **TEXT)
    status, headers, _ = ask(gateway, "PUT", name, **TEXT)
    assert status == 201
    assert headers["location"] == gateway.url + name
    path = headers["location"].partition("/v1/stream/")[2]
    assert ask(gateway, "POST", path, "x", **TEXT)[0] == 204
    assert ask(gateway, "GET", name)[2] == b"x"


def test_a_reader_that_is_ahead_of_a_gateway_is_not_sent_back(gateway):
    """It comes from another one, and would read the same again."""
    make(gateway, "ahead", **TEXT)
    ask(gateway, "POST", "ahead", stream_closed="true")
    offset = "00000fffffffffff"
    status, headers, _ = ask(gateway, "GET", f"ahead?offset={offset}&live=long-poll")
    assert (status, headers["stream-next-offset"]) == (204, offset)


def test_a_put_that_is_repeated_while_the_first_is_under_way_adds_nothing_twice(gateway):
    """Its client waited too short a time."""
    make(gateway, "first", **TEXT)
    for number in range(5):
        name, found = f"made{number}", []
        threads = [
            threading.Thread(
                target=lambda name=name, found=found: found.append(
                    ask(gateway, "PUT", name, "body", **TEXT)[0]
                )
            )
            for _ in range(4)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert sorted(found) == [200, 200, 200, 201]
        assert ask(gateway, "GET", name)[2] == b"body"


def test_a_stream_of_html_is_no_page_of_the_gateway(gateway):
    """It would run with the rights of who opens it, and append or delete in their name."""
    make(gateway, "page", Content_Type="text/html")
    assert ask(gateway, "GET", "page")[1]["content-security-policy"] == "sandbox"


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status", "words"),
    [
        ("GET", "nothing", {}, None, 404, "there is no such stream"),
        ("POST", "nothing", TEXT, "x", 404, "there is no such stream"),
        ("POST", "there", TEXT, "", 400, "the body is empty"),
        ("POST", "there", {}, "x", 400, "Content-Type is missing"),
        ("POST", "there", JSON, "1", 409, "the stream's content type is text/plain"),
        ("GET", "there?offset=7", {}, None, 400, "offset is '7'"),
        ("GET", "there?live=sse", {}, None, 400, "a live read needs an offset"),
        ("GET", "there?offset=-1&live=x", {}, None, 400, "live is 'x'"),
        ("PUT", "fork", {"Stream_Forked_From": "/v1/stream/there"}, None, 501, "no forks"),
        ("PUT", "x", {"Stream_TTL": "1.5"}, None, 400, "Stream-TTL is '1.5'"),
        ("PATCH", "there", {}, None, 405, "PATCH is no request"),
        ("PUT", "x" * 300, {}, None, 404, "a stream's name has 1 to 255"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(
    gateway, method, path, headers, body, status, words
):
    """A traceback does not help the author of a client."""
    make(gateway, "there", **TEXT)
    found, _, said = ask(gateway, method, path, body, **headers)
    assert (found, words in said.decode()) == (status, True), said
    assert said.decode().count("\n") == 1


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"Origin": "https://other.example"}, "pages of https://other.example may not use"),
        ({"Origin": "null"}, "pages of null may not use"),
        ({"Host": "rebound.example"}, "is not a name of this machine"),
    ],
)
def test_a_page_of_another_site_appends_nothing(gateway, headers, words):
    """A browser sends such requests for any page, and this port asks for no identity."""
    make(gateway, "mine", **TEXT)
    status, _, said = ask(gateway, "POST", "mine", "x", **TEXT, **headers)
    assert (status, words in said.decode()) == (403, True)
    assert ask(gateway, "GET", "mine")[2] == b""


def test_pages_of_a_named_site_use_the_gateway(gateway_of, tmp_path):
    """With what their browser needs to hear before it shows them the answer."""
    settings = GatewaySettings("127.0.0.1:0", append=True, origins=("https://shop.example",))
    with gateway_of(settings, str(tmp_path / "edge")) as running:
        ours = {"Origin": "https://shop.example"}
        status, headers, _ = ask(running, "OPTIONS", "cart", **ours)
        assert (status, headers["access-control-allow-origin"]) == (204, ours["Origin"])
        _, headers, _ = ask(running, "OPTIONS", "cart", Origin="https://other.example")
        assert "access-control-allow-origin" not in headers
        make(running, "cart", **TEXT, **ours)
        _, headers, _ = ask(running, "HEAD", "cart", **ours)
        assert "Stream-Next-Offset" in headers["access-control-expose-headers"]


def test_only_known_clients_are_served(gateway_of, tmp_path):
    """With tokens, no other client reads; and a token may be for reading only."""
    digests = [hashlib.sha256(each).hexdigest() for each in (b"secret", b"look")]
    (tmp_path / "tokens").write_text(f"# ours\nweb append {digests[0]}\npage read {digests[1]}\n")
    settings = GatewaySettings("127.0.0.1:0", append=True, tokens=str(tmp_path / "tokens"))
    with gateway_of(settings, str(tmp_path / "edge")) as running:
        ours = {"Authorization": "Bearer secret"}
        status, headers, _ = ask(running, "PUT", "mine", **TEXT)
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert ask(running, "PUT", "mine", **TEXT, Authorization="Bearer wrong")[0] == 401
        make(running, "mine", **TEXT, **ours)
        assert ask(running, "POST", "mine", "x", **TEXT, Authorization="Bearer look")[0] == 403
        assert ask(running, "GET", "mine", Authorization="Bearer look")[0] == 200
    (tmp_path / "tokens").write_text("web append secret\n")
    with pytest.raises(Misuse, match="tokens, line 1: write NAME"):
        read_tokens(str(tmp_path / "tokens"))


def test_a_certificate_says_who_appends(cluster, client_of, gateway_of, tmp_path):
    """Each client has a session of its own, so the log says who published what."""
    certs = f"{cluster.root}/certs"
    issue(certs, "door", CertificateRole.PUBLISHER)
    settings = GatewaySettings(
        "127.0.0.1:0", append=True, tls_cert=f"{certs}/n1.pem", tls_key=f"{certs}/n1.key",
        tls_ca=f"{certs}/ca.pem",
    )  # fmt: skip
    with gateway_of(settings, str(tmp_path / "edge")) as running:
        context = ssl.create_default_context(cafile=f"{certs}/ca.pem")
        context.check_hostname = False
        with pytest.raises(OSError, match=r"certificate required|reset|EOF|closed"):
            ask(running, "GET", "doors", context=context)
        context.load_cert_chain(f"{certs}/door.pem", f"{certs}/door.key")
        make(running, "doors", context=context, **TEXT)
        context.load_cert_chain(f"{certs}/subscriber.pem", f"{certs}/subscriber.key")
        status, _, words = ask(running, "POST", "doors", "x", context, **TEXT)
        assert (status, words) == (403, b"subscriber's certificate is not a publisher's\n")
    with client_of(tmp_path / "other") as client:
        sessions = {m.session for m in client.subscriber(follow=False) if m.key == b"doors"}
    assert {each.rpartition("-")[2] for each in sessions} == {"door"}


def test_a_gateway_for_everyone_listens_on_this_machine_only():
    """Every machine that reaches the port could append."""
    with pytest.raises(Misuse, match="which other machines can reach"):
        GatewaySettings("0.0.0.0:7480")


def test_readers_that_wait_cost_nothing(gateway):
    """A hundred open pages, each of which hears of one append."""
    make(gateway, "many", **TEXT)
    host, port = gateway.url.split("/")[2].split(":")

    async def read():
        reader, writer = await asyncio.open_connection(host, int(port))
        path = "/v1/stream/many?offset=now&live=sse"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        await reader.readuntil(b"upToDate")
        ready.append(None)
        await reader.readuntil(b"hello")
        writer.close()

    async def all_of_them():
        readers = asyncio.gather(*(read() for _ in range(100)))
        while len(ready) < 100:
            await asyncio.sleep(0.01)
        status = await asyncio.to_thread(lambda: ask(gateway, "POST", "many", "hello", **TEXT)[0])
        await readers
        return status

    ready = []
    assert asyncio.run(asyncio.wait_for(all_of_them(), 120)) == 204


def test_readers_that_take_nothing_cost_the_others_nothing(gateway_of, tmp_path):
    """Eight tabs that sleep must not hold what is sent to them in the gateway's memory."""
    settings = GatewaySettings("127.0.0.1:0", append=True)
    with gateway_of(settings, str(tmp_path / "edge")) as gateway, ExitStack() as undo:
        make(gateway, "loud", **TEXT)
        host, port = gateway.url.split("/")[2].split(":")
        for _ in range(8):
            sleeper = undo.enter_context(socket.socket())
            sleeper.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sleeper.connect((host, int(port)))
            path = "/v1/stream/loud?offset=-1&live=sse"
            sleeper.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        payload, count = "x" * 250_000, 24  # more than the kernel takes of each
        tracemalloc.start()
        undo.callback(tracemalloc.stop)
        for _ in range(count):
            assert ask(gateway, "POST", "loud", payload, **TEXT)[0] == 204
        assert tracemalloc.get_traced_memory()[0] < 8 * 1_000_000  # of 6 for each
        read, offset = 0, "-1"
        while read < count * len(payload):
            _, headers, body = ask(gateway, "GET", f"loud?offset={offset}")
            read, offset = read + len(body), headers["stream-next-offset"]
        assert read == count * len(payload)
