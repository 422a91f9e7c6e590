"""DemoReport: which messages arrived, how fast, and how the log looks on disk."""

import os
import subprocess
import sys
from dataclasses import dataclass
from itertools import islice
from typing import Final

import click

from rt.amounts import duration_text, size_text
from rt.cli.common.console import table
from rt.demo.cursor import CursorReport
from rt.demo.spark import Counts, carrier_rows, delay_rows
from rt.log.read.start import Last
from rt.subscriber import Subscriber

_PEEK: Final = 5
_SHOWN_BYTES: Final = 60


@dataclass(slots=True)
class DemoReport:
    """The demo's figures, all measured by the subscriber at the far end."""

    flights: dict[str, int]
    messages: int = 0
    payload_bytes: int = 0
    seconds: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0
    nodes: int = 1
    killed: str = ""
    pause_s: float = 0.0
    end: str = ""
    spark: Counts | None = None


def show_report(report: DemoReport, cursor: CursorReport, directory: str) -> None:
    """Print the report.

    Args:
        report: What the subscriber measured.
        cursor: What the killed reader and its successor read.
        directory: The subscriber's copy of the merged log.
    """
    size, rate = report.payload_bytes, report.payload_bytes / report.seconds
    click.echo("\nEvery flight arrived once, and each airport's in order of departure:\n")
    click.echo(table(["airport", "flights"], [[k, f"{v:,}"] for k, v in report.flights.items()]))
    click.echo(
        f"\n{report.messages:,} flights, {size_text(size)} in {duration_text(report.seconds)}: "
        f"{report.messages / report.seconds:,.0f} a second, {size_text(rate)}/s"
    )
    click.echo(
        "from publish() in one process to the subscriber in another, synced by a majority of "
        f"{report.nodes} node(s) on the way:\n"
        f"p50 {report.p50_ms:.2f} ms, p99 {report.p99_ms:.2f} ms, longest {report.max_ms:.1f} ms"
    )
    if report.killed:
        click.echo(
            f"\nNode {report.killed}, the leader, was killed halfway; merging paused for "
            f"{duration_text(report.pause_s)}, and nothing was lost."
        )
    click.echo(
        f"\nA reader with a cursor was killed after {cursor.before:,} flights. The next one went "
        f"on: {cursor.repeated:,} came again, and none is missing."
    )
    click.echo(f"\nThe last {_PEEK} flights of the merged log:\n")
    click.echo(_peek(directory))
    click.echo("\nThe merged log's files (rt log-history):\n")
    sys.stdout.flush()
    subprocess.run([sys.executable, "-m", "rt", "log-history", directory], check=False)


def show_counts(counts: Counts) -> None:
    """Print Spark's counts, which were checked against the flights themselves."""
    click.echo(
        "\nSpark counted the same from the merged log's files, in "
        f"{duration_text(counts.seconds)}:\n"
    )
    click.echo(table(["carrier", "flights"], carrier_rows(counts)))
    click.echo()
    click.echo(table(["airport", "average delay, minutes"], delay_rows(counts)))


def _peek(directory: str) -> str:
    stream_directory = os.path.dirname(directory)
    root, stream = os.path.split(stream_directory)
    with Subscriber(root, stream=stream, start=Last(_PEEK), follow=False) as subscriber:
        rows = [
            [
                str(each.position), each.session, str(each.sequence), str(each.number),
                each.payload[:_SHOWN_BYTES].decode(errors="replace"),
            ]
            for each in islice(subscriber, _PEEK)
        ]  # fmt: skip
    return table(["position", "session", "sequence", "number", "payload"], rows)
