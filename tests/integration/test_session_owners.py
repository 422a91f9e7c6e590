"""A session belongs to the identity that opened it, until it is closed and taken, or expires."""

import json
import os
import shutil

import pytest

from replicator.push.client import PushClient
from rt import SessionChange
from rt.errors import FlushTimeout
from rt.log.notify.confirmations import Level
from rt.net.authority.certificates import issue
from rt.net.authority.identity import CertificateRole
from rt.publisher import Publisher
from tests.archive_cluster import STREAM, ArchiveCluster
from tests.commands import run
from tests.integration.test_session_ends import PATIENCE_S, copies, decided
from tests.integration.test_session_life import events_of
from tests.replicator_host import eventually


class Stranger:
    """Another publisher, with a certificate and a directory of its own; it is granted `*`."""

    def __init__(self, cluster, tmp_path, name="bob", session="jfk"):
        issue(os.path.join(cluster.root, "certs"), name, CertificateRole.PUBLISHER, sessions=["*"])
        self.name, self.cluster = name, cluster
        self.root = str(tmp_path / name)
        self.publisher = Publisher(self.root, stream=STREAM, session=session)
        cluster.undo.callback(self.publisher.close)

    def push(self):
        """Ship the session."""
        push = PushClient(
            self.root, STREAM, self.cluster.addresses, self.cluster.contexts(self.name)
        )
        push.start()
        self.cluster.undo.callback(push.stop)
        return push

    def merged(self, payloads):
        """Publish, and wait until it is merged."""
        self.publisher.publish_many(payloads)
        self.publisher.flush(Level.MERGED, PATIENCE_S)


def asked(cluster, *words):
    """Run `rt session`; return the exit code and what it printed."""
    done = run("session", *words, "--config", os.path.join(cluster.root, "clients.toml"))
    return done.exit_code, done.output


def set_policy(cluster, **times):
    """Set how long publishers may be silent."""
    words = [word for name, value in times.items() for word in (f"--{name}", value)]
    return decided(cluster, "policy", *words)


def changes_of(cluster, root):
    """The events that a subscriber receives."""
    end = max(node.merged_end for node in cluster.nodes.values())  # others may be a little late
    pull = cluster.pull()
    assert eventually(lambda: pull.status().position >= end, PATIENCE_S)
    pull.stop()
    return events_of(root / "sub", stream=STREAM)


def is_closed(cluster, session="jfk"):
    """Whether the session is closed."""
    return decided(cluster, "show", session)["state"] == "closed"


def test_a_name_belongs_to_the_identity_that_opened_it_and_to_no_other(tmp_path):
    """A publisher that is granted `*` could push under anyone's name."""
    with ArchiveCluster(tmp_path, nodes=3) as cluster:
        owner, push = cluster.publisher(), cluster.push()
        owner.publish(b"mine")
        owner.flush(Level.MERGED, PATIENCE_S)
        row = decided(cluster, "show", "jfk")
        assert (row["owner"], row["state"]) == ("publisher", "open")
        push.stop()
        bob = Stranger(cluster, tmp_path)
        bob.publisher.publish(b"not mine")
        bob.push()
        words = "session 'jfk' belongs to 'publisher'"
        assert eventually(lambda: words in bob.publisher.shipping_note, PATIENCE_S)
        with pytest.raises(FlushTimeout, match="belongs to 'publisher'"):
            bob.publisher.flush(Level.MERGED, 0.1)
        for name in list(cluster.nodes):  # the next leader knows it too, and each from its disk
            cluster.stop(name)
            cluster.start(name)
        push = cluster.push()
        owner.publish(b"mine too")
        owner.flush(Level.MERGED, PATIENCE_S)
        # it has to reach the nodes again, and one of them has to execute what the others have
        assert eventually(lambda: "belongs to" in bob.publisher.shipping_note, PATIENCE_S)
        for name in cluster.nodes:
            assert eventually(lambda name=name: cluster.ledger(name).number == 2, PATIENCE_S)


def test_a_squatter_loses_the_name_once_it_is_gone(tmp_path):
    """Its owner was refused as another log for ever."""
    with ArchiveCluster(tmp_path) as cluster:
        bob = Stranger(cluster, tmp_path)
        squatting = bob.push()
        bob.merged([b"squatting"])
        set_policy(cluster, close="1s", take="1h")
        owner, _ = cluster.publisher(), cluster.push(refused_retry_s=0.5)
        owner.publish(b"mine")
        assert eventually(lambda: "belongs to 'bob'" in owner.shipping_note, PATIENCE_S)
        take = ("take", "jfk", "--new-log", "--identity", "publisher")
        code, output = asked(cluster, *take)
        assert (code, "is being pushed by 'bob'" in output) == (3, True), "it is never displaced"
        squatting.stop()
        assert eventually(lambda: is_closed(cluster), PATIENCE_S)
        code, output = asked(cluster, *take)
        assert (code, "may be taken over in" in output) == (3, True)
        assert asked(cluster, *take, "--owner", "carol")[0] == 3, "for itself only"
        assert asked(cluster, "take", "jfk", "--identity", "subscriber")[0] == 3
        set_policy(cluster, close="1h", take="0s")  # its owner may be slow to return
        code, output = asked(cluster, *take)
        assert (code, "is taken" in output) == (0, True), output
        owner.flush(Level.MERGED, PATIENCE_S)
        again = bob.push()
        assert eventually(
            lambda: "belongs to 'publisher'" in bob.publisher.shipping_note, PATIENCE_S
        )
        again.stop()
        events, count = changes_of(cluster, tmp_path)
        assert [(each.change, each.owner) for each in events] == [
            (SessionChange.OPENED, "bob"),
            (SessionChange.CLOSED, ""),
            (SessionChange.TAKEN, "publisher"),
            (SessionChange.RESUMED, "publisher"),
        ]
        assert count == 2
        assert "was taken over by publisher, and continues at 0.0.0" in str(events[2])


