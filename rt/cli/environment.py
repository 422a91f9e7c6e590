"""Environment: refuses variables that look like ours, or like another product's, and set none."""

import difflib
from collections.abc import Mapping
from typing import Final

from rt.errors import Misuse

# Every setting of every command; a test holds this to their options.
KNOWN: Final = frozenset((
    "RT_ADDRESS_HANDSHAKES", "RT_CERTS", "RT_CLUSTER_ID", "RT_COMPRESSION", "RT_CONFIG",
    "RT_CONNECTIONS", "RT_CONSENSUS", "RT_ELECTION_S", "RT_FILE_AGE_S", "RT_FILE_BYTES", "RT_FLUSH",
    "RT_FLUSH_TIMEOUT_S", "RT_FOLD_S", "RT_FRAME_BYTES", "RT_FSYNC", "RT_FSYNC_INTERVAL_S",
    "RT_GROUP", "RT_HANDSHAKES", "RT_HANDSHAKE_S", "RT_HEARTBEAT_S", "RT_IDENTITY",
    "RT_IDENTITY_BYTES_S", "RT_IDENTITY_CONNECTIONS", "RT_IDENTITY_CONNECTS_S",
    "RT_IDENTITY_MESSAGES_S", "RT_IDENTITY_SESSIONS", "RT_LISTEN", "RT_MEMBERS",
    "RT_MESSAGE_BYTES_MAX", "RT_MISSING_S", "RT_NAME", "RT_NODES", "RT_RESERVE", "RT_ROOT",
    "RT_SESSION", "RT_SNAPSHOT_S", "RT_STREAM",
))  # fmt: skip
# What users of KX RT have set, and what does the same here.
FOREIGN: Final = {
    "RT_SINK": "RT_STREAM",
    "RT_SOURCE": "RT_STREAM",
    "RT_LOG_PATH": "RT_ROOT",
    "RT_TOPIC_PREFIX": "RT_NODES, which lists the nodes' addresses",
    "RT_EXTERN_PREFIX": "RT_NODES, which lists the nodes' addresses",
    "RT_REPLICAS": "RT_MEMBERS of a node, which lists all members",
    "RT_RAFT_CLUSTER": "RT_MEMBERS of a node, which lists all members",
    "RT_PUSH_SERVER": "RT_LISTEN; one port serves everything",
    "RT_PULL_SERVER": "RT_LISTEN; one port serves everything",
    "RT_LOGLEVEL_CONSOLE": "the options -v and --debug",
    "RT_NO_TRUNCATE": "the option --archive of rt push",
    "RAFT_HEARTBEAT": "RT_HEARTBEAT_S, in seconds",
    "RAFT_LOG_SIZE": "nothing: snapshots bound the log of Raft (RT_SNAPSHOT_S)",
    "RAFT_CHUNK_SIZE": "nothing: the log of Raft holds no messages",
}
_DEVELOPERS: Final = frozenset({"RT_BENCH_DIR", "RT_ARCHIVER_SEEDS"})  # of tests and benchmarks
_PREFIXES: Final = ("RT_", "RAFT_")


def check_environment(environment: Mapping[str, str]) -> None:
    """Refuse a variable that someone meant for us and that no command reads.

    Raises:
        Misuse: names it, and what to set instead.

    >>> check_environment({"RT_ROOT": "/data", "PATH": "/bin"})
    """
    for name in sorted(environment):
        if name.startswith(_PREFIXES) and name not in KNOWN | _DEVELOPERS:
            raise Misuse(f"the environment sets {name[:60]}, which no command reads; {_hint(name)}")


def _hint(name: str) -> str:
    if name in FOREIGN:
        return f"instead use {FOREIGN[name]}, and unset it"
    near = difflib.get_close_matches(name, KNOWN, n=1)
    return f"did you mean {near[0]}?" if near else "unset it; docs/COMING-FROM.md has our names"
