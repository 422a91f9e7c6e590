"""Problems: what is wrong with a node according to its own answer, causes first, with advice.

`rt status`, `check`, `doctor` and the page all use this module, so they agree.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from rt.amounts import size_text
from rt.node.observe.answer_fields import checked, get, position
from rt.node.observe.stall_clock import MERGE
from rt.node.resources.disk_guard import REOPENS
from rt.text import printable

_FILES_SHOWN: Final = 3
_FREE_RATIO: Final = 4
_SECOND_END: Final = 253_402_300_799  # of the year 9999, the last that a date can have
_EMPTY_IT: Final = (
    "stop the node, move its directory of the stream out of the way, and start it: it copies "
    "everything from the others"
)
_FREE: Final = "free space on that disk: rt archive plan says what a lower limit would free"


class Problem(NamedTuple):
    """Something that is wrong.

    Attributes:
        said: a phrase to follow the name of the node, or a whole sentence about the cluster.
        advice: what to do, with commands; "" if the problem passes by itself.
        effects: further problems that it causes and that end with it, as phrases like `said`.
    """

    said: str
    advice: str = ""
    effects: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return what is wrong and what follows from it, as one phrase."""
        return f"{self.said}; so it {'; it '.join(self.effects)}" if self.effects else self.said


def problems_of(answer: dict[str, Any]) -> list[Problem]:
    """Return what is wrong with a node, causes before symptoms.

    Consequences of a full disk or of a running copy are listed as its effects, so that one cause is
    one problem. Nodes that this node cannot reach are left out, since that is a problem between two
    nodes.

    Raises:
        TypeError: a field is of another type.
        ValueError: a field cannot be read.
    """
    state, full = [*_state_problems(answer)], [*_full_disk(answer)]
    disk, stops = [*full, *_damaged_files(answer)], [*_stops(answer)]
    if full:
        effects = (*full[0].effects, *(each.said for each in stops))
        disk[0] = full[0]._replace(effects=effects)
    elif stops and answer.get("copying_to"):
        disk.append(stops[0]._replace(effects=tuple(each.said for each in stops[1:])))
    else:
        disk += stops
    return [*state, *disk, *_symptoms(answer)]


def takes_part(answer: dict[str, Any]) -> bool:
    """Whether a node with this answer votes, holds the merged log and accepts data."""
    reasons = ("forked", "copying_to", "unconfirmed_by", "merging_paused")
    away = any(answer.get(reason) for reason in reasons)
    is_member = bool(answer) and answer.get("role") != "learner"
    return is_member and not away and answer.get("takes_data") is not False


def role_text(role: str) -> str:
    """Return a role as text for people, without the distinction between kinds of candidates."""
    return "candidate" if role == "pre_candidate" else role


def disk_state(answer: dict[str, Any]) -> str:
    """Return `full` if the node refuses new data for lack of room, `low` if it soon may, or "".

    `low` means less than four times what the node keeps free; archiving may come too late then.

    Raises:
        TypeError: a field is of another type.
        ValueError: a field cannot be read.
    """
    if answer.get("takes_data") is False:
        return "full"
    free, kept = get(answer, "disk_free", int), get(answer, "disk_reserve", int)
    return "low" if free < _FREE_RATIO * kept else ""


def _state_problems(answer: dict[str, Any]) -> Iterator[Problem]:
    """Yield problems with the node's state on disk, and with what the cluster agreed on."""
    if seal := get(answer, "sealed", dict):
        at, moved_to = time_text(get(seal, "at_ns", int)), get(seal, "moved_to", str)
        said = f"is sealed since {at} by {get(seal, 'by', str)}: nothing is merged"
        if moved_to:
            yield Problem(
                f"{said}; the log continues at {moved_to}", "stop it once it is not needed"
            )
        else:
            yield Problem(said, "rt standby promote, or rt cluster unseal to let it go on")
    elif word := get(answer, "ended", dict):
        yield Problem(
            f"refuses publishers and readers: its log has ended at {position(word, 'cut')}, by "
            f"{get(word, 'by', str)}, and continues at {get(word, 'moved_to', str)}",
            "stop it once it is not needed; it is not sealed yet, as no majority of its cluster "
            "has answered",
        )
    if fork := get(answer, "forked", dict):
        since = time_text(get(fork, "since_ns", int))
        yield Problem(
            f"is FORKED since {since}: its log differs from {position(fork, 'position')} on "
            f"({get(fork, 'reason', str)}), so it merges and serves nothing",
            f"keep a copy of its merged log if it is still needed; then {_EMPTY_IT}",
        )
    if lost := get(answer, "lost_state", str):
        yield Problem(f"lost its state: {lost}", _EMPTY_IT)
    if older := get(answer, "older_copy", str):
        yield Problem(
            f"was an older copy of itself when it started ({older}), and what was merged since "
            "may be undone",
            f"never restore a node's directory; {_EMPTY_IT}",
        )
    if count := get(answer, "unreadable_entries", int):
        yield Problem(
            f"has executed {count} committed entries as nothing, which it cannot read: a later "
            "version wrote them, or a node that was no member",
            "its log says which; if a later version wrote them, update it",
        )


