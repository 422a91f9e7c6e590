"""`rt session`: shows the sessions of a stream, and changes what happens to one."""

from typing import Any, Final

import click

from rt.amounts import duration_text, size_text
from rt.cli.common.command_group import CommandGroup
from rt.cli.common.completing import complete_asked
from rt.cli.common.console import print_json, say, table
from rt.cli.common.link import ask_latest_or_any, link_options
from rt.cli.common.options import flag, json_option
from rt.client.readers.settings import ConnectionSettings
from rt.names import parse_peer
from rt.net.admin import reading_answers
from rt.text import counted, printable, time_text

_HEADINGS: Final = (
    "session", "owner", "state", "pushed by", "replicated to", "merged to", "note",
)  # fmt: skip


@click.group(cls=CommandGroup)
def session() -> None:
    """Show the sessions of a stream, and adopt, reset, forget or take over one.

    \b
    rt session list --config flights/clients.toml
    rt session adopt jfk --config flights/clients.toml
    """  # noqa: D301 - click reads the backspace character


@session.command("list")
@link_options("session", json="the sessions")
def list_sessions(settings: ConnectionSettings, *, as_json: bool) -> None:
    """List the sessions that the leader knows, and what keeps a session from being merged.

    \b
    rt session list --nodes a:7420 --identity subscriber
    rt session list --config flights/clients.toml --json
    """  # noqa: D301 - click reads the backspace character
    rows = _rows(settings, {"do": "sessions"})
    if as_json:
        print_json(rows)
    elif not rows:
        say("the nodes have no sessions; rt push ships those of a publisher")
    else:
        click.echo(table(_HEADINGS, [_cells(row) for row in rows]))


@session.command()
@click.argument("name", shell_complete=complete_asked("sessions"))
@link_options("session", json="the session")
def show(settings: ConnectionSettings, *, name: str, as_json: bool) -> None:
    """Show one session: how much of it each node holds, and how much is merged.

    \b
    rt session show jfk --nodes a:7420 --identity subscriber
    """  # noqa: D301 - click reads the backspace character
    rows = _rows(settings, {"do": "sessions", "session": name})
    if as_json:
        print_json(rows[0])
        return
    with reading_answers():
        _print(rows[0])


@session.command()
@click.argument("name", shell_complete=complete_asked("sessions"))
@link_options("session")
@click.option(
    "--at", metavar="POSITION", help="Position of the file to continue with, such as 0.3.0."
)
@json_option("the outcome")
def adopt(settings: ConnectionSettings, *, name: str, at: str | None, as_json: bool) -> None:
    """Resume a session whose beginning was archived before it was merged.

    This happens if the session was shipped to another cluster before, or if this cluster has lost
    its state. The merged log lacks the archived messages; an event in it tells subscribers so.
    Without --at, the session continues with its first file that is not archived. Needs an
    operator's certificate.

    \b
    rt session adopt jfk --config flights/clients.toml
    """  # noqa: D301 - click reads the backspace character
    _change(settings, {"do": "adopt-session", "session": name, "at": at}, as_json=as_json)


@session.command()
@click.argument("name", shell_complete=complete_asked("sessions"))
@link_options("session", json="the outcome")
def reset(settings: ConnectionSettings, *, name: str, as_json: bool) -> None:
    """Restart a session with another log, from sequence number 0.

    Use it if a publisher's directory was lost, or deleted and created again: the nodes refuse the
    new log until you do. The nodes remove their copies of the old log, even messages that are not
    merged, and the old log can never be pushed under this name again. Merged messages stay, and an
    event in the merged log says that sequence numbers may repeat. Refused while the session is
    being pushed. Needs an operator's certificate.

    \b
    rt session reset jfk --config flights/clients.toml
    """  # noqa: D301 - click reads the backspace character
    _change(settings, {"do": "reset-session", "session": name}, as_json=as_json)


