"""Starts: the files that distinguish the newest copy of a state directory from an older one.

The file `starts` holds this node's own starts, and is synced before the node sends anything. It is
kept twice, because a node that cannot name its starts counts as an older copy of itself.
`remembered` holds what this node remembers of the other nodes, `departed` the names of removed
nodes, and `listed` the members by the last decided configuration. Each file is one line of JSON and
its checksum.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from rt.log.files.disk import Disk, read_or_rotten, write_whole
from sequencer.journal.identity import seal, unseal
from sequencer.raft.consensus import EngineState
from sequencer.raft.starts import Claim, Memory, Reach, StartChain

STARTS_NAMES: Final = ("starts", "starts.copy")
REMEMBERED_NAME: Final = "remembered"
DEPARTED_NAME: Final = "departed"
LISTED_NAME: Final = "listed"
NONCE_END: Final = 1 << 63  # all nonces are less
FILE_BYTES_MAX: Final = 64 * 1024  # 6 nodes with 4 memories of some 100 bytes each are 2.4 KB
_DEPARTED_MAX: Final = 800  # names of 63 bytes, in JSON: 53 KB

Memories = Mapping[str, Sequence[Memory]]  # for each node, the oldest incarnation first


class Listed(NamedTuple):
    """Listed: the members by a decided configuration, and the index of the entry that made it."""

    entry: int = 0
    names: Sequence[str] = ()


def begin_start(disk: Disk, path: str, state: EngineState, nonce: int) -> Claim:
    """Record one more start durably; return the claim that the node sends to the others.

    Args:
        disk: the disk.
        path: the state directory.
        state: the state recovered from that directory.
        nonce: a random number, at least 1 and less than `NONCE_END`.
    """
    chain = _read_chain(disk, path, state.incarnation).extended(nonce)
    for name in STARTS_NAMES:
        _write(disk, path, name, [state.incarnation, chain.count, *chain.nonces])
    term = state.ballot.term
    committed = state.snapshot.index if state.snapshot is not None else 0
    last = state.entries[-1].index if state.entries else committed
    return Claim(state.incarnation, chain, Reach(term, last), Reach(term, committed))


def read_memories(disk: Disk, path: str) -> dict[str, list[Memory]]:
    """Return the memories of the other nodes; none if the file is missing or damaged."""
    found = _read(disk, path, REMEMBERED_NAME) or {}
    return {
        name: [
            Memory(incarnation, count, nonce, Reach(term, index))
            for incarnation, count, nonce, term, index in memories
        ]
        for name, memories in found.items()
    }


def write_memories(disk: Disk, path: str, memories: Memories) -> None:
    """Store the memories of other nodes durably."""
    line = {
        name: [
            [each.incarnation, each.count, each.nonce, each.reach.term, each.reach.index]
            for each in of_node
        ]
        for name, of_node in memories.items()
    }
    _write(disk, path, REMEMBERED_NAME, line)


def read_departed(disk: Disk, path: str) -> list[str]:
    """Return the names of removed nodes; none if the file is missing or damaged."""
    return list(_read(disk, path, DEPARTED_NAME) or ())


def read_listed(disk: Disk, path: str) -> Listed:
    """Return the members that were stored last; none if the file is missing or damaged."""
    entry, *names = _read(disk, path, LISTED_NAME) or (0,)
    return Listed(entry, names)


def write_departed(disk: Disk, path: str, departed: Sequence[str], listed: Listed) -> None:
    """Store the names of removed nodes durably, of more than 800 the last 800; then the members."""
    _write(disk, path, DEPARTED_NAME, departed[-_DEPARTED_MAX:])
    _write(disk, path, LISTED_NAME, [listed.entry, *listed.names])


def _read_chain(disk: Disk, path: str, incarnation: int) -> StartChain:
    """Return the starts recorded so far, from the one of the two files that has more.

    Return an empty chain if each file is missing, damaged, or of another incarnation. After a crash
    between the two writes, one file lacks the last start, but no other node knows of that start.
    """
    found = [_read(disk, path, name) for name in STARTS_NAMES]
    chains = [
        StartChain(each[1], tuple(each[2:])) for each in found if each and each[0] == incarnation
    ]
    return max(chains, key=lambda chain: chain.count, default=StartChain())


def _read(disk: Disk, path: str, name: str) -> Any:
    try:
        line = unseal(read_or_rotten(disk, f"{path}/{name}", FILE_BYTES_MAX))
    except FileNotFoundError:
        return None
    return None if line is None else json.loads(line)


def _write(disk: Disk, path: str, name: str, value: Any) -> None:
    write_whole(disk, path, name, [seal(json.dumps(value).encode())])
