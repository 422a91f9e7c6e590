"""StreamWriter: publishes the changes of a request, and waits for their outcome in the log."""

import asyncio
import hashlib
import os
import secrets
import shutil
from collections import Counter, OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from rt.amounts import duration_text
from rt.client.client import Client
from rt.client.publisher import ClientPublisher
from rt.errors import FlushTimeout, Misuse, RtError, SessionFull, WriterFailed, spoken
from rt.gateway.follower import StreamFollower
from rt.gateway.model import StreamChange, StreamVerdict, apply
from rt.gateway.store import StreamStore
from rt.log.write.disk_room import DiskLimit
from rt.names import NAME_LENGTH_MAX
from rt.position import START

MERGED_S: Final = 30.0
_SESSIONS_MAX: Final = 256  # that are open at once, one for each identity
_IN_PART: Final = "it may be published in part; repeat it only with the same Producer-Seq"
_AGAIN: Final = "repeat it only with the same Producer-Seq, which makes it no second append"
_ID_FILE: Final = "gateway.id"
_DISK_BYTES: Final = 1 << 30  # of a session that no node accepts, or a quarter of a small disk


@dataclass(slots=True)
class _Session:
    """An identity's session, the lock for publishing in it, and how many requests use it."""

    publisher: ClientPublisher
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    uses: int = 0


