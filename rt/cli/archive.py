"""`rt archive`: the retention of a stream: its policy, what goes by it, and what holds it."""

import json
import os
import time
from typing import Any, Final

import click

from archiver.decide import Decision, DiskReport, decide
from archiver.plan import Planned, archived_to, plan, rolled_files
from archiver.policy import Policy, parse_limit, parse_policy, policy_of
from rt.cli.console import counted, note, table
from rt.cli.offload import offload
from rt.cli.options import click_options
from rt.cli.run import LinkSettings
from rt.config.kinds import show_bytes
from rt.errors import Misuse
from rt.log.directory import LogDirectory
from rt.net.admin import ask_any
from rt.text import parse_time, time_text

_PLAN_HEADINGS: Final = ("file", "bytes", "messages", "rolled", "goes", "why", "by time at")


@click.group()
def archive() -> None:
    """Show and change how long a stream is kept.

    \b
    rt archive policy show --nodes a:7420 --identity n1
    rt archive policy set '{"time": 10080, "limit": "90Gi", "disk": 90}' --identity n1
    rt archive plan --at 2030-01-01T00:00:00Z
    """  # noqa: D301 - click reads the backspace character


@archive.group()
def policy() -> None:
    """Show the policy of a stream, or set it."""


@policy.command()
@click_options(LinkSettings, "archive")
def show(settings: LinkSettings) -> None:
    """Print the policy, who holds files by a lease, and how full the nodes' disks are.

    \b
    rt archive policy show --nodes a:7420 --identity subscriber
    """  # noqa: D301 - click reads the backspace character
    _show_policy(_ask(settings, {"do": "policy"}))


@policy.command(name="set")
@click_options(LinkSettings, "archive")
@click.argument("text", metavar="[JSON]", default="")
@click.option("--file", "path", metavar="FILE", help="JSON, or TOML with a table [policy].")
@click.option("--time", "minutes", type=int, help="Minutes since a file was rolled; 0 is off.")
@click.option("--limit", metavar="SIZE", help="Of all files together, such as 90Gi; or none.")
@click.option("--disk", type=int, help="Percent of the file system that may be used.")
def set_policy(
    settings: LinkSettings,
    *,
    text: str,
    path: str | None,
    minutes: int | None,
    limit: str | None,
    disk: int | None,
) -> None:
    """Set the policy of a stream, on all of its nodes; needs the certificate of a node.

    \b
    rt archive policy set '{"time": 10080, "limit": "90Gi", "disk": 90}' --identity n1
    rt archive policy set --file policy.toml --identity n1
    rt archive policy set --limit 500Gi --identity n1

    JSON and files say all of it: what they leave out gets its default. Options change what they
    name and leave the rest as it is.
    """  # noqa: D301 - click reads the backspace character
    given = {"time": minutes, "limit": limit, "disk": disk}
    given = {name: value for name, value in given.items() if value is not None}
    if bool(text) + bool(path) + bool(given) != 1:
        raise click.UsageError("give the policy as JSON, as a --file, or by options")
    if given:
        known = _ask(settings, {"do": "policy"})["policy"]
        wanted = policy_of({**known, **given})
    else:
        wanted = parse_policy(_read(path) if path else text)
    request = {"do": "set-policy", "policy": json.loads(wanted.text())}
    _show_policy(_ask(settings, request))


@archive.command(name="plan")
@click_options(LinkSettings, "archive")
@click.option("--dir", "directory", metavar="DIR", help="Plan for this log, with no node asked.")
@click.option("--policy", "text", metavar="JSON", help="With --dir: the policy to plan by.")
@click.option("--at", metavar="TIME", help="What will be, if nothing more comes until then.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def show_plan(
    settings: LinkSettings,
    *,
    directory: str | None,
    text: str | None,
    at: str | None,
    as_json: bool,
) -> None:
    """Show what would be archived, when and by which rule; nothing is touched.

    \b
    rt archive plan --nodes a:7420 --identity subscriber
    rt archive plan --at 2030-01-01T00:00:00Z
    rt archive plan --dir rt-node/flights/out --policy '{"limit": "5Gi"}'
    """  # noqa: D301 - click reads the backspace character
    at_ns = None if at is None else parse_time(at)
    if directory is not None:
        rows, shown = plan_of(directory, parse_policy(text or "{}"), at_ns)
    else:
        when = {} if at_ns is None else {"at_ns": at_ns}
        answer = _ask(settings, {"do": "plan", **when})
        rows = [Planned(**each) for each in answer["files"]]
        shown = json.dumps(answer["policy"])
    if as_json:
        click.echo(json.dumps([row._asdict() for row in rows], indent=1))
        return
    click.echo(table(_PLAN_HEADINGS, [_cells(row) for row in rows]))
    going = [row for row in rows if row.goes]
    size = show_bytes(sum(row.bytes for row in going))
    note(f"{counted(len(going), 'file')} of {len(rows)}, {size} bytes, would go by {shown}")


