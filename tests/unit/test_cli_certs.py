"""`rt certs`: from an empty directory to three peers that know each other."""

import json
import re
from dataclasses import astuple

import pytest

from rt.client.readers.settings import ConnectionSettings
from rt.errors import Misuse
from rt.net.authority.certificates import CertificateFiles, certificate_files
from rt.net.tls import client_context, server_context
from tests.commands import run as run_rt
from tests.forged_certificates import Authority


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs `rt certs` in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RT_CERTS", raising=False)
    return lambda *arguments, **options: run_rt("certs", *arguments, **options)


def done(result):
    """Return the output of a command that succeeded."""
    assert result.exit_code == 0, result.output
    return result.output


def failed(result, code=2):
    """Return the output of a command that failed without a traceback."""
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, SystemExit)
    return result.output


def test_examples_of_the_help_run_unchanged(run):
    """Readers paste them first."""
    text = done(run("--help"))
    examples = re.findall(r"^ +rt certs (.*)$", text, re.MULTILINE)
    assert len(examples) == 8
    for example in examples:
        done(run(*(word.strip("'") for word in example.split())))


@pytest.mark.parametrize("command", ["init", "issue", "renew", "revoke", "show", "grants"])
def test_each_command_has_an_example_in_its_help(run, command):
    """An example says what a synopsis cannot: what to type."""
    assert f"rt certs {command}" in done(run(command, "--help"))


def test_the_certificate_that_commands_present_by_default_is_made_as_they_say(run):
    """A newcomer names no identity; the error says what makes the one that is missing."""
    done(run("init"))
    default = ConnectionSettings()
    with pytest.raises(
        Misuse, match=r"client\.pem: .* make it with rt certs issue client, "
    ) as said:
        client_context(*astuple(certificate_files(default.certs, default.identity)))
    words = re.search(r"rt certs (issue client)", str(said.value))[1].split()
    done(run(*words, "--role", "subscriber"))
    assert client_context(*astuple(certificate_files(default.certs, default.identity)))


def test_what_was_issued_is_shown(run):
    """An operator must be able to see what a certificate grants before handing it out."""
    done(run("init"))
    done(run("issue", "jfk", "--role", "publisher", "--session", "jfk", "--session", "jfk-*"))
    facts = json.loads(done(run("show", "certs/jfk.pem", "--json")))
    assert facts["name"] == "jfk"
    assert facts["role"] == "publisher"
    assert facts["sessions"] == ["jfk", "jfk-*"]
    assert facts["streams"] == []
    assert facts["days_left"] == 30
    table = done(run("show", "certs/jfk.pem"))
    assert re.search(r"^sessions +jfk, jfk-\*$", table, re.MULTILINE)
    assert "streams" not in table


def test_hosts_of_a_node_are_shown(run):
    """`wrong host` is answered by looking here."""
    done(run("init"))
    done(run("issue", "n", "--role", "node", "--host", "n.example.org", "--host", "::1"))
    facts = json.loads(done(run("show", "certs/n.pem", "--json")))
    assert facts["hosts"] == ["n.example.org", "::1"]


def test_authority_is_shown_as_one(run):
    """An operator must not take ca.pem for a peer's certificate."""
    done(run("init"))
    assert json.loads(done(run("show", "certs/ca.pem", "--json")))["role"] == "authority"


def test_files_of_the_command_line_are_taken_by_tls(run):
    """The commands and the connections must agree about the files."""
    done(run("init", "c"))
    done(run("issue", "n", "--role", "node", "--dir", "c"))
    done(run("issue", "s", "--role", "subscriber", env={"RT_CERTS": "c"}))
    for name, make in (("n", server_context), ("s", client_context)):
        files = CertificateFiles("c/ca.pem", f"c/{name}.pem", f"c/{name}.key")
        make(files.ca, files.cert, files.key)


def test_renewing_takes_force_and_says_so(run):
    """The second issue of a name is a renewal or a mistake; only the operator knows."""
    done(run("init"))
    request = ("issue", "jfk", "--role", "publisher")
    done(run(*request))
    assert "use force" in failed(run(*request))
    done(run(*request, "--force"))


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (["issue", "jfk", "--role", "publisher"], "make one with rt certs init", 2),
        (["issue", "../jfk", "--role", "publisher"], "not a peer name", 2),
        (["issue", "jfk"], "--role", 2),
        (["issue", "jfk", "--role", "admin"], "admin", 2),
        (["issue", "jfk", "--role", "publisher", "--days", "91"], "91", 2),
        (["issue", "n", "--role", "node", "--session", "x"], "a node pushes no sessions", 2),
        (["show", "nowhere.pem"], "nowhere.pem: no such certificate", 2),
        (["show", "."], "directory", 2),
    ],
)
def test_wrong_use_is_one_line(run, arguments, words, code):
    """No traceback, no half-made file, and an exit code that a script can read."""
    assert words in failed(run(*arguments), code)