class StreamWriter:
    """Publishes changes, in one session for each identity; only the event loop uses it.

    If the merged stream refuses a change, and no other request to the stream is under way, the
    refusal is certain; the change is not published. Otherwise the change is published and the log
    decides: an answer based on unmerged changes could be wrong, and a repeated append must not be
    answered before the first one.
    """

    def __init__(
        self, client: Client, directory: str, store: StreamStore, follower: StreamFollower
    ) -> None:
        """Open the sessions of earlier runs, so that their remaining messages are shipped.

        Args:
            client: the client that publishes.
            directory: the stream's directory, which has a directory for each session.
            store: the streams.
            follower: reports the outcome of published changes.

        Raises:
            RtError: as for `rt.client.client.Client.publisher`.
        """
        self._client, self._store, self._follower = client, store, follower
        self._prefix = f"http-{_own_id(directory)}"
        total = shutil.disk_usage(directory).total
        self._limit = DiskLimit(min(_DISK_BYTES, max(1 << 20, total // 4)))
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._opening = asyncio.Lock()
        self._under_way: Counter[str] = Counter()  # requests, by stream
        for name in sorted(os.listdir(directory)):
            if name.startswith(self._prefix) and len(self._sessions) < _SESSIONS_MAX:
                self._sessions[name] = _Session(self._opened(name))

    async def change(
        self,
        name: str,
        identity: str,
        changes: Sequence[StreamChange],
        payloads: Sequence[bytes],
        *,
        is_async: bool = False,
        wait_s: float | None = None,
    ) -> StreamVerdict:
        """Publish the changes of a request, and wait until they are merged and executed.

        Args:
            name: the stream's name.
            identity: the client's name; "" for none.
            changes: the change of each message, at least one; all belong to one request.
            payloads: the payload of each message; empty if its change has no data.
            is_async: wait only until a majority of the nodes has the messages.
            wait_s: the longest wait, in seconds; `MERGED_S` limits it as well.

        Returns:
            The outcome of the last change, or of the first if that creates the stream. The status
            is 202 with `is_async`, since the outcome is not decided yet, and 503 if the outcome is
            not known in time.
        """
        is_alone = not self._under_way[name]
        self._under_way[name] += 1
        try:
            refusal = self._refusal(name, changes) if is_alone else None
            if refusal is not None:
                return refusal
            session = await self._session(identity)
            try:
                patience_s = min(MERGED_S, MERGED_S if wait_s is None else wait_s)
                expected = await self._publish(session, name, changes, payloads)
                if is_async:
                    return await _replicated(session.publisher, patience_s)
                return await self._merged(session.publisher, expected, changes, patience_s)
            except Misuse:
                raise  # nothing of it was taken
            except SessionFull as error:
                return StreamVerdict(503, f"{spoken(error)}; nothing of it was taken")
            except WriterFailed as error:
                await self._give_up(session)
                return StreamVerdict(503, f"{spoken(error)}; {_IN_PART}")
            except (RtError, OSError) as error:
                return StreamVerdict(503, f"{spoken(error)}; {_IN_PART}")
            finally:
                session.uses -= 1
        finally:
            self._under_way[name] -= 1
            if not self._under_way[name]:
                del self._under_way[name]

    async def _publish(
        self,
        session: _Session,
        name: str,
        changes: Sequence[StreamChange],
        payloads: Sequence[bytes],
    ) -> "list[asyncio.Future[StreamVerdict]]":
        async with session.lock:  # so that the sequence numbers are known beforehand
            publisher = session.publisher
            first = publisher.next_sequence
            numbers = sorted({first, first + len(changes) - 1})
            expected = [self._follower.expect(publisher.name, each) for each in numbers]
            try:
                await asyncio.to_thread(_published, publisher, name.encode(), changes, payloads)
            except (RtError, OSError):
                for each in numbers:
                    self._follower.forget(publisher.name, each)
                raise
        return expected

    def _refusal(self, name: str, changes: Sequence[StreamChange]) -> StreamVerdict | None:
        """Return the outcome if a request changes nothing; None if it may change something."""
        stream, verdicts = self._store.get(name), []
        tail = START if stream is None else stream.tail
        for change in changes:
            stream, verdict = apply(stream, change, START)
            # A gap in producer numbers may be filled by another gateway meanwhile.
            is_gap = verdict.status == 409 and verdict.seq >= 0
            if verdict.is_new or is_gap:
                return None
            verdicts.append(verdict)
        return verdicts[0 if changes[0].do == "create" else -1]._replace(tail=tail)

    async def _merged(
        self,
        publisher: ClientPublisher,
        expected: "list[asyncio.Future[StreamVerdict]]",
        changes: Sequence[StreamChange],
        patience_s: float,
    ) -> StreamVerdict:
        try:
            async with asyncio.timeout(patience_s):
                verdicts = [await each for each in expected]
        except TimeoutError:
            late = f"it is published, and not merged after {duration_text(patience_s)}"
            return StreamVerdict(503, f"{late}{await _delay_of(publisher)}; {_AGAIN}")
        if changes[0].do == "create":
            return verdicts[0]._replace(tail=verdicts[-1].tail)
        return verdicts[-1]

    async def _session(self, identity: str) -> _Session:
        """Return an identity's session, and count one more use of it.

        Raises:
            RtError: too many sessions are in use, or this one cannot be opened.
        """
        name = f"{self._prefix}-{identity}" if identity else self._prefix
        if len(name) > NAME_LENGTH_MAX:  # several long names may begin alike
            digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
            name = f"{name[: NAME_LENGTH_MAX - 10].rstrip('-._')}.{digest}"
        async with self._opening:
            found = self._sessions.get(name)
            if found is None:
                if len(self._sessions) >= _SESSIONS_MAX:
                    await self._end_one()
                publisher = await asyncio.to_thread(self._opened, name)
                found = self._sessions[name] = _Session(publisher)
            found.uses += 1
        self._sessions.move_to_end(name)
        return found

    def _opened(self, name: str) -> ClientPublisher:
        return self._client.publisher(name, disk_limit=self._limit)

    async def _give_up(self, session: _Session) -> None:
        """Close a session whose disk failed; the next request opens it again."""
        name = session.publisher.name
        async with self._opening:
            if self._sessions.get(name) is session:
                with suppress(RtError, OSError):
                    await asyncio.to_thread(session.publisher.close, 0.0)
                del self._sessions[name]

    async def _end_one(self) -> None:
        """Close the least recently used session among those that no request uses."""
        idle = next((name for name, each in self._sessions.items() if not each.uses), None)
        if idle is None:
            raise RtError(f"{_SESSIONS_MAX} clients are appending; try again")
        await asyncio.to_thread(self._sessions.pop(idle).publisher.close, 0.0)


def _own_id(directory: str) -> str:
    """Return the id in the names of this gateway's sessions; the first run creates it."""
    path = os.path.join(directory, _ID_FILE)
    with suppress(FileNotFoundError), open(path, encoding="ascii") as file:
        return file.read().strip()
    own = secrets.token_hex(4)
    with open(path, "x", encoding="ascii") as file:
        file.write(f"{own}\n")
        file.flush()
        os.fsync(file.fileno())
    return own


async def _replicated(publisher: ClientPublisher, patience_s: float) -> StreamVerdict:
    try:
        await asyncio.to_thread(publisher.flush, "replicated", patience_s)
    except FlushTimeout as error:
        late = f"it is published, and no majority keeps it after {duration_text(patience_s)}"
        why = f" ({error.reason})" if error.reason else ""
        return StreamVerdict(503, f"{late}{why}; {_AGAIN}")
    return StreamVerdict(202)


async def _delay_of(publisher: ClientPublisher) -> str:
    """Return why a session is not merged yet, in parentheses; "" if unknown."""
    try:
        await asyncio.to_thread(publisher.flush, "merged", 0.0)
    except FlushTimeout as error:
        return f" ({error.reason})" if error.reason else ""
    except (RtError, OSError) as error:
        return f" ({spoken(error)})"
    return ""


def _published(
    publisher: ClientPublisher,
    key: bytes,
    changes: Sequence[StreamChange],
    payloads: Sequence[bytes],
) -> None:
    headers = [each.encode() for each in changes]
    publisher.publish_many(payloads, [key] * len(payloads), headers=headers)
    publisher.flush("written")
