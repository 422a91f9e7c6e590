"""`rt cluster`: writes the files of a new cluster, and changes the members of a running one."""

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import click

from rt.cli.cluster.members import add, move, remove, replace_node
from rt.cli.cluster.seal import seal, unseal
from rt.cli.cluster.upgrade import upgrade
from rt.cli.common.command_group import CommandGroup
from rt.cli.common.console import print_json, say
from rt.cli.common.options import json_option
from rt.errors import Misuse
from rt.net.authority.successions import SUFFIX
from rt.node.founding.cluster_files import (
    CLIENTS_NAME,
    Place,
    founding_lines,
    free_addresses,
    init_cluster,
)
from rt.node.founding.layout import ClusterLayout


@click.group(cls=CommandGroup)
def cluster() -> None:
    """Make the files of a new cluster, and change the members of a running one.

    \b
    rt cluster init flights --stream flights --address a:7420 --address b:7420 --address c:7420
    rt cluster add n4 --address d:7420 --config flights/clients.toml
    rt cluster remove n4 --config flights/clients.toml
    rt cluster replace n3 n4 --address d:7420 --config flights/clients.toml
    rt cluster move n3 --address e:7420 --config flights/clients.toml
    rt cluster seal --config flights/clients.toml
    rt cluster upgrade status --config flights/clients.toml
    """  # noqa: D301 - click reads the backspace character


for command in (add, remove, replace_node, move, seal, unseal, upgrade):
    cluster.add_command(command)


_OPTIONS: Final = (
    click.option(
        "--publisher", "publishers", metavar="NAME", multiple=True,
        help="Issue a publisher's certificate for NAME and grant it the session NAME; repeat for "
        "more.",
    ),
    click.option(
        "--subscriber", "subscribers", metavar="NAME", multiple=True,
        help="Issue a subscriber's certificate for NAME and grant it the stream; repeat for more.",
    ),
    click.option(
        "--group", "groups", metavar="GROUP=SESSION,SESSION", multiple=True,
        help="With --from: sessions that are redundant publishers of one group; repeat for more.",
    ),
    click.option(
        "--authority", metavar="DIR", default="",
        help="Sign with the ca.pem and ca.key in DIR, instead of making a new authority.",
    ),
    json_option("what was made"),
)  # fmt: skip


def _layout_options(*, hidden: bool) -> tuple[Callable[..., Any], ...]:
    return (
        click.option(
            "--name", "names", metavar="NAME", multiple=True, hidden=hidden,
            help="Name of a node; repeat, in the order of the addresses.  [default: n1, n2, ...]",
        ),
        click.option(
            "--node-root", metavar="PATH", default="", hidden=hidden,
            help="Data directory on each node's machine.",
        ),
        click.option(
            "--node-certs", metavar="PATH", default="", hidden=hidden,
            help="Directory of certificates on each node's machine.",
        ),
    )  # fmt: skip


