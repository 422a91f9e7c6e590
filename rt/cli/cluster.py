"""`rt cluster`: makes the files of a new cluster, and changes the members of a running one."""

import os
import shlex

import click

from rt.cli.cluster_members import add, move, remove, replace_node
from rt.cli.console import print_json, say
from rt.cli.groups import CommandGroup
from rt.cli.options import json_option
from rt.node.cluster import CLIENTS_NAME, free_addresses, init_cluster


@click.group(cls=CommandGroup)
def cluster() -> None:
    """Make the files of a new cluster, and change the members of a running one.

    \b
    rt cluster init flights --stream flights --address a:7420 --address b:7420 --address c:7420
    rt cluster add n4 --address d:7420 --config flights/clients.toml
    rt cluster remove n4 --config flights/clients.toml
    rt cluster replace n3 n4 --address d:7420 --config flights/clients.toml
    rt cluster move n3 --address e:7420 --config flights/clients.toml
    """  # noqa: D301 - click reads the backspace character


for command in (add, remove, replace_node, move):
    cluster.add_command(command)


@cluster.command()
@click.argument("directory", metavar="DIR")
@click.option("--stream", default="stream", show_default=True, help="Stream to serve.")
@click.option("--address", "addresses", multiple=True, help="host:port of a node; repeat for each.")
@click.option(
    "--nodes", default=3, show_default=True, help="Nodes on this machine, if no address is given."
)
@click.option(
    "--publisher",
    "publishers",
    metavar="NAME",
    multiple=True,
    help="Issue a publisher's certificate and grant it the session NAME; repeat.",
)
@click.option(
    "--subscriber",
    "subscribers",
    metavar="NAME",
    multiple=True,
    help="Issue a subscriber's certificate and grant it the stream; repeat.",
)
@json_option("what was made")
def init(
    directory: str,
    *,
    stream: str,
    addresses: tuple[str, ...],
    nodes: int,
    publishers: tuple[str, ...],
    subscribers: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write certificates and a configuration for each node into DIR.

    \b
    rt cluster init flights --stream flights --address a:7420 --address b:7420 --address c:7420
    rt cluster init one --stream flights --nodes 1 --publisher jfk --subscriber spark

    What each publisher and subscriber may do is in DIR/certs/grants.toml. Nodes read that file
    again when it changes; further certificates come from rt certs issue.
    """  # noqa: D301 - click reads the backspace character
    places = init_cluster(
        directory, stream, addresses or free_addresses(nodes),
        publishers=publishers, subscribers=subscribers,
    )  # fmt: skip
    certs, clients = os.path.join(directory, "certs"), os.path.join(directory, CLIENTS_NAME)
    if as_json:
        made = [{"name": p.name, "address": p.address, "config": p.config} for p in places]
        print_json({"stream": stream, "certs": certs, "clients": clients, "nodes": made})
        return
    say(f"{certs} holds the certificates and the authority; keep its ca.key on this machine.")
    say("Start each node on its machine, with --found the first time and never again:\n")
    for place in places:
        say(f"  rt node --config {shlex.quote(place.config)} --found")
        say(f"    needs ca.pem, grants.toml, {place.name}.pem and {place.name}.key of {certs}")
    say(f"\nThe .toml files hold paths of this machine. For clients: {clients}\n")
    if publishers and subscribers:
        show_client_commands(clients, publishers[0])
        return
    say("No client was named, so none may connect yet. Issue a certificate to each:\n")
    for role in ("publisher", "subscriber"):
        say(f"  rt certs issue NAME --role {role} --dir {shlex.quote(certs)}")


def show_client_commands(config: str, session: str = "one") -> None:
    """Print the commands that try a cluster out.

    Args:
        config: The path of its clients.toml.
        session: One that may be published.
    """
    say(f"  export RT_CONFIG={shlex.quote(config)}")
    say(f"  seq 1000 | rt publish --session {session}")
    say("  rt push --drain")
    say("  rt pull --once")
    say("  rt subscribe --no-follow")
    say("  rt status")
