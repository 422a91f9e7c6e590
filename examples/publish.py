"""Publish a made-up departure board: `python examples/publish.py ROOT [SESSION]`.

It needs no other process: the session is written to ROOT/flights/SESSION, where
`examples/subscribe.py` can read it, and `rt push` ships it to the nodes whenever that runs.
"""

import json
import sys
from random import Random

from rt import Publisher, RtError

AIRLINES = ("AA", "B6", "DL", "UA")
PLACES = ("ATL", "BOS", "LAX", "ORD", "SFO")


def departures(count: int, chance: Random) -> list[tuple[bytes, bytes]]:
    """Return flights: a key that subscribers may select by, and a payload of any bytes."""
    flights = []
    for _ in range(count):
        flight = f"{chance.choice(AIRLINES)}{chance.randint(1, 9999)}"
        payload = json.dumps({"flight": flight, "to": chance.choice(PLACES)})
        flights.append((flight.encode(), payload.encode()))
    return flights


def main(root: str, session: str = "jfk") -> None:
    """Publish a hundred flights, one by one, then wait until they are safe on this disk."""
    with Publisher(root, stream="flights", session=session) as publisher:
        first = publisher.next_sequence
        for key, payload in departures(100, Random()):
            publisher.publish(payload, key=key)
        confirmed = publisher.flush("synced")
        last = publisher.next_sequence - 1
    print(f"published messages {first} to {last} of session {session}")
    print(f"{confirmed.level.name.lower()} up to {confirmed.position}; read them with")
    print(f"  python examples/subscribe.py {root} {session}")


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except (RtError, OSError) as error:
        sys.exit(f"publish: {error}")
