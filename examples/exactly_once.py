"""Count flights by airline in SQLite, each once: `python examples/exactly_once.py ROOT SESSION`.

The count and the position are stored in one transaction, so a crash anywhere loses both or
neither, and the next run continues where the database says. It reads ROOT/flights/SESSION, as
`examples/publish.py` writes it, and keeps its results in ROOT/counts.db.
"""

import json
import sqlite3
import sys
from collections import Counter
from pathlib import Path

from rt import Position, RtError, Subscriber

TABLES = """
create table if not exists counts (airline text primary key, flights integer not null);
create table if not exists place (one integer primary key check (one = 1), position integer);
"""


def main(root: str, session: str) -> None:
    """Add what was published since the last run, frame by frame."""
    database = sqlite3.connect(Path(root, "counts.db"))
    database.executescript(TABLES)
    row = database.execute("select position from place").fetchone()
    start = Position(row[0]) if row else Position(0)
    with Subscriber(
        root, stream="flights", session=session, start=start, follow=False
    ) as subscriber:
        for batch in subscriber.batches():
            found = Counter(json.loads(payload)["flight"][:2] for payload in batch.payloads())
            with database:  # one transaction
                database.executemany(
                    "insert into counts values (?, ?) on conflict (airline) "
                    "do update set flights = flights + excluded.flights",
                    found.items(),
                )
                database.execute(
                    "insert or replace into place values (1, ?)", (int(batch.next_position),)
                )
    for airline, flights in database.execute("select * from counts order by airline"):
        print(airline, flights)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except (RtError, OSError, sqlite3.Error) as error:
        sys.exit(f"exactly_once: {error}")
