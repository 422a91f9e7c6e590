"""BarredSessions: which sessions may not be filled now, and which publishers may not fill them."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from rt.errors import NAME_TAKEN, Refused
from rt.position import Position
from sequencer.ledger.session_facts import Ownership

_ID_SHOWN: Final = 8  # digits of a log's id, enough to tell two apart
_STRIKES: Final = 2  # the first copy may be from before its publisher lost its last bytes


class BarredSessions:
    """Knows which copies are being opened or set aside, and which publishers have differing bytes.

    It has no lock: `Inboxes` calls it while it holds its own.
    """

    def __init__(self) -> None:
        self._busy: Counter[str] = Counter()
        self._revoked: set[str] = set()  # being opened while their directory is set aside
        self._strikes: dict[str, int] = {}
        self._damaged: dict[str, Position] = {}  # where the last copy was
        self.opened: dict[str, Ownership] = {}  # whose each session is; replaced and never changed

    @property
    def diverged(self) -> list[str]:
        """The sessions of which a copy was set aside because the nodes agreed on other bytes."""
        return sorted(self._strikes)

    def begin(self, session: str) -> None:
        """Refuse all sources of this session: its copy is being opened or set aside."""
        self._busy[session] += 1

    def end(self, session: str) -> None:
        """Admit sources again: the copy was opened, or set aside."""
        self._busy[session] -= 1
        if not self._busy[session]:
            del self._busy[session]
            self._revoked.discard(session)

    def revoke(self, session: str) -> None:
        """Let nobody use the copy that is being opened now, if one is: it is to be set aside."""
        if session in self._busy:
            self._revoked.add(session)

    def demand_kept(self, session: str) -> None:
        """Raise `Refused` if the copy was set aside while it was being opened."""
        if session in self._revoked:
            raise Refused("busy", f"session {session!r} was set aside just now")

    def pardon(self, session: str) -> None:
        """Forget that a publisher had differing bytes: its session begins again."""
        self._strikes.pop(session, None)
        self._damaged.pop(session, None)

    def is_damaged_again(self, session: str, position: Position) -> bool:
        """Record where a copy is damaged; return whether the one before it was damaged there too.

        Then the disk is not to blame: the publisher's frames lie elsewhere than those that the
        nodes have merged, and to fetch them once more would go on for ever.
        """
        before = self._damaged.get(session)
        self._damaged[session] = position
        return before == position

    def strike(self, session: str) -> None:
        """Record that a publisher filled a copy with other bytes than the nodes agreed on.

        After the second time it is refused for as long as this node runs: the first copy may be
        from before it lost what it had not synced, but the second is what it has now.
        """
        self._strikes[session] = self._strikes.get(session, 0) + 1

    def demand_open(self, session: str) -> None:
        """Raise `Refused` if the session's copy is being opened or set aside."""
        if session in self._busy:
            raise Refused("busy", f"session {session!r} is being opened, or set aside")

    def agree(self, changed: Mapping[str, Ownership | None]) -> None:
        """Take note of whose sessions are; None if the name is free."""
        known = {**self.opened, **changed}
        self.opened = {name: each for name, each in known.items() if each is not None}

    def demand_owner(self, session: str, peer: str) -> None:
        """Raise `Refused` if the session belongs to another publisher."""
        known = self.opened.get(session)
        if known is not None and known.owner not in {"", peer}:
            raise owned(session, known.owner)

    def demand_log(self, session: str, log: str, pushed_by: str) -> None:
        """Raise `Refused` if the session is bound to another log.

        Args:
            session: its name.
            log: the id of the log that a peer wants to push.
            pushed_by: the publisher whose log is being pushed here now; "" without one.
        """
        known = self.opened.get(session)
        if known is not None and known.log not in {"", log}:
            raise other_log(session, known.log, log, pushed_by)

    def demand_agreed(self, session: str) -> None:
        """Raise `Refused` if the session's publisher has other bytes than were merged."""
        if self._strikes.get(session, 0) >= _STRIKES:
            raise Refused(
                "diverged",
                f"the nodes have merged other bytes of session {session!r} than these; publish "
                "under another name",
            )


def owned(session: str, owner: str) -> Refused:
    """Return why a publisher may not push a session that another one opened."""
    return Refused(
        "owned",
        f"session {session!r} belongs to {owner!r}, which opened it; publish under another name, "
        f"or take it over once {owner!r} has been gone for long: rt session take {session}",
    )


def other_log(session: str, bound: str, log: str, pushed_by: str = "") -> Refused:
    """Return why a log may not be pushed under the name of another.

    Args:
        session: the name.
        bound: the id of the log that has it.
        log: the id of the one that wants it.
        pushed_by: the publisher that pushes the first of them now: then nothing was lost, and to
            reset the session would harm that publisher. "" if none does.
    """
    ours, theirs = bound[:_ID_SHOWN], log[:_ID_SHOWN]
    if pushed_by:
        return Refused(
            NAME_TAKEN,
            f"session {session!r} is in use: {pushed_by!r} is pushing it from another directory, "
            f"as log {ours}, and this directory holds log {theirs}; publish from here under "
            "another session name",
        )
    return Refused(
        "other-log",
        f"session {session!r} is log {ours} here, and this directory holds log {theirs}: either "
        "another directory uses the name, then publish from here under another one; or this "
        "directory was deleted and made again, then let the session begin again: "
        f"rt session reset {session}",
    )
