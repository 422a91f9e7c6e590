"""Grants: changes of the file take effect at once, and what it does not grant is refused."""

import os

import pytest

from rt.config.settings import load
from rt.errors import Misuse
from rt.net.authority.certificates import init_authority, issue
from rt.net.authority.granting import entry_text, write_grant
from rt.net.authority.grants import GRANTS_NAME, Grant, Grants, parse_grants, read_grants
from rt.net.authority.identity import GLOBS_MAX, CertificateRole, PeerIdentity
from rt.node.founding.cluster_files import init_local_cluster
from rt.node.host.node import Node
from rt.node.settings.node import NodeSettings

JFK = PeerIdentity("jfk", CertificateRole.PUBLISHER)
SPARK = PeerIdentity("spark", CertificateRole.SUBSCRIBER)


@pytest.fixture
def path(tmp_path):
    """Return where a grants file is to be."""
    return str(tmp_path / GRANTS_NAME)


def write(path, text, mode=0o600):
    """Replace the file as a deployment does."""
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(f"{path}.new", mode)
    os.replace(f"{path}.new", path)


def test_nothing_is_granted_without_a_file(path):
    """The default is to deny, and an operator has to learn why everyone is refused."""
    grants = Grants(path)
    assert not grants.granted(JFK).may_push("jfk")
    assert not grants.granted(SPARK).may_pull("flights")
    assert "no such file, so publishers and subscribers are refused" in grants.warning()


def test_a_change_counts_at_the_next_look(path):
    """A grant needs no restart."""
    write(path, '[publisher.jfk]\nsessions = ["jfk"]\n')
    grants = Grants(path)
    before = grants.granted(JFK)
    assert before.may_push("jfk")
    assert not before.may_push("lga")
    assert grants.is_as_before(before)
    write(path, '[publisher.jfk]\nsessions = ["lga"]\n')
    after = grants.granted(JFK)
    assert (after.may_push("jfk"), after.may_push("lga")) == (False, True)
    assert not grants.is_as_before(before)
    assert grants.warning() == ""


def test_a_grant_is_of_a_name_and_a_role(path):
    """A subscriber of the same name is another holder."""
    write(path, '[publisher.jfk]\nsessions = ["*"]\n')
    other = PeerIdentity("jfk", CertificateRole.SUBSCRIBER)
    assert Grants(path).granted(other) == other


@pytest.mark.parametrize("damage", ["[publisher", None, '[publisher.jfk]\nsesions = ["*"]'])
def test_a_damaged_or_missing_file_leaves_the_last_good_one_in_force(path, damage):
    """A slip of an editor must not cut off every client, nor open a door."""
    write(path, '[publisher.jfk]\nsessions = ["jfk"]\n')
    grants = Grants(path)
    if damage is None:
        os.unlink(path)
    else:
        write(path, damage)
    assert grants.granted(JFK).may_push("jfk")
    assert "the grants read before stay in force" in grants.warning()
    write(path, "")
    assert not grants.granted(JFK).may_push("jfk")
    assert grants.warning() == ""


