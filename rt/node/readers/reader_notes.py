"""ReaderNotes: a stream's cursors or groups, each stored in one note."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Final, Generic, TypeVar

from rt.errors import Misuse, Refused
from rt.log.files.directory import LogDirectory
from rt.log.read.start import parse_start, resolve
from rt.net.authority.identity import PeerIdentity
from rt.net.exchange import Fields
from rt.node.agree.steps import Steps
from rt.node.agree.view import NodeView
from rt.node.notes.pins import is_due
from rt.node.notes.readable_notes import readable
from rt.node.notes.reading_group import GROUP_NOTE, ReadingGroup, groups_of_notes
from rt.node.notes.registered_cursor import (
    CURSOR_NOTE,
    CURSORS_MAX,
    CURSORS_PER_OWNER_MAX,
    RegisteredCursor,
    cursors_of_notes,
)
from rt.node.readers.changed_notes import ChangedNotes, Decide
from rt.position import Position

MS_NS: Final = 1_000_000
Record = TypeVar("Record", RegisteredCursor, ReadingGroup)
_UNKNOWN: Final = {
    CURSOR_NOTE: ("unknown-cursor", "no cursor {!r} is registered"),
    GROUP_NOTE: ("unknown-group", "there is no group {!r}"),
}


class ReaderNotes(Generic[Record]):
    """ReaderNotes: reads and changes the notes of one kind; any thread may call it."""

    def __init__(
        self,
        kind: str,
        parse: Callable[[str], Record],
        view: Callable[[], NodeView],
        decide: Decide,
        *,
        latest: Callable[[], Steps[None]],
        log: Callable[[], LogDirectory],
        now_ns: Callable[[], int],
    ) -> None:
        """Prepare.

        Args:
            kind: prefix of the notes' names.
            parse: parses a note; raises `Misuse`.
            view: returns the node's latest view.
            decide: proposes a note, and waits until the view shows the outcome.
            latest: waits until this node has executed all that any node may have confirmed.
            log: opens the merged log.
            now_ns: returns the time, ns since the epoch.
        """
        self._kind, self._view, self._latest, self._log = kind, view, latest, log
        self._parse: Callable[[str], Record] = parse
        self._notes = ChangedNotes(view, decide, now_ns)
        self._now_ns = now_ns

    def get(self, name: str) -> Record | None:
        """Return the record of this name; None if this node knows none."""
        note = self._view().notes.get(self._kind + name, "")
        return self._parse(note) if note else None

    def wanted(self, notes: Mapping[str, str], request: Fields) -> list[Record]:
        """Return all readable records, or the one that the request names.

        Raises:
            Refused: the named record does not exist.
        """
        every, name = readable(notes, self._kind, self._parse)[0], request.get("name")
        if name is None:
            return every
        return [self.existing(next((each for each in every if each.name == name), None), str(name))]

    def existing(self, record: Record | None, name: str) -> Record:
        """Return `record`; `Refused` if `record` is None."""
        if record is None:
            code, words = _UNKNOWN[self._kind]
            raise Refused(code, words.format(name[:64]))
        return record

    def change(
        self,
        name: str,
        change: Callable[[Record | None], Record | None],
        *,
        may_repeat: bool = False,
    ) -> Steps[tuple[Record | None, bool]]:
        """Change a record; return it, and whether a majority has just agreed on it.

        Arguments and errors as for `ChangedNotes.change`, except that `change` takes the current
        record, or None, and returns the new one, or None to remove it.
        """

        def changed(before: str, now_ns: int) -> str | None:
            known = self._parse(before) if before else None
            wanted = change(known)
            if wanted is None:
                return ""
            is_kept = wanted == known and not is_due(wanted.pin_bytes, wanted.stored_ns, now_ns)
            return None if is_kept else replace(wanted, stored_ns=now_ns).text()

        steps = self._notes.change(self._kind + name, changed, may_repeat=may_repeat)
        text, is_agreed = yield from steps
        return (self._parse(text) if text else None), is_agreed

    def forget(self, request: Fields, identity: PeerIdentity) -> Steps[Fields]:
        """Remove a record; its holder, if any, is refused from now on."""
        name = str(request.get("name"))

        def change(known: Record | None) -> None:
            demand_owner(self.existing(known, name), identity, or_operator=True)

        yield from self.change(name, change)
        return {"forgotten": name}

    def demand_room(self, identity: PeerIdentity) -> None:
        """Refuse a new cursor or group if the stream or the asking peer has as many as allowed."""
        notes: Mapping[str, str] = self._view().notes
        every: list[RegisteredCursor | ReadingGroup] = [
            *cursors_of_notes(notes), *groups_of_notes(notes)
        ]  # fmt: skip
        own = sum(each.belongs_to(identity) for each in every)
        if len(every) >= CURSORS_MAX or own >= CURSORS_PER_OWNER_MAX:
            words = (
                f"{len(every)} of {CURSORS_MAX} cursors and groups are registered, {own} of "
                f"{CURSORS_PER_OWNER_MAX} by {identity.title}; forget one "
                "(rt cursor registered list, rt group list)"
            )
            raise Refused("cursors", words)

    def resolved(self, request: Fields, default: str = "None") -> Steps[Position]:
        """Resolve a request's `start` to a position on the latest state; `Misuse` if malformed."""
        start = parse_start(str(request.get("start", default)))
        yield from self._latest()
        with closing(self._log()) as log:
            return resolve(log, start)


def demand_owner(
    record: RegisteredCursor | ReadingGroup, identity: PeerIdentity, *, or_operator: bool = False
) -> None:
    """Raise `Refused` unless a peer owns a record, or, with `or_operator`, is an operator."""
    if not record.belongs_to(identity) and not (or_operator and identity.may_operate):
        kind = "cursor" if isinstance(record, RegisteredCursor) else "group"
        owner = f"{record.role} {record.owner}".strip()
        words = f"{kind} {record.name!r} belongs to {owner}; only its certificates may"
        raise Refused("role", words)


def number(request: Fields, field: str, default: float = 0) -> float:
    """Return the number in a field of a request; `Misuse` if the field is anything else."""
    value = request.get(field, default)
    if type(value) not in (int, float) or not -(2**53) < value < 2**53:
        raise Misuse(f"{field} is a number")
    found: float = value
    return found
