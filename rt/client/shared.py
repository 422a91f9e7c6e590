"""GroupSubscriber: the messages that one member of a group is handed."""

import asyncio
import logging
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from rt.client.claims import Claims
from rt.client.group import CAREFUL, DeadLetter, Delivery, Group
from rt.client.member_claims import HeldClaim
from rt.errors import ClaimLost, FrameError, GapError
from rt.events import Event, NoMatch
from rt.format.message import Batch, Message
from rt.format.where import Where
from rt.log.files.archived import is_own_gap
from rt.log.notify.watch import Watch
from rt.log.read.follower import Matching, SessionFilter
from rt.log.read.in_use import InUse
from rt.position import Position
from rt.subscriber import OnGap, Subscriber

_log: Final = logging.getLogger("rt.subscriber")
_WAIT_S: Final = 0.1  # how long a stop, or the loss of a claim, may go unnoticed
_LOOK_S: Final = 0.02  # between two looks whether the copy has grown
_STALLED_S: Final = 5.0  # a copy that lags is milliseconds late

Publish = Callable[[bytes, bytes], object]


class OnTrouble(NamedTuple):
    """What a reader does about gaps and frames that cannot be decoded; as of `rt.Subscriber`."""

    on_gap: OnGap
    on_poison: OnGap
    on_event: Callable[[Event], None] | None


@dataclass(frozen=True, slots=True)
class Choice:
    """Which messages a member handles; the others count as done. The same for all members."""

    sessions: SessionFilter
    where: Where

    @classmethod
    def of(
        cls,
        sessions: Collection[str] | None,
        key_prefix: bytes,
        where: str | Collection[str] | None,
    ) -> "Choice":
        """Compile the arguments of a subscriber; `Misuse` if one is not valid."""
        compiled = Where.parse(where, key_prefix)
        return cls(SessionFilter(sessions, compiled), compiled)


class MemberReading(NamedTuple):
    """How one member reads; arguments of `rt.client.client.Client.subscriber`."""

    ack: str
    follow: bool
    timeout_s: float
    choice: Choice
    trouble: OnTrouble