@session.command()
@click.argument("name", shell_complete=complete_asked("sessions"))
@link_options("session", json="the outcome")
def forget(settings: ConnectionSettings, *, name: str, as_json: bool) -> None:
    """Remove an ended session's copies and records from the nodes.

    All nodes remove them at the same point of the merged log, and free the space. Merged messages
    stay. The old log can never be pushed under this name again; another log may be. Refused while
    the session is being pushed. Needs an operator's certificate.

    \b
    rt session forget jfk --config flights/clients.toml
    """  # noqa: D301 - click reads the backspace character
    _change(settings, {"do": "forget-session", "session": name}, as_json=as_json)


@session.command()
@click.argument("name", shell_complete=complete_asked("sessions"))
@link_options("session")
@click.option(
    "--owner",
    metavar="IDENTITY",
    help="New owner, for operators only.  [default: the next publisher that pushes the session]",
)
@flag("--new-log", help="Start over with a new log, from sequence number 0.")
@json_option("the outcome")
def take(
    settings: ConnectionSettings, *, name: str, owner: str | None, new_log: bool, as_json: bool
) -> None:
    """Take over the name of a session whose owner is gone.

    A session belongs to the identity that opened it, and no other identity may push it. An operator
    may take it from an owner that is gone. A publisher to which the session is granted may take it
    for itself, once the session has been closed for the time that rt session policy shows. Without
    --new-log, the new owner continues the old owner's log, whose directory has to be moved to the
    new owner; with --new-log, the old log ends, as by rt session reset. No session is taken from an
    owner that is connected.

    \b
    rt session take jfk --new-log --nodes a:7420 --identity bob
    rt session take jfk --owner bob --config flights/clients.toml
    """  # noqa: D301 - click reads the backspace character
    request = {"do": "take-session", "session": name, "owner": owner, "begins_again": new_log}
    _change(settings, request, as_json=as_json)


