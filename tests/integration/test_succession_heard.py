"""Which log continues another is handed on by clients, and ends the old one without a command."""

import os
import shutil
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import rt
from replicator.pull.client import PullClient
from replicator.pull.mirror import Mirror
from replicator.push.client import PushClient
from rt.client.readers.cursor import read_cursors
from rt.client.readers.rejoin import LISTING_NAME, rejoin_running
from rt.client.readers.settings import ConnectionSettings
from rt.client.standby import StateCarrier, carried_here
from rt.client.standby_reach import StandbyReach
from rt.names import merged_directory
from rt.net.admin import END, AdminClient, ask_any
from rt.net.authority.certificates import certificate_files, init_authority, issue
from rt.net.authority.grants import GRANTS_NAME
from rt.net.authority.identity import CertificateRole
from rt.net.authority.succession import one_line, said_in
from rt.net.authority.successions import ENDED_NAME, SUFFIX, Successions
from rt.net.authority.trust import trust_of
from rt.net.known_nodes import KnownNodes
from rt.net.tls import Contexts, client_context, server_context
from rt.position import Position
from sequencer.ledger.seal import SEALED_NOTE, moved_away
from tests.archive_cluster import STREAM, ArchiveCluster, connect
from tests.commands import run
from tests.replicator_host import eventually


def known_nodes(path, *clusters, authority=""):
    """Return the nodes of some clusters, as a client knows them whose files begin with a path."""
    addresses = [each for cluster in clusters for each in cluster.addresses]
    ca = certificate_files(authority or os.path.join(clusters[0].root, "certs"), "ca").ca
    heard = Successions(STREAM, lambda: trust_of(ca).facts.authorities, f"{path}{SUFFIX}")
    return KnownNodes(addresses, f"{path}.nodes", successions=heard)


@contextmanager
def promoted_sites(tmp_path, before=lambda _old: None):
    """Give two sites after `promote --now`: the old one was cut off, lives, and went on.

    `before` is called with 100 messages in the log, and what it changes is carried to the new site.
    """
    clients = tmp_path / "clients"
    with ExitStack() as undo:
        old = undo.enter_context(ArchiveCluster(tmp_path / "old", nodes=3, clients=clients))
        pull, push = old.pull(), old.push(keep_s=3600)
        carrier = StateCarrier(
            str(clients / "sub"), STREAM, lambda request: old.ask(request, who="operator"),
            lambda: pull.status().durable_place, every_s=0.05,
        )  # fmt: skip
        publisher = old.publisher("jfk")
        publisher.publish_many([b"%d" % each for each in range(100)])
        publisher.flush("merged", timeout_s=60)
        before(old)
        with carrier:  # from when a node leads: it waits twenty times as long as an answer took
            end = old.merged_end()
            assert eventually(lambda: Position.parse(carrier.record.proven_to) >= end, 60)
            index = max(old.ledger(name).index for name in old.nodes)
            state = partial(carried_here, str(clients / "sub"), STREAM)
            assert eventually(lambda: state().state().index >= index, 60)
        pull.stop()
        publisher.publish_many([b"late %d" % each for each in range(50)])
        publisher.flush("merged", timeout_s=60)
        push.stop()
        done = run(
            "standby", "promote", str(tmp_path / "new"), "--root", str(clients / "sub"), "--stream",
            STREAM, "--now", "--authority", os.path.join(old.root, "certs"), "--count", "3",
        )  # fmt: skip
        assert done.exit_code == 0, done.output
        for name in ("publisher", "subscriber"):
            for end in ("pem", "key"):
                shutil.copy2(
                    os.path.join(old.root, "certs", f"{name}.{end}"), tmp_path / "new/certs"
                )
        new = undo.enter_context(ArchiveCluster(tmp_path / "new", clients=clients, made=True))
        yield old, new, publisher


@pytest.fixture
def sites(tmp_path):
    """Give two sites; see `promoted_sites`."""
    with promoted_sites(tmp_path) as made:
        yield made


def is_sealed(cluster):
    """Whether a cluster tells readers where its log continues."""
    return all(moved_away(cluster.ledger(name).notes) for name in cluster.nodes)


def shipper(cluster, known, **extra):
    """Start to push all sessions to known nodes."""
    push = PushClient(
        os.path.join(cluster.clients, "pub"), STREAM, known.addresses,
        cluster.contexts("publisher"), known=known, **extra,
    )  # fmt: skip
    push.start()
    cluster.undo.callback(push.stop)
    return push


