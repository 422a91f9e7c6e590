"""Founded: what a cluster founded from a log cannot know about sessions and groups."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from rt.errors import Misuse
from sequencer.ledger.ledger import Ledger

FOUNDED_NOTE: Final = "founded"
# The id of the cluster, once all members' certificates name it. From then on, a node's certificate
# that names no cluster is refused.
CERTIFICATES_NOTE: Final = "certificates"


@dataclass(frozen=True, slots=True)
class Founded:
    """Founded: the limits of what the founding log reveals, stored as a note of the ledger.

    A merged log records how far each session was merged. It does not record a session's group, nor
    all sessions of an archived file if there were many.

    Attributes:
        log: the id of the founding log, which the old cluster wrote.
        time_ns: the last merge time in that log.
        groups: the groups whose sessions were named when the cluster was founded.
        dropped: sessions that were reset or forgotten, and not merged since.
        is_partial: whether files of the log were already missing.
    """

    log: str
    time_ns: int
    groups: frozenset[str]
    dropped: frozenset[str]
    is_partial: bool

    def with_those_of(self, text: str | None) -> "Founded":
        """Return these limits, combined with those in the note of an earlier founding, if any.

        Raises:
            Misuse: the note is malformed.
        """
        if text is None:
            return self
        before = _founded(text)
        return Founded(
            self.log, max(self.time_ns, before.time_ns), self.groups & before.groups,
            self.dropped | before.dropped, self.is_partial or before.is_partial,
        )  # fmt: skip

    def text(self) -> str:
        """Return the text of the note."""
        return json.dumps(
            {
                "log": self.log, "time_ns": self.time_ns, "groups": sorted(self.groups),
                "dropped": sorted(self.dropped), "partial": self.is_partial,
            },
            separators=(",", ":"),
        )  # fmt: skip


@lru_cache(maxsize=1)
def _founded(text: str) -> Founded:
    try:
        fields = json.loads(text)
        return Founded(
            str(fields["log"]), int(fields["time_ns"]), frozenset(fields["groups"]),
            frozenset(fields["dropped"]), bool(fields["partial"]),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise Misuse(f"the note of what this cluster was founded from is malformed: {error}") from (
            None
        )


def obstacle(ledger: Ledger, session: str, group: str, created_ns: int) -> str:
    """Return why a session may not be merged in a cluster founded from a log, or "".

    The old cluster may have merged some of the session's messages, and merging the session here
    could repeat them. A reset, or forgetting the session, retired only the logs that the nodes knew
    then, so another log from before the founding may still arrive.

    Args:
        ledger: the state of the cluster.
        session: its name.
        group: its group, or "".
        created_ns: when its log was created, by its publisher's clock.
    """
    text = ledger.notes.get(FOUNDED_NOTE)
    if text is None:
        return ""
    try:
        founded = _founded(text)
    except Misuse as error:
        return f"session {session!r} is not merged: {error}"
    if group and (group not in founded.groups or session in ledger.watermarks):
        return (
            f"session {session!r} is of group {group!r}, and this cluster was founded from a log "
            f"without naming it (--group {group}={session}): how far the group was merged is not "
            "known; publish under another name in no group"
        )
    if group or session in ledger.sessions:
        return ""
    was_dropped, has_begun = session in founded.dropped, session in ledger.begun
    may_be_merged = founded.is_partial or was_dropped or has_begun
    is_old = created_ns <= founded.time_ns
    if (may_be_merged and is_old) or (was_dropped and not has_begun):
        return (
            f"session {session!r} may have messages that were merged before this cluster was "
            "founded, and the log that it was founded from does not say how far; publish under "
            f"another name, or rt session reset {session} to drop this log, and begin another"
        )
    return ""


def grouped(watermarks: Mapping[str, int], groups: Mapping[str, frozenset[str]]) -> dict[str, int]:
    """Return the watermarks, with one per group instead of one per session of the group.

    A group has the highest watermark of its sessions, under the key "group NAME"; 0 if none of them
    has any. Sessions in no group keep their own watermarks.

    Args:
        watermarks: the watermark of each session.
        groups: the sessions of each group.
    """
    members = {session: group for group, sessions in groups.items() for session in sessions}
    found = {f"group {group}": 0 for group in groups}
    for session, number in watermarks.items():
        name = f"group {members[session]}" if session in members else session
        found[name] = max(found.get(name, 0), number)
    return found
