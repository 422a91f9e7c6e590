"""`python -m benchmarks.soak`: how far above a limit the files ever were, at full speed."""

import argparse
import os
import sys
import time

from archiver.policy import Policy, parse_limit
from benchmarks.archive import Stream
from benchmarks.log import directory
from benchmarks.report import Row, show

PAYLOAD = b"x" * 1000
BEHIND_MAX = 32_000  # messages in flight; beyond that the publisher waits until all are merged


def rows(quick: bool) -> list[Row]:
    """The short one, for all benchmarks."""
    return soak(20 if quick else 60, 64 << 20, 512 << 20)


def soak(run_s: float, file_bytes: int, limit: int) -> list[Row]:
    """Publish as fast as it is merged while watching the directory.

    Args:
        run_s: how long.
        file_bytes: the size of a merged file.
        limit: the limit of the policy.
    """
    with directory() as root:
        stream = Stream(root, file_bytes=file_bytes, snapshot_s=5.0)
        stream.set_policy(Policy(time=0, limit=limit, disk=100))
        most, began = 0, time.monotonic()
        while time.monotonic() < began + run_s:
            stream.publisher.publish_many([PAYLOAD] * 500)
            if stream.publisher.next_sequence - stream.ledger.number > BEHIND_MAX:
                stream.publisher.flush("merged", timeout_s=60)
            most = max(most, held(stream.out))
        merged = stream.ledger.number * len(PAYLOAD) / 1e6 / (time.monotonic() - began)
        stream.close()
    over = max(0, most - limit) / file_bytes
    words = f"{file_bytes >> 10} KiB files, {run_s:g} s at {merged:.0f} MB/s: above the limit by"
    return [Row(words, over, "files", 1, at_most=True)]


def held(path: str) -> int:
    """Return the bytes of the log files in a directory, without their indexes."""
    with os.scandir(path) as entries:
        return sum(
            entry.stat().st_size
            for entry in entries
            if entry.name.startswith("log.") and not entry.name.endswith(".idx")
        )


def main() -> int:
    """Soak as the arguments say; return 1 if the files exceeded the limit by too much."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="how long")
    parser.add_argument("--file", default="64Mi", help="bytes of a merged file")
    parser.add_argument("--limit", default="512Mi", help="of the policy")
    arguments = parser.parse_args()
    found = soak(arguments.seconds, parse_limit(arguments.file), parse_limit(arguments.limit))
    show(found)
    return 0 if all(row.met for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
