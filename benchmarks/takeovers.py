"""Takeovers: how soon another program goes on where one was killed."""

import multiprocessing
import os
import time
from typing import Any

import rt

SPAWN = multiprocessing.get_context("spawn")
WAIT_S = 120.0
_IDLE_S = 1.0  # of a member, after which it has everything that the other one does not hold


def cursor_s(config: str, times: int) -> float:
    """Kill the reader of a registered cursor so many times; return the longest takeover."""
    return max(_taken_s(config, f"taken-{number}", _cursor_taken) for number in range(times))


def group_s(config: str, times: int) -> float:
    """Kill a member of a group so many times; return how long its messages waited at most."""
    return max(_taken_s(config, f"handed-{number}", _group_taken) for number in range(times))


def _taken_s(config: str, name: str, taking: Any) -> float:
    ready, queue = SPAWN.Event(), SPAWN.Queue()
    holder = SPAWN.Process(target=_hold, args=(config, name, taking is _group_taken, ready))
    holder.start()
    if not ready.wait(WAIT_S):
        raise RuntimeError(f"{name} was not held within {WAIT_S:g} s")
    taker = SPAWN.Process(target=taking, args=(config, name, queue))
    taker.start()
    queue.get(timeout=WAIT_S)  # it waits for the holder's end
    holder.kill()
    killed_s = time.monotonic()
    taken_s: float = queue.get(timeout=WAIT_S)
    taker.join()
    holder.join()
    return taken_s - killed_s


def _client(config: str, name: str) -> rt.Client:
    return rt.connect(config, root=os.path.join(os.path.dirname(config), f"client-{name}"))


def _hold(config: str, name: str, is_group: bool, ready: Any) -> None:
    with _client(config, f"{name}-holder") as client:
        reading: dict[str, Any] = {"group": name} if is_group else {"cursor": rt.Registered(name)}
        next(iter(client.subscriber(sessions=["work"], **reading)))
        ready.set()
        time.sleep(WAIT_S)


def _cursor_taken(config: str, name: str, queue: Any) -> None:
    with _client(config, f"{name}-taker") as client:
        client.subscriber(follow=False).close()  # the copy is there
        queue.put(None)
        client.subscriber(cursor=rt.Registered(name, takeover="wait"), sessions=["work"])
        queue.put(time.monotonic())


def _group_taken(config: str, name: str, queue: Any) -> None:
    with (
        _client(config, f"{name}-taker") as client,
        client.subscriber(group=name, sessions=["work"]) as messages,
    ):
        for _ in messages.messages(_IDLE_S):
            pass
        queue.put(None)
        next(iter(messages))
        queue.put(time.monotonic())
