"""`rt check`: a stream's status as one line and an exit code, as monitoring systems expect."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeVar

import click

from rt.amounts import duration_text
from rt.cli.common.asking import NodeAnswer, ask_nodes
from rt.cli.common.completing import complete_asked
from rt.cli.common.exits import OUR_FAULT, exit_code, sentence
from rt.cli.common.link import link_options
from rt.cli.common.options import Duration
from rt.cli.look.status import report_of
from rt.cli.look.status_report import ClusterReport
from rt.cli.look.status_tables import merged_sessions
from rt.client.readers.settings import ConnectionSettings
from rt.errors import RtError
from rt.node.observe.problems import takes_part
from rt.text import printable

Run = TypeVar("Run", bound=Callable[..., Any])
_TIME: Final = Duration()
_PLUGIN_CODES: Final = """\b
Exit codes, as monitoring plugins have them:
  0  OK
  1  WARNING: a node is down or in trouble, or a value is over its warning level
  2  CRITICAL: nothing is merged, no node answers, or a value is over its critical level
  3  UNKNOWN: wrong use, a mistyped RT_ variable, or the nodes refuse our certificate"""


class Severity(IntEnum):
    """A monitoring plugin's result; the values are its exit codes."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class Threshold:
    """The warning and critical thresholds of a figure.

    A value reaches a threshold at or above it; with `is_low_bad`, at or below it.

    >>> Threshold("lag", "s", 30, 300).severity(31).name
    'WARNING'
    >>> Threshold("certificate", "d", 7, 2, is_low_bad=True).severity(1).name
    'CRITICAL'
    """

    name: str
    unit: str
    warning: float
    critical: float
    is_low_bad: bool = False

    def severity(self, value: float) -> Severity:
        """Return the severity of a value."""
        sign = -1 if self.is_low_bad else 1
        if sign * value >= sign * self.critical:
            return Severity.CRITICAL
        return Severity.WARNING if sign * value >= sign * self.warning else Severity.OK

    def figure(self, value: float) -> str:
        """Return a value as performance data of a plugin, such as `lag=31s;30;300;0`."""
        colon = ":" if self.is_low_bad else ""
        unit = self.unit if self.unit in ("s", "B") else ""
        levels = f"{self.warning:g}{colon};{self.critical:g}{colon}"
        return f"{self.name}={value:.6g}{unit};{levels};0"

    def words(self, value: float) -> str:
        """Return a phrase for a value, such as `lag is 31 s`."""
        amount = duration_text(value) if self.unit == "s" else f"{value:.3g} {self.unit}"
        return f"{self.name.replace('_', ' ')} is {amount}"


class PluginCommand(click.Command):
    """A command whose failures exit as UNKNOWN, except internal errors, which keep their own code.

    Click exits with 2, which a monitoring system would take for CRITICAL.
    """

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Parse the command line."""
        try:
            return super().make_context(*args, **extra)
        except click.UsageError as error:
            raise unknown(error) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, RtError, OSError) as error:
            if exit_code(error) == OUR_FAULT:
                raise
            raise unknown(error) from error


def unknown(error: BaseException) -> click.exceptions.Exit:
    """Print why the stream's status is unknown; return the exception that exits as UNKNOWN."""
    click.echo(f"RT UNKNOWN: {printable(sentence(error))}")
    return click.exceptions.Exit(Severity.UNKNOWN)


def _level_option(
    name: str, default: str | float, words: str, kind: click.types.FloatParamType = _TIME
) -> Callable[[Run], Run]:
    return click.option(name, type=kind, default=default, show_default=True, help=words)


@click.command(cls=PluginCommand, epilog=_PLUGIN_CODES)
@link_options("status")
@_level_option("--lag-warning", "30s", "Maximum merge lag.")
@_level_option("--lag-critical", "5min", "As --lag-warning.")
@_level_option("--pull-warning", "1min", "Maximum lag of a subscriber.")
@_level_option("--pull-critical", "1h", "As --pull-warning.")
@_level_option("--days-warning", 7, "Days until a node's certificate expires.", click.FLOAT)
@_level_option("--days-critical", 2, "As --days-warning.", click.FLOAT)
@click.option(
    "--may-stop",
    metavar="NODE",
    shell_complete=complete_asked("members"),
    help="Report CRITICAL unless NODE can be stopped now without stopping the merge.",
)
def check(settings: ConnectionSettings, *, may_stop: str | None, **levels: float) -> None:
    """Check a stream for a monitoring system: one line with performance data, and an exit code.

    A person uses rt status to see what goes on, and rt doctor to find out what to do.

    \b
    rt check --config flights/clients.toml
    rt check --nodes a:7420 --nodes b:7420 --identity nagios --lag-warning 10s --lag-critical 1min
    rt check --config flights/clients.toml --may-stop n2 && systemctl restart rt-node@n2
    """  # noqa: D301 - click reads the backspace character
    thresholds = thresholds_of(**levels)
    level, line = judged(ask_nodes(settings), thresholds, may_stop or "")
    click.echo(f"RT {level.name}: {line}")
    raise click.exceptions.Exit(level)


