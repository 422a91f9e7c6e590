"""`rt cluster add`, `remove`, `replace` and `move`: change the members of a running cluster."""

import functools
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import click

from rt.cli.common.completing import complete_asked
from rt.cli.common.console import note, print_json, say, teller
from rt.cli.common.link import link_options
from rt.cli.common.options import Duration, flag, json_option
from rt.client.readers.settings import ConnectionSettings
from rt.errors import Misuse, PeerError, Refused, RtError
from rt.names import parse_node
from rt.net.addresses import parse_address
from rt.net.admin import AdminClient, reading_answers
from rt.net.authority.certificates import is_cluster_id
from rt.net.tls import Contexts
from rt.node.founding.cluster_files import certify_node, write_member
from sequencer.raft.consensus import VOTERS_MAX

# Codes of replies that postpone a change; the client asks again.
_WAITS: Final = {"not-caught-up", "handing-over", "changing", "moving", "undecided"}
_FRAGILE: Final = 2  # this many voters, or fewer, stop if one is lost
_POLL_S: Final = 0.3

Answer = dict[str, Any]
Ask = Callable[[list[tuple[str, int]], Contexts, Answer], Answer]


def _asked(addresses: list[tuple[str, int]], contexts: Contexts, request: Answer) -> Answer:
    return AdminClient(addresses, contexts).ask(request)


class ChangeRequests:
    """Asks a cluster's leader for membership changes until they are made, and reports progress."""

    def __init__(
        self,
        settings: ConnectionSettings,
        timeout_s: float,
        *,
        ask: Ask | None = None,
        poll_s: float = _POLL_S,
        tell: Callable[..., None] = say,
    ) -> None:
        """Ask for the members, and prepare to ask for changes.

        Args:
            settings: how to reach the nodes.
            timeout_s: how long to wait in total, for this and for all changes.
            ask: sends a request to the leader and returns the reply; over the network by default.
            poll_s: the pause before a request is repeated, in seconds.
            tell: prints a sentence about what has been done.
        """
        self.tell = tell
        self._settings, self._ask_leader, self._poll_s = settings, ask or _asked, poll_s
        self._end_s = time.monotonic() + timeout_s
        self._said = ""
        self.answer: Answer = {}
        self._change("members")

    @property
    def members(self) -> dict[str, Answer]:
        """Return each member's fields by name, according to the leader's last reply."""
        with reading_answers():
            return {str(each["name"]): each for each in self.answer["members"]}

    @property
    def _cluster(self) -> str:
        """Return the cluster's id without the stream's name, as certificates contain it."""
        with reading_answers():
            stream, cluster = str(self.answer["stream"]), str(self.answer["cluster"])
        return cluster.removesuffix(f"/{stream}")

    def demand_member(self, name: str) -> None:
        """Raise `Misuse` unless `name` is a member."""
        if name not in self.members:
            raise Misuse(f"{name} is not a member; the members are {', '.join(self.members)}")

    def add(self, name: str, address: str) -> str:
        """Add a learner and write the new node's files; return the path of its settings file."""
        before = self.members.get(name)
        if before is not None and before["votes"]:
            words = "a member already; to change its address, use rt cluster move"
            raise Misuse(f"{name} is {words}")
        directory = os.path.dirname(os.path.abspath(self._settings.certs))
        self._change("add-member", name, address)
        host = parse_address(address)[0]
        self.tell(certify_node(self._settings.certs, name, host, self._cluster))
        with reading_answers():
            places = {each["name"]: str(each["address"]) for each in self.answer["members"]}
            stream, cluster = str(self.answer["stream"]), str(self.answer["cluster"])
            log_id = str(self.answer.get("log", ""))
        if log_id and not is_cluster_id(log_id):
            raise PeerError("a node's answer cannot be read: the id of its log is malformed")
        config = write_member(directory, stream, name, places, cluster, log_id=log_id)
        self.tell(f"{name} is a learner at {address}")
        return config

    def promote(self, name: str) -> None:
        """Wait until a learner has caught up, and let it vote."""
        self._change("promote-member", name)
        self.tell(f"{name} has caught up and votes")

    def remove(self, name: str) -> None:
        """Remove a member; a leader first hands its role to another node."""
        self.demand_member(name)
        self._change("remove-member", name)
        self.tell(f"{name} is no longer a member; if it is running, it stops, and its files stay")

    def move(self, name: str, address: str) -> None:
        """Change a member's address."""
        self.demand_member(name)
        self._change("move-member", name, address)
        host = parse_address(address)[0]
        self.tell(certify_node(self._settings.certs, name, host, self._cluster))
        self.tell(f"{name} is reached at {address}; start it with that address under listen")

    def _change(self, do: str, name: str = "", address: str = "") -> None:
        """Repeat a request until the leader confirms that the cluster has agreed on the change.

        The last reply, which lists the members, becomes `answer`.
        """
        has_asked = False
        while True:
            try:
                request = {"do": do, "name": name, "address": address, "decided": True}
                self.answer = self._ask(request)
            except Refused as error:
                if error.code == "not-a-member" and do == "remove-member" and has_asked:
                    self._change("members")
                    return
                if error.code not in _WAITS:
                    raise
                self._wait(str(error))
                has_asked = True
            else:
                return

    def _ask(self, request: Answer) -> Answer:
        """Return the leader's reply; while no leader answers, wait and ask again."""
        while True:
            try:
                return self._ask_leader(self._addresses(), self._settings.contexts(), request)
            except (Refused, Misuse):
                raise
            except RtError as error:
                self._wait(str(error))

    def _addresses(self) -> list[tuple[str, int]]:
        """Return the configured addresses, then those of the members in the leader's last reply."""
        named = [str(each["address"]) for each in self.answer.get("members", [])]
        found = [*self._settings.addresses(), *(parse_address(each) for each in named if each)]
        return list(dict.fromkeys(found))

    def _wait(self, reason: str) -> None:
        if time.monotonic() > self._end_s:
            raise click.ClickException(
                f"gave up waiting: {reason}; run the command again to continue"
            )
        if reason != self._said:
            note(f"waiting: {reason}")
        self._said = reason
        time.sleep(self._poll_s)

    def show(self, *, as_json: bool) -> None:
        """Print the members, according to the leader's last reply."""
        if as_json:
            print_json(self.answer)
            return
        voters = [name for name, each in self.members.items() if each["votes"]]
        learners = [name for name, each in self.members.items() if not each["votes"]]
        say(f"voting: {', '.join(voters)}" + (f"; learner: {learners[0]}" if learners else ""))
        spare = (len(voters) - 1) // 2
        if len(voters) % 2 == 0:
            say(f"{len(voters)} voters survive the loss of {spare}, as {len(voters) - 1} would")
        nodes = ", ".join(f'"{each["address"]}"' for each in self.members.values())
        say(f"for the configuration of clients: nodes = [{nodes}]")


