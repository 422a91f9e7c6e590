"""`rt verify`: whether logs are whole, and copies of one log equal."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from rt.cli.console import ProgressBar, counted, note, table
from rt.inspect.compare import Comparison, are_copies, compare_logs
from rt.inspect.verify import FileReport, LogReport, LogState, log_bytes, open_log, verify_log
from rt.log.directory import LogDirectory
from rt.log.indexing import IndexState

_HEADINGS = ("file", "state", "frames", "messages", "end position", "index")


@click.command()
@click.argument("directories", metavar="DIR...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object with all that was found.")
@click.pass_context
def verify(context: click.Context, *, directories: tuple[str, ...], as_json: bool) -> None:
    """Check every byte of the logs in DIRs: sessions, or merged logs (out).

    \b
    rt verify rt-data/flights/out
    rt verify rt-data/flights/jfk rt-data/flights/ewr --json
    rt verify node-1/flights/out node-2/flights/out

    Checked are every frame's checksums and place, the manifest, the indexes, that numbers follow
    each other, and the running digest of a merged log. Copies of one log are also compared byte
    for byte, as far as both reach. A torn end is what a crash leaves and no fault; anything else
    ends with exit code 1.
    """  # noqa: D301 - click reads the backspace character
    logs = [open_log(directory) for directory in directories]
    pairs = _pairs(logs)
    reports, comparisons = _run(logs, pairs)
    if as_json:
        click.echo(json.dumps(_facts(reports, comparisons)))
    else:
        for report in reports:
            _print(report)
        for comparison in comparisons:
            click.echo(_sentence(comparison))
    wrong = [each for each in reports if each.is_wrong]
    if wrong or any(each.differs_at is not None for each in comparisons):
        context.exit(1)


def _pairs(logs: Sequence[LogDirectory]) -> list[tuple[LogDirectory, LogDirectory]]:
    """Return each log that has a copy among those named before it, with the first of these."""
    found = []
    for place, log in enumerate(logs):
        first = next((each for each in logs[:place] if are_copies(each, log)), None)
        if first is not None:
            found.append((first, log))
    return found


def _run(
    logs: Sequence[LogDirectory], pairs: Sequence[tuple[LogDirectory, LogDirectory]]
) -> tuple[list[LogReport], list[Comparison]]:
    total = sum(map(log_bytes, logs)) + sum(log_bytes(log) for pair in pairs for log in pair)
    done = 0
    with ProgressBar(total) as progress:

        def read(length: int) -> None:
            nonlocal done
            done += length
            progress.show(f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB", done)

        reports = [verify_log(log, read) for log in logs]
        return reports, [compare_logs(*pair, read) for pair in pairs]


def _facts(reports: list[LogReport], comparisons: list[Comparison]) -> dict[str, Any]:
    return {
        "logs": [
            asdict(report)
            | {
                "wrong": report.is_wrong,
                "end": str(report.end),
                "files": [asdict(file) | {"end": str(file.end)} for file in report.files],
            }
            for report in reports
        ],
        "comparisons": [
            asdict(each)
            | {
                "equal": each.differs_at is None,
                "differs_at": None if each.differs_at is None else str(each.differs_at),
                "end": str(each.end),
            }
            for each in comparisons
        ],
    }


def _print(report: LogReport) -> None:
    click.echo(table(_HEADINGS, [_cells(file) for file in report.files]))
    told = [f"{file.file}: {file.reason}" for file in report.files if file.reason]
    for fault in (*told, *report.faults):
        click.echo(f"  {fault}")
    messages = counted(sum(file.messages for file in report.files))
    digest = f", digest {report.digest}" if report.digest else ""
    verdict = "wrong" if report.is_wrong else "whole"
    files = counted(len(report.files), "file")
    click.echo(f"{report.directory}: {verdict}, {files}, {messages}, up to {report.end}{digest}")
    if any(file.index not in ("", IndexState.GOOD) for file in report.files):
        note(f"an index is made anew by: rt index rebuild {report.directory}")


def _cells(file: FileReport) -> tuple[str, ...]:
    read = file.state is not LogState.ARCHIVED
    numbers = (f"{file.frames:,}", f"{file.messages:,}") if read else ("", "")
    return (file.file, file.state, *numbers, str(file.end), file.index)


def _sentence(found: Comparison) -> str:
    pair = f"{found.first} and {found.second}"
    if found.differs_at is not None:
        return f"{pair} differ at {found.differs_at}: {found.reason}"
    words = f"{pair} are equal up to {found.end}, {found.compared:,} bytes"
    if found.not_compared:
        files = counted(len(found.not_compared), "file")
        words += f"; {files} not compared, archived in one of them"
    return words