def test_a_pusher_that_knows_both_sites_ends_the_old_one_and_follows(sites, tmp_path):
    """No one runs `rt standby fence`; what the old site had confirmed is sent again."""
    old, new, publisher = sites
    push = shipper(new, known_nodes(tmp_path / "push", old, new))
    assert eventually(lambda: is_sealed(old), 60)
    publisher.publish(b"after")
    publisher.flush("merged", timeout_s=60)
    assert eventually(lambda: push.drained(merged=True), 60), push.status()
    word = said_in((tmp_path / f"push{SUFFIX}").read_text())
    left = sorted(f"{host}:{port}" for host, port in old.addresses)

    def turned_away():
        says = f"continues at {word.moved_to}"
        return sorted(each.node for each in push.status() if says in each.error)

    assert eventually(lambda: turned_away() == left, 60), push.status()
    assert eventually(lambda: new.ledger("n4").number == 151, 60)
    assert {old.ledger(name).number for name in old.nodes} == {150}


def test_a_client_that_remembers_it_tells_a_site_that_comes_back(sites, tmp_path):
    """The new site was heard of before the old one was there again."""
    old, new, publisher = sites
    first = shipper(new, known_nodes(tmp_path / "push", new))
    publisher.flush("merged", timeout_s=60)
    assert eventually(lambda: (tmp_path / f"push{SUFFIX}").exists(), 60)
    first.stop()
    assert not is_sealed(old)
    shipper(old, known_nodes(tmp_path / "push", old))
    assert eventually(lambda: is_sealed(old), 60)


def test_nodes_that_have_heard_it_refuse_after_a_restart(sites, tmp_path, caplog):
    """Most of the old site was down when the word came, and no client brings it again."""
    old, new, _ = sites
    known = known_nodes(tmp_path / "push", new, old)
    first = shipper(new, known)
    assert eventually(lambda: (tmp_path / f"push{SUFFIX}").exists(), 60)
    first.stop()
    for name in ("n2", "n3"):
        old.stop(name)
    kept = Path(old.root) / "n1" / STREAM / ENDED_NAME
    second = shipper(old, known_nodes(tmp_path / "push", old))
    assert eventually(kept.exists, 60)
    second.stop()
    old.stop("n1")
    old.start("n1")
    ignorant = old.push(nodes=old.addresses[:1])
    reader = old.pull("ignorant", known=None)
    told = f"continues at {said_in(kept.read_text()).moved_to}"
    assert eventually(lambda: all(told in each.error for each in ignorant.status()), 60)
    with pytest.raises(rt.RtError, match=told):
        ask_any(old.addresses[:1], old.contexts("subscriber"), {"do": END}, election_s=0)
    assert old.nodes["n1"].status()["ended"]["moved_to"] in told
    for name in ("n2", "n3"):
        old.start(name)
    assert eventually(lambda: is_sealed(old), 60), "n1 has it sealed once a majority is there"
    assert eventually(lambda: told in reader.status().error, 60), reader.status()
    everywhere = [Path(old.root) / name / STREAM / ENDED_NAME for name in old.nodes]
    assert eventually(lambda: all(each.exists() for each in everywhere), 60)
    with pytest.raises(rt.Refused, match="this cluster stays sealed") as caught:
        old.ask({"do": "unseal"}, who="operator")
    assert caught.value.code == "ended"
    assert is_sealed(old)
    old.stop("n1")
    kept.write_text(kept.read_text().replace("7", "8"))
    with pytest.raises(rt.RtError, match="says that this node's log has ended, and cannot"):
        old.start("n1")


@pytest.mark.parametrize("who", ["the members' follower", "reach", "groups"])
def test_each_question_of_a_client_carries_it_and_each_answer_says_it(sites, tmp_path, who):
    """Not only what ships and copies: a client that only asks would leave the old site going."""
    old, new, _ = sites
    said = []

    def ask(*clusters, name):
        known = known_nodes(tmp_path / name, *clusters)
        asking = new.contexts("publisher" if who == "reach" else "subscriber")
        if who == "the members' follower":
            known.learn(asking)
        elif who == "reach":
            settings = ConnectionSettings(
                str(tmp_path / "reach"), STREAM, [f"{h}:{p}" for h, p in known.addresses],
                os.path.join(new.root, "certs"), "publisher",
            )  # fmt: skip
            StandbyReach(settings, known).poll()
        else:
            asking.successions = known.successions
            client = AdminClient(known.addresses, asking, keep=True)
            with closing(client), suppress(rt.Refused):
                client.ask({"do": "groups"})
        said.extend(known.successions.texts)

    def hears():
        with suppress(rt.RtError):  # no node leads yet
            ask(new, name="first")
        return said

    assert eventually(hears, 60)
    assert [said_in(each).moved_to for each in said], "the new site's nodes say it"
    assert not is_sealed(old)
    with suppress(rt.RtError):
        ask(old, name="first")
    assert eventually(lambda: is_sealed(old), 60)


