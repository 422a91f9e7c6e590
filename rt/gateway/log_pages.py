"""LogPages: serves the whole merged log over HTTP, filtered, as lines of JSON."""

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from rt.errors import FrameError, GapError, Misuse
from rt.events import Event, Poisoned
from rt.format.json_line import json_line
from rt.format.where import Where
from rt.gateway.answers import UNCACHED, PageRoute, text_answer
from rt.gateway.follower import ANY_STREAM, StreamFollower
from rt.gateway.reading import CHUNK_BYTES, SCAN_S
from rt.gateway.requests import number
from rt.position import Position
from rt.subscriber import Subscriber

_MESSAGES_MAX: Final = 10_000
_WAIT_S: Final = 30.0  # proxies give up after a minute
_NAMES: Final = ("from", "max", "wait", "session", "key_prefix", "where")


class Wanted(NamedTuple):
    """Which messages a request asks for, as arguments of `rt.Subscriber`."""

    sessions: list[str] | None
    where: list[str] | None
    key_prefix: bytes


class LogPart(NamedTuple):
    """The content of one answer: lines, where the next part begins, and whether the log ends there.

    `poisoned` counts the frames in this part that cannot be decoded.
    """

    lines: list[bytes]
    next: str
    is_at_end: bool
    poisoned: int


class LogPages:
    """Answers requests for messages of the log; keeps no state of clients.

    Threads: only the event loop uses it, except `_part`, which any thread may call.
    """

    def __init__(self, reader: Callable[..., Subscriber], follower: StreamFollower) -> None:
        """Prepare.

        Args:
            reader: makes readers of the copy; takes the arguments of `rt.Subscriber`.
            follower: tells when the copy has grown.
        """
        self._reader, self._follower = reader, follower

    @property
    def routes(self) -> list[PageRoute]:
        """The pages that this serves."""
        return [PageRoute("/v1/log", self._log, "GET")]

    async def _log(self, request: Request, _identity: str) -> Response:
        query = request.query_params
        if unknown := sorted(set(query) - set(_NAMES)):
            raise Misuse(f"{unknown[0][:40]!r} is no parameter; use {', '.join(_NAMES)}")
        most = int(number(query, "max", 1000, _MESSAGES_MAX))
        until_s = time.monotonic() + number(query, "wait", 0.0, _WAIT_S)
        wanted = Wanted(
            query.getlist("session") or None,
            query.getlist("where") or None,
            query.get("key_prefix", "").encode(),
        )
        begin = query.get("from", "earliest")
        while True:
            self._follower.demand_running()  # otherwise its end is outdated
            with self._follower.waiting(ANY_STREAM) as change:  # first: no change is missed
                try:
                    part = await asyncio.to_thread(self._part, begin, most, wanted)
                except GapError as error:
                    return text_answer(410, str(error), **{"Rt-Next": str(error.gap.end)})
                left_s = until_s - time.monotonic()
                if part.lines or part.poisoned or left_s <= 0:
                    return _answered(part)
                begin = part.next
                if part.is_at_end:
                    await asyncio.wait([change], timeout=left_s)

    def _part(self, begin: str, most: int, wanted: Wanted) -> LogPart:
        """Read and return a part of the log.

        Reading ends after a time even if little was found, since skipping messages takes time.
        """
        found: list[bytes] = []
        poisoned: list[Event] = []
        where = Where.parse(wanted.where, wanted.key_prefix)
        until_s, size = time.monotonic() + SCAN_S, 0
        reader = self._reader(
            start=begin, follow=False, on_poison="notify", on_event=partial(_meet, poisoned),
            sessions=wanted.sessions, where=wanted.where, key_prefix=wanted.key_prefix,
        )  # fmt: skip
        with closing(reader):
            place: Position | None = None  # within a batch
            while place is None and time.monotonic() < until_s:
                try:
                    batch = reader.next_batch()
                except GapError as error:
                    if not (found or poisoned):
                        raise
                    return LogPart(found, str(error.gap.begin), False, len(poisoned))
                if batch is None:
                    return LogPart(found, str(reader.position), True, len(poisoned))
                try:
                    for message in where.messages(batch, batch.places):
                        found.append(json_line(message))
                        size += len(found[-1])
                        if len(found) >= most or size >= CHUNK_BYTES:
                            place = message.next_position
                            break
                except FrameError as error:
                    raise reader.poison(batch, error) from None
            return LogPart(found, str(place or reader.position), False, len(poisoned))


def _meet(poisoned: list[Event], event: Event) -> None:
    if isinstance(event, Poisoned):
        poisoned.append(event)


def _answered(part: LogPart) -> Response:
    headers = {**UNCACHED, "Rt-Next": part.next}
    if part.is_at_end:
        headers["Rt-Up-To-Date"] = "true"
    if part.poisoned:
        headers["Rt-Undecodable-Frames"] = str(part.poisoned)
    return Response(b"".join(part.lines), headers=headers, media_type="application/x-ndjson")