@archive.command()
@click_options(LinkSettings, "archive")
def roll(settings: LinkSettings) -> None:
    """End the active file of the merged log now, on every node; needs the certificate of a node.

    Only rolled files are ever archived, copied by `offload`, or counted as old.

    \b
    rt archive roll --nodes a:7420 --identity n1
    """  # noqa: D301 - click reads the backspace character
    rolled = _ask(settings, {"do": "roll"})["rolled"]
    click.echo(f"{rolled} is rolled" if rolled else "the active file is empty; nothing was rolled")


@archive.command()
@click_options(LinkSettings, "archive")
@click.option("--from", "start", default="0.0.0", show_default=True, help="Position to hold from.")
@click.option("--seconds", default=3600.0, show_default=True, help="For how long.")
@click.option("--bytes", "size", default="100Gi", show_default=True, help="How much at most.")
@click.option("--release", is_flag=True, help="Let go of what this certificate's name holds.")
def lease(settings: LinkSettings, *, start: str, seconds: float, size: str, release: bool) -> None:
    """Hold files for a reader: against time and limit, not against a full disk.

    \b
    rt archive lease --identity spark --from 0.3.0 --seconds 7200
    rt archive lease --identity spark --release

    The holder is the name in the certificate; a second lease of it takes the place of the first.
    """  # noqa: D301 - click reads the backspace character
    if release:
        click.echo(f"{_ask(settings, {'do': 'release'})['released']} holds nothing any more")
        return
    most = parse_limit(size, "bytes")
    if most is None:
        raise Misuse("bytes is 'none'; a lease has a bound: use a size such as 90Gi")
    request = {"do": "lease", "start": start, "seconds": seconds, "bytes": most}
    answer = _ask(settings, request)
    until = time_text(answer["until_ns"])
    click.echo(f"{answer['holder']} holds files from {answer['there_from']} until {until}")


archive.add_command(offload)


def plan_of(directory: str, rules: Policy, at_ns: int | None) -> tuple[list[Planned], str]:
    """Return the plan for a merged log on this machine, and the policy it follows, as text.

    Raises:
        Misuse: there is no log.
    """
    log = LogDirectory(directory)
    try:
        if not (log.refresh() and log.merged):
            raise Misuse(f"{directory} holds no merged log")
        decisions = _decisions(log, rules, time.time_ns() if at_ns is None else at_ns)
        return plan(rules, log.manifest, decisions), rules.text()
    finally:
        log.close()


def _decisions(log: LogDirectory, rules: Policy, now_ns: int) -> list[Decision]:
    files = rolled_files(log.manifest, archived_to(log.manifest))
    newest = log.files()[-1:]
    is_active = bool(newest) and newest[0] not in log.manifest.rolled
    active_bytes = os.path.getsize(log.file_path(newest[0])) if is_active else 0
    facts = os.statvfs(log.path)
    used = (facts.f_blocks - facts.f_bfree) * facts.f_frsize
    disk = DiskReport("here", used + facts.f_bavail * facts.f_frsize, used)
    return decide(rules, files, active_bytes, [disk], now_ns=now_ns)


def _ask(settings: LinkSettings, request: dict[str, Any]) -> dict[str, Any]:
    return ask_any(settings.addresses(), settings.contexts(), request)


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        try:
            return file.read(1 << 16)
        except UnicodeDecodeError:
            raise Misuse(f"{path} is no text; name a file with a policy as JSON or TOML") from None


def _show_policy(answer: dict[str, Any]) -> None:
    said = json.dumps(answer["policy"])
    click.echo(said)
    note(f"files before {answer['archived_to']} are archived" + (
        "; nobody has set a policy, this is the default" if answer["is_default"] else ""
    ))  # fmt: skip
    for each in answer["disks"]:
        note(f"disk of {each['node']}: {each['percent']} % of {show_bytes(each['total'])} used")
    for each in answer["leases"]:
        note(f"{each['holder']} holds files until {time_text(each['until_ns'])}")


def _cells(row: Planned) -> tuple[str, ...]:
    return (
        row.file, f"{row.bytes:,}", f"{row.messages:,}", time_text(row.rolled_ns),
        "yes" if row.goes else "no", row.reason,
        "" if row.expires_ns is None else time_text(row.expires_ns),
    )  # fmt: skip
