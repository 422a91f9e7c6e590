"""What a gateway serves beside the streams of the protocol: the log, and cursors."""

import hashlib
import http.client
import json
from contextlib import closing
from urllib.parse import urlencode

import pytest
from archive_cluster import ArchiveCluster
from replicator_host import eventually

from rt.client.client import connect
from rt.gateway.gateway import Gateway
from rt.gateway.settings import GatewaySettings
from rt.net.admin import AdminClient

JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain"}


class Served:
    """A cluster of one node with a gateway, which takes tokens as well."""

    def __init__(self, cluster, root):
        self.cluster = cluster
        tokens = f"{root}.tokens"
        digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("a", "a.b")}
        with open(tokens, "w", encoding="ascii") as file:
            file.writelines(f"{name} append {digest}\n" for name, digest in digests.items())
        nodes = AdminClient(cluster.addresses, cluster.contexts("subscriber"), keep=True)
        settings = GatewaySettings("127.0.0.1:0", append=True, tokens=tokens)
        client = connect(f"{cluster.root}/clients.toml", root=root)
        self.gateway = Gateway(settings, client, root, nodes)

    def ask(self, method, path, body=None, token="a", **headers):
        """Make a request; return the status, the headers and the body."""
        address = self.gateway.url.split("/")[2]
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        named["Authorization"] = f"Bearer {token}"
        with closing(http.client.HTTPConnection(address, timeout=60)) as connection:
            connection.request(method, path, body, named)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, found, answer.read()

    def log(self, **query):
        """Read the log; return the headers and the messages."""
        status, headers, body = self.ask("GET", f"/v1/log?{urlencode(query, doseq=True)}")
        assert status == 200, body
        return headers, [json.loads(each) for each in body.splitlines()]

    def make(self, name, **headers):
        """Make a stream; nodes that have just started may need seconds to agree on headers."""
        path = f"/v1/stream/{name}"
        assert eventually(lambda: self.ask("PUT", path, **headers)[0] in {200, 201}, 60)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A gateway that appends."""
    with ArchiveCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        running = Served(cluster, str(tmp_path_factory.mktemp("edge") / "root"))
        with running.gateway:
            yield running


@pytest.fixture(scope="module")
def published(served, tmp_path_factory):
    """Messages of programs of rt in the log of `served`."""
    root = str(tmp_path_factory.mktemp("program"))
    with connect(f"{served.cluster.root}/clients.toml", root=root) as client:
        publisher = client.publisher("jfk", confirm="merged")
        payloads = [json.dumps({"delay": each}).encode() for each in range(20)]
        publisher.publish_many(payloads, [b"AA%d" % (each % 2) for each in range(20)])
        publisher.publish(b"\xff", key=b"AA0")
        publisher.flush("merged", timeout_s=60)
    first = {"session": "jfk", "max": 1, "wait": 30}
    assert eventually(lambda: served.log(**first)[1], 60)
    assert eventually(lambda: len(served.log(session="jfk")[1]) == 21, 60)
    return served


def test_the_log_is_read_in_parts_without_a_hole_or_a_double(published):
    """Each part says where the next begins, and the last that it is the end."""
    numbers, begin = [], "earliest"
    while True:
        headers, messages = published.log(**{"from": begin}, session="jfk", max=4)
        numbers += [each["sequence"] for each in messages]
        begin = headers["rt-next"]
        if "rt-up-to-date" in headers:
            break
    assert numbers == list(range(21))


def test_what_is_wanted_is_chosen_as_by_rt_subscribe(published):
    """By session, key and field; a payload that is no text is there in another field."""
    assert len(published.log(session="jf*", key_prefix="AA1")[1]) == 10
    found = published.log(session=["jfk", "lga"], where=[".delay>=5", "key=AA0"])[1]
    assert [each["payload"] for each in found][:1] == ['{"delay": 6}']
    assert published.log(session="jfk")[1][-1]["payload_base64"] == "/w=="
    assert published.log(session="none", wait=0)[1] == []


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("max=x", "max is 'x'"),
        ("max=99999", "from 0 to 10000"),
        ("wait=1e9", "wait is '1e9'"),
        ("form=latest", "'form' is no parameter; use from, max"),
        ("where=delay", "delay"),
        ("from=yesterday", "yesterday"),
        ("session=A B", "A B"),
    ],
)
def test_a_wrong_question_is_answered_with_one_sentence(served, query, words):
    """And with status 400."""
    status, _, body = served.ask("GET", f"/v1/log?{query.replace(' ', '%20')}")
    assert status == 400, body
    assert words in body.decode()
    assert body.count(b"\n") == 1


def test_a_reader_waits_for_what_comes(published):
    """From the end, with a question that is open until then."""
    published.make("late", **TEXT)
    headers, messages = published.log(**{"from": "latest"})
    assert not messages
    published.ask("POST", "/v1/stream/late", "x", **TEXT)
    _, messages = published.log(**{"from": headers["rt-next"]}, wait=30)
    assert messages[0]["payload"] == "x"


def test_a_cursor_is_a_url(published):
    """Taken, read with, acknowledged, released: each answer has what the nodes have agreed on."""
    path = "/v1/cursors/etl"
    assert published.ask("GET", path)[0] == 404
    status, _, body = published.ask("PUT", f"{path}?from=earliest&silence=60")
    taken = json.loads(body)
    assert (status, taken["position"]) == (200, "0.0.0")
    headers, messages = published.log(**{"from": taken["position"]}, max=5)
    assert len(messages) == 5
    ack = f"{path}?epoch={taken['epoch']}&position={headers['rt-next']}"
    assert published.ask("POST", ack)[0] == 200
    shown = json.loads(published.ask("GET", path)[2])
    assert shown["position"] == headers["rt-next"]
    assert published.ask("PUT", path)[0] == 409
    fenced = json.loads(published.ask("PUT", f"{path}?takeover=fence")[2])
    assert (fenced["epoch"], fenced["position"]) == (taken["epoch"] + 1, headers["rt-next"])
    status, _, body = published.ask("POST", ack)
    assert status == 409
    assert b"taken over" in body
    released = f"{path}?epoch={fenced['epoch']}&release=true"
    assert published.ask("POST", released)[0] == 200
    assert published.ask("PUT", path)[0] == 200
    assert published.ask("DELETE", path)[0] == 204
    assert published.ask("DELETE", path)[0] == 404


def test_each_identity_has_cursors_of_its_own(published):
    """Of the same name, and whatever its own name is."""
    for token in ("a", "a.b"):
        assert published.ask("PUT", "/v1/cursors/mine?from=latest", token=token)[0] == 200
    assert published.ask("DELETE", "/v1/cursors/mine", token="a")[0] == 204
    assert published.ask("GET", "/v1/cursors/mine", token="a.b")[0] == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/v1/cursors/UPPER"),
        ("PUT", "/v1/cursors/x?takeover=perhaps"),
        ("PUT", "/v1/cursors/x?silence=long"),
        ("PUT", f"/v1/cursors/x?silence={'9' * 400}"),
        ("PUT", "/v1/cursors/x?silence=86401"),
        ("POST", "/v1/cursors/x"),
        ("POST", "/v1/cursors/x?epoch=1&position=here"),
        ("POST", "/v1/cursors/x?epoch=%C2%B2&position=0.0.0"),
    ],
)
def test_a_wrong_request_for_a_cursor_is_named(served, method, path):
    """In one line, and with status 400."""
    status, _, body = served.ask(method, path)
    assert (status, body.count(b"\n")) == (400, 1)


def test_several_messages_in_a_body_are_several_messages(served):
    """In lines, and behind their lengths; a producer repeats them safely."""
    served.make("lines", **JSON)
    producer = {"Producer_Id": "p", "Producer_Epoch": "0", "Producer_Seq": "0"}
    lines = {"Content-Type": "application/x-ndjson", **producer}
    assert served.ask("POST", "/v1/stream/lines", b'{"a":1}\r\n\n{"a":2}', **lines)[0] == 200
    assert served.ask("POST", "/v1/stream/lines", b'{"a":1}\r\n\n{"a":2}', **lines)[0] == 204
    assert served.ask("GET", "/v1/stream/lines")[2] == b'[{"a":1},{"a":2}]'
    status, _, body = served.ask("POST", "/v1/stream/lines", b'{"a":1}\n{"a', **lines)
    assert status == 400
    assert b"message 2 of the body" in body
    served.make("frames", **TEXT)
    frames = {"Content-Type": "application/vnd.rt.messages"}
    body = b"".join(len(each).to_bytes(4, "big") + each for each in (b"one", b"", b"three"))
    assert served.ask("POST", "/v1/stream/frames", body, **frames)[0] == 204
    assert served.ask("GET", "/v1/stream/frames")[2] == b"onethree"
    assert served.ask("POST", "/v1/stream/frames", body[:-1], **frames)[0] == 400
    _, messages = served.log(key_prefix="frames", where="session=http-*")
    assert [each["payload"] for each in messages][-3:] == ["one", "", "three"]


def test_a_request_says_how_long_it_waits(served):
    """`respond-async` is answered when the nodes keep it, and the log decides afterwards."""
    served.make("quick", **TEXT)
    status, headers, _ = served.ask(
        "POST", "/v1/stream/quick", "x", Prefer="respond-async, wait=30", **TEXT
    )
    assert (status, headers["preference-applied"]) == (202, "respond-async")
    assert eventually(lambda: served.ask("GET", "/v1/stream/quick")[2] == b"x", 60)


def test_the_last_message_of_a_stream_is_read_at_once(served):
    """Closing adds no message; an empty stream has none."""
    served.make("state", **JSON)
    assert served.ask("GET", "/v1/stream/state?offset=last")[2] == b"[]"
    for each in ("1", "2", "3"):
        served.ask("POST", "/v1/stream/state", each, **JSON)
    served.ask("POST", "/v1/stream/state", Stream_Closed="true")
    status, headers, body = served.ask("GET", "/v1/stream/state?offset=last")
    assert (status, body, headers["cache-control"]) == (200, b"[3]", "no-store")
    assert headers["stream-up-to-date"] == "true"


def test_the_description_names_what_is_served(served):
    """Each path and method answers; the page shows them all."""
    status, _, body = served.ask("GET", "/openapi.json")
    about = json.loads(body)
    assert status == 200
    page = served.ask("GET", "/")[2].decode()
    for path, methods in about["paths"].items():
        assert path in page
        for method in set(methods) - {"parameters"}:
            status, _, words = served.ask(method.upper(), path.replace("{name}", "not-there"))
            assert status in {200, 201, 204, 400, 404}, (path, method, words)
    status, headers, _ = served.ask("PATCH", "/v1/log")
    assert (status, headers["allow"]) == (405, "GET")
    query = {each["name"] for each in about["paths"]["/v1/log"]["get"]["parameters"]}
    assert query == {"from", "max", "wait", "session", "key_prefix", "where"}
