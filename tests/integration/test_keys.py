"""A private key that a group may write is used by no command: the group could replace it."""

import os

import pytest

from rt.errors import Misuse
from rt.net.authority.certificates import init_authority, issue
from rt.net.authority.identity import CertificateRole
from rt.node.settings.http import HttpSettings
from rt.web.serving.server import WebServer
from tests.commands import run

REFUSED = "its group may write this key"


@pytest.fixture
def certs(tmp_path):
    """Return a directory of certificates whose keys a group may write, but for the authority's."""
    directory = str(tmp_path / "certs")
    init_authority(directory)
    files = issue(directory, "jfk", CertificateRole.OPERATOR)
    os.chmod(files.key, 0o660)
    return directory


@pytest.mark.parametrize("command", [
    "status", "check", "bundle --out b.tar.gz", "trace jfk:0", "session list", "session show jfk",
    "session forget jfk", "session policy", "session quota", "cursor registered list", "group list",
    "group show g", "archive plan", "archive policy show", "archive roll", "archive lease",
    "push --drain", "pull --once", "cluster remove n1 --yes", "doctor",
])  # fmt: skip
def test_no_client_uses_it(certs, tmp_path, monkeypatch, command):
    """Every command says so, and dials no node."""
    monkeypatch.chdir(tmp_path)
    options = ("--nodes", "127.0.0.1:1", "--certs", certs, "--identity", "jfk", "--stream", "s")
    done = run(*command.split(), *options)
    if command.startswith("bundle"):
        assert done.exit_code == 0
        return
    assert done.exit_code != 0
    said = "our certificate cannot be used" if command == "doctor" else REFUSED
    assert said in done.output, done.output


def test_no_node_uses_it(tmp_path, monkeypatch):
    """Its certificate opens everything."""
    monkeypatch.chdir(tmp_path)
    assert run("cluster", "init", "c", "--nodes", 1, "--json").exit_code == 0
    os.chmod("c/certs/n1.key", 0o660)
    done = run("node", "--config", "c/n1.toml")
    assert done.exit_code != 0
    assert REFUSED in done.output


def test_no_authority_uses_it(certs):
    """It could issue every role."""
    os.chmod(os.path.join(certs, "ca.key"), 0o660)
    done = run("certs", "issue", "ewr", "--role", "publisher", "--dir", certs)
    assert done.exit_code != 0
    assert "others may use this key" in done.output


def test_the_http_port_does_not_use_it(certs):
    """It is a key like any other; its mode was not looked at."""
    cert, key = (os.path.join(certs, f"jfk.{end}") for end in ("pem", "key"))
    settings = HttpSettings(http="127.0.0.1:0", http_cert=cert, http_key=key)
    with pytest.raises(Misuse, match=REFUSED):
        WebServer(settings, lambda *_: None)
