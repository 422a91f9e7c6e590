"""`rt verify`: checks that logs are intact, and that copies of one log are equal."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import click

from rt.amounts import size_text
from rt.cli.common.console import ProgressBar, note, say, table
from rt.cli.common.options import click_options, flag, json_option
from rt.cli.logs.repair import RepairSettings, repair_log
from rt.inspect.advice import advice_for, advice_on
from rt.inspect.compare import Comparison, are_copies, compare_logs
from rt.inspect.verify import FileReport, LogReport, LogState, log_bytes, open_log, verify_log
from rt.log.files.directory import LogDirectory
from rt.text import counted, first_few, json_text

_HEADINGS: Final = ("file", "state", "frames", "messages", "end position", "index")
_NAMED_MAX: Final = 3


@click.command()
@click.argument("directories", metavar="DIR...", nargs=-1, required=True)
@flag(
    "--repair",
    help="Replace damaged files of merged logs by the nodes' copies.",
)
@click_options(RepairSettings, "verify")
@json_option("all findings")
@click.pass_context
def verify(
    context: click.Context, *, settings: RepairSettings, directories: tuple[str, ...], repair: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Check every byte of the logs in DIRs: sessions, or merged logs (out).

    \b
    rt verify rt-data/flights/out
    rt verify rt-data/flights/jfk rt-data/flights/ewr --json
    rt verify node-1/flights/out node-2/flights/out
    rt verify copy/flights/out --repair --nodes n1:7420 --nodes n2:7420 --identity spark

    Checks the checksums and position of every frame, the manifest, the indexes, that sequence
    numbers are consecutive, and the running digest of a merged log. Compares copies of one log byte
    for byte, as far as both reach. Prints what to do about each kind of finding. A torn end, which
    a crash leaves, and a missing index are not errors; any other finding makes the exit code 1.

    With --repair, each damaged rolled file of a merged log is fetched from a node, checked against
    the manifest, and put in place of the damaged one, which is kept as quarantine.*. A file that
    was not rolled yet is only set aside, for rt pull to copy it again. The exit code is 1 if any
    damage was not repaired.
    """  # noqa: D301 - click reads the backspace character
    logs = [open_log(directory) for directory in directories]
    pairs = _pairs(logs)
    reports, comparisons = _run(logs, pairs)
    left: dict[str, list[str]] = {}
    if repair and any(report.is_wrong for report in reports):
        for report in reports:
            if report.is_wrong:
                left[report.directory] = repair_log(report, settings, note)
        logs = [open_log(directory) for directory in directories]
        reports, comparisons = _run(logs, _pairs(logs))
    if as_json:
        click.echo(json_text(_facts(reports, comparisons) | {"not_repaired": left}))
    else:
        for report in reports:
            _print(report, left.get(report.directory, ()))
        for comparison in comparisons:
            _print_comparison(comparison)
    wrong = [each for each in reports if each.is_wrong]
    if wrong or any(left.values()) or any(each.differs_at is not None for each in comparisons):
        context.exit(1)


def _pairs(logs: Sequence[LogDirectory]) -> list[tuple[LogDirectory, LogDirectory]]:
    """Return the pairs to compare: each log with the first earlier one that is a copy of it."""
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
            progress.show(f"{size_text(done)} of {size_text(total)}", done)

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
                "advice": [asdict(each) for each in advice_for(report)],
            }
            for report in reports
        ],
        "comparisons": [
            asdict(each)
            | {
                "equal": each.differs_at is None,
                "differs_at": None if each.differs_at is None else str(each.differs_at),
                "end": str(each.end),
                "advice": advice_on(each),
            }
            for each in comparisons
        ],
    }


def _print(report: LogReport, left: Sequence[str]) -> None:
    click.echo(table(_HEADINGS, [_cells(file) for file in report.files]))
    reasons = [f"{file.file}: {file.reason}" for file in report.files if file.reason]
    for fault in (*reasons, *report.faults):
        say(f"  {fault}")
    messages = counted(sum(file.messages for file in report.files))
    digest = f", digest {report.digest}" if report.digest else ""
    verdict = "wrong" if report.is_wrong else "whole" if report.files else "empty"
    if left:
        left_out = first_few(left, _NAMED_MAX)
        verdict = f"{verdict} without what was found damaged and is not repaired ({left_out})"
    files = counted(len(report.files), "file")
    say(f"{report.directory}: {verdict}, {files}, {messages}, up to {report.end}{digest}")
    for each in advice_for(report):
        where = f" ({first_few(each.files, _NAMED_MAX)})" if each.files else ""
        say(f"  {each.finding}{where}: {each.text}")


def _cells(file: FileReport) -> tuple[str, ...]:
    read = file.state is not LogState.ARCHIVED
    numbers = (f"{file.frames:,}", f"{file.messages:,}") if read else ("", "")
    return (file.file, file.state, *numbers, str(file.end), file.index)


def _print_comparison(found: Comparison) -> None:
    pair = f"{found.first} and {found.second}"
    if found.differs_at is not None:
        say(f"{pair} differ at {found.differs_at}: {found.reason}", f"  {advice_on(found)}")
        return
    outcome = f"{pair} are equal up to {found.end}, {found.compared:,} bytes"
    if found.not_compared:
        files = counted(len(found.not_compared), "file")
        outcome += f"; {files} not compared, archived in one of them"
    say(outcome)