def thresholds_of(
    *, lag_warning: float = 30, lag_critical: float = 300, pull_warning: float = 60,
    pull_critical: float = 3600, days_warning: float = 7, days_critical: float = 2,
) -> tuple[Threshold, ...]:  # fmt: skip
    """Return the thresholds; `UsageError` if a critical level is milder than its warning level."""
    thresholds = (
        Threshold("lag", "s", lag_warning, lag_critical),
        Threshold("pull_lag", "s", pull_warning, pull_critical),
        Threshold("certificate", "d", days_warning, days_critical, True),
    )
    for each in thresholds:
        if each.severity(each.critical) is not Severity.CRITICAL or (
            each.severity(each.warning) is Severity.CRITICAL and each.warning != each.critical
        ):
            name = each.name.replace("_", " ")
            raise click.UsageError(
                f"the critical level of the {name} is reached before its warning"
            )
    return thresholds


def judged(
    asked: Sequence[NodeAnswer], thresholds: Sequence[Threshold], may_stop: str = ""
) -> tuple[Severity, str]:
    """Return a stream's severity, and the line that explains it and has the performance data.

    Args:
        asked: The nodes' answers.
        thresholds: The thresholds of `thresholds_of`.
        may_stop: The node that the user wants to stop; "" for none. If it must not be stopped, the
            severity is CRITICAL.
    """
    report = report_of(list(asked))
    nodes = report.answering
    if not nodes:
        errors = "; ".join(f"{each.address}: {each.error}" for each in report.nodes)
        refused = all(each.is_refusal for each in asked)
        return Severity.UNKNOWN if refused else Severity.CRITICAL, f"no node answers ({errors})"
    values = _values(asked, report)
    found = [(each.severity(values[each.name]), each.words(values[each.name]))
             for each in thresholds if each.name in values]  # fmt: skip
    if not report.leader:
        found.append((Severity.CRITICAL, "no node leads, so nothing is merged"))
    found += [(Severity.CRITICAL if " FORKED " in each.said else Severity.WARNING, each.text)
              for each in report.problems]  # fmt: skip
    held_up = [*report.stuck, *report.poisoned, *report.returned]
    found += [(Severity.WARNING, each) for each in held_up]
    if may_stop:
        found.append(_may_stop(asked, report, may_stop))
    level = max((each for each, _ in found), default=Severity.OK)
    bad = sorted((each for each in found if each[0]), reverse=True, key=lambda each: each[0])
    words = "; ".join(said for _, said in bad) or _well(report, may_stop)
    figures = [each.figure(values[each.name]) for each in thresholds if each.name in values]
    members = len(report.members)
    figures += [f"nodes={len(report.voting)};{members}:;{members // 2 + 1}:;0;{members}",
                f"rate={values['rate']:.0f}B"]  # fmt: skip
    return level, f"{words.replace('|', '/')} | {' '.join(figures)}"


def _well(report: ClusterReport, may_stop: str) -> str:
    nodes = report.answering
    stop = f"; {may_stop} may be stopped" if may_stop else ""
    return (
        f"stream {nodes[0].stream}, {len(report.voting)} of {len(report.members)} nodes answer, "
        f"{report.leader} leads{stop}"
    )


def _values(asked: Sequence[NodeAnswer], report: ClusterReport) -> dict[str, float]:
    """Return the figures to report, by name; for those with a threshold, the worst of all nodes."""
    nodes = report.answering
    sessions = merged_sessions(nodes)
    values = {
        "lag": max((each.waiting_s for each in sessions), default=0.0),
        "pull_lag": max(
            (each.waiting_s for node in nodes for each in node.traffic.clients
             if each.kind == "pull"), default=0.0,
        ),
        "rate": float(sum(each.bytes_per_s for each in sessions)),
    }  # fmt: skip
    days = [_days(each.answer) for each in asked]
    if known := [each for each in days if each is not None]:
        values["certificate"] = min(known)
    return values


def _days(answer: dict[str, Any]) -> float | None:
    """Return how many more days a node's certificate is valid; None if the answer lacks it."""
    value = answer.get("certificate_days")
    return float(value) if isinstance(value, int | float) and type(value) is not bool else None


def _may_stop(
    asked: Sequence[NodeAnswer], report: ClusterReport, name: str
) -> tuple[Severity, str]:
    """Return whether node `name` can be stopped: OK, or CRITICAL with the reason.

    A node can be stopped if the other voting nodes that take part in merging are a majority.
    """
    if name not in report.members:
        return Severity.CRITICAL, f"{name} is not a voting node ({', '.join(report.members)} are)"
    able = {each.answer.get("node") for each in asked if takes_part(each.answer)}
    left = (able & set(report.members)) - {name}
    wanted = len(report.members) // 2 + 1
    if len(left) < wanted:
        return Severity.CRITICAL, (
            f"{name} must not be stopped: it would leave {len(left)} of the {wanted} nodes that "
            "merging needs"
        )
    return Severity.OK, ""
