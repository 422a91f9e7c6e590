"""`rt node adopt-state`: lets a node use its directory after a move to another disk."""

from contextlib import closing

import click

from rt.cli.common.options import click_options, flag
from rt.errors import Misuse, PeerError, Refused
from rt.net.addresses import address_text
from rt.net.authority.certificates import certificate_files
from rt.net.status import ask_status
from rt.net.tls import Contexts, client_context
from rt.node.host.state import adopt, demand_state
from rt.node.resources.node_directory import NodeDirectory
from rt.node.settings.node import NodeSettings


@click.command("adopt-state")
@click_options(NodeSettings, "node", ("root", "stream", "name", "certs"))
@flag(
    "--original-is-gone", "is_gone",
    help="Confirm that the directory was moved, and that no copy of it can be started.",
)  # fmt: skip
def adopt_state(settings: NodeSettings, *, is_gone: bool) -> None:
    """Let a node start on a directory that was moved, for example to a larger disk.

    A node refuses a directory that looks like a copy, since two nodes that share one vote could
    elect two leaders and lose messages. Never adopt a backup or a snapshot, which lacks the latest
    votes: empty the node's directory instead, and start the node, which then copies everything from
    the other nodes.

    The command is refused while a node runs in the directory or answers at the node's address, and
    if the directory belongs to another node or cluster.

    The command also takes the other options of rt node.

    \b
    rt node adopt-state --config n1.toml --original-is-gone
    rt node adopt-state --root /mnt/new/rt --stream flights --name n1 --original-is-gone
    """  # noqa: D301 - click reads the backspace character
    demand_state(settings)
    if not is_gone:
        raise Misuse(
            "the directory is adopted only with --original-is-gone: if another copy of it were "
            "started too, the two would vote twice"
        )
    _demand_silence(settings)
    with closing(NodeDirectory(settings)) as directory:
        is_new = adopt(directory.disk, settings, directory.path)
        word = "can be used here now" if is_new else "was in its place already"
        click.echo(f"the state of node {settings.name} in {directory.state} {word}")


def _demand_silence(settings: NodeSettings) -> None:
    """Raise `Refused` if a node answers at this node's address."""
    contexts = Contexts(
        certificate_files(settings.certs, settings.name), client_context, settings.stream
    )
    address = settings.addresses.get(settings.name, settings.address)
    try:
        name = ask_status(address, contexts).get("node")
    except (OSError, PeerError):
        return  # nothing answers there, or what answers is not a node
    where = address_text(address)
    raise Refused("running", f"node {name} answers at {where}; stop it first, whichever it is")