def test_a_session_goes_on_with_its_log_where_another_identity_takes_it_over(tmp_path):
    """A directory that was moved to another machine has messages that are not merged yet."""
    with ArchiveCluster(tmp_path) as cluster:
        set_policy(cluster, close="1s")
        with cluster.publisher() as publisher:
            push = cluster.push()
            publisher.publish(b"merged")
            publisher.flush(Level.MERGED, PATIENCE_S)
            push.stop()
            publisher.publish(b"not yet")
        issue(os.path.join(cluster.root, "certs"), "bob", CertificateRole.PUBLISHER, sessions=["*"])
        assert eventually(lambda: is_closed(cluster), PATIENCE_S)
        assert decided(cluster, "take", "jfk", "--owner", "bob")["now"]["owner"] == "bob"
        moved = PushClient(
            str(tmp_path / "pub"), STREAM, cluster.addresses, cluster.contexts("bob")
        )
        moved.start()
        cluster.undo.callback(moved.stop)
        with cluster.publisher() as publisher:
            publisher.flush(Level.MERGED, PATIENCE_S)
        assert changes_of(cluster, tmp_path)[1] == 2


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_session_whose_publisher_stays_away_expires_on_all_nodes(tmp_path, nodes):
    """Nodes kept the copies of every session there ever was."""
    with ArchiveCluster(tmp_path, nodes=nodes) as cluster:
        push = cluster.push()
        with cluster.publisher() as publisher:
            publisher.publish(b"old")
            publisher.flush(Level.MERGED, PATIENCE_S)
        there = copies(cluster)
        assert eventually(lambda: all(each.exists() for each in there), PATIENCE_S)
        set_policy(cluster, close="500ms", expire="500ms")
        push.stop()
        assert eventually(lambda: not any(each.exists() for each in there), PATIENCE_S)
        assert not decided(cluster, "list")
        for name in cluster.nodes:
            assert eventually(lambda name=name: not cluster.ledger(name).sessions, PATIENCE_S)
        set_policy(cluster, expire="never")
        push, late = cluster.push(), cluster.publisher()
        late.publish(b"late")
        retired = "was retired when the session was reset"
        assert eventually(lambda: retired in late.shipping_note, PATIENCE_S)
        with pytest.raises(FlushTimeout, match=retired):
            late.flush(Level.MERGED, 0.1)
        late.close()
        push.stop()
        shutil.rmtree(tmp_path / "pub" / STREAM / "jfk")
        push = cluster.push()
        with cluster.publisher() as publisher:
            publisher.publish(b"new")
            publisher.flush(Level.MERGED, PATIENCE_S)
        events, count = changes_of(cluster, tmp_path)
        assert [each.change for each in events[:4]] == ["opened", "closed", "expired", "opened"]
        assert count == 2
        assert decided(cluster, "show", "jfk")["owner"] == "publisher"


def test_a_live_session_neither_closes_nor_expires_while_another_does(tmp_path):
    """It may have nothing to say for days."""
    with ArchiveCluster(tmp_path) as cluster:
        set_policy(cluster, close="300ms", expire="1ms")
        publisher, _ = cluster.publisher(), cluster.push()
        publisher.publish(b"one")
        publisher.flush(Level.MERGED, PATIENCE_S)
        other = Stranger(cluster, tmp_path, session="lga")
        push = other.push()
        other.merged([b"x"])
        push.stop()
        gone = copies(cluster, "lga")[0]
        assert eventually(lambda: not gone.exists(), PATIENCE_S)
        assert decided(cluster, "show", "jfk")["state"] == "open"
        events, _ = changes_of(cluster, tmp_path)
        assert [each.change for each in events if each.session == "jfk"] == ["opened"]


def test_the_policy_of_sessions_is_checked(tmp_path):
    """A typing mistake must not let sessions expire."""
    with ArchiveCluster(tmp_path) as cluster:
        assert set_policy(cluster) == {"close_s": 10.0, "take_s": 3600.0, "expire_s": 0.0}
        assert set_policy(cluster, expire="7d")["expire_s"] == 604_800
        code, output = asked(cluster, "policy")
        assert (code, "it expires 7 d after that" in output) == (0, True), output
        for wrong in ("soon", "-1s", "200000d"):
            code, output = asked(cluster, "policy", "--expire", wrong)
            assert (code, "Traceback" in output) == (2, False), output
        assert asked(cluster, "policy", "--close", "0s")[0] == 2
        assert asked(cluster, "policy", "--take", "1s", "--identity", "subscriber")[0] == 3
        shown = run("status", "--config", os.path.join(cluster.root, "clients.toml"), "--json")
        assert json.loads(shown.stdout)
