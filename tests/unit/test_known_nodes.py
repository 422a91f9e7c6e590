"""Clients follow the members of a cluster, and find them again after a restart."""

import os

import pytest

from rt.net.known_nodes import KnownNodes, voters_in

A, B, C, D = (("localhost", port) for port in (7420, 7421, 7422, 7423))


def members(*voters, learners=()):
    """Return a leader's answer."""
    listed = [(place, True) for place in voters] + [(place, False) for place in learners]
    return {
        "members": [
            {"name": f"n{port}", "address": f"{host}:{port}", "votes": votes}
            for (host, port), votes in listed
        ]
    }


def test_a_client_of_one_node_learns_the_others_and_remembers_them(tmp_path):
    """That node may be gone by the next start."""
    path = str(tmp_path / "known.nodes")
    known = KnownNodes([A], path)
    assert known.addresses == (A,)
    assert known.adopt(voters_in(members(A, B, C, learners=[D])))
    assert KnownNodes([A], path).addresses == (A, B, C)
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_members_are_followed_until_none_of_the_first_is_left(tmp_path):
    """Each list shares an address with the one before, never with that of the beginning."""
    known = KnownNodes([A], str(tmp_path / "nodes"))
    for each in ([A, B], [B, C], [C, D]):
        assert known.adopt(each, {place: str(place) for place in known.addresses})
    assert known.addresses == (C, D)
    assert not known.adopt([D, C]), "the order is no change"


def test_one_node_alone_drops_no_other(tmp_path):
    """A leader that named only itself would decide alone what a publisher deletes."""
    path = str(tmp_path / "nodes")
    known = KnownNodes([A, B, C], path)
    assert not known.adopt([A])
    assert not known.adopt([A], {A: "n1", B: "n1", C: "n1"}), "a certificate has one voice"
    assert not known.adopt([A], {A: "n1", D: "n4"}), "and only a confirmed node has one"
    assert known.addresses == (A, B, C)
    assert known.adopt([A, D], {A: "n1"}), "what it adds is used, beside all that was confirmed"
    assert known.addresses == KnownNodes([A, B, C], path).addresses == (A, B, C, D)
    assert known.adopt([A, B, C]), "what was only claimed goes as it came"
    assert known.adopt([B, C, D], {B: "n2", C: "n3"})
    assert known.addresses == KnownNodes([A, B, C], path).addresses == (B, C, D)


def test_false_claims_do_not_make_a_majority_harder_to_reach(tmp_path):
    """A leader that lied for a while leaves no addresses that have a say in the next list."""
    known = KnownNodes([A, B, C], str(tmp_path / "nodes"))
    known.adopt([A, *(("localhost", 8000 + each) for each in range(40))])
    assert len(known.addresses) == 32
    assert known.adopt([A, B, D], {A: "n1", B: "n2"})
    assert known.addresses == (A, B, D)


@pytest.mark.parametrize(
    "answer",
    [
        members(B, C), {}, {"members": []}, {"members": {}}, {"members": [7]},
        {"members": [{"address": "localhost:7420", "votes": True}, {"address": "", "votes": True}]},
        {"members": [{"address": "localhost:99999", "votes": True}]},
    ],
)  # fmt: skip
def test_a_list_that_cannot_be_used_leaves_the_configured_nodes(tmp_path, answer):
    """Behind a gateway, nodes know each other by addresses that a client cannot reach."""
    known = KnownNodes([A], str(tmp_path / "nodes"))
    assert not known.adopt(voters_in(answer))
    assert known.addresses == (A,)
    assert not os.listdir(tmp_path)


def test_a_changed_configuration_replaces_what_was_learned(tmp_path):
    """At SIGHUP, and at a start."""
    path = str(tmp_path / "nodes")
    known = KnownNodes([A], path)
    known.adopt([A, B])
    known.configure([A])
    assert known.addresses == (A, B), "the same configuration as before"
    known.configure([C, D])
    assert known.addresses == (C, D)
    assert KnownNodes([C, D], path).addresses == (C, D)
    assert KnownNodes([B], path).addresses == (B,)


@pytest.mark.parametrize("data", [b"", b"[]", b'{"nodes": 7}', b'{"nodes": ["x"]}', b"\xff"])
def test_a_damaged_file_is_passed_over(tmp_path, data, caplog):
    """It holds nothing that cannot be asked for again."""
    path = tmp_path / "nodes"
    path.write_bytes(data)
    assert KnownNodes([A], str(path)).addresses == (A,)
    assert "cannot be read" in caplog.text


def test_a_directory_that_cannot_be_written_costs_a_warning(tmp_path, caplog):
    """As where a configuration is mounted read-only."""
    known = KnownNodes([A], str(tmp_path / "file" / "nodes"))
    (tmp_path / "file").write_bytes(b"")
    assert known.adopt([A, B], {A: "n1"})
    assert known.adopt([A, C], {A: "n1", B: "n2"})
    assert known.addresses == (A, C)
    assert caplog.text.count("cannot be remembered") == 1
