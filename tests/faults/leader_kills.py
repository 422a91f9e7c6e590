"""LeaderKills: group members and a cursor's holder, while leaders or all nodes are killed."""

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import rt

from .reader_storm import ReaderStorm

MESSAGES, FRAMES = 1500, 30
HANDLER_S = 0.0008
ACKED_EVERY = 20
ROUND_S = 120.0
SILENT_S = 6.0  # the holder has read everything, or merging has stopped
PASSING = ("undecided", "busy", "held")  # refusals of opening a cursor while there is no leader


class LeaderKills(ReaderStorm):
    """Rounds, each with a group and a cursor of its own, and two kills."""

    def __init__(self, root: Path, seed: int) -> None:
        super().__init__(root, seed, readers=())
        self.wrong: list[str] = []
        self.unsure = 0  # acknowledgements whose answer was lost with the node

    def round(self, number: int) -> None:
        """Publish, and let two members without `follow` and one holder read."""
        with self.client.publisher(f"jobs{number}") as publisher:
            size = MESSAGES // FRAMES
            for frame in range(FRAMES):
                publisher.publish_many([b"%d" % (frame * size + n) for n in range(size)])
            publisher.flush("merged", ROUND_S)
        seen: list[set[int]] = [set(), set(), set()]
        readers = [
            self._begun(partial(self._share, number, name, mine))
            for name, mine in zip("ab", seen, strict=False)
        ]
        readers.append(self._begun(partial(self._hold, number, seen[2])))
        for _ in range(2):
            time.sleep(self.chance.uniform(0.2, 0.9))
            every = [place.name for place in self.places]
            names = every if self.chance.random() < 0.3 else [self._leader()]
            self.done["all nodes" if len(names) > 1 else "the leader"] += 1
            self._kill_nodes(names)
            time.sleep(self.chance.uniform(0.3, 0.8))
        end_s = time.monotonic() + ROUND_S
        for reader in readers:
            reader.join(max(0.0, end_s - time.monotonic()))
            if reader.is_alive():
                self._say(number, f"a reader did not end in {ROUND_S:g} s")
        if len(seen[0] | seen[1]) < MESSAGES:
            self._say(number, f"the members ended after {len(seen[0] | seen[1])} of {MESSAGES}")
        if len(seen[2]) < MESSAGES:
            self._say(number, f"the holder was given {len(seen[2])} of {MESSAGES}")

    def _say(self, number: int, words: str) -> None:
        self.wrong.append(f"round {number}: {words}")

    def _begun(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    def _leader(self) -> str:
        """Return the leader; any node while there is none."""
        end_s = time.monotonic() + 20
        while time.monotonic() < end_s:
            try:
                return str(self.ask({"do": "policy", "latest": True}) and self._led_by())
            except (rt.RtError, OSError):
                time.sleep(0.05)
        return self.chance.choice(self.places).name

    def _led_by(self) -> str:
        return str(self.ask({"do": "members", "decided": True})["leader"])

    def _share(self, number: int, name: str, seen: set[int]) -> None:
        sessions, group = [f"jobs{number}"], rt.Group(f"g{number}", name)
        root = os.path.join(self.root, f"member-{name}")
        try:
            with (
                rt.connect(self.config, root=root) as client,
                client.subscriber(
                    group=group, sessions=sessions, follow=False, timeout_s=ROUND_S, ack="explicit"
                ) as messages,
            ):
                for message in messages:
                    time.sleep(HANDLER_S)
                    try:
                        messages.ack(message, sync=self.chance.random() < 0.01)
                    except rt.ClaimLost as lost:
                        self.unsure += lost.may_count
                    seen.add(int(message.payload))
        except (rt.RtError, OSError) as error:
            self._say(number, f"member {name} ended: {type(error).__name__} {error}")

    def _hold(self, number: int, seen: set[int]) -> None:
        root = os.path.join(self.root, "holder")
        try:
            with rt.connect(self.config, root=root) as client:
                self._read(client, number, seen)
        except (rt.RtError, OSError) as error:
            self._say(number, f"the holder ended: {type(error).__name__} {error}")

    def _read(self, client: rt.Client, number: int, seen: set[int]) -> None:
        messages = self._opened(client, number)
        with messages:
            for message in messages.messages(SILENT_S):
                seen.add(int(message.payload))
                if len(seen) % ACKED_EVERY == 0:
                    messages.ack(message)
                if len(seen) == MESSAGES:
                    return
                time.sleep(HANDLER_S)

    def _opened(self, client: rt.Client, number: int) -> rt.Subscription:
        """Open the cursor; retry while there is no leader, which is no answer."""
        end_s = time.monotonic() + ROUND_S
        while True:
            try:
                opened = client.subscriber(
                    cursor=rt.Registered(f"c{number}", takeover="fence"),
                    sessions=[f"jobs{number}"], ack="explicit",
                )  # fmt: skip
                assert isinstance(opened, rt.Subscription)
                return opened
            except rt.RtError as error:
                is_passing = not isinstance(error, rt.Refused) or error.code in PASSING
                if not is_passing or time.monotonic() > end_s:
                    raise
                time.sleep(0.1)

    def forget(self, number: int) -> None:
        """Remove a round's group and cursor: a stream has room for 24 of one owner."""
        for kind, name in (("group", f"g{number}"), ("cursor", f"c{number}")):
            for _ in range(100):
                try:
                    self.ask({"do": f"{kind}-forget", "name": name})
                except rt.Refused as error:
                    if error.code.startswith("unknown"):
                        break
                except (rt.RtError, OSError):
                    time.sleep(0.1)
