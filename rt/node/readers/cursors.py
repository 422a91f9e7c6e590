"""NodeCursors: opens, acknowledges and moves a stream's registered cursors."""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

from rt.errors import Misuse, Refused
from rt.log.files.directory import LogDirectory
from rt.net.authority.identity import PeerIdentity
from rt.net.exchange import Fields, position_in
from rt.node.agree.steps import Steps, Until
from rt.node.agree.view import NodeView
from rt.node.notes.registered_cursor import (
    CURSOR_NOTE,
    CURSORS_MAX,
    RegisteredCursor,
    parse_registered,
)
from rt.node.readers.changed_notes import Decide
from rt.node.readers.cursor_lag import lag_of
from rt.node.readers.reader_notes import MS_NS, ReaderNotes, demand_owner, number
from rt.position import Position

_TAKEOVERS: Final = ("refuse", "fence")
_MERGED_S: Final = 1.0  # the leader may execute later than the node a reader pulls from


class NodeCursors(ReaderNotes[RegisteredCursor]):
    """NodeCursors: the cursors of a stream, on the leading node.

    Every change is a compare-and-set in the ledger, so even if two nodes believe that they lead,
    only one change is made and the other one fails. Only the leader knows whether a holder is
    alive, from signs of life since it became leader. That decides when a takeover is allowed; the
    compare-and-set decides which takeover succeeds.

    Threads: any connection's thread may call any method; each changes or copies `_heard` in one
        step.
    """

    def __init__(
        self,
        view: Callable[[], NodeView],
        decide: Decide,
        latest: Callable[[], Steps[None]],
        stream: Callable[[], str],
        log: Callable[[], LogDirectory],
        *,
        steady_s: Callable[[], float] = time.monotonic,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Read and change cursors; most arguments are as for `ReaderNotes`.

        `stream` returns the stream's name; `steady_s` is a monotonic clock, in seconds.
        """
        super().__init__(
            CURSOR_NOTE, parse_registered, view, decide, latest=latest, log=log, now_ns=now_ns
        )
        self._stream = stream
        self._steady_s = steady_s
        self._heard: dict[str, tuple[int, float]] = {}  # epoch and time by name
        self._term = -1  # in which they were heard

    def open(self, request: Fields, identity: PeerIdentity) -> Steps[Fields]:
        """Open a cursor for the reader that asks, at the log's start if new; return its state.

        Raises `Refused` (`held`) if another reader that is alive holds the cursor, unless the
        request's `takeover` is `fence`.
        """
        takeover = request.get("takeover", "refuse")
        if takeover not in _TAKEOVERS:
            raise Misuse("takeover is refuse or fence")
        name, share = str(request.get("name")), str(request.get("share", ""))
        is_new = False

        def change(known: RegisteredCursor | None) -> RegisteredCursor:
            nonlocal is_new
            is_new = known is None
            # The holder of a forgotten cursor of this name may still report: no epoch may repeat.
            cursor = known or RegisteredCursor(
                name, identity.name, role=identity.role.value, epoch=self._now_ns() // MS_NS
            )
            demand_owner(cursor, identity)
            if known is None:
                self.demand_room(identity)
            _demand_share(cursor, share)
            if request.get("pin_bytes") and not identity.may_lease(self._stream()):
                words = f"{identity.title} is not granted leases, and so may not pin files"
                raise Refused("role", words)
            if takeover == "refuse" and self._is_held(cursor):
                raise Refused("held", f"cursor {name!r} is held by {cursor.holder}")
            return replace(
                cursor, epoch=cursor.epoch + 1, holder=str(request.get("holder", identity.name)),
                silence_s=number(request, "silence_s", cursor.silence_s),
                pin_bytes=int(number(request, "pin_bytes", cursor.pin_bytes)), share=share,
            )  # fmt: skip

        cursor, _ = yield from self.change(name, change)
        self._hear(name, cursor.epoch if cursor else 0)
        return {**_facts(cursor), "is_new": is_new}

    def ack(self, request: Fields, identity: PeerIdentity) -> Steps[Fields]:
        """Acknowledge up to a position, if given, and record that the holder is alive."""
        name, epoch = str(request.get("name")), number(request, "epoch")
        position = yield from self._reached(position_in(request, "position"))
        is_last = bool(request.get("release"))

        def change(known: RegisteredCursor | None) -> RegisteredCursor:
            cursor = self.existing(known, name)
            demand_owner(cursor, identity)
            if cursor.epoch != epoch:
                holder = cursor.holder or "an operator"
                raise Refused("fenced", f"it was taken over by {holder}, epoch {cursor.epoch}")
            moved = replace(cursor, position=max(cursor.position, position))
            return replace(moved, holder="") if is_last else moved

        cursor, _ = yield from self.change(name, change, may_repeat=True)
        self._hear(name, int(epoch))
        return _facts(cursor)

    def reset(self, request: Fields, identity: PeerIdentity) -> Steps[Fields]:
        """Move a cursor to any place of the stream; its holder, if any, is refused from now on."""
        name = str(request.get("name"))
        position = yield from self.resolved(request)

        def change(known: RegisteredCursor | None) -> RegisteredCursor:
            cursor = self.existing(known, name)
            demand_owner(cursor, identity, or_operator=True)
            return replace(
                cursor, position=position, epoch=cursor.epoch + 1, holder="", share=None
            )  # fmt: skip

        cursor, _ = yield from self.change(name, change)
        return _facts(cursor)

    def show(self, request: Fields, _identity: PeerIdentity) -> Fields:
        """Return all cursors, or the named one, with lag; any node answers."""
        view = self._view()
        cursors = self.wanted(view.notes, request)
        with closing(self._log()) as log:
            rows = [_facts(each) | lag_of(log, each.position, view) for each in cursors]
        return {"cursors": rows, "end": str(view.end)}

    def _reached(self, position: Position) -> Steps[Position]:
        """Wait until this node has merged up to `position`; return `position`.

        The reader may have pulled from a node that merges earlier than this one.

        Raises:
            Refused: nothing is merged up to that position.
        """
        if position <= self._view().end:
            return position
        try:
            yield Until(lambda: position <= self._view().end, _MERGED_S)
        except Refused:
            words = f"the merged log ends at {self._view().end}"
            raise Refused("ahead", f"{words}; {position} cannot have been read from it") from None
        return position

    def _is_held(self, cursor: RegisteredCursor) -> bool:
        """Whether the cursor's holder counts as alive: it was heard within `silence_s`.

        If this node has not heard from the holder yet, the time counts from the first check.
        """
        if not cursor.holder:
            return False
        self._forget_earlier()
        now_s = self._steady_s()
        epoch, heard_s = self._heard.get(cursor.name, (0, now_s))
        if epoch != cursor.epoch:
            self._heard[cursor.name] = (cursor.epoch, now_s)
            return True
        return now_s - heard_s < cursor.silence_s

    def _forget_earlier(self) -> None:
        """Forget what was heard in an earlier term: holders may have reported elsewhere since."""
        if (term := self._view().engine.term) != self._term:
            self._term = term
            self._heard.clear()

    def _hear(self, name: str, epoch: int) -> None:
        self._forget_earlier()
        self._heard[name] = (epoch, self._steady_s())
        if len(self._heard) > 2 * CURSORS_MAX:  # some cursors were forgotten
            known = self._heard.copy()
            self._heard.pop(min(known, key=lambda each: known[each][1]), None)


def _demand_share(cursor: RegisteredCursor, share: str) -> None:
    if cursor.share not in (None, share):
        known, wanted = cursor.share or "all keys", share or "all keys"
        words = (
            f"cursor {cursor.name!r} was used for share {known} and not for {wanted}; use another "
            "name for each share, or reset this one to a position that all shares have reached"
        )
        raise Refused("share", words)


def _facts(cursor: RegisteredCursor | None) -> dict[str, Any]:
    if cursor is None:
        return {}
    return {
        "cursor": cursor.name, "owner": cursor.owner, "position": str(cursor.position),
        "epoch": cursor.epoch, "holder": cursor.holder, "silence_s": cursor.silence_s,
        "pin_bytes": cursor.pin_bytes, "stored_ns": cursor.stored_ns,
    }  # fmt: skip