class GroupSubscriber:
    """Iterates over the messages that this member of a group is handed; each goes to one member.

    Delivery is at least once: a message is handed out again if its member dies or rejects it, and
    then says so in `redelivered`. With `ack="auto"` a message counts as handled when the next one
    is asked for, or when the `with` block ends without an exception. With `ack="explicit"` only
    `ack` counts. There is no order between members, nor for messages that come again.

    Threads: one thread iterates; `ack`, `reject`, `stop` and `close` may be called by any.
        `_opening` guards `_open`; the rest belongs to the iterating thread, as long as it has it in
        `_use`.
    """

    def __init__(
        self,
        group: Group,
        claims: Claims,
        reader: Callable[[Position], Subscriber],
        wanted: MemberReading,
        watch: Watch,
        *,
        until: Position | None,
        publish: Publish,
    ) -> None:
        """Made by `rt.client.client.Client.subscriber`.

        Args:
            group: which was joined.
            claims: what this member holds.
            reader: returns a reader of the copy from a position on.
            wanted: which messages, and how they are acknowledged.
            watch: of the copy.
            until: iterating ends once the group has handled everything before this; None never.
            publish: publishes a dead letter by key and payload, and returns once it is merged.
        """
        self._group = group
        self._claims = claims
        self._reader = reader
        self._wanted = wanted
        self._watch = watch
        self._until = until
        self._publish = publish
        self._matching, self._begin = Matching(wanted.choice.sessions), claims.position
        self._has_matched = False
        self._opening = threading.Lock()
        self._open: list[HeldClaim] = []  # in the order in which they were handed out
        self._source: Iterator[Delivery] | None = None
        self._handed_out: Message | None = None
        self._use = InUse(self._release)

    @property
    def name(self) -> str:
        """The group's name."""
        return self._group.name

    @property
    def acked(self) -> Position:
        """Everything before this position was handled by some member, as of the last report."""
        return self._claims.position

    def __iter__(self) -> Iterator[Delivery]:
        return self.messages()

    def messages(self, timeout_s: float | None = None) -> Iterator[Delivery]:
        """Iterate over messages; ends when stopped, when none came for a while, or at the end.

        Raises:
            GapError: messages were archived before they were handled; they count as handled. If
                only this machine's copy lacks them, another member gets them, and this one ends,
                whatever `on_gap` says.
            CorruptLog: the copy is damaged.
            Refused: the group was forgotten, or belongs to others.
        """
        while not self._use.is_stopped:
            self._ack_handed_out()
            with self._use:
                if self._source is None and not self._next_claim(timeout_s):
                    return
                message = self._next_message()
            self._report_lost()
            if message is not None:
                self._handed_out = message
                yield message

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        """Iterate inside asyncio; waiting happens in a thread."""
        messages = self.messages(_WAIT_S)
        while not self._use.is_stopped:
            looking = asyncio.ensure_future(asyncio.to_thread(next, messages, None))
            try:
                message = await asyncio.shield(looking)
            except asyncio.CancelledError:
                await asyncio.wait([looking])
                if not looking.cancelled() and looking.exception() is None:
                    self._take_back(looking.result())
                raise
            if message is not None:
                yield message
            elif self._is_over():
                return
            else:
                messages = self.messages(_WAIT_S)

    def ack(self, message: Message | None = None, *, sync: bool = False) -> None:
        """Count as handled everything that was handed out up to a message, or all of it.

        Args:
            message: the last one that is handled; the last one handed out unless given.
            sync: return once the nodes have agreed on it; otherwise a third of `silence_s` passes.

        Raises:
            ClaimLost: with `sync`, another member was handed the message meanwhile, since this one
                gave no sign of life for `silence_s` or the group was moved. Without `sync`,
                `on_event` gets a `RangeLost` the next time that a message is asked for.
            Refused: with `sync`, the group was forgotten.
        """
        message = message or self._handed_out
        if message is None:
            return
        claim = self._handled_before(message)
        if claim is None and sync and isinstance(message, Delivery):
            claim = message.claim  # agreed on, or lost
        if claim is not None:
            self._claims.progress(claim, message.next_position, sync=sync)

    def reject(self, message: Message | None = None) -> None:
        """Have a message, the last one unless given, handed out again, to any member.

        What was handed out before it counts as handled. The message is a dead letter once it was
        handed out `max_deliveries` times.
        """
        message = message or self._handed_out
        claim = None if message is None else self._handled_before(message)
        if message is not None and claim is not None:
            self._claims.progress(claim, message.position)
            self._claims.reject(claim, message.position)
        if message is self._handed_out:
            self._handed_out = None

    def run(
        self,
        handler: Callable[[Message], object],
        *,
        reject: type[Exception] | tuple[type[Exception], ...] = (),
    ) -> None:
        """Call `handler` with each message and acknowledge it when the handler has returned.

        A message whose handler raises is rejected, so that it comes again.

        Args:
            handler: what to call.
            reject: after these errors of the handler the loop goes on; after others it ends.
        """
        for message in self.messages():
            is_handled = False
            try:
                handler(message)
                is_handled = True
            except reject:
                pass
            finally:
                if not is_handled:
                    self.reject(message)
            if is_handled:
                self.ack(message)

    def stop(self) -> None:
        """End every iteration, from any thread."""
        self._use.stop()
        self._claims.grown()

    def close(self) -> None:
        """Stop, say what is handled, and let other members have the rest. Idempotent.

        While another thread looks for messages, that one releases the files as it ends.
        """
        self.stop()
        self._claims.close()
        self._use.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        try:
            if kind is None:
                self._ack_handed_out()
        finally:
            self.close()

    def _release(self) -> None:
        self._source = None  # it ends, and closes its reader
        self._watch.close()

    def __repr__(self) -> str:
        return f"<GroupSubscriber {self.name!r}, handled up to {self.acked}>"

    def _next_claim(self, timeout_s: float | None) -> bool:
        """Wait for a range, asking for one when the copy has grown; False if there is none."""
        end_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not self._is_over():
            wait_s = min(_LOOK_S, max(0.0, end_s - time.monotonic()))
            claim = self._claims.next(self._is_over, wait_s)
            if claim is not None:
                with self._opening:
                    self._open = [each for each in self._open if each.is_open] + [claim]
                self._source = self._messages_of(claim)
                return True
            if self._wanted.follow and self._matching.is_due(time.monotonic()):
                self._report_no_match()
            if self._claims.is_closed or time.monotonic() >= end_s:
                return False
            if self._watch.changes().directories:
                self._claims.grown()
        if not self._use.is_stopped:
            self._report_no_match()
        return False

    def _next_message(self) -> Delivery | None:
        """Return the next message of the range; None at its end."""
        source = self._source
        if source is not None and self._open:
            self._source = self._messages_of(self._open[-1])  # goes on here after an error
        message = None if source is None else next(source, None)
        self._source = None if message is None else source
        return message

    def _report_lost(self) -> None:
        for event in self._claims.take_lost():
            if self._wanted.trouble.on_event is not None:
                self._wanted.trouble.on_event(event)

    def _report_no_match(self) -> None:
        """Report once what was asked for and matches nothing that this member was handed."""
        unmatched = self._matching.look(has_matched=self._has_matched)
        if unmatched is None:
            return
        event = NoMatch(*unmatched, self._begin, self._claims.position, self.name)
        _log.warning("group %s: %s", self.name, event)
        if self._wanted.trouble.on_event is not None:
            self._wanted.trouble.on_event(event)

    def _is_over(self) -> bool:
        if self._until is None:
            return self._use.is_stopped
        return self._use.is_stopped or self._claims.is_done or self._claims.position >= self._until

    def _ack_handed_out(self) -> None:
        if self._wanted.ack == "auto" and self._handed_out is not None:
            self.ack(self._handed_out)
            self._handed_out = None

    def _take_back(self, message: Delivery | None) -> None:
        """Hand out again what a cancelled caller did not get."""
        if message is not None and self._source is not None:
            rest, self._handed_out = self._source, None
            self._source = _chain(message, rest)

    def _handled_before(self, message: Message) -> HeldClaim | None:
        """Count as handled what was handed out of the ranges before a message's; return its range.

        That is the last one that holds it: a message that was rejected comes again in a range of
        its own. None if it was handed to another member meanwhile.
        """
        with self._opening:
            for place in reversed(range(len(self._open))):
                if self._open[place].first <= message.position < self._open[place].end:
                    for earlier in self._open[:place]:
                        self._claims.progress(earlier, earlier.handed)
                    return self._open[place]
        return None

    def _messages_of(self, claim: HeldClaim) -> Iterator[Delivery]:
        """Hand out the messages of a claim, and note at the end that nothing follows."""
        began_s, count = time.monotonic(), 0
        for message in self._read(claim):
            if claim.is_dead and claim.handed == claim.first:
                self._bury(message, claim)
                claim.handed = message.next_position
                self._claims.progress(claim, message.next_position)
                continue
            if claim.deliveries >= CAREFUL and claim.done >= claim.handed:
                with suppress(ClaimLost):
                    self._claims.progress(claim, message.position, sync=True)
            if claim.is_lost or self._use.is_stopped:
                return
            claim.handed, count = message.next_position, count + 1
            message.redelivered, message.claim = claim.deliveries - 1, claim
            yield message
        if not (self._use.is_stopped or claim.is_lost):
            self._claims.handled(count, time.monotonic() - began_s)
            claim.tail = claim.handed
            self._claims.progress(claim, claim.done)

    def _read(self, claim: HeldClaim) -> Iterator[Delivery]:
        """Read the wanted messages of a claim, waiting for the copy where it lags.

        Where the copy stalls, the claim is left to members whose copies have it.
        """
        reader, grown_s = self._reader(claim.goes_on), time.monotonic()
        try:
            while not (self._use.is_stopped or claim.is_lost) and claim.goes_on < claim.end:
                batch = self._next_batch(reader, claim)
                if batch is None:
                    if reader.position >= claim.end:
                        return
                    if self._watch.changes().directories:
                        grown_s = time.monotonic()
                        self._claims.grown()
                    elif time.monotonic() - grown_s > _STALLED_S and claim.handed <= claim.done:
                        self._claims.give_back()
                    continue
                if batch.position >= claim.end:
                    return
                yield from self._chosen(reader, batch, claim)
                if batch.next_position >= claim.end:
                    return
                grown_s = time.monotonic()
        finally:
            reader.close()

    def _next_batch(self, reader: Subscriber, claim: HeldClaim) -> Batch | None:
        """Return the next batch; None if none came in time, or after a gap that may be passed over.

        The reader raises at every gap: what this copy lacks and others have is never passed over.
        """
        try:
            return reader.next_batch(_WAIT_S)
        except GapError as error:
            gap, trouble = error.gap, self._wanted.trouble
            if is_own_gap(gap):
                self._claims.close()  # what is not done goes to a member whose copy has it
                raise
            claim.read_to = min(gap.end, claim.end)
            if claim.handed <= claim.done:  # otherwise what follows is acknowledged with it
                self._claims.progress(claim, claim.read_to)
            if trouble.on_gap == "raise":
                raise
            if trouble.on_gap == "notify" and trouble.on_event is not None:
                trouble.on_event(gap)
            return None

    def _chosen(self, reader: Subscriber, batch: Batch, claim: HeldClaim) -> Iterator[Delivery]:
        if not self._wanted.choice.sessions.wants(batch.session):
            return
        self._matching.has_given = True
        try:
            for message in self._wanted.choice.where.messages(batch):
                if message.at >= claim.end:
                    return
                if not self._group.is_letter(message):
                    self._has_matched = True
                    yield Delivery._make(message)
        except FrameError as error:
            raise reader.poison(batch, error) from None

    def _bury(self, message: Delivery, claim: HeldClaim) -> None:
        """Publish a message that was handed out too often; it counts as handled."""
        reason = f"handed out {claim.deliveries - 1} times, and not handled"
        letter = DeadLetter(
            self.name, message.position, message.session, message.sequence, message.key,
            claim.deliveries - 1, reason, message.payload, message.headers or None,
        )  # fmt: skip
        self._publish(str(message.position).encode(), letter.encode())


def _chain(message: Delivery, rest: Iterator[Delivery]) -> Iterator[Delivery]:
    yield message
    yield from rest
