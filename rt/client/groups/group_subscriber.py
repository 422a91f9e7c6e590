"""GroupSubscriber: the messages that one member of a group receives."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, suppress
from typing import Final, NamedTuple, Self

from rt.client.groups.claim_reading import (
    STALLED_S,
    WAIT_S,
    Agree,
    Choice,
    ClaimReading,
    OnTrouble,
    handled_before,
    is_over,
)
from rt.client.groups.claims import Claims
from rt.client.groups.group import Delivery, Group
from rt.client.groups.member_claims import HeldClaim
from rt.errors import ClaimLost
from rt.events import NoMatch
from rt.format.message import Message
from rt.log.notify.watch import Watch
from rt.log.read.follower import Matching
from rt.log.read.in_use import InUse
from rt.log.write.checked import checked_count
from rt.position import Position
from rt.subscriber import Subscriber

_log: Final = logging.getLogger("rt.subscriber")
_LOOK_S: Final = 0.02  # between two checks whether the copy has grown

Publish = Callable[[bytes, bytes], object]


class MemberReading(NamedTuple):
    """How one member reads; arguments of `rt.client.client.Client.subscriber`."""

    ack: str
    follow: bool
    timeout_s: float
    choice: Choice
    trouble: OnTrouble


class GroupSubscriber:
    """Iterates over this member's messages; each message goes to one member of the group.

    Delivery is at least once: a message is delivered again if its member dies or rejects it, and
    then has `redelivered` set. With `ack="auto"` a message counts as handled when the next one is
    requested, or when the `with` block ends without an exception. With `ack="explicit"` only `ack`
    counts. There is no order between members, nor for messages that are delivered again.

    Threads: one thread iterates; any thread may call `ack`, `reject`, `stop` and `close`, which
    read `_open`, a list that the iterating thread replaces and never changes. The rest belongs to
    the iterating thread, which `_use` records.
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
        stalled_s: float = STALLED_S,
    ) -> None:
        """Made by `rt.client.client.Client.subscriber`; do not call it yourself.

        Args:
            group: the group that was joined.
            claims: this member's claims.
            reader: returns a reader of the copy from a position on.
            wanted: which messages, and how they are acknowledged.
            watch: watches the copy.
            until: iteration ends once the group has handled everything before this position; if
                None, it goes on for ever.
            publish: publishes a dead letter by key and payload, and returns once it is merged.
            stalled_s: as for `ClaimReading`.
        """
        self._group = group
        self._claims = claims
        self._reader = reader
        self._wanted = wanted
        self._watch = watch
        self._until = until
        self._publish = publish
        self._matching, self._begin = Matching(wanted.choice.sessions), claims.position
        self.is_closed = False
        self._open: list[HeldClaim] = []  # in order of delivery
        self._source: Iterator[Delivery] | None = None
        self._handed_out: Message | None = None
        self._unheard: BaseException | None = None  # an error that a cancelled caller missed
        self._use = InUse(self._release)
        self._reading = ClaimReading(
            group, claims, wanted.choice, wanted.trouble,
            is_stopped=lambda: self._use.is_stopped,
            has_grown=lambda: bool(watch.changes().directories), now_s=time.monotonic,
            stalled_s=stalled_s,
        )  # fmt: skip

    @property
    def name(self) -> str:
        """The group's name."""
        return self._group.name

    @property
    def acked(self) -> Position:
        """The position before which the group has handled everything, by the nodes' last answer."""
        return self._claims.position

    def __iter__(self) -> Iterator[Delivery]:
        return self.messages()

    def messages(
        self,
        timeout_s: float | None = None,
        *,
        max: int | None = None,  # noqa: A002 - what others call it
    ) -> Iterator[Delivery]:
        """Iterate over messages; ends when stopped, when none came for a while, or at the end.

        Args:
            timeout_s: as for `rt.Subscriber.messages`.
            max: end after so many messages; None for any number.

        Raises:
            GapError: messages were archived before they were handled; they count as handled. If
                only this machine's copy lacks them, another member gets them, and this member ends,
                whatever `on_gap` says.
            CorruptLog: the copy is damaged.
            Refused: the group was forgotten, or belongs to others.
        """
        left = math.inf if max is None else checked_count(max, "max", 0)
        return self._messages(timeout_s, left)

    def _messages(self, timeout_s: float | None, left: float) -> Iterator[Delivery]:
        while not self._use.is_stopped:
            unheard, self._unheard = self._unheard, None
            if unheard is not None:
                raise unheard
            self._ack_handed_out()
            if not left:
                return
            with self._use:
                if self._source is None and not self._next_claim(timeout_s):
                    return
                message = self._next_message()
            self._report_lost()
            if message is not None:
                self._handed_out = message
                left -= 1
                yield message

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        """Iterate inside asyncio; waiting happens in a thread."""
        messages = self.messages(WAIT_S)
        while not self._use.is_stopped:
            looking = asyncio.ensure_future(asyncio.to_thread(next, messages, None))
            try:
                message = await asyncio.shield(looking)
            except asyncio.CancelledError:
                await asyncio.wait([looking])
                if not looking.cancelled():
                    self._unheard = looking.exception()
                    if self._unheard is None:
                        self._take_back(looking.result())
                raise
            if message is not None:
                yield message
            elif self._is_over():
                return
            else:
                messages = self.messages(WAIT_S)

    def ack(self, message: Message | None = None, *, sync: bool = False) -> None:
        """Count all messages delivered so far, up to and including `message`, as handled.

        Args:
            message: the last handled message; by default the last one delivered.
            sync: wait until the nodes have agreed on it; otherwise they learn of it within a third
                of `silence_s`.

        Raises:
            ClaimLost: with `sync`, another member was given the message meanwhile, because this one
                gave no sign of life for `silence_s` or the group was moved. Without `sync`,
                `on_event` gets a `RangeLost` the next time that a message is requested.
            Refused: with `sync`, the group was forgotten.
        """
        message = message or self._handed_out
        if message is None:
            return
        claim = self._handled_before(message)
        if claim is None and sync and isinstance(message, Delivery):
            claim = message.claim  # its claim is not open: agreed on, or lost
        if claim is not None:
            self._claims.progress(claim, message.next_position, sync=sync)

    def reject(self, message: Message | None = None) -> None:
        """Have a message delivered again, to any member; by default the last message.

        Everything delivered before it counts as handled. After `max_deliveries` deliveries the
        message becomes a dead letter.
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
            reject: the loop continues after these errors of the handler, and ends after all others.
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
        """Stop, report what is handled, and return the rest to the group. Idempotent.

        If another thread is waiting for messages, that thread releases the files as it ends.
        """
        self.stop()
        self._claims.close()
        self._use.close()
        self.is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        try:
            if kind is None:
                self._ack_handed_out()
        finally:
            self.close()

    def _release(self) -> None:
        self._source = None  # ends the generator, which closes its reader
        self._watch.close()

    def __repr__(self) -> str:
        return f"<GroupSubscriber {self.name!r}, handled up to {self.acked}>"

    def _next_claim(self, timeout_s: float | None) -> bool:
        """Wait for the next range of messages, and begin to read it.

        Whenever the copy has grown, the nodes are asked for a range again.

        Returns:
            True if a range came; False if none came within `timeout_s`, or reading has ended.
        """
        end_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not self._is_over():
            wait_s = min(_LOOK_S, max(0.0, end_s - time.monotonic()))
            claim = self._claims.next(self._is_over, wait_s)
            if claim is not None:
                self._open = [each for each in self._open if each.is_open] + [claim]
                self._source = self._messages_of(claim)
                return True
            self._matching.has_given = self._reading.has_given
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
            self._source = self._messages_of(self._open[-1])  # after an error, continue here
        message = None if source is None else next(source, None)
        self._source = None if message is None else source
        return message

    def _report_lost(self) -> None:
        for event in self._claims.take_lost():
            if self._wanted.trouble.on_event is not None:
                self._wanted.trouble.on_event(event)

    def _report_no_match(self) -> None:
        """Report once which wanted names matched none of the messages this member was given."""
        self._matching.has_given = self._reading.has_given
        unmatched = self._matching.report(has_matched=self._reading.has_matched)
        if unmatched is None:
            return
        event = NoMatch(*unmatched, self._begin, self._claims.position, self.name)
        _log.warning("group %s: %s", self.name, event)
        if self._wanted.trouble.on_event is not None:
            self._wanted.trouble.on_event(event)

    def _is_over(self) -> bool:
        return self._use.is_stopped or is_over(self._claims, self._until)

    def _ack_handed_out(self) -> None:
        if self._wanted.ack == "auto" and self._handed_out is not None:
            self.ack(self._handed_out)
            self._handed_out = None

    def _take_back(self, message: Delivery | None) -> None:
        """Put back a message whose receiver was cancelled, so that it is delivered next."""
        if message is not None and self._source is not None:
            rest, self._handed_out = self._source, None
            self._source = _chain(message, rest)

    def _handled_before(self, message: Message) -> HeldClaim | None:
        """Return the open range of a message; count earlier ranges as handled."""
        return handled_before(self._open, message.position, self._claims)

    def _messages_of(self, claim: HeldClaim) -> Iterator[Delivery]:
        """Yield the messages of a claim; carry out the steps that come before them."""
        with closing(self._reader(claim.goes_on)) as reader:
            for step in self._reading.steps(claim, reader):
                if isinstance(step, Delivery):
                    yield step
                elif isinstance(step, Agree):
                    with suppress(ClaimLost):
                        self._claims.progress(
                            claim, step.position, sync=True, gives_up=lambda: self._use.is_stopped
                        )
                elif step is not None:
                    self._publish(str(step.letter.position).encode(), step.letter.encode())


def _chain(message: Delivery, rest: Iterator[Delivery]) -> Iterator[Delivery]:
    yield message
    yield from rest
