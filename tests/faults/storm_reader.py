"""A reader for storms: `storm_reader.py CONFIG ROOT HISTORY member|reader`; may be killed."""

import json
import os
import sys
import time
from collections.abc import Callable

import rt

HANDLER_S = 0.001
ACKED_EVERY = 20
Note = Callable[[str, int, int], None]


def main() -> None:
    """Read for ever, and record what is done once it is done."""
    config, root, history, kind = sys.argv[1:]
    fd = os.open(history, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(*fact: object) -> None:
        # written at once, so that a kill loses nothing
        os.write(fd, json.dumps(fact).encode() + b"\n")

    with rt.connect(config, root=root) as client:
        while True:
            try:
                (share if kind == "member" else follow)(client, note)
            except (rt.RtError, OSError) as error:
                print(f"{kind}: {error}", file=sys.stderr, flush=True)
                time.sleep(0.2)


def share(client: rt.Client, note: Note) -> None:
    """Run as a member of a group."""
    with client.subscriber(group="storm", sessions=["work"]) as messages:
        for message in messages:
            note("handed", int(message.payload), message.redelivered)
            time.sleep(HANDLER_S)


def follow(client: rt.Client, note: Note) -> None:
    """Read with a registered cursor once its previous reader has died."""
    cursor = rt.Registered("storm", takeover="wait")
    with client.subscriber(cursor=cursor, sessions=["work"], ack="explicit") as messages:
        epoch = messages._cursor.state.epoch
        for place, message in enumerate(messages):
            number = int(message.payload)
            if not place:
                note("opened", number, epoch)
            note("handed", number, epoch)
            if number % ACKED_EVERY == 0:
                messages.ack(message, sync=True)
                note("acked", number, epoch)


if __name__ == "__main__":
    main()
