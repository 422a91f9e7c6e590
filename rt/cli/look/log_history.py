"""`rt log-history`: shows one row for each file that a log ever had."""

import os
import sys
import time
from typing import Any, Final

import click

from rt.cli.common.completing import complete_node
from rt.cli.common.console import say, table, teller
from rt.cli.common.options import json_option, parse_position
from rt.inspect.history import STATES, Row, history, selected
from rt.inspect.history_text import HEADINGS, HistoryText
from rt.log.files.gc_pause import uncollected
from rt.names import parse_stream
from rt.offload.offloaded import Offloaded, offloaded_of, read_offloaded
from rt.position import Position
from rt.text import counted, parse_time

_STATES: Final = {
    "archived": frozenset({"archived"}), "live": frozenset({"active", "rolled"}), None: STATES,
}  # fmt: skip
_ROWS_A_WRITE: Final = 500


def _time(_context: Any, _parameter: Any, text: str | None) -> int | None:
    return None if text is None else parse_time(text)


@click.command()
@click.argument("directory", metavar="[DIR]", default="")
@click.option(
    "--node", metavar="ADDRESS", shell_complete=complete_node,
    help="Ask this node instead of reading DIR.",
)  # fmt: skip
@click.option("--stream", help="With --node: stream to ask for, if the node serves several.")
@click.option("--certs", help="With --node: directory of certificates.  [default: certs]")
@click.option(
    "--identity", help="With --node: NAME of the certificate to present.  [default: client]"
)
@click.option(
    "--config", metavar="FILE", envvar="RT_CONFIG",
    help="With --node: TOML file with stream, certs and identity in the table [pull].  [RT_CONFIG]",
)  # fmt: skip
@json_option("all fields")
@click.option(
    "--since", metavar="TIME", callback=_time,
    help="Only files with messages of this time or later.",
)  # fmt: skip
@click.option(
    "--until", metavar="TIME", callback=_time, help="Only files with messages before this time."
)
@click.option(
    "--from-position", "begin", metavar="POSITION", callback=parse_position,
    help="Only the file with this position (0.3.0, or the integer) and later ones.",
)  # fmt: skip
@click.option(
    "--to-position", "end", metavar="POSITION", callback=parse_position,
    help="Only files that begin before this position.",
)  # fmt: skip
@click.option("--archived", "which", flag_value="archived", help="Show archived files only.")
@click.option("--live", "which", flag_value="live", help="Show only files that are not archived.")
@uncollected()
def log_history(
    *, directory: str, node: str | None, stream: str | None, certs: str | None,
    identity: str | None, config: str | None, as_json: bool, since: int | None, until: int | None,
    begin: Position | None, end: Position | None, which: str | None,
) -> None:  # fmt: skip
    """Show the history of every file of the log in DIR: a session, or a merged log (out).

    \b
    rt log-history rt-data/flights/out
    rt log-history rt-data/flights/out --json --since 2013-01-01T00:00:00Z
    rt log-history rt-data/flights/out --archived --from-position 0.3.0 --to-position 0.9.0
    rt log-history --node localhost:7420 --identity subscriber

    No other process needs to run: the command reads the manifest, which also lists archived files.
    A file's age counts from when it was rolled; times are UTC. With --node, the first line gives
    the time of the answer, and whether a majority of nodes has confirmed that the answer has all
    that was merged by then; with --json, that line is on standard error.
    """  # noqa: D301 - click reads the backspace character
    if bool(directory) == bool(node):
        raise click.UsageError("name the directory of a log, or a --node")
    directory, found, offloaded, as_of = (
        _of_node(node, config, {"stream": stream, "certs": certs, "identity": identity})
        if node
        else _of_directory(directory)
    )
    wanted = selected(
        found, since_ns=since, until_ns=until, begin=begin, end=end, states=_STATES[which]
    )
    rows = list(wanted)
    text = HistoryText(directory, time.time_ns(), offloaded)
    if as_of:
        teller(as_json=as_json)(as_of)
    if as_json:
        _write_array(rows, text)
    else:
        click.echo(table(HEADINGS, [text.cells(row) for row in rows]))
        say(f"{counted(len(rows), 'file')}, {counted(sum(row.messages for row in rows))}")


def _write_array(rows: list[Row], text: HistoryText) -> None:
    """Write rows as a JSON array, piece by piece: 100,000 rows are 70 MB of text."""
    out = sys.stdout.buffer
    out.write(b"[\n" if rows else b"[")
    for start in range(0, len(rows), _ROWS_A_WRITE):
        part = map(text.json, rows[start : start + _ROWS_A_WRITE])
        out.write(((",\n" if start else "") + ",\n".join(part)).encode())
    out.write(b"\n]\n" if rows else b"]\n")


_Found = tuple[str, list[Row], Offloaded | None, str]  # the last part says as of when


def _of_directory(directory: str) -> _Found:
    directory = os.path.abspath(directory)
    return directory, history(directory), read_offloaded(directory), ""


def _of_node(node: str, config: str | None, options: dict[str, object]) -> _Found:
    # TLS is slow to import, and a directory's history does not need it
    from rt.client.readers.settings import ConnectionSettings  # noqa: PLC0415
    from rt.config.settings import explain  # noqa: PLC0415
    from rt.net.addresses import parse_address  # noqa: PLC0415
    from rt.net.admin import ask_history  # noqa: PLC0415
    from rt.net.authority.certificates import certificate_files  # noqa: PLC0415
    from rt.net.tls import Contexts, client_context  # noqa: PLC0415

    given = explain(ConnectionSettings, config, "pull" if config else None, options=options)
    certs, identity = str(given["certs"].value), str(given["identity"].value)
    # without a name, a node that serves a single stream answers for it
    stream = "" if given["stream"].source == "default" else parse_stream(str(given["stream"].value))
    contexts = Contexts(certificate_files(certs, identity), client_context, stream)
    if config and stream:
        settings = ConnectionSettings(stream=stream, certs=certs, identity=identity)
        contexts.successions = settings.known_nodes(config).successions
    found = ask_history(parse_address(node), contexts)
    return found.directory, found.rows, offloaded_of(found.offloaded), found.as_of
