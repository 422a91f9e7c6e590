"""Masking: what leaves a machine, or is recorded for all, has no password or token in it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rt.errors import Misuse
from rt.masking import demand_no_secret, masked, without_secrets
from rt.net.authority.identity import CertificateRole, PeerIdentity
from rt.node.admin.audit import AuditLog
from rt.offload.offload import offload
from tests.control_fuzz import node_admin

SECRET = "hunter2hunter2"
OPERATOR = PeerIdentity("alice", CertificateRole.OPERATOR)
SPARK = PeerIdentity("spark", CertificateRole.SUBSCRIBER, streams=("*",))


@pytest.mark.parametrize(
    "text",
    [
        "s3://me:{}@store/x",
        "s3://{}@store/x",
        "s3://me:a/b{}@store/x",
        "s3://me:a@b{}@store/x",
        "s3://me:{}/c@d@store/x",
        's3://me:a"{}@store/x',
        "s3://me:a?{}@store/x",
        "https://store/x?sig={}&se=2026",
        "https://store/x?se=2026&X-Amz-Signature={}",
        "https://store/x?X-Amz-Security-Token={}#part",
        "https://store/x?access_token={}",
        "password={}",
        "password = {}",
        "password: {}",
        "PASSWORD='{} and more'",
        'passwd="{}",',
        '{{"password": "{}", "x": 1}}',
        '{{"aws_secret_access_key":"{}"}}',
        "AccountKey={};EndpointSuffix=x",
        "api-key: {}",
        "--password {}",
        "tell --db-password '{} x' --host h",
        "--token={}",
        "Authorization: Bearer {}",
        "authorization: token {}",
        "Authorization: Digest username=me, response={}",
        "bearer {}",
        "curl -H 'Authorization: Basic {}' https://store",
        "Basic {}==",
        "it said eyJ{}.eyJb.c",
        "pwd={}",
        "client_secret={}",
        "shared key={}",
    ],
)
def test_a_secret_is_left_out_wherever_it_is_written(text):
    """Each of these, or one like it, was in a log that somebody wanted to send."""
    assert SECRET not in without_secrets(text.format(SECRET))


@pytest.mark.parametrize(
    "text",
    [
        "INFO rt.node: session jfk is pushed by publisher from 0.3.4096",
        "n1 at 127.0.0.1:7401: nothing was received from it for 15 s",
        "/etc/rt/certs/n1.pem: expires in 9.0 days",
        "s3://bucket/flights/log.0.3.zst",
        "basic checks passed",
        "",
    ],
)
def test_what_has_no_secret_stays_as_it_is(text):
    """A bundle that says nothing is no help."""
    assert without_secrets(text) == text


PASSWORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=30)


@given(PASSWORDS, st.sampled_from(["s3://me:{}@h/x", "password={}", "--token {}", "?sig={}"]))
def test_no_part_of_a_password_stays(password, template):
    """Slashes, at signs, quotes, percent signs: people are told to use them."""
    planted = f"<[{password}]>"
    shown = without_secrets(f"before {template.format(planted)} after")
    assert "<[" not in shown
    assert "]>" not in shown
    assert shown.startswith("before ")
    assert shown.endswith(" after")


@given(st.text(max_size=200))
def test_masking_a_text_again_changes_nothing(text):
    """Each place that shows a text may mask it, even if another has."""
    once = without_secrets(text)
    assert without_secrets(once) == once


def test_texts_within_json_are_masked_and_nothing_else():
    """A status is JSON, and stays that."""
    fields = {"url": f"s3://me:{SECRET}@h/x", "rows": [1, None, f"token={SECRET}"], "end": "0.1.0"}
    shown = masked(fields)
    assert SECRET not in json.dumps(shown)
    assert (shown["rows"][:2], shown["end"]) == ([1, None], "0.1.0")


@pytest.mark.parametrize(
    "address",
    [
        "s3://me:{}@store/x", "s3://{}@store/x", "sftp://me:a/{}@store/x", "s3://me:a?{}@store",
        "https://store/x?sig={}", "simplecache::s3://me:{}@store/x", "zip://a::s3://me:{}@store/x",
    ],
)  # fmt: skip
def test_the_address_of_copies_may_have_no_credentials(address):
    """It would be in the ledger of every node, in the audit log, and shown to every reader."""
    with pytest.raises(Misuse, match="give credentials to this process alone") as caught:
        demand_no_secret(address.format(SECRET))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "s3://bucket/flights",
        "s3://bucket/a@b",
        "/mnt/backup/a:b@c=d?e=f",
        "memory://x",
        "file:///a",
    ],
)
def test_an_address_without_credentials_may_be_any(address, tmp_path):
    """Paths have strange characters."""
    demand_no_secret(address)
    admin = node_admin(AuditLog(str(tmp_path / "audit.jsonl")))
    note = json.dumps({"url": address, "to": "0.0.0"})
    line = json.dumps({"do": "offloaded", "text": note}).encode()
    answer = admin.answer(line, OPERATOR, "here")
    assert "error" not in json.loads(answer)


def test_a_node_refuses_to_record_a_password_and_does_not_log_it(tmp_path):
    """A client of an older version sends it all the same."""
    audit = AuditLog(str(tmp_path / "audit.jsonl"))
    admin = node_admin(audit)
    note = json.dumps({"url": f"s3://me:{SECRET}@store/x", "to": "0.1.0"})
    line = json.dumps({"do": "offloaded", "text": note}).encode()
    answer = admin.answer(line, OPERATOR, "here")
    assert json.loads(answer)["code"] == "misuse"
    assert SECRET not in answer.decode()
    recorded = (tmp_path / "audit.jsonl").read_text()
    assert "offloaded" in recorded
    assert SECRET not in recorded


def test_nothing_is_copied_to_an_address_that_may_not_be_recorded(tmp_path):
    """It would be refused after an hour of copying, and be in a note beside the log."""

    class Named:
        address = f"s3://me:{SECRET}@store/x"

    with pytest.raises(Misuse, match="password"):
        offload(str(tmp_path), Named())
    assert not list(tmp_path.iterdir())
