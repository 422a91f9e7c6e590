"""`rt cursor`: shows and moves the positions that readers of a stream have acknowledged."""

import os
import time
from contextlib import closing
from typing import Any, Final

import click

from rt.cli.common.command_group import CommandGroup
from rt.cli.common.completing import complete_cursor
from rt.cli.common.console import print_json, say, show_outcome, table
from rt.cli.common.options import click_options, json_option
from rt.cli.data.subscribe import ReadSettings
from rt.cli.manage.reader_positions import Kind, Row, add_commands, to_option
from rt.client.readers.cursor import CursorState, LocalCursor, is_held, read_cursors, remove_cursor
from rt.errors import Misuse
from rt.log.files.absent import no_log
from rt.log.files.directory import LogDirectory
from rt.log.read.start import parse_start, resolve
from rt.names import merged_directory, stream_directory
from rt.position import Position
from rt.subscriber import Subscriber
from rt.text import time_text

_HEADINGS: Final = ("cursor", "position", "bytes behind", "stored", "reader")


@click.group(cls=CommandGroup)
def cursor() -> None:
    """Show and change cursors, which are kept beside a copy of a stream, or by the stream's nodes.

    A cursor is the name under which a program records how far it has read. The commands of rt
    cursor are for cursors beside a copy; rt cursor registered has the same commands for cursors
    that the nodes keep (rt.connect(...).subscriber(cursor=rt.Registered("etl"))).

    \b
    rt cursor list --stream flights
    rt cursor registered list --nodes n1:7420 --identity spark
    rt cursor reset etl --to 2013-01-01T05:17:00Z
    """  # noqa: D301 - click reads the backspace character


@cursor.command("list")
@click_options(ReadSettings, "subscribe")
@json_option("the cursors")
def list_cursors(settings: ReadSettings, *, as_json: bool) -> None:
    """List the cursors of a stream, and how far each lags the local copy.

    \b
    rt cursor list --root rt-data --stream flights
    rt cursor list --json
    """  # noqa: D301 - click reads the backspace character
    cursors = read_cursors(settings.root, settings.stream)
    if not os.path.isdir(stream_directory(settings.root, settings.stream)):
        raise no_log(merged_directory(settings.root, settings.stream))
    rows = [_facts(settings, name, state) for name, state in cursors.items()]
    if as_json:
        print_json(rows)
    elif not rows:
        say(
            f"no cursors in {stream_directory(settings.root, settings.stream)}; "
            "rt cursor registered list shows those that the nodes keep"
        )
    else:
        click.echo(table(_HEADINGS, [_cells(row) for row in rows]))


@cursor.command()
@click.argument("name", shell_complete=complete_cursor)
@click_options(ReadSettings, "subscribe")
@json_option("the cursor")
def show(settings: ReadSettings, *, name: str, as_json: bool) -> None:
    """Show one cursor.

    \b
    rt cursor show etl --stream flights
    """  # noqa: D301 - click reads the backspace character
    row = _facts(settings, name, _known(settings, name))
    if as_json:
        print_json(row)
    else:
        click.echo(table(_HEADINGS, [_cells(row)]))


@cursor.command()
@click.argument("name", shell_complete=complete_cursor)
@to_option
@click_options(ReadSettings, "subscribe")
@json_option("the outcome")
def reset(settings: ReadSettings, *, name: str, start: str, as_json: bool) -> None:
    """Move a cursor that no program is reading with.

    Messages after the new position are delivered again; messages before it are not.

    \b
    rt cursor reset etl --to earliest
    rt cursor reset etl --to last:100
    """  # noqa: D301 - click reads the backspace character
    begin = parse_start(start)
    known = _known(settings, name)
    log = LogDirectory(merged_directory(settings.root, settings.stream))
    log.refresh()
    if not log.is_there:
        raise Misuse(f"{log.path} holds no copy of the stream yet; run rt pull first")
    position = resolve(log, begin)
    log.close()
    with closing(LocalCursor(settings.root, settings.stream, name)) as held:
        held.move_to(position)
    moved = {"cursor": name, "from": str(known.position), "position": str(position)}
    words = f"cursor {name} moved from {known.position} to {position}"
    show_outcome(moved, words, as_json=as_json)


@cursor.command()
@click.argument("name", shell_complete=complete_cursor)
@click_options(ReadSettings, "subscribe")
def forget(settings: ReadSettings, *, name: str) -> None:
    """Remove a cursor that no program is reading with.

    The next program that reads with a cursor of that name begins where the program chooses.

    \b
    rt cursor forget etl --stream flights
    """  # noqa: D301 - click reads the backspace character
    known = _known(settings, name)
    remove_cursor(settings.root, settings.stream, name)
    say(f"cursor {name} forgotten; it was at {known.position}")


def _known(settings: ReadSettings, name: str) -> CursorState:
    cursors = read_cursors(settings.root, settings.stream)
    if name not in cursors:
        names = ", ".join(cursors) or "none"
        raise Misuse(f"stream {settings.stream!r} has no cursor {name!r} here; it has {names}")
    return cursors[name]


def _facts(settings: ReadSettings, name: str, state: CursorState) -> dict[str, Any]:
    return {
        "cursor": name, "position": str(state.position),
        "bytes_behind": _bytes_behind(settings.root, settings.stream, state.position),
        "stored": time_text(state.stored_ns),
        "stored_s_ago": max(0.0, time.time() - state.stored_ns / 1e9), "epoch": state.epoch,
        "log_id": state.log_id, "held": is_held(settings.root, settings.stream, name),
    }  # fmt: skip


def _bytes_behind(root: str, stream: str, position: Position) -> int | None:
    """Return how many bytes a copy of the merged log has after `position`; None without a copy."""
    log = LogDirectory(merged_directory(root, stream))
    log.refresh()
    if not log.is_there:
        return None
    with Subscriber(root, stream=stream, start=position, follow=False, on_gap="skip") as rest:
        batch = rest.next_batch()
    if batch is None:
        log.close()
        return 0
    log.refresh()
    begin = batch.position
    files = [file for file in log.files() if file >= begin.file]
    log.close()
    return sum(os.path.getsize(log.file_path(file)) for file in files) - begin.offset


def _cells(row: dict[str, Any]) -> list[str]:
    reader = "reading" if row["held"] else ""
    behind = "no copy" if row["bytes_behind"] is None else f"{row['bytes_behind']:,}"
    return [row["cursor"], row["position"], behind, row["stored"][:19], reader]


@cursor.group(cls=CommandGroup)
def registered() -> None:
    """Show and change the cursors that the nodes of a stream keep.

    \b
    rt cursor registered list --stream flights --nodes n1:7420 --identity spark
    """  # noqa: D301 - click reads the backspace character


def _kept_cells(row: Row) -> list[object]:
    pinned = f"{row['pin_bytes']:,}" if row["pin_bytes"] else ""
    return [pinned, time_text(row["stored_ns"])[:19], row["holder"]]


_REGISTERED: Final = Kind(
    noun="cursor", path="rt cursor registered",
    reset="Move a registered cursor; a program that reads with it is stopped.",
    forget="Remove a registered cursor; a program that reads with it is refused from then on.",
    headings=("pinned", "stored", "reader"), cells=_kept_cells,
)  # fmt: skip
add_commands(registered, _REGISTERED)
