"""Read flights and come back to the same place: `python examples/subscribe.py ROOT [SESSION]`.

With SESSION it reads that session where it was published; without, the merged log, in ROOT/flights
of a node or of `rt pull`. The place is kept in ROOT/position, so a second run gets what is new.
"""

import sys
from pathlib import Path

from rt import Position, RtError, Subscriber


def main(root: str, session: str | None = None) -> None:
    """Print what has come since the last run."""
    bookmark = Path(root, "position")
    start: Position | str = "earliest"
    if bookmark.exists():
        start = Position.parse(bookmark.read_text())
    count = 0
    with Subscriber(
        root, stream="flights", session=session, start=start, follow=False
    ) as subscriber:
        for message in subscriber:
            count += 1
            print(f"{message.session} {message.sequence}: {message.payload.decode()}")
        # A message's next_position says the same, for those who stop in the middle.
        place = subscriber.position
    bookmark.write_text(str(place))
    print(f"read {count} messages; the next run goes on at {place}", file=sys.stderr)


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except (RtError, OSError) as error:
        sys.exit(f"subscribe: {error}")
