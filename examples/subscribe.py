"""Read flights, and continue there next time: `python examples/subscribe.py ROOT [SESSION]`.

With SESSION it reads that session on the machine that publishes it; otherwise the merged log, in
ROOT/flights of a node or of `rt pull`. ROOT/position keeps the place, so a second run reads only
what is new.
"""

import sys
from pathlib import Path

from rt import Position, RtError, Subscriber


def main(root: str, session: str | None = None) -> None:
    """Print what was published since the last run."""
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
        # To stop in the middle, use the message's own next_position instead.
        place = subscriber.position
    bookmark.write_text(str(place))
    print(f"read {count} messages; the next run continues at {place}", file=sys.stderr)


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except (RtError, OSError) as error:
        sys.exit(f"subscribe: {error}")