def member_command(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command` the options that all member changes share, and a `ChangeRequests` to use.

    The returned command prints the members when it ends.
    """

    @functools.wraps(command)
    def run(settings: ConnectionSettings, *, timeout_s: float, as_json: bool, **given: Any) -> None:
        changes = ChangeRequests(settings, timeout_s, tell=teller(as_json=as_json))
        command(changes, **given)
        changes.show(as_json=as_json)

    timeout = click.option(
        "--timeout", "timeout_s", type=Duration(), default="1h", show_default=True,
        help="Give up after this long, with exit code 1.",
    )  # fmt: skip
    return link_options("archive")(timeout(json_option("the members afterwards")(run)))


def _add(changes: ChangeRequests, name: str, address: str) -> None:
    config = changes.add(name, address)
    changes.tell("start it on an empty directory with")
    changes.tell(f"  rt node --config {shlex.quote(config)}")


def _checked_address(_context: Any, _parameter: Any, address: str | None) -> str | None:
    if address is not None:  # None where `rt config explain` leaves it out
        parse_address(address, "--address")
    return address


def _checked_node(_context: Any, _parameter: Any, name: str) -> str:
    return parse_node(name)


_address_option = click.option(
    "--address", required=True, metavar="HOST:PORT", callback=_checked_address,
    help="Address at which the other nodes reach it.",
)  # fmt: skip


@click.command()
@click.argument("name", callback=_checked_node)
@_address_option
@flag("--no-wait", help="Do not wait until the node votes; run the command again to finish.")
@member_command
def add(changes: ChangeRequests, *, name: str, address: str, no_wait: bool) -> None:
    """Add node NAME to a running cluster, and wait until it has caught up and votes.

    \b
    rt cluster add n4 --address d:7420 --config flights/clients.toml
    rt cluster add n4 --address d:7420 --config flights/clients.toml --no-wait

    Writes NAME.toml beside the directory of certificates, and issues the node's certificate if the
    authority's key is on this machine. Start the node while the command waits. The new node does
    not count toward a majority until it votes.
    """  # noqa: D301 - click reads the backspace character
    _add(changes, name, address)
    if not no_wait:
        changes.promote(name)


@click.command()
@click.argument("name", shell_complete=complete_asked("members"))
@flag("--yes", help="Do not ask, even if the cluster would not survive the loss of one more node.")
@member_command
def remove(changes: ChangeRequests, *, name: str, yes: bool) -> None:
    """Remove node NAME from a running cluster.

    \b
    rt cluster remove n4 --config flights/clients.toml
    rt cluster remove n3 --config flights/clients.toml --yes

    Refused if too few of the remaining nodes are up for a majority. Asks for confirmation if only
    one or two voters would be left: two stop if either fails, and a single one has the only copy of
    the log. A leader first hands its role to another node. The removed node stops by itself; revoke
    its certificate with rt certs revoke if you give its machine away.
    """  # noqa: D301 - click reads the backspace character
    changes.demand_member(name)
    if not yes:
        _confirm_loss(changes.members, name)
    changes.remove(name)


def _confirm_loss(members: Mapping[str, Answer], name: str) -> None:
    """Ask the user to confirm a removal after which the loss of one more node stops the cluster.

    Raises:
        Misuse: standard input is not a terminal.
    """
    left = sorted(each for each in members if each != name and members[each]["votes"])
    if not members[name]["votes"] or not 0 < len(left) <= _FRAGILE:
        return  # the last one is refused by the cluster
    what = (
        f"Without {name}, {left[0]} is the only node: the loss of its disk loses the stream."
        if len(left) == 1
        else f"Without {name}, {' and '.join(left)} are left, and the stream stops if either fails."
    )
    if not sys.stdin.isatty():
        raise Misuse(f"{what} Use --yes to remove it all the same, or rt cluster replace")
    click.confirm(f"{what} Go on?", abort=True, err=True)


@click.command("replace")
@click.argument("old", shell_complete=complete_asked("members"))
@click.argument("new", callback=_checked_node)
@_address_option
@member_command
def replace_node(changes: ChangeRequests, *, old: str, new: str, address: str) -> None:
    """Replace node OLD by node NEW: add NEW, wait until it has caught up, and remove OLD.

    \b
    rt cluster replace n3 n4 --address d:7420 --config flights/clients.toml

    OLD is removed before NEW votes in two cases: if OLD is dead, since it would only make a
    majority harder to reach, and if seven nodes vote already, which is the most allowed. If the
    command is interrupted, run it again. If only a disk was changed, do not replace the node: start
    it on an empty directory.
    """  # noqa: D301 - click reads the backspace character
    if old == new:
        raise Misuse("give the new node a name of its own; for another address use rt cluster move")
    replace_member(changes, old, new, address)


def replace_member(changes: ChangeRequests, old: str, new: str, address: str) -> None:
    """Replace member `old` by `new`, leaving out steps that an interrupted call has completed."""
    if new not in changes.members:
        changes.demand_member(old)
    if not changes.members.get(new, {}).get("votes"):
        _add(changes, new, address)
        if leaves_first(changes.members, old):
            changes.remove(old)
    # even if `new` votes already: nodes of an older version may report that wrongly
    changes.promote(new)
    if old in changes.members:
        changes.remove(old)


def leaves_first(members: Mapping[str, Answer], old: str) -> bool:
    """Return whether the old member has to be removed before its replacement can vote."""
    if old not in members:
        return False
    voters = sum(bool(each["votes"]) for each in members.values())
    return not members[old]["live"] or voters >= VOTERS_MAX


@click.command()
@click.argument("name", shell_complete=complete_asked("members"), callback=_checked_node)
@_address_option
@member_command
def move(changes: ChangeRequests, *, name: str, address: str) -> None:
    """Change the address of node NAME; no other node needs a restart.

    \b
    rt cluster move n3 --address e:7420 --config flights/clients.toml

    Afterwards, start NAME at the new address: with its old directory, and with the new address as
    its setting listen.
    """  # noqa: D301 - click reads the backspace character
    changes.move(name, address)