def test_a_damaged_file_is_parsed_once(path):
    """It is looked at ten times a second, and may have 4 MiB."""
    write(path, "")
    grants = Grants(path)
    write(path, "[")
    grants.refresh()
    before = os.stat(path)
    with open(path, "r+b") as file:
        file.write(b"#")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # it looks as it did
    grants.refresh()
    assert "not TOML" in grants.warning()
    os.utime(path)
    grants.refresh()
    assert grants.warning() == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "'x' is not a table of"),
        ("[node.n1]", "'node' is not a table of"),
        ("publisher = 1", "'publisher' is not a table of"),
        ("[publisher]\njfk = 1", r"\[publisher.'jfk'\]: not a table"),
        ("[publisher.JFK]", "not a peer name"),
        ('[publisher."../x"]', "not a peer name"),
        (
            "[publisher.jfk]\nleases = true",
            "'leases' is unknown; a publisher has sessions and streams",
        ),
        ('[subscriber.a]\nsessions = ["*"]', "a subscriber has leases and streams"),
        ('[publisher.jfk]\nsessions = "*"', "sessions is a list of names"),
        ("[publisher.jfk]\nsessions = [1]", "sessions is a list of names"),
        ('[publisher.jfk]\nsessions = ["a/*"]', "not a glob"),
        ("[subscriber.a]\nleases = 1", "leases is true or false"),
        (f"[publisher.jfk]\nsessions = {['a'] * (GLOBS_MAX + 1)}", "at most 256 are read"),
        ("a = " + "[" * 100_000, "not TOML"),
        ("\ud800".encode("utf-8", "surrogatepass"), "not TOML"),
    ],
)
def test_a_wrong_file_is_one_clear_sentence(text, words):
    """A misspelt key that counted for nothing would be found by its victim."""
    data = text if isinstance(text, bytes) else text.encode()
    with pytest.raises(Misuse, match=words) as error:
        parse_grants(data, "grants.toml")
    assert str(error.value).startswith("grants.toml: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_refused(path, mode):
    """A user who can write the file can grant anything."""
    write(path, "", mode)
    with pytest.raises(Misuse, match="others may write this file"):
        Grants(path)


def test_a_file_without_end_is_not_read(path):
    """The limit is checked before the text is parsed."""
    write(path, "#" * ((4 << 20) + 1))
    with pytest.raises(Misuse, match="longer than 4194304 bytes"):
        read_grants(path)


@pytest.mark.parametrize(
    ("holder", "grant"),
    [
        (JFK, Grant(sessions=("jfk", "jfk-*"))),
        (PeerIdentity("a.b", CertificateRole.PUBLISHER), Grant(sessions=("*",))),
        (SPARK, Grant(streams=("flights",), leases=True)),
        (SPARK, Grant()),
    ],
)
def test_an_entry_is_read_as_it_was_written(holder, grant):
    """The commands that issue certificates write it."""
    text = entry_text(holder.role, holder.name, grant)
    assert parse_grants(text.encode(), "") == {(holder.role, holder.name): grant}


def test_issuing_adds_an_entry_and_never_changes_one(tmp_path):
    """The file belongs to its editor, comments and all."""
    directory = str(tmp_path / "certs")
    path = os.path.join(directory, GRANTS_NAME)
    init_authority(directory)
    issue(directory, "jfk", CertificateRole.PUBLISHER, sessions=["jfk-*"])
    with open(path, "a", encoding="utf-8") as file:
        file.write("# the last one")
    issue(directory, "spark", CertificateRole.SUBSCRIBER)
    issue(directory, "n1", CertificateRole.NODE)
    issue(directory, "jfk", CertificateRole.PUBLISHER, force=True)
    with open(path, encoding="utf-8") as file:
        before = file.read()
    assert "# the last one\n\n[subscriber.spark]" in before
    assert read_grants(path) == {
        (CertificateRole.PUBLISHER, "jfk"): Grant(sessions=("jfk-*",)),
        (CertificateRole.SUBSCRIBER, "spark"): Grant(streams=("*",)),
    }
    with open(os.path.join(directory, "jfk.pem"), "rb") as file:
        certificate = file.read()
    with pytest.raises(Misuse, match="an entry for publisher jfk that says something else"):
        issue(directory, "jfk", CertificateRole.PUBLISHER, sessions=["*"], force=True)
    with open(os.path.join(directory, "jfk.pem"), "rb") as file:
        assert file.read() == certificate
    assert not write_grant(directory, JFK)
    with open(path, encoding="utf-8") as file:
        assert file.read() == before


def test_a_pipe_in_place_of_a_file_is_refused_and_never_waited_for(path):
    """Opening it would hold up every connection of the node."""
    os.mkfifo(path, 0o600)
    with pytest.raises(Misuse, match="not a regular file"):
        Grants(path)


def test_a_damaged_file_stops_a_start_before_anything_is_made(tmp_path):
    """A half-begun state has to be removed by hand before the next start may found the node."""
    [place] = init_local_cluster(str(tmp_path / "c"), "flights", 1)
    write(str(tmp_path / "c" / "certs" / GRANTS_NAME), "[publisher")
    with pytest.raises(Misuse, match="not TOML: Expected"):
        Node(load(NodeSettings, place.config, "node", {}))
    assert not os.path.exists(tmp_path / "c" / "n1")