def test_a_reader_hands_it_on_too(sites, tmp_path):
    """A subscriber's certificate does: the authority has signed what it brings."""
    old, new, _ = sites
    known = known_nodes(tmp_path / "pull", new, old)
    pull = PullClient(
        str(tmp_path / "reader"), STREAM, known.addresses, new.contexts("subscriber"), known=known
    )
    pull.start()
    new.undo.callback(pull.stop)
    assert eventually(lambda: (tmp_path / f"pull{SUFFIX}").exists(), 60)
    pull.stop()
    again = PullClient(
        str(tmp_path / "other"), STREAM, old.addresses, old.contexts("subscriber"),
        known=known_nodes(tmp_path / "pull", old),
    )  # fmt: skip
    again.start()
    old.undo.callback(again.stop)
    assert eventually(lambda: is_sealed(old), 60)
    assert eventually(lambda: "continues at" in again.status().error, 60), again.status()


def test_a_copy_past_the_cut_says_which_numbers_are_not_part_of_the_log_that_goes_on(
    sites, tmp_path
):
    """And what to do: `rt standby rejoin` goes on from the cut, and keeps what is beyond."""
    old, new, _ = sites
    copy = old.pull("late")
    assert eventually(lambda: copy.wait_caught_up(60), 60)
    copy.stop()
    known = known_nodes(tmp_path / "pull", new)
    pull = new.pull("late", known=known)
    told = "which ended at {0.cut}: {0.new} continues it; this copy's messages 100 to 149 are not"
    assert eventually(lambda: known.successions.texts, 60)
    remembered = tmp_path / f"pull{SUFFIX}"
    assert eventually(remembered.exists, 60)
    word = said_in(remembered.read_text())
    assert eventually(lambda: told.format(word) in pull.status().error, 60), pull.status()
    pull.stop()
    root = os.path.join(new.clients, "late")
    rejoined = run(
        "standby", "rejoin", "--root", root, "--stream", STREAM, "--succession",
        str(tmp_path / f"pull{SUFFIX}"), "--certs", os.path.join(new.root, "certs"),
    )  # fmt: skip
    assert rejoined.exit_code == 0, rejoined.output
    again = new.pull("late", known=known)
    assert eventually(lambda: again.wait_caught_up(60), 60), again.status()


@pytest.mark.parametrize("on_gap", ["notify", "raise"])
def test_a_running_reader_goes_to_the_new_site_and_hears_what_is_not_in_its_log(
    sites, tmp_path, caplog, on_gap
):
    """Its configuration names the old nodes only, and no command is run at its machine."""
    old, new, publisher = sites
    events, root = [], str(tmp_path / "reader")
    with connect(old, root) as client:
        reader = client.subscriber(cursor="mine", on_gap=on_gap, on_event=events.append)
        whole = [bytes(each.payload) for each in reader.messages(max=150, timeout_s=60)]
        assert len(whole) == 150
        shipper(new, known_nodes(tmp_path / "push", new, old))
        publisher.publish(b"after")
        if on_gap == "raise":
            with pytest.raises(
                rt.SupersededError, match="messages 100 to 149 are not part"
            ) as told:
                next(reader.messages(timeout_s=120))
            events.append(told.value.event)
        rest = [bytes(each.payload) for each in reader.messages(max=51, timeout_s=120)]
        assert rest == [*whole[100:], b"after"]
        reader.close()
    (event,) = [each for each in events if isinstance(each, rt.Superseded)]
    assert (event.first, event.next) == (100, 150)
    assert (Path(event.kept) / LISTING_NAME).read_text().splitlines()[1:] == ["jfk\t100\t149"]
    lines = [each for each in caplog.messages if "this copy's messages 100 to 149 are not" in each]
    assert len(lines) == 1
    (cursor,) = read_cursors(root, STREAM).values()
    assert cursor.log_id == said_in((tmp_path / f"push{SUFFIX}").read_text()).new
    publisher.publish(b"later")
    with connect(new, root) as client, client.subscriber(cursor="mine") as reader:
        assert [bytes(each.payload) for each in reader.messages(max=1, timeout_s=60)] == [b"later"]


