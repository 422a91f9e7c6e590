"""`rt trace`: shows where and when a message passed, or where it waits and on what."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import click

from rt.amounts import duration_text
from rt.cli.common.asking import ask_nodes
from rt.cli.common.console import print_json, say
from rt.cli.common.exits import FOUND_WRONG
from rt.cli.common.options import click_options, json_option
from rt.cli.look.status import report_of
from rt.cli.look.status_report import ClusterReport
from rt.client.readers.settings import ConnectionSettings
from rt.errors import Misuse
from rt.inspect.trace import MergedPlace, OwnPlace, ends_at, find_merged, find_own
from rt.log.notify.shipping import ShippingNote
from rt.names import MERGED_NAME, parse_session, stream_directory
from rt.position import Position
from rt.text import nearest, time_text

_SEQUENCE_END: Final = 1 << 63
_AGE_S: Final = 1.1  # a node's status is at most this old: it is made once a second for all clients


@dataclass(slots=True)
class _Traced:
    """What was found about one message.

    Attributes:
        session: The session that published it.
        sequence: Its sequence number.
        own: Where the message is in the session's own log; None if it was not found.
        own_directory: The directory of the session's own log; "" if it is not on this machine.
        merged: The message's position in each merged log that has it, by the log's directory.
        another: The position of another message with the same session and sequence number, in each
            merged log that has that message instead.
        short: The end of each merged log that does not reach the message.
        report: The nodes' answers.
    """

    session: str
    sequence: int
    own: OwnPlace | None = None
    own_directory: str = ""
    merged: dict[str, MergedPlace] = field(default_factory=dict)
    another: dict[str, MergedPlace] = field(default_factory=dict)
    short: dict[str, Position] = field(default_factory=dict)
    report: ClusterReport = field(default_factory=lambda: ClusterReport(()))


@click.command()
@click.argument("message", metavar="SESSION:SEQUENCE")
@click_options(ConnectionSettings, "status")
@click.option(
    "--copy", "copies", metavar="DIR", multiple=True,
    help="Search this merged log too, such as rt-data/flights/out; repeat for more.",
)  # fmt: skip
@json_option("what was found")
@click.pass_context
def trace(
    context: click.Context, *, message: str, settings: ConnectionSettings, copies: tuple[str, ...],
    as_json: bool,
) -> None:  # fmt: skip
    """Show where and when a message passed, or where it waits and on what.

    It looks in the session's own log and the merged log below --root, and asks the nodes. Run it on
    the publisher's machine, on a subscriber's, or on a node's with the node's --root; on any other
    machine, name a merged log by --copy. The exit code is 0 if the message is merged, 1 if it waits
    or is not known here, and 2 if no node knows the session.

    \b
    rt trace jfk:41 --config flights/clients.toml --root rt-data
    rt trace jfk:41 --config flights/clients.toml --copy /data/flights/out --json
    """  # noqa: D301 - click reads the backspace character
    session, sequence = _parsed(message)
    traced = _Traced(session, sequence)
    _look(traced, settings, copies)
    traced.report = report_of(ask_nodes(settings))
    if traced.report.answering and not _is_merged(traced):
        time.sleep(_AGE_S)  # "not merged" may be out of date; "merged" stays true
        traced.report = report_of(ask_nodes(settings))
    _demand_known(traced)
    words = waits_for(traced)
    if as_json:
        print_json({**_fields(traced), "waits_for": words})
    else:
        _show(traced, settings.stream, words)
    context.exit(0 if _is_merged(traced) else FOUND_WRONG)


def _demand_known(traced: _Traced) -> None:
    """Raise `Misuse` if neither this machine nor any node that answers knows the session."""
    report = traced.report
    known = {each.name for node in report.answering for each in node.sessions}
    if traced.own_directory or traced.own or traced.session in known or not report.answering:
        return
    near = nearest(traced.session, known)
    raise Misuse(
        f"no session {traced.session!r} is known here or to the nodes"
        f"{f'; did you mean {near!r}?' if near else '; rt session list shows those they know'}"
    )


def _parsed(text: str) -> tuple[str, int]:
    session, _, number = text.rpartition(":")
    digits = number if number.isascii() and number.isdecimal() else ""
    if not session or not digits or int(digits[:20]) >= _SEQUENCE_END:
        raise click.UsageError(f"{text!r} is not a message; write SESSION:SEQUENCE, such as jfk:41")
    try:
        return parse_session(session), int(digits)
    except Misuse as error:
        raise click.UsageError(str(error)) from error


def _look(traced: _Traced, settings: ConnectionSettings, copies: Sequence[str]) -> None:
    """Look for the message in the logs on this machine, and record in `traced` what was found."""
    top = stream_directory(settings.root, settings.stream)
    for place in (os.path.join(top, traced.session), os.path.join(top, "in", traced.session)):
        if not traced.own_directory and os.path.isfile(os.path.join(place, "manifest")):
            traced.own_directory = place
            traced.own = find_own(place, traced.sequence)
    out = os.path.join(top, MERGED_NAME)
    found = [out] if os.path.isfile(os.path.join(out, "manifest")) else []
    for directory in dict.fromkeys((*found, *copies)):
        known = traced.own if traced.own and not traced.own.archived else None
        merged = _find(directory, traced, known)
        if merged is not None:
            traced.merged[directory] = merged
            if known is None:
                archived = "" if traced.own is None else traced.own.archived
                traced.own = replace(merged.own, archived=archived)
        elif known is not None and (another := _find(directory, traced, None)) is not None:
            traced.another[directory] = another
        else:
            traced.short[directory] = ends_at(directory)


def _find(directory: str, traced: _Traced, only: OwnPlace | None) -> MergedPlace | None:
    published_ns = 0 if only is None else only.time_ns
    return find_merged(directory, traced.session, traced.sequence, published_ns, only)


def waits_for(traced: _Traced) -> str:
    """Return at which hop a message waits, and on what; "" if it is merged and in every copy."""
    if traced.own is None:
        if traced.own_directory:
            end = ends_at(traced.own_directory)
            return f"the session has no message {traced.sequence} yet: its log ends at {end}"
        return "it is not known here: give --root with the session's log, or --copy DIR"
    if traced.another:
        return (
            f"{next(iter(traced.another))} has another message {traced.sequence} of this session: "
            f"{traced.own_directory} was restored from an older copy, or started over; publish it "
            "under another name, or see rt session reset"
        )
    if not _is_merged(traced):
        return _unmerged(traced, traced.own)
    if traced.short:
        where, end = next(iter(traced.short.items()))
        return (
            f"pull: the copy {where} ends at {end}; is rt pull running, and does it keep so much?"
        )
    return ""


def _unmerged(traced: _Traced, own: OwnPlace) -> str:
    """Return at which hop an unmerged message waits, push or merge, and on what."""
    report = traced.report
    if not report.answering:
        return "it is not known whether it is merged, since no node answers"
    holders = [name for name, (durable, _) in _reached(traced).items() if durable >= own.end]
    if not holders:
        return f"push: no node holds it; {_shipping(traced)}"
    needed = len(report.members) // 2 + 1
    if len(holders) < needed:
        silent = ", ".join(each.title for each in report.nodes if each.error)
        away = f"; no answer from {silent}" if silent else ""
        only = f"only {', '.join(holders)} {_holds(holders)} it"
        return f"push: {needed} nodes have to hold it, and {only}{away}"
    return f"merge: {_merge_reason(traced)}"


def _holds(names: Sequence[str]) -> str:
    return "holds" if len(names) == 1 else "hold"


def _shipping(traced: _Traced) -> str:
    note = ShippingNote(traced.own_directory).read() if traced.own_directory else ""
    if note:
        return note
    sessions = [each for node in traced.report.answering for each in node.sessions]
    pushed = any(each.pushed_by for each in sessions if each.name == traced.session)
    return "the session is being pushed" if pushed else "no one pushes the session: is rt push up?"


def _merge_reason(traced: _Traced) -> str:
    report = traced.report
    if not report.leader:
        return "no node leads; a majority of the nodes has to be up"
    mine = [each for node in report.answering for each in node.sessions
            if each.name == traced.session]  # fmt: skip
    if stuck := next((each.stuck for each in mine if each.stuck), ""):
        return stuck
    return (
        "; ".join(each.text for each in report.problems)
        or "the leader has yet to propose it; ask again"
    )


def _reached(traced: _Traced) -> dict[str, tuple[Position, Position]]:
    """Return how far each answering node holds the session, and has merged it, by the node's name.

    A node that joined after a session ended has no copy of the session. Since all merged logs are
    equal, the node has merged the session at least as far as each node whose merged log ends no
    later than its own.
    """
    nodes, none = traced.report.answering, Position(0)
    rows = {
        node.name: (each.durable, each.merged)
        for node in nodes for each in node.sessions if each.name == traced.session
    }  # fmt: skip
    return {
        node.name: rows.get(node.name) or (none, max(
            (rows[each.name][1] for each in nodes
             if each.name in rows and each.merge.end <= node.merge.end),
            default=none,
        ))
        for node in nodes
    }  # fmt: skip


def _is_merged(traced: _Traced) -> bool:
    """Return whether the message is merged; False if a merged log has another in its place."""
    own = traced.own
    if traced.another:
        return False
    if own is None or traced.merged:
        return bool(traced.merged)
    return any(merged >= own.end for _, merged in _reached(traced).values())


def _fields(traced: _Traced) -> dict[str, Any]:
    own, is_it = traced.own, not traced.another
    return {
        "session": traced.session,
        "sequence": traced.sequence,
        "published": own and {
            "position": str(own.position), "time_ns": own.time_ns, "archived": own.archived,
            "directory": traced.own_directory,
        },
        "nodes": {
            name: {
                "durable": str(durable), "merged": str(merged),
                "holds_it": own and is_it and durable >= own.end,
                "merged_it": own and is_it and merged >= own.end,
            }
            for name, (durable, merged) in _reached(traced).items()
        },
        "silent_nodes": [each.address for each in traced.report.nodes if each.error],
        "copies": _places(traced.merged),
        "copies_with_another": _places(traced.another),
        "copies_without_it": {where: str(end) for where, end in traced.short.items()},
    }  # fmt: skip


def _places(found: Mapping[str, MergedPlace]) -> dict[str, dict[str, Any]]:
    return {
        where: {
            "position": str(place.position), "number": place.number,
            "instruction": place.instruction, "term": place.term,
            "merge_time_ns": place.merged_ns,
        }
        for where, place in found.items()
    }  # fmt: skip


def _show(traced: _Traced, stream: str, words: str) -> None:
    say(f"message {traced.sequence} of session {traced.session}, stream {stream}")
    if own := traced.own:
        when = f"published {time_text(own.time_ns)}" if own.time_ns else "in a file that is gone"
        when += f"; its file was archived ({own.archived})" if own.archived else ""
        where = f" in {traced.own_directory}" if traced.own_directory else ""
        say(f"  session   at {own.position}{where}; {when}")
    placed = None if traced.another else traced.own
    for name, (durable, merged) in _reached(traced).items():
        say(f"  node {name:<4} {_node_words(placed, durable, merged)}")
    for node in traced.report.nodes:
        if node.error:
            say(f"  node {node.name or '?':<4} {node.error}")
    if traced.merged:
        place = next(iter(traced.merged.values()))
        say(f"  agreed    by instruction {place.instruction} of term {place.term}, "
            f"{time_text(place.merged_ns)}{_after(traced.own, place)}")  # fmt: skip
    for where, place in traced.merged.items():
        say(f"  merged    at {place.position} in {where}, number {place.number}")
    for where, place in traced.another.items():
        say(f"  another   at {place.position} in {where}, number {place.number}, published "
            f"{time_text(place.own.time_ns)}")  # fmt: skip
    for where, end in traced.short.items():
        say(f"  not in    {where}, which ends at {end}")
    say(f"it waits at {words}" if words.partition(":")[0] in ("push", "merge", "pull")
        else words or "it is merged")  # fmt: skip


def _node_words(own: OwnPlace | None, durable: Position, merged: Position) -> str:
    if own is None and durable < merged:
        return f"has merged the session up to {merged}, and holds no copy of it"
    if own is None:
        return f"holds the session up to {durable}, merged up to {merged}"
    if merged >= own.end:
        return "has merged it"
    if durable >= own.end:
        return f"holds it, and has merged the session up to {merged}"
    return f"does not hold it; it has the session up to {durable}"


def _after(own: OwnPlace | None, place: MergedPlace) -> str:
    if own is None or not own.time_ns or place.merged_ns < own.time_ns:
        return ""
    took_s = (place.merged_ns - own.time_ns) / 1e9
    shown = duration_text(took_s)
    return f", {shown} after it was published"