def _full_disk(answer: dict[str, Any]) -> Iterator[Problem]:
    """Yield the problem of a disk without room, and its effects."""
    paused = printable(get(answer, "merging_paused", str))
    if answer.get("takes_data") is False:
        free, kept = get(answer, "disk_free", int), get(answer, "disk_reserve", int)
        yield Problem(
            f"refuses new data, as its disk is nearly full: {size_text(free)} are left, and it "
            f"keeps {size_text(kept)} free; with {size_text(int(kept * REOPENS))} it takes "
            "data again",
            _FREE,
            (f"cannot write its merged log: {paused}",) if paused else (),
        )
    elif paused:
        yield Problem(
            f"cannot write its merged log: {paused}", f"{_FREE}; it then merges on by itself"
        )


def _damaged_files(answer: dict[str, Any]) -> Iterator[Problem]:
    """Yield problems with files that the node cannot read."""
    damaged = get(get(answer, "scrub", dict), "unrepaired", dict)
    for path in sorted(damaged)[:_FILES_SHOWN]:
        why = checked(damaged[path], str, path)
        yield Problem(
            f"does not serve a damaged file: {printable(path)}, not repaired: {why}",
            "start the nodes that are down; if all have lost it, put the file of the same name "
            "from a subscriber's copy in its place while the node is stopped",
        )


def _stops(answer: dict[str, Any]) -> Iterator[Problem]:
    """Yield problems with work that waits for room, for a copy of the log, or for a session."""
    if place := get(answer, "copying_to", str):
        reason = get(answer, "copying_waits_for", str)
        waits = f", and waits for {reason}" if reason else ""
        yield Problem(f"is copying the merged log, at {place}{waits}")
    if waiting := get(answer, "waiting_for", dict):
        yield Problem(f"waits for session {get(waiting, 'session', str)}")
    yield from _stalls(answer, lambda hop: hop == MERGE)


def _stalls(answer: dict[str, Any], wanted: Callable[[str], bool]) -> Iterator[Problem]:
    stalls = get(answer, "stalls", dict)
    for hop in sorted(filter(wanted, stalls)):
        said = f"does not move: {checked(stalls[hop], str, hop)}"
        yield Problem(said, "rt trace SESSION:NUMBER shows where a message waits")


def _symptoms(answer: dict[str, Any]) -> Iterator[Problem]:
    """Yield what keeps the node from voting or serving now."""
    if get(answer, "role", str) == "learner":
        name, places = get(answer, "node", str), get(answer, "addresses", dict)
        if name in get(answer, "learners", list):
            yield Problem(
                "is a learner: it is being added, and does not vote yet",
                f"rt cluster add {name} --address {printable(str(places.get(name)))} has it vote "
                "once it has caught up",
            )
        else:
            yield Problem("is a learner and does not count yet")
    if count := get(answer, "unconfirmed_by", int):
        nodes = f"{count} other nodes" if count > 1 else "another node"
        said = f"does not vote before {nodes} confirmed that its state is not an older copy"
        yield Problem(said, "start the nodes that are down")
    yield from _stalls(answer, lambda hop: hop != MERGE)  # a reader's full disk is not this one's
    if refusal := get(answer, "refusal", str):
        advice = "stop that process, or give it the certificate that the members know"
        yield Problem(f"refused a peer: {refusal}", advice)
    if warning := get(answer, "certificate", str):
        advice = "rt certs renew NAME, and copy the files to its machine"
        yield Problem(f"has to renew its certificate: {warning}", advice)


def time_text(time_ns: int) -> str:
    """Return a time in UTC, to the second."""
    at = datetime.fromtimestamp(min(time_ns // 10**9, _SECOND_END), UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
