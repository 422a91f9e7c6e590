"""`rt dump`: shows the frames of a log as they are."""

import os
import stat
import sys
from collections.abc import Iterator
from itertools import islice

import click

from rt.cli.common.console import complain, say
from rt.cli.common.options import flag, parse_position
from rt.errors import CorruptLog, FrameError, Misuse
from rt.format.ranges import Range
from rt.format.scan import Frame
from rt.inspect.dump import Dump, frame_facts, frame_line, hex_lines, message_facts, message_line
from rt.log.files.absent import no_log
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import OsDisk
from rt.log.files.listing import log_files
from rt.position import Position
from rt.text import counted, json_text


@click.command()
@click.argument("path", metavar="FILE|DIR")
@click.option(
    "--from", "begin", metavar="POSITION", callback=parse_position, help="First position to show."
)
@click.option("--count", type=click.IntRange(min=0), metavar="N", help="Stop after N frames.")
@flag("--headers", help="Print headers and ranges, but no messages.")
@flag("--json", "as_json", help="Print one JSON object per frame.")
@flag("--hex", "as_hex", help="Print the bytes of each frame, too.")
@click.pass_context
def dump(
    context: click.Context, *, path: str, begin: Position | None, count: int | None, headers: bool,
    as_json: bool, as_hex: bool,
) -> None:  # fmt: skip
    """Show the frames of a log file, or of all files of a log.

    \b
    rt dump rt-data/flights/jfk
    rt dump rt-data/flights/out --headers --count 20
    rt dump rt-data/flights/out/log.0.3 --from 0.3.4096 --count 1 --hex
    rt dump rt-data/flights/out --json --headers | jq .range.session

    A damaged file is shown up to the damage; the exit code is then 1.
    """  # noqa: D301 - click reads the backspace character
    log, files = _find(path, begin)
    broken: list[str] = []
    most = None if count is None else min(count, sys.maxsize)
    for frame, current in islice(_frames(log, files, begin, broken), most):
        _show(frame, current, headers=headers, as_json=as_json, as_hex=as_hex)
    if broken:
        context.exit(1)


def _frames(
    log: LogDirectory, files: list[str], begin: Position | None, broken: list[str]
) -> Iterator[tuple[Frame, Range | None]]:
    """Yield each frame of the files, with its range if it is a range frame.

    Reports damaged files on stderr, and adds them to `broken`.
    """
    left_out = 0
    for file in files:
        facts = os.lstat(file)
        if stat.S_ISREG(facts.st_mode) and facts.st_size == 0:
            left_out += 1
            continue
        frames = Dump(log, file, begin)
        yield from frames
        frames.close()
        if frames.broken:
            broken.append(file)
            complain(f"{file}: breaks at {frames.position}: {frames.broken}")
    if left_out:
        complain(f"skipped {counted(left_out, 'empty file')}, archived or just begun")


def _find(path: str, begin: Position | None) -> tuple[LogDirectory, list[str]]:
    """Return a log, and which of its files to show; `path` is its directory, or one file in it."""
    if not os.path.lexists(path):
        raise no_log(path)
    if not os.path.isdir(path):
        return _opened(os.path.dirname(path) or "."), [path]
    log = _opened(path)
    starts = log_files(OsDisk(), path)
    if not starts:
        if log.manifest.identity is None:
            raise no_log(path)
        raise Misuse(f"{path}: no log file in it")
    wanted = [start for start in starts if begin is None or start >= begin.file]
    return log, [log.file_path(start) for start in wanted]


def _opened(directory: str) -> LogDirectory:
    log = LogDirectory(directory)
    try:
        log.refresh()
    except CorruptLog as error:
        complain(str(error))  # the lines before the damage are still useful
    return log


def _show(
    frame: Frame, current: Range | None, *, headers: bool, as_json: bool, as_hex: bool
) -> None:
    facts = frame_facts(frame, current)
    if not as_json:
        say(frame_line(facts), *_lines(frame, headers=headers, as_hex=as_hex))
        return
    if not headers:
        try:
            facts["content"] = message_facts(frame)
        except FrameError as error:
            facts["error"] = str(error)
    if as_hex:
        facts["body"] = frame.body.hex()
    click.echo(json_text(facts))


def _lines(frame: Frame, *, headers: bool, as_hex: bool) -> Iterator[str]:
    if as_hex:
        yield from hex_lines(frame)
    if not headers:
        try:
            yield from map(message_line, message_facts(frame))
        except FrameError as error:
            yield f"    its messages cannot be read: {error}"