def test_file_that_is_not_a_certificate_is_named(run, tmp_path):
    """A key given for a certificate must not be printed or half read."""
    done(run("init"))
    assert "not a certificate" in failed(run("show", "certs/ca.key"))


def test_a_name_is_renewed_and_revoked_from_the_command_line(run):
    """The two commands that our error messages and SECURITY.md recommend."""
    done(run("init"))
    done(run("issue", "spark", "--role", "subscriber", "--stream", "flights", "--days", "7"))
    before = json.loads(done(run("show", "certs/spark.pem", "--json")))
    assert "subscriber" in done(run("renew", "spark"))
    after = json.loads(done(run("show", "certs/spark.pem", "--json")))
    kept = ("name", "role", "streams", "hosts")
    assert [after[key] for key in kept] == [before[key] for key in kept]
    assert (after["streams"], after["days_left"], after["revoked"]) == (["flights"], 7, None)
    assert after["serial"] != before["serial"]
    assert "revoked 2 certificates of spark" in done(run("revoke", "spark"))
    assert re.search(r"^revoked +20", done(run("show", "certs/spark.pem")), re.MULTILINE)
    assert "no further certificate" in done(run("revoke", "spark"))
    assert "it was revoked" in failed(run("renew", "spark"))


def test_scripts_are_told_what_was_made_as_json(run):
    """A deployment has to find the files without reading a sentence."""
    done(run("init"))
    issued = json.loads(done(run("issue", "jfk", "--role", "publisher", "--days", "7", "--json")))
    assert (issued["cert"], issued["key"]) == ("certs/jfk.pem", "certs/jfk.key")
    assert (issued["role"], issued["sessions"], issued["days_left"]) == ("publisher", ["jfk"], 7)
    renewed = json.loads(done(run("renew", "jfk", "--json")))
    assert renewed["serial"] != issued["serial"]
    revoked = json.loads(done(run("revoke", "jfk", "--json")))
    assert revoked == {"name": "jfk", "revoked": 2, "crl": "certs/crl.pem"}


def test_the_grants_are_shown_and_checked(run):
    """Before the file is copied to the nodes, and by an operator whose publisher is refused."""
    done(run("init"))
    done(run("issue", "jfk", "--role", "publisher", "--session", "jfk-*"))
    done(run("issue", "spark", "--role", "subscriber", "--stream", "flights", "--leases"))
    text = done(run("grants"))
    assert "publisher jfk: sessions jfk-*\n" in text
    assert "subscriber spark: streams flights; leases\n" in text
    shown = json.loads(done(run("grants", "--json")))
    assert [each["name"] for each in shown["grants"]] == ["jfk", "spark"]
    with open("certs/grants.toml", "a", encoding="utf-8") as file:
        file.write("[publisher.lga]\nsession = ['lga']\n")
    assert "[publisher.'lga']: 'session' is unknown" in failed(run("grants"))
    assert "no such file" in failed(run("grants", "--dir", "nowhere"))


def test_what_old_certificates_list_is_moved_to_the_file(run):
    """The one command that an operator runs before updating the nodes."""
    forger = Authority("certs")
    forger.forge("certs/old", uris=("rt://publisher/old", "rt://session/old-*"))
    assert "added publisher old, by its certificate" in done(run("grants", "--from-certificates"))
    assert "added" not in done(run("grants", "--from-certificates"))
    assert "publisher old: sessions old-*" in done(run("grants"))


def test_times_are_shown_with_the_zone_of_all_other_times(run):
    """Two spellings of UTC were on one screen; the JSON keeps the spelling that scripts parse."""
    done(run("init"))
    outputs = done(run("issue", "jfk", "--role", "publisher")) + done(run("show", "certs/jfk.pem"))
    assert "+00:00" not in outputs
    assert len(re.findall(r"[0-9]{2}:[0-9]{2}:[0-9]{2}Z", outputs)) == 3
    assert json.loads(done(run("show", "certs/jfk.pem", "--json")))["until"].endswith("+00:00")
