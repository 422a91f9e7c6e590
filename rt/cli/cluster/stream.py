"""`rt stream`: creates, lists and drops the streams that a node serves."""

import os
from typing import Any, Final

import click

from rt.cli.cluster.found import found_stream
from rt.cli.common.command_group import CommandGroup
from rt.cli.common.completing import complete_listed_stream
from rt.cli.common.console import print_json, say, table
from rt.cli.common.options import flag, json_option
from rt.config.settings import FILE_BYTES_MAX, load
from rt.errors import Misuse, RtError, spoken
from rt.names import parse_stream, stream_directory
from rt.net.addresses import parse_address
from rt.net.authority.certificates import certificate_files
from rt.net.authority.files import read_file, write_file
from rt.net.status import ask_status
from rt.net.tls import Contexts, client_context
from rt.node.settings.node import NodeSettings
from rt.node.settings.stream_entry import StreamEntry
from rt.node.settings.stream_list import listed_streams, with_streams
from rt.text import printable

_HEADINGS: Final = ("stream", "state", "merged to", "messages", "directory")
_SPARE: Final = ("directory", "messages")
_AGAIN: Final = "send the node SIGHUP (systemctl reload), or restart it"

config_option = click.option(
    "--config", metavar="FILE", required=True, envvar="RT_CONFIG",
    help="Settings file of the node.  [RT_CONFIG]",
)  # fmt: skip


@click.group(cls=CommandGroup)
def stream() -> None:
    """Make, list and drop the streams that a node serves at one address.

    \b
    rt stream create trains --config /etc/rt/n1.toml
    rt stream list --config /etc/rt/n1.toml
    """  # noqa: D301 - click reads the backspace character


@stream.command()
@click.argument("name")
@config_option
@click.option(
    "--root", metavar="DIR", default="",
    help="Directory that holds the stream.  [default: the node's root]",
)  # fmt: skip
@click.option(
    "--set", "own", metavar="SETTING=VALUE", multiple=True,
    help="Override a setting for this stream, such as reserve=20Gi; repeat for more.",
)  # fmt: skip
@json_option("what was made")
def create(name: str, *, config: str, root: str, own: tuple[str, ...], as_json: bool) -> None:
    """Add a stream to a node's configuration file, and create the stream's initial state.

    Run this once on each node of the cluster. Then restart each node, or send it SIGHUP: the stream
    is served once a majority of the nodes has it. If a node loses its directory later, do not run
    this again: the node copies the stream from the others. grants.toml has to grant the stream to
    its publishers and subscribers.

    \b
    rt stream create trains --config /etc/rt/n1.toml
    rt stream create ships --root /data2/rt --set reserve=20Gi --config /etc/rt/n1.toml
    systemctl reload rt-node-n1-flights
    """  # noqa: D301 - click reads the backspace character
    parse_stream(name)
    text, settings = _read(config)
    if name in {each.stream for each in settings.each_stream}:
        raise Misuse(f"{config} lists the stream {name!r} already")
    entry = ";".join([f"{name}={os.path.abspath(root)}" if root else name, *own])
    changed = with_streams(text, [*listed_streams(text), entry])
    made = next(each for each in _settings_of(config, changed).each_stream if each.stream == name)
    directory = stream_directory(made.root, made.stream)
    if not made.is_alone:  # the only node of a cluster founds its state when it starts
        found_stream(made)
    _write(config, changed)
    if as_json:
        print_json({"stream": name, "directory": directory, "config": config})
        return
    say(f"stream {name} is in {directory}, and {config} lists it")
    others = [each for each in settings.member_names if each != settings.name]
    if others:
        say(f"do the same on {', '.join(others)}, with the file of each")
    say(_AGAIN)


@stream.command()
@click.argument("name", shell_complete=complete_listed_stream)
@config_option
@flag("--yes", help="Do not ask.")
@json_option("what was dropped")
def drop(name: str, *, config: str, yes: bool, as_json: bool) -> None:
    """Remove a stream from a node's configuration file; the stream's data stays where it is.

    The node stops serving the stream after SIGHUP or a restart. The other nodes go on serving it as
    long as they are a majority. Delete the stream's directory yourself once it is not needed.

    \b
    rt stream drop trains --config /etc/rt/n1.toml
    """  # noqa: D301 - click reads the backspace character
    text, settings = _read(config)
    found = next((each for each in settings.each_stream if each.stream == name), None)
    if found is None:
        raise Misuse(f"{config} does not list the stream {name!r}")
    if name == settings.stream:
        raise Misuse(f"{name!r} is the node's own stream (the setting stream); stop the node")
    directory = stream_directory(found.root, name)
    if not yes:
        click.confirm(
            f"Node {settings.name} will not serve stream {name}; {directory} stays. Go on?",
            abort=True, err=True,
        )  # fmt: skip
    kept = [each for each in listed_streams(text) if StreamEntry.parse(each).name != name]
    _write(config, with_streams(text, kept))
    if as_json:
        print_json({"stream": name, "directory": directory, "config": config})
        return
    say(f"{config} no longer lists stream {name}; its files stay in {directory}")
    say(_AGAIN)


@stream.command("list")
@config_option
@json_option("the streams")
def list_streams(*, config: str, as_json: bool) -> None:
    """List the streams in a node's configuration file, and how the running node serves each.

    \b
    rt stream list --config /etc/rt/n1.toml
    """  # noqa: D301 - click reads the backspace character
    _, settings = _read(config)
    rows = [_row(each) for each in settings.each_stream]
    if as_json:
        print_json(rows)
        return
    names = ("stream", "state", "merged_end", "messages", "directory")
    cells = [[printable(str(row[each])) for each in names] for row in rows]
    click.echo(table(_HEADINGS, cells, _SPARE))


def _row(settings: NodeSettings) -> dict[str, Any]:
    """Return a stream's row for `rt stream list`; its state is the node's role, or an error."""
    row = {
        "stream": settings.stream, "state": "", "merged_end": "", "messages": "",
        "directory": stream_directory(settings.root, settings.stream),
    }  # fmt: skip
    files = certificate_files(settings.certs, settings.name)
    where = parse_address(settings.places.get(settings.name, settings.listen))
    try:
        answer = ask_status(where, Contexts(files, client_context, settings.stream))
    except (RtError, OSError) as error:
        return row | {"state": f"not served: {spoken(error)}"}
    if answer.get("stream") != settings.stream:
        return row | {"state": "not served: the node has yet to load its file again"}
    role, end, count = (str(answer.get(each)) for each in ("role", "merged_end", "messages"))
    return row | {"state": role, "merged_end": end, "messages": count}


def _read(config: str) -> tuple[str, NodeSettings]:
    text = read_file(config, FILE_BYTES_MAX).decode()
    return text, load(NodeSettings, config, "node")


def _settings_of(config: str, text: str) -> NodeSettings:
    """Return the settings in file `config` with the streams in `text`; raises as `load` does."""
    listed = listed_streams(text)
    return load(NodeSettings, config, "node", {}, {"streams": listed})


def _write(config: str, text: str) -> None:
    """Replace a file's text, and keep its mode and owner: the node may run as another user."""
    facts = os.stat(config)
    write_file(config, text.encode(), force=True)
    os.chmod(config, facts.st_mode & 0o777)
    if (os.geteuid(), os.getegid()) != (facts.st_uid, facts.st_gid):
        os.chown(config, facts.st_uid, facts.st_gid)