def test_a_mirror_and_a_copy_of_it_go_to_the_new_site(sites, tmp_path):
    """The mirror serves what it has by then, and ends where the logs part for a moment."""
    old, new, publisher = sites
    certs = os.path.join(old.root, "certs")
    issue(certs, "edge", CertificateRole.MIRROR, streams=(STREAM,))
    shutil.copy2(os.path.join(certs, GRANTS_NAME), os.path.join(new.root, "certs"))
    files = certificate_files(certs, "edge")
    root = str(tmp_path / "edge")
    known = known_nodes(tmp_path / "edge", old, authority=certs)
    out = merged_directory(root, STREAM)
    mirror = Mirror(("localhost", 0), Contexts(files, server_context), STREAM, out)
    pull = PullClient(
        root, STREAM, known.addresses, Contexts(files, client_context, STREAM),
        grown=mirror.grown, known=known,
    )  # fmt: skip
    mirror.ask_end, mirror.successions = pull.ask_end, known.successions
    pull.on_succession(partial(rejoin_running, root, STREAM), mirror.restart)
    copied = str(tmp_path / "copy")
    with mirror:
        pull.start()
        new.undo.callback(pull.stop)
        copy = PullClient(
            copied, STREAM, [mirror.address], new.contexts("subscriber"),
            known=KnownNodes(
                [mirror.address], successions=known_nodes(tmp_path / "copy", new).successions
            ),
        )  # fmt: skip
        copy.on_succession(partial(rejoin_running, copied, STREAM))
        copy.start()
        new.undo.callback(copy.stop)
        assert eventually(lambda: copy.log is not None and copy.log.next_number == 150, 60)
        shipper(new, known_nodes(tmp_path / "push", new, old))
        publisher.publish(b"after")
        publisher.flush("merged", timeout_s=60)

        def has_all(each):
            return each.log is not None and each.log.next_number == 151

        assert eventually(lambda: has_all(pull) and has_all(copy), 120), copy.status()
        assert eventually(lambda: new.ledger("n4").number == 151, 60)
        ends = {each.log.end for each in (pull, copy)}
    assert ends == {new.ledger("n4").end}


def test_a_forged_word_and_one_of_another_log_change_nothing(sites, tmp_path):
    """Any peer may bring a word; only the authority can make one."""
    old, new, publisher = sites
    evil, certs = str(tmp_path / "evil"), os.path.join(old.root, "certs")
    word = said_in((tmp_path / "new/certs" / f"{STREAM}{SUFFIX}").read_text())
    init_authority(evil)
    # Those who believe it look for its site, where the true word could be heard.
    other = replace(word, old="a" * 32, new="b" * 32, moved_to="localhost:1")
    for name, each, authority in (("forged", word, evil), ("other", other, certs)):
        path = tmp_path / f"{name}{SUFFIX}"
        path.write_bytes(one_line(each.signed(authority)))
        known = known_nodes(tmp_path / name, old, authority=authority)
        assert known.successions.texts, "it is handed on by a peer that believes it"
        push = shipper(old, known)
        publisher.publish(b"go on")
        publisher.flush("merged", timeout_s=60)
        push.stop()
        assert not known_nodes(tmp_path / name, new).successions.after(word.old)
    assert not is_sealed(old)


def _asked(config, *command):
    """Run a command as an operator until a node leads; return its exit code and all it said."""
    said = []

    def is_answered():
        done = run(*command, "--config", config, "--identity", "operator")
        said.append((done.exit_code, done.output))
        return "leads" not in done.output or "continues at" in done.output

    assert eventually(is_answered, 60), said[-1]
    return said[-1]


def test_an_operators_commands_hand_it_on_and_say_which_site_leads(sites, tmp_path, caplog):
    """The old site answered them as if it led, with the policy and readers that it had left."""
    old, new, _ = sites
    certs = os.path.join(old.root, "certs")
    config, left = tmp_path / "ops.toml", os.path.join(old.root, "clients.toml")

    def configure(cluster):
        nodes = ", ".join(f'"{host}:{port}"' for host, port in cluster.addresses)
        text = f'stream = "{STREAM}"\nnodes = [{nodes}]\ncerts = "{certs}"\n'
        config.write_text("".join(f"[{table}]\n{text}" for table in ("archive", "pull", "session")))

    configure(new)
    code, said = _asked(config, "archive", "policy", "show")
    assert code == 0, said
    word = said_in((tmp_path / f"ops.toml.{STREAM}{SUFFIX}").read_text())
    assert not is_sealed(old)
    configure(old)
    _asked(config, "cluster", "upgrade", "status")
    assert eventually(lambda: is_sealed(old), 60), "one question has brought the word"
    where = f"continues at {word.moved_to}"
    for command in (
        ["archive", "policy", "show"], ["archive", "plan"], ["archive", "roll"], ["group", "list"],
        ["archive", "policy", "set", "--disk", "80"], ["session", "list"],
    ):  # fmt: skip
        code, said = _asked(left, *command)
        assert (code, where in said) == (3, True), command
        os.remove(f"{left}.{STREAM}{SUFFIX}")  # what it has heard
    for command in (
        ["cluster", "upgrade", "status"],
        ["log-history", "--node", old.places[0].address, "--stream", STREAM],
    ):
        caplog.clear()
        code, said = _asked(left, *command)
        assert (code, where in said + caplog.text) == (0, True), command
        assert "all that was merged" not in said
    code, said = _asked(left, "archive", "policy", "set", "--disk", "81")
    assert code == 0, said
    asked = new.ask({"do": "policy"}, "n4")
    assert asked["policy"]["disk"] == 81, "what has heard of the other site goes on there"
    for name in list(old.nodes):
        old.stop(name)
    sealed = run("cluster", "seal", "--config", left, "--identity", "operator")
    assert sealed.exit_code, "the site that goes on is not the one that is meant"
    assert new.ledger("n4").notes.get(SEALED_NOTE) is None


