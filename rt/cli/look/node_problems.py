"""The problems that a node's status answer reports."""

from datetime import UTC, datetime
from typing import Any, Final

from rt.cli.common.answer_fields import checked, get, position
from rt.text import printable

_FILES_SHOWN: Final = 3
_SECOND_END: Final = 253_402_300_799  # the end of the year 9999, the last that a date can have


def problems_of(answer: dict[str, Any]) -> list[str]:
    """Return one phrase for each problem, to follow the node's name.

    Raises:
        TypeError: a field is of another type.
        ValueError: a field cannot be read.
    """
    return [*_state_problems(answer), *_running_problems(answer)]


def takes_part(answer: dict[str, Any]) -> bool:
    """Return whether a node votes, holds the merged log and accepts data, by its answer."""
    reasons = ("forked", "copying_to", "unconfirmed_by", "merging_paused")
    away = any(answer.get(reason) for reason in reasons)
    is_member = bool(answer) and answer.get("role") != "learner"
    return is_member and not away and answer.get("takes_data") is not False


def _state_problems(answer: dict[str, Any]) -> list[str]:
    """Return problems of what the node has on its disk."""
    found = []
    if fork := get(answer, "forked", dict):
        since = time_text(get(fork, "since_ns", int))
        found.append(
            f"is FORKED since {since}, from {position(fork, 'position')} on "
            f"({get(fork, 'reason', str)}): keep a copy of its merged log if it is still needed, "
            "then empty its directory and start it again"
        )
    if lost := get(answer, "lost_state", str):
        found.append(f"lost its state: {lost}")
    damaged = get(get(answer, "scrub", dict), "unrepaired", dict)
    for path in sorted(damaged)[:_FILES_SHOWN]:
        why = checked(damaged[path], str, path)
        found.append(f"does not serve a damaged file: {printable(path)}, not repaired: {why}")
    if older := get(answer, "older_copy", str):
        found.append(
            f"was an older copy of itself when it started ({older}), and what was merged since may "
            "be undone: never restore a node's directory; empty it, and it learns everything"
        )
    if count := get(answer, "unreadable_entries", int):
        found.append(
            f"has executed {count} committed entries as nothing, which it cannot read: a later "
            "version wrote them, or a node that was no member; its log says which"
        )
    if count := get(answer, "unconfirmed_by", int):
        nodes = f"{count} other nodes" if count > 1 else "another node"
        found.append(f"does not vote before {nodes} confirmed that its state is not an older copy")
    return found


def _running_problems(answer: dict[str, Any]) -> list[str]:
    """Return what keeps the node from merging or serving now."""
    found = []
    if place := get(answer, "copying_to", str):
        reason = get(answer, "copying_waits_for", str)
        waits = f"; it waits for {reason}" if reason else ""
        found.append(f"is copying the merged log, at {place}{waits}")
    if paused := get(answer, "merging_paused", str):
        found.append(
            f"cannot write its merged log: {printable(paused)}; free space on that disk, and it "
            "merges on by itself"
        )
    if waiting := get(answer, "waiting_for", dict):
        found.append(f"waits for session {get(waiting, 'session', str)}")
    stalls = get(answer, "stalls", dict)
    found += [f"does not move: {checked(stalls[hop], str, hop)}" for hop in sorted(stalls)]
    if answer.get("takes_data") is False:
        free, kept = get(answer, "disk_free", int), get(answer, "disk_reserve", int)
        found.append(
            f"refuses new data: {free:,} bytes of disk are left, and it keeps {kept:,} free"
        )
    if refusal := get(answer, "refusal", str):
        found.append(f"refused a peer: {refusal}")
    if unreachable := get(answer, "unreachable", dict):
        found.append(f"cannot reach {', '.join(map(printable, sorted(unreachable)))}")
    if warning := get(answer, "certificate", str):
        found.append(f"has to renew its certificate: {warning}")
    return found


def time_text(time_ns: int) -> str:
    """Return a time as text in UTC, to the second."""
    at = datetime.fromtimestamp(min(time_ns // 10**9, _SECOND_END), UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
