"""SessionState: what a node knows of one session, and its transitions."""

from typing import Final

from rt.errors import NAME_TAKEN, Refused
from rt.node.ingest.inbox import NodeInbox
from rt.node.ingest.session_epochs import SessionEpoch
from rt.position import Position
from sequencer.ledger.session_facts import Ownership

_ID_SHOWN: Final = 8  # digits of a log's id, enough to distinguish two logs
_STRIKES: Final = 2  # the first copy may predate its publisher's loss of unsynced bytes
_NEVER: Final = SessionEpoch()


class SessionState:
    """SessionState: one session on this node: its copy, its owner, and its retired logs.

    | what happens                      | what it changes                                        |
    |-----------------------------------|--------------------------------------------------------|
    | a source comes, or the node starts| `begin`, `open`, `end`: the copy is opened              |
    | damage, or other bytes were agreed| `set_aside`: the copy goes; the publisher gets a strike |
    | reset, forgotten, expired, taken  | `drop`: the copy goes, its log is retired, no strikes   |
    | opened, taken over, closed        | `ownership`, `take_wrong_copy`: another log's copy goes |
    | a power cut                       | `begun` is read again from the disk, the copy is found  |

    A state has no lock: `Inboxes` holds a lock while it changes one. `begun`, `copy` and
    `ownership` are replaced and never changed, so any thread may read them.
    """

    __slots__ = (
        "_busy", "_is_revoked", "_strikes", "begun", "copy", "damaged_at", "is_removing", "name",
        "ownership",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        """Start without any state."""
        self.name = name
        self.copy: NodeInbox | None = None
        self.ownership: Ownership | None = None  # as agreed; None if the name is free
        self.begun = _NEVER  # the last dropping instruction, and the retired logs
        self.is_removing = False  # a dropped copy may still be on the disk
        self._strikes = 0  # how often its publisher had other bytes than the nodes agreed on
        # Where the last copy set aside was damaged; None once a copy was found correct.
        self.damaged_at: Position | None = None
        self._busy = 0  # number of threads that open its copy or set it aside
        self._is_revoked = False  # whether it was set aside while being opened

    @property
    def is_blank(self) -> bool:
        """Whether there is no state to remember."""
        is_idle = not (self._busy or self.has_diverged or self.is_removing)
        is_empty = self.copy is None and self.ownership is None and self.damaged_at is None
        return is_idle and is_empty and not self.begun.after

    @property
    def has_diverged(self) -> bool:
        """Whether a copy was set aside because the nodes agreed on other bytes."""
        return bool(self._strikes)

    # Transitions

    def begin(self) -> None:
        """Refuse all sources until `end`, while the copy is opened, set aside or removed."""
        self._busy += 1

    def end(self) -> None:
        """Admit sources again, after `begin`."""
        self._busy -= 1
        if not self._busy:
            self._is_revoked = False

    def open(self, copy: NodeInbox) -> None:
        """Set the session's copy; `Refused` if the copy was set aside while it was opened."""
        self.demand_kept()
        self.copy = copy

    def set_aside(self, *, diverged: bool, damaged_at: Position | None = None) -> NodeInbox | None:
        """Give up the copy because it is damaged or has diverged; return it, None if there is none.

        If two copies in a row are damaged at the same position, the second counts as diverged: the
        cause is not the disk, but a publisher whose frames have positions other than the merged
        ones.

        A publisher that filled two copies with bytes other than the agreed ones is refused until
        this node restarts. It may have filled the first copy before it lost unsynced bytes, but the
        second copy shows what the publisher has now.
        """
        copy = self.take_copy()
        is_damaged_again = damaged_at is not None and damaged_at == self.damaged_at
        self.damaged_at = self.damaged_at if damaged_at is None else damaged_at
        diverged = diverged or is_damaged_again
        if diverged and not (copy is not None and copy.was_relayed):
            self._strikes += 1
        self._revoke()
        return copy

    def proved(self, merged: Position) -> None:
        """Forget damage before `merged`, the end up to which a later copy was found correct."""
        if self.damaged_at is not None and self.damaged_at < merged:
            self.damaged_at = None

    def drop(self, begun: SessionEpoch) -> NodeInbox | None:
        """Give up the session's copy because an instruction ended the session; return the copy."""
        self.begun, self.is_removing = begun, True
        self._strikes, self.damaged_at = 0, None
        self._revoke()
        return self.take_copy()

    def removed(self, *, is_remembered: bool) -> None:
        """Record that dropped copies are gone; forget the epoch unless `is_remembered`."""
        self.is_removing = False
        if not is_remembered:
            self.begun = _NEVER

    def take_wrong_copy(self) -> NodeInbox | None:
        """Give up the copy if its log is not the agreed one; return the copy given up, or None.

        If a publisher other than the owner fills the copy, that publisher's connection is refused.
        """
        copy, known = self.copy, self.ownership
        if copy is None or known is None:
            return None
        peer = copy.peer
        if peer and copy.is_fed and known.owner not in {"", peer}:
            copy.refuse(_owned(self.name, known.owner))
        return None if known.log in {"", copy.appender.identity.id} else self.take_copy()

    def take_copy(self) -> NodeInbox | None:
        """Give up the session's copy; return it, None if there is none."""
        copy, self.copy = self.copy, None
        return copy

    def _revoke(self) -> None:
        """Mark the copy that is being opened, if any, as unusable."""
        self._is_revoked = self._is_revoked or bool(self._busy)

    # Admission

    def other_log(self, bound: str, log: str) -> Refused:
        """Return why `log` may not be pushed: the name is bound to the log `bound`."""
        copy = self.copy
        return _other_log(self.name, bound, log, copy.peer if copy and copy.is_fed else "")

    def is_retired(self, log: str) -> bool:
        """Whether this log may never be pushed again."""
        return log in self.begun.retired.split()

    def demand_owner(self, peer: str) -> None:
        """Raise `Refused` if another publisher owns the session, or two copies have diverged."""
        if self.ownership is not None and self.ownership.owner not in {"", peer}:
            raise _owned(self.name, self.ownership.owner)
        if self._strikes >= _STRIKES:
            raise Refused(
                "diverged",
                f"the nodes have merged other bytes of session {self.name!r} than these; publish "
                "under another name",
            )

    def demand_log(self, log: str) -> None:
        """Refuse a log that is retired or not the agreed one, and any while a copy is removed."""
        if self.is_retired(log):
            raise Refused(
                "other-log",
                f"this log of session {self.name!r} was retired when the session was reset, "
                "forgotten or taken over, or expired; begin another: move its directory away, or "
                "publish under another name",
            )
        if self.is_removing:
            raise Refused("busy", f"the copy of session {self.name!r} is being removed")
        if self.ownership is not None and self.ownership.log not in {"", log}:
            raise self.other_log(self.ownership.log, log)

    def demand_idle(self) -> None:
        """Raise `Refused` if the session's copy is being opened or set aside."""
        if self._busy:
            raise Refused("busy", f"session {self.name!r} is being opened, or set aside")

    def demand_kept(self) -> None:
        """Raise `Refused` if the session's copy was set aside while it was being opened."""
        if self._is_revoked:
            raise Refused("busy", f"session {self.name!r} was set aside just now")


def _owned(session: str, owner: str) -> Refused:
    """Return why a publisher may not push a session that another one opened."""
    return Refused(
        "owned",
        f"session {session!r} belongs to {owner!r}, which opened it; publish under another name, "
        f"or take it over once {owner!r} has been gone for long: rt session take {session}",
    )


def _other_log(session: str, bound: str, log: str, pushed_by: str) -> Refused:
    """Return why a log may not be pushed under the name of another.

    Args:
        session: the name.
        bound: the id of the log that has the name.
        log: the id of the refused log.
        pushed_by: the publisher that is pushing the log `bound`, or "". If there is one, no log was
            lost, and resetting the session would harm that publisher.
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