def test_a_cursors_holder_that_was_past_the_cut_does_not_move_it_in_the_log_that_goes_on(tmp_path):
    """The next reader was not given what the new site has where the old one had other messages."""
    with ExitStack() as undo:
        held = []

        def take(old):
            client = undo.enter_context(connect(old, str(tmp_path / "reader")))
            reader = client.subscriber(
                cursor=rt.Registered("etl"), ack="explicit", on_gap="notify", on_event=held.append
            )
            held.append(reader)
            last = list(reader.messages(max=100, timeout_s=60))[-1]
            reader.ack(last, sync=True)

        old, new, _ = undo.enter_context(promoted_sites(tmp_path, take))
        reader = held[0]
        past = list(reader.messages(max=50, timeout_s=60))[-1]
        assert past.number == 149
        reader.ack(past, sync=True)
        other = new.publisher("lga")
        other.publish_many([b"new %d" % each for each in range(200)])
        shipper(new, known_nodes(tmp_path / "push", new, old))
        other.flush("merged", timeout_s=60)
        assert eventually(lambda: is_sealed(old), 60)
        with suppress(rt.Refused):  # of another log, until the reader has come to that one
            reader.ack(past, sync=True)
        (first,) = reader.messages(max=1, timeout_s=120)
        assert first.number == 100
        assert any(isinstance(each, rt.Superseded) for each in held)
        reader.close()
        assert eventually(lambda: new.ledger("n4").number == 350, 60)
        with (
            connect(new, str(tmp_path / "next")) as client,
            client.subscriber(cursor=rt.Registered("etl", takeover="fence")) as again,
        ):
            (found,) = again.messages(max=1, timeout_s=60)
        assert found.number == 100, "it was not acknowledged"


def test_a_members_report_on_a_range_of_the_old_log_is_none_on_one_of_the_new(tmp_path):
    """Both clusters go on counting ranges from the carried state, so their numbers are the same."""
    group = rt.Group("etl", silence_s=60)
    with ExitStack() as undo:
        events, members = [], []

        def join(old):
            client = undo.enter_context(connect(old, str(tmp_path / "member")))
            member = client.subscriber(group=group, ack="explicit", on_event=events.append)
            members.append(member)
            for message in member.messages(max=100, timeout_s=60):
                member.ack(message)
            member.ack(sync=True)

        old, new, _ = undo.enter_context(promoted_sites(tmp_path, join))
        (past,) = members[0].messages(max=1, timeout_s=60)
        assert past.number == 100
        other = new.publisher("lga")
        other.publish_many([b"new %d" % each for each in range(200)])
        shipper(new, known_nodes(tmp_path / "new", new))
        other.flush("merged", timeout_s=60)
        client = undo.enter_context(connect(new, str(tmp_path / "second")))
        second = client.subscriber(group=group, ack="explicit")
        (taken,) = second.messages(max=1, timeout_s=60)
        before = new.ask({"do": "groups", "name": "etl"}, "n4")["groups"][0]["claims"]
        shipper(old, known_nodes(tmp_path / "both", new, old))
        assert eventually(lambda: is_sealed(old), 60)
        members[0].ack(past)

        def is_told():
            for _ in members[0].messages(max=1, timeout_s=0.1):
                pass
            return any(isinstance(each, rt.RangeLost) for each in events)

        told = eventually(is_told, 60)
        after = new.ask({"do": "groups", "name": "etl"}, "n4")["groups"][0]["claims"]
        assert told, (before, after)
        assert [each for each in before if each not in after] == [], "and the other's is its own"
        second.ack(taken, sync=True)