@session.command()
@link_options("session")
@click.option(
    "--close", metavar="TIME", help="Close a session after this long without its publisher."
)
@click.option(
    "--take", "take_", metavar="TIME",
    help="How long after it was closed another publisher may take it over.",
)  # fmt: skip
@click.option(
    "--expire", metavar="TIME", help="How long after it was closed the nodes forget it, or never."
)
@json_option("the policy")
def policy(
    settings: ConnectionSettings, *, close: str | None, take_: str | None, expire: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Show or set what happens to a session that its publisher no longer pushes, and when.

    Setting needs an operator's certificate.

    \b
    rt session policy --config flights/clients.toml
    rt session policy --expire 30d --config flights/clients.toml
    """  # noqa: D301 - click reads the backspace character
    wanted = {"close_s": close, "take_s": take_, "expire_s": expire}
    given = {name: text for name, text in wanted.items() if text is not None}
    request = {"do": "set-session-policy", "policy": given} if given else {"do": "session-policy"}
    answer = settings.ask(request) if given else ask_latest_or_any(settings, request)
    if as_json:
        print_json(answer)
        return
    with reading_answers():
        times = {name: float(answer[name]) for name in wanted}
    say(f"a session is closed after {duration_text(times['close_s'])} without its publisher")
    say(f"another publisher may take it over {duration_text(times['take_s'])} after that")
    expires = times["expire_s"]
    say(f"it expires {duration_text(expires)} after that" if expires else "it never expires")


@session.command()
@click.argument("publisher", required=False)
@link_options("session")
@click.option(
    "--bytes", "bytes_s", metavar="SIZE", help="Most bytes a second, none for no limit, or default."
)
@click.option(
    "--sessions",
    metavar="NUMBER",
    help="Most different sessions a day, none for no limit, or default.",
)
@json_option("the quotas")
def quota(
    settings: ConnectionSettings, *, publisher: str | None, bytes_s: str | None,
    sessions: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Show or set how much a publisher may push; setting needs an operator's certificate.

    Without PUBLISHER, sets the default for all publishers. With PUBLISHER, sets that publisher's
    own limits; the value default removes such a limit. Each node enforces the lower of the quota
    and its own settings identity_bytes_s and identity_sessions, as soon as the nodes have agreed on
    the change: it slows down a publisher that is too fast, and refuses a session beyond the limit.

    \b
    rt session quota --config flights/clients.toml
    rt session quota --bytes 20Mi --sessions 5 --config flights/clients.toml
    rt session quota jfk --bytes none --sessions default --config flights/clients.toml
    """  # noqa: D301 - click reads the backspace character
    if publisher is not None:
        parse_peer(publisher)  # an empty name, from an unset variable, does not mean all publishers
    wanted = {"bytes_s": bytes_s, "sessions": sessions}
    given = {name: text for name, text in wanted.items() if text is not None}
    request: dict[str, Any] = {"do": "session-quota"}
    if given:
        request = {"do": "set-session-quota", "quota": given, "publisher": publisher or ""}
    answer = settings.ask(request) if given else ask_latest_or_any(settings, request)
    if as_json:
        print_json(answer)
        return
    with reading_answers():
        default = {name: answer[name] for name in wanted}
        own = {str(name): dict(limits) for name, limits in dict(answer["publishers"]).items()}
        each = {name: _limits({**default, **limits}) for name, limits in own.items()}
        if publisher is not None:
            say(f"{publisher} may push {each.get(publisher, _limits(default))}")
            return
        say(f"a publisher may push {_limits(default)}")
        for name in sorted(each):
            say(f"{name} may push {each[name]}")


def _limits(quota: dict[str, Any]) -> str:
    """Return a publisher's limits as a phrase, such as `20 MiB a second and 5 sessions a day`."""
    size, sessions = quota["bytes_s"], quota["sessions"]
    limits = [
        *(() if size is None else (f"{size_text(int(size))} a second",)),
        *(() if sessions is None else (f"{counted(int(sessions), 'session')} a day",)),
    ]
    return " and ".join(limits) or "as much as each node allows"


def _change(settings: ConnectionSettings, request: dict[str, Any], *, as_json: bool) -> None:
    answer = settings.ask({key: value for key, value in request.items() if value is not None})
    if as_json:
        print_json(answer)
        return
    with reading_answers():
        name, change = printable(str(answer["session"])), printable(str(answer["change"]))
        before, after = printable(str(answer["before"])), printable(str(answer["after"]))
        next_ = f", and continues at {after}" if change in {"adopted", "taken"} else ""
        say(f"session {name} is {change}; it was merged up to {before}{next_}")
        if change in {"reset", "forgotten"} and not answer.get("retired", "unknown"):
            say(
                "no node has a copy to recognize the old log by: delete the "
                "publisher's directory, or everything in it is merged again when it is pushed"
            )


def _rows(settings: ConnectionSettings, request: dict[str, Any]) -> list[dict[str, Any]]:
    answer = ask_latest_or_any(settings, request)
    with reading_answers():
        return [dict(each) for each in answer["sessions"]]


def _cells(row: dict[str, Any]) -> list[str]:
    with reading_answers():
        cells = (
            row["session"], row.get("owner") or "-", row.get("state", "-"), row["pushed_by"] or "-",
            row["replicated"], row["merged"],
        )  # fmt: skip
        return [printable(str(each)) for each in (*cells, row["stuck"])]


def _print(row: dict[str, Any]) -> None:
    say(f"session {row['session']}, merged up to {row['merged']}")
    say(f"opened by {row.get('owner') or 'an unknown publisher'}")
    if closed_ns := int(row.get("closed_ns", 0)):
        say(f"closed since {time_text(closed_ns)}")
    say(f"pushed by {row['pushed_by'] or 'no one now'}")
    for node, end in dict(row["durable"]).items():
        say(f"{node} holds it durably up to {end}")
    if row["stuck"]:
        say(f"not merged: {row['stuck']}")
