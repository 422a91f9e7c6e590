"""Environment: refuses variables that were meant for `rt` or for KX RT, but have no effect."""

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Final

import click

from rt.errors import Misuse

# The variables that our commands read, listed so that the check rarely has to import them all.
KNOWN: Final = frozenset((
    "RT_ADDRESS_HANDSHAKES", "RT_CERTS", "RT_CLUSTER_ID", "RT_COMPRESSION", "RT_CONFIG",
    "RT_CONNECTIONS", "RT_CONSENSUS", "RT_ELECTION_S", "RT_FILE_AGE_S", "RT_FILE_BYTES", "RT_FLUSH",
    "RT_FLUSH_TIMEOUT_S", "RT_FOLD_S", "RT_FRAME_BYTES", "RT_FSYNC", "RT_FSYNC_INTERVAL_S",
    "RT_GROUP", "RT_HANDSHAKES", "RT_HANDSHAKE_S", "RT_HEARTBEAT_S", "RT_IDENTITY",
    "RT_IDENTITY_BYTES_S", "RT_IDENTITY_CONNECTIONS", "RT_IDENTITY_CONNECTS_S",
    "RT_IDENTITY_MESSAGES_S", "RT_IDENTITY_SESSIONS", "RT_LISTEN", "RT_MEMBERS",
    "RT_MESSAGE_BYTES_MAX", "RT_MISSING_S", "RT_NAME", "RT_NODES", "RT_RESERVE", "RT_ROOT",
    "RT_SESSION", "RT_SNAPSHOT_S", "RT_STREAM", "RT_STREAMS",
))  # fmt: skip
# Variables of KX RT that users may still have set, and what replaces each.
FOREIGN: Final = {
    "RT_SINK": "RT_STREAM", "RT_SOURCE": "RT_STREAM", "RT_LOG_PATH": "RT_ROOT",
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
}  # fmt: skip
# used by tests and benchmarks
_DEVELOPERS: Final = frozenset({"RT_BENCH_DIR", "RT_ARCHIVER_SEEDS"})
_VARIABLE: Final = re.compile("RT_[A-Z0-9_]+")
_PREFIXES: Final = ("RT_", "RAFT_")


def check_environment(environment: Mapping[str, str], program: click.Group) -> None:
    """Refuse an environment variable that was meant for `rt` but that no command reads.

    Args:
        environment: The process's environment.
        program: The command `rt`; its subcommands are imported only if a variable is not in
            `KNOWN`.

    Raises:
        Misuse: The message names the variable, and what to set instead.
    """
    ours = KNOWN | _DEVELOPERS
    strange = sorted(
        name for name in environment if name.startswith(_PREFIXES) and name not in ours
    )
    known = variables(program, click.Context(program)) if strange else frozenset()
    for name in strange:
        if name not in known:
            hint = _hint(name, known)
            raise Misuse(f"the environment sets {name[:60]}, which no command reads; {hint}")


def variables(command: click.Command, context: click.Context) -> frozenset[str]:
    """Return the environment variables that a command's options and subcommands read."""
    helps = (getattr(option, "help", None) or "" for option in command.params)
    found = frozenset(name for text in helps for name in _VARIABLE.findall(text))
    if isinstance(command, click.Group):
        below = (command.get_command(context, name) for name in command.list_commands(context))
        return found.union(*(variables(each, context) for each in below if each is not None))
    return found


def _hint(name: str, known: Collection[str]) -> str:
    if name in FOREIGN:
        return f"instead use {FOREIGN[name]}, and unset it"
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else "unset it; docs/COMING-FROM.md has our names"