def cluster_options(
    count: str, *, with_layout: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the options for a new cluster's files; see `ClusterOptions`.

    Args:
        count: the name of the option for the number of nodes, such as `--nodes`.
        with_layout: whether the help lists the options for other names and places of the nodes.
    """
    options = (
        click.argument("directory", metavar="DIR"),
        click.option(
            "--address", "addresses", multiple=True,
            help="Address (host:port) of a node; repeat for each.",
        ),
        click.option(
            count, "count", default=3, show_default=True,
            help="Number of nodes on this machine, if no address is given.",
        ),
        *_layout_options(hidden=not with_layout),
        *_OPTIONS,
    )  # fmt: skip
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


@cluster.command()
@click.option("--stream", default="stream", show_default=True, help="Stream to serve.")
@click.option(
    "--from", "source", metavar="LOG", default="",
    help="Found the cluster from this merged log: the directory out in a copy of the stream, or in "
    "what rt restore has made.",
)  # fmt: skip
@click.option(
    "--state", metavar="FILE", default="",
    help="With --from: file of the cluster's state that rt pull --standby kept beside the log.",
)  # fmt: skip
@cluster_options("--nodes")
def init(
    directory: str, *, stream: str, source: str, state: str, groups: tuple[str, ...], **given: Any
) -> None:
    """Write certificates and a configuration for each node into DIR.

    \b
    rt cluster init flights --stream flights --address a:7420 --address b:7420 --address c:7420
    rt cluster init one --stream flights --nodes 1 --publisher jfk --subscriber spark
    rt cluster init new --stream flights --from restored/flights/out --publisher jfk
    rt cluster init flights --stream flights --name a --address a:7420 --name b --address b:7420 \\
      --name c --address c:7420 --node-root /var/lib/rt --node-certs /etc/rt/certs --authority pki

    DIR/certs/grants.toml says what each publisher and subscriber may do; nodes read it again when
    it changes. Use rt certs issue for further certificates. The paths in a node's file are those
    of this machine, unless --node-root and --node-certs give those of the node's machine.

    With --from, the new cluster continues a lost one from a copy of its merged log: positions and
    sequence numbers continue after the copy's end, and publishers send again what the copy lacks.
    Name every group of redundant publishers with --group, unless the file of --state has them. The
    old cluster's nodes, copies and certificates are refused.
    """  # noqa: D301 - click reads the backspace character
    if (groups or state) and not source:
        raise Misuse("--group and --state say what is in the log of --from; name that too")
    options = ClusterOptions(directory, stream, source, state, groups, **given)
    show_cluster(options, write_cluster(options))


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options of `rt cluster init`, and those that `rt standby promote` adds.

    Attributes:
        log_id: the id of the cluster's log; "" for a new id.
        grants: path of the cluster's first grants.toml; "" for none.
        succession: path of the authority's statement that this cluster continues another's log; ""
            for none.
    """

    directory: str
    stream: str
    source: str
    state: str
    groups: tuple[str, ...]
    addresses: tuple[str, ...]
    count: int
    publishers: tuple[str, ...]
    subscribers: tuple[str, ...]
    names: tuple[str, ...]
    node_root: str
    node_certs: str
    authority: str
    as_json: bool
    log_id: str = ""
    grants: str = ""
    succession: str = ""


def write_cluster(options: ClusterOptions) -> list[Place]:
    """Write the files of a new cluster; return the place of each node."""
    source, stream = options.source, options.stream
    founded = (
        founding_lines(source, stream, options.groups, options.state, log_id=options.log_id)
        if source else ()
    )  # fmt: skip
    layout = ClusterLayout(
        options.names, options.node_root, options.node_certs, options.authority, options.grants,
        options.succession,
    )  # fmt: skip
    return init_cluster(
        options.directory, stream, options.addresses or free_addresses(options.count),
        publishers=options.publishers, subscribers=options.subscribers, founded=founded,
        layout=layout,
    )  # fmt: skip


def show_cluster(options: ClusterOptions, places: Sequence[Place]) -> None:
    """Print the next steps after a new cluster's files are written: how to found and start it."""
    directory, node_certs, source = options.directory, options.node_certs, options.source
    certs, clients = os.path.join(directory, "certs"), os.path.join(directory, CLIENTS_NAME)
    if options.as_json:
        made = [{"name": p.name, "address": p.address, "config": p.config} for p in places]
        print_json({"stream": options.stream, "certs": certs, "clients": clients, "nodes": made})
        return
    say(f"{certs} holds the certificates and the authority; keep its ca.key on this machine.")
    say("Found each node on its machine, once and never again, and start it:", "")
    for place in places:
        config = shlex.quote(place.config)
        say(f"  rt node found --config {config}")
        say(f"  rt node --config {config}")
        where = f", copied to {node_certs}" if node_certs else ""
        word = f"{options.stream}{SUFFIX}, " if options.succession else ""
        files = f"ca.pem, grants.toml, {word}{place.name}.pem and {place.name}.key"
        say(f"    needs {files} of {certs}{where}")
    if source:
        also = f" and {options.state}, which must be the same on each" if options.state else ""
        say("", f"Each node copies {source}{also} when it is founded;")
        say(f"elsewhere, set founded_from{' and founded_state' if options.state else ''}.")
    if options.node_root and node_certs:
        say("", f"The nodes' files hold paths of their machines. For clients: {clients}", "")
    else:
        say("", f"The .toml files hold paths of this machine. For clients: {clients}", "")
    if options.publishers and options.subscribers:
        show_client_commands(clients, options.publishers[0])
        return
    if options.grants:
        say("The grants are those of before, and clients keep their certificates.")
        return
    say("No client was named, so none may connect yet. Issue a certificate to each:", "")
    for role in ("publisher", "subscriber"):
        say(f"  rt certs issue NAME --role {role} --dir {shlex.quote(certs)}")


def show_client_commands(config: str, session: str = "one") -> None:
    """Print the commands with which to try out a cluster.

    Args:
        config: The path of the cluster's clients.toml.
        session: A session that the cluster's certificates allow a client to publish.
    """
    say(f"  export RT_CONFIG={shlex.quote(config)}")
    say(f"  seq 1000 | rt publish --session {session}")
    say("  rt push --drain")
    say("  rt pull --once")
    say("  rt subscribe --no-follow")
    say("  rt status")
