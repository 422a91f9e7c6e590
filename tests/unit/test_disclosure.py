"""Disclosure: directories and addresses of peers are shown to those whom they concern."""

import json
import os
import re
import stat
from types import SimpleNamespace

import pytest

from rt.log.files.disk import make_private_directory
from rt.net.authority.identity import CertificateRole, PeerIdentity
from rt.node.admin.node_admin import NodeAdmin
from rt.node.observe.status import for_clients
from rt.web.serving.disclosure import encoded
from tests.control_fuzz import Sequencer
from tests.layout import PACKAGES, python_files, source
from tests.logs import MergedLog

SHOWN = {
    "result": {
        "publishers": {"jfk": [{
            "connect_time": "2026-01-01", "address": "10.0.0.7:4711",
            "target_directory": "/var/my data/flights/in/jfk", "session": "jfk",
        }, {"connect_time": "2026-01-01", "address": "10.0.0.7:4712", "target_directory": ""}]},
    },
    "clients": [{"peer": "spark", "address": "10.0.0.8:99", "position": "0.1.0"}],
    "address": "127.0.0.1:7401",
    "events": [{"text": "spark at 10.0.0.8:99: cannot write /var/lib/rt/flights/out/log.0.1"}],
}  # fmt: skip


def test_an_open_http_port_shows_no_directories_and_no_addresses_of_peers():
    """Anyone who reaches it learned where files are, and who connects from where."""
    text = encoded(SHOWN, is_open=True).decode()
    assert not re.search(r"10\.0\.0|/var|my data", text)
    shown = json.loads(text)
    first, second = shown["result"]["publishers"]["jfk"]
    assert first["target_directory"] == "jfk"
    assert first["address"] != second["address"]  # the page tells its rows apart by them
    assert shown["address"] == "127.0.0.1:7401"  # of the node itself
    assert shown["events"][0]["text"] == "spark at (address): cannot write log.0.1"


def test_a_port_that_asks_for_certificates_shows_all():
    """Its operators have to find files and peers."""
    assert json.loads(encoded(SHOWN)) == SHOWN


def test_a_status_names_the_addresses_of_clients_to_operators_only():
    """A subscriber learned where every other one is."""
    left = [each | {"left_ns": 5} for each in SHOWN["clients"]]
    fields = {
        "clients": SHOWN["clients"],
        "left": left,
        "addresses": {"n1": "10.0.0.1:7401"},
        "old": "/a/b/c",
    }
    shown = json.loads(for_clients(json.dumps(fields).encode()))
    assert shown["clients"] == [{"peer": "spark", "address": "", "position": "0.1.0"}]
    assert shown["left"] == [shown["clients"][0] | {"left_ns": 5}]
    assert (shown["addresses"], shown["old"]) == (fields["addresses"], "c")


@pytest.mark.parametrize(
    ("role", "is_whole"), [(CertificateRole.OPERATOR, True), (CertificateRole.SUBSCRIBER, False)]
)
def test_a_history_names_the_directory_of_the_node_to_operators_only(tmp_path, role, is_whole):
    """A subscriber needs the files, and not where they are on the machine of a node."""
    with MergedLog(str(tmp_path / "out")) as log:
        log.merge("jfk", [b"AA1"])
        member = SimpleNamespace(
            executor=SimpleNamespace(appender=log.appender, lacks_log=False),
            execution=SimpleNamespace(suspended=False),
        )
        settings = SimpleNamespace(name="n1", stream="flights")
        admin = NodeAdmin(settings, Sequencer(), member, None)
        peer = PeerIdentity("x", role, streams=("*",))
        answers = [admin.answer(b'{"do": "log-history"}', each) for each in (peer, peer)]
    head = json.loads(answers[1].partition(b"\n")[0])
    assert head["directory"] == (str(tmp_path / "out") if is_whole else "out")


def test_directories_are_for_this_user_alone(tmp_path):
    """Those of an export were readable by everyone, and `makedirs` leaves parents readable."""
    before = os.umask(0o022)
    try:
        make_private_directory(str(tmp_path / "a" / "b"))
        make_private_directory(str(tmp_path / "a" / "b"))
    finally:
        os.umask(before)
    for path in ("a", "a/b"):
        assert stat.S_IMODE(os.stat(tmp_path / path).st_mode) == 0o700


def test_every_directory_is_made_by_the_two_functions_that_make_it_private():
    """The next `os.makedirs` would be for everyone again."""
    makes = re.compile(r"os\.(?:makedirs|mkdir)\(|\.mkdir\(")
    found = {path for path in python_files(*PACKAGES) if makes.search(source(path))}
    assert found == {"rt/log/files/disk.py"}
