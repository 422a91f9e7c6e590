"""Divide a session among processes by key: `python examples/workers.py ROOT SESSION [N]`.

Each of N workers reads its share of the keys, so the messages of a key are handled by one worker
and in order. Workers are spawned and open their own subscriber: one that was opened before a fork
refuses to be used in the child.
"""

import multiprocessing
import sys

from rt import RtError, Subscriber


def work(root: str, session: str, share: str) -> tuple[str, int]:
    """Handle one share; return how many messages it had."""
    with Subscriber(
        root, stream="flights", session=session, share=share, follow=False
    ) as subscriber:
        return share, sum(1 for _ in subscriber)


def main(root: str, session: str, count: str = "4", method: str = "spawn") -> None:
    """Run the workers side by side, and print what each of them did."""
    workers = int(count)
    tasks = [(root, session, f"{number}/{workers}") for number in range(1, workers + 1)]
    with multiprocessing.get_context(method).Pool(workers) as pool:
        for share, messages in pool.starmap(work, tasks):
            print(f"share {share}: {messages} messages")


if __name__ == "__main__":
    if not 3 <= len(sys.argv) <= 5:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except (RtError, OSError, ValueError) as error:
        sys.exit(f"workers: {error}")
