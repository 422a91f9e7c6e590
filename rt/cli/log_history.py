"""`rt log-history`: one row for each file a log ever had."""

import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any, BinaryIO, Final, NoReturn

import click

from rt.cli.console import counted, note, table
from rt.errors import RtError
from rt.inspect.history import STATES, Row, history, selected
from rt.inspect.history_text import HEADINGS, HistoryText
from rt.limits import MIB
from rt.log.gc_pause import uncollected
from rt.offload.offloaded import Offloaded, offloaded_of, read_offloaded
from rt.position import Position
from rt.text import parse_time

_STATES: Final = {
    "archived": frozenset({"archived"}),
    "live": frozenset({"active", "rolled"}),
    None: STATES,
}
_ROWS_A_WRITE: Final = 500
_ROWS_ALONE_MAX: Final = 20_000  # as many take 0.1 s


def _time(_context: Any, _parameter: Any, text: str | None) -> int | None:
    return None if text is None else parse_time(text)


def _position(_context: Any, _parameter: Any, text: str | None) -> Position | None:
    try:
        return None if text is None else Position.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.argument("directory", metavar="[DIR]", default="")
@click.option("--node", metavar="ADDRESS", help="Ask this node, over mutual TLS, and not a DIR.")
@click.option("--certs", default="certs", help="With --node: directory of the certificates.")
@click.option("--identity", default="client", help="With --node: NAME of the certificate to show.")
@click.option("--json", "form", flag_value="json", help="An array of objects, all fields.")
@click.option(
    "--json-rt", "form", flag_value="json-rt",
    help="The same with logPath, logTime, logPos, logAge and truncationTime only.",
)  # fmt: skip
@click.option(
    "--since", metavar="TIME", callback=_time, help="Files with messages of then or later."
)
@click.option("--until", metavar="TIME", callback=_time, help="Files with messages before that.")
@click.option(
    "--from-position", "begin", metavar="POSITION", callback=_position,
    help="The file that holds this position (0.3.0, or the integer), and later ones.",
)  # fmt: skip
@click.option(
    "--to-position", "end", metavar="POSITION", callback=_position,
    help="Files that begin before this position.",
)  # fmt: skip
@click.option("--archived", "which", flag_value="archived", help="Only files that are archived.")
@click.option("--live", "which", flag_value="live", help="Only files that are not.")
@uncollected()
def log_history(
    *,
    directory: str,
    node: str | None,
    certs: str,
    identity: str,
    form: str | None,
    since: int | None,
    until: int | None,
    begin: Position | None,
    end: Position | None,
    which: str | None,
) -> None:
    """Tell the history of every file of the log in DIR: a session, or a merged log (out).

    \b
    rt log-history rt-data/flights/out
    rt log-history rt-data/flights/out --json --since 2013-01-01T00:00:00Z
    rt log-history rt-data/flights/out --archived --from-position 0.3.0 --to-position 0.9.0
    rt log-history --node localhost:7420 --identity subscriber

    Needs no running process: it reads the manifest, and so also tells of files that are archived.
    A file's age counts from when it was rolled; times are UTC.
    """  # noqa: D301 - click reads the backspace character
    if bool(directory) == bool(node):
        raise click.UsageError("name the directory of a log, or a --node")
    directory, found, offloaded = (
        _of_node(node, certs, identity) if node else _of_directory(directory)
    )
    wanted = selected(
        found, since_ns=since, until_ns=until, begin=begin, end=end, states=_STATES[which]
    )
    rows = list(wanted)
    text = HistoryText(directory, time.time_ns(), offloaded)
    if form is None:
        click.echo(table(HEADINGS, [text.cells(row) for row in rows]))
        note(f"{counted(len(rows), 'file')}, {counted(sum(row.messages for row in rows))}")
        return
    _write_array(rows, text.json if form == "json" else text.json_rt)


def _write_array(rows: list[Row], worded: Callable[[Row], str]) -> None:
    """Write rows as a JSON array."""
    out = sys.stdout.buffer
    out.write(b"[\n" if rows else b"[")
    write = _write_in_two if len(rows) > _ROWS_ALONE_MAX else _write_rows
    write(out, rows, worded)
    out.write(b"\n]\n" if rows else b"]\n")


def _write_in_two(out: BinaryIO, rows: list[Row], worded: Callable[[Row], str]) -> None:
    """Write rows, of which another process words the second half."""
    half = len(rows) // 2
    with open(os.memfd_create("history"), "w+b") as aside:
        child = os.fork()
        if not child:
            _write_and_exit(aside, rows[half:], worded)
        _write_rows(out, rows[:half], worded)
        if os.waitpid(child, 0)[1]:
            raise RtError("the half of the history that another process worded is not there")
        out.write(b",\n")
        aside.seek(0)
        shutil.copyfileobj(aside, out, MIB)


def _write_and_exit(out: BinaryIO, rows: list[Row], worded: Callable[[Row], str]) -> NoReturn:
    """Write rows and end this process, at once: the parent does all the rest."""
    code = 1
    try:
        _write_rows(out, rows, worded)
        out.flush()
        code = 0
    finally:
        os._exit(code)


def _write_rows(out: BinaryIO, rows: list[Row], worded: Callable[[Row], str]) -> None:
    """Write rows, some at a time: 100,000 are 70 MB of text."""
    for start in range(0, len(rows), _ROWS_A_WRITE):
        part = map(worded, rows[start : start + _ROWS_A_WRITE])
        out.write(((",\n" if start else "") + ",\n".join(part)).encode())


_Found = tuple[str, list[Row], Offloaded | None]


def _of_directory(directory: str) -> _Found:
    directory = os.path.abspath(directory)
    return directory, history(directory), read_offloaded(directory)


def _of_node(node: str, certs: str, identity: str) -> _Found:
    # TLS is heavy, and the history of a directory needs none of it
    from rt.net.admin import ask_history  # noqa: PLC0415
    from rt.net.certificates import certificate_files  # noqa: PLC0415
    from rt.net.tls import Contexts, client_context  # noqa: PLC0415
    from rt.node.settings import parse_address  # noqa: PLC0415

    contexts = Contexts(certificate_files(certs, identity), client_context)
    directory, rows, offloaded = ask_history(parse_address(node), contexts)
    return directory, rows, offloaded_of(offloaded)
