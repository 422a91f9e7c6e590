"""`rt archive plan`: shows which files would be archived, when, and by which rule."""

import json
import os
import time
from typing import Final

import click

from archiver.decide import Decision, DiskReport, decide
from archiver.plan import Planned, archived_to, kept_files, planned, rolled_files
from archiver.policy import Policy, parse_policy
from rt.amounts import size_text
from rt.cli.common.console import print_json, say, table
from rt.cli.common.link import ask_latest_or_any, link_options
from rt.cli.common.options import json_option
from rt.client.readers.settings import ConnectionSettings
from rt.errors import Misuse
from rt.inspect.history import history
from rt.log.files.absent import no_log
from rt.log.files.directory import LogDirectory
from rt.net.admin import reading_answers
from rt.text import counted, parse_time, time_text

_HEADINGS: Final = ("file", "bytes", "messages", "rolled", "goes", "why", "by time at")


@click.command(name="plan")
@link_options("archive")
@click.option(
    "--dir", "directory", metavar="DIR",
    help="Plan for this merged log on this machine, without asking a node.",
)  # fmt: skip
@click.option("--policy", "text", metavar="JSON", help="With --dir: the policy to apply.")
@click.option(
    "--at", metavar="TIME", help="Plan for this time, assuming that no further messages arrive."
)
@json_option("the plan")
def plan(
    settings: ConnectionSettings, *, directory: str | None, text: str | None, at: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Show which files would be archived, when and by which rule; changes nothing.

    \b
    rt archive plan --nodes a:7420 --identity subscriber
    rt archive plan --at 2030-01-01T00:00:00Z
    rt archive plan --dir rt-node/flights/out --policy '{"limit": "5Gi"}'
    """  # noqa: D301 - click reads the backspace character
    at_ns = None if at is None else parse_time(at)
    if directory is not None:
        rows, rules = plan_of(directory, parse_policy(text or "{}"), at_ns)
    else:
        when = {} if at_ns is None else {"at_ns": at_ns}
        answer = ask_latest_or_any(settings, {"do": "plan", **when})
        with reading_answers():
            rows = [Planned(**each) for each in answer["files"]]
            rules = json.dumps(answer["policy"])
    if as_json:
        print_json([row._asdict() for row in rows])
        return
    with reading_answers():
        _print(rows, rules)


def _print(rows: list[Planned], rules: str) -> None:
    click.echo(table(_HEADINGS, [_cells(row) for row in rows]))
    going = [row for row in rows if row.goes]
    size = size_text(sum(row.bytes for row in going))
    say(f"{counted(len(going), 'file')} of {len(rows)}, {size}, would go by {rules}")


def plan_of(directory: str, rules: Policy, at_ns: int | None) -> tuple[list[Planned], str]:
    """Return what a policy would do to each file of a merged log, and the policy as text.

    Args:
        directory: The merged log, on this machine.
        rules: The policy.
        at_ns: The time to plan for, ns since the epoch; None for now.

    Raises:
        Misuse: There is no merged log.
    """
    log = LogDirectory(directory)
    try:
        if not log.refresh():
            raise no_log(directory)
        if not log.merged:
            raise Misuse(f"{directory} is a session's log; name a merged one, which is called out")
        decisions = _decisions(log, rules, time.time_ns() if at_ns is None else at_ns)
        return planned(rules, kept_files(log.manifest), decisions), rules.text()
    finally:
        log.close()


def _decisions(log: LogDirectory, rules: Policy, now_ns: int) -> list[Decision]:
    files = rolled_files(log.manifest, archived_to(log.manifest))
    active = next((row for row in history(log.path)[-1:] if row.is_active), None)
    facts = os.statvfs(log.path)
    used = (facts.f_blocks - facts.f_bfree) * facts.f_frsize
    disk = DiskReport("here", used + facts.f_bavail * facts.f_frsize, used)
    return decide(
        rules, files, active.bytes if active else 0, [disk], now_ns=now_ns,
        active_messages=active.messages if active else 0,
    )  # fmt: skip


def _cells(row: Planned) -> tuple[str, ...]:
    return (
        row.file, f"{row.bytes:,}", f"{row.messages:,}", time_text(row.rolled_ns),
        "yes" if row.goes else "no", row.reason,
        "" if row.expires_ns is None else time_text(row.expires_ns),
    )  # fmt: skip
