"""Mistakes in telling streams apart, which only worlds with two streams on a node show."""

from collections.abc import Callable

from replicator.serve.streams import Streams
from rt import names
from rt.node.admin import asked_stream
from rt.node.ingest.inboxes import Inboxes

from . import shared_machine, shared_node
from .mutation import Patch, mutant, rewritten

SHARING: set[str] = set()


def sharing(make: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
    """Register a mistake that is sought in worlds with two streams alone."""
    SHARING.add(make.__name__.replace("_", "-"))
    return mutant(make)


@sharing
def streams_share_a_directory() -> list[Patch]:
    """Where a stream's files are does not depend on its name."""
    right, wrong = "posixpath.join(root, parse_stream(stream))", "root"
    made = rewritten(names, "stream_directory", right, wrong)
    return [(shared_machine, *made[1:])]


@sharing
def the_first_stream_is_served_for_every_name() -> list[Patch]:
    """A pusher or puller is connected to a stream whatever it names, as where there is one."""
    right, wrong = "routes.streams.get(name)", "next(iter(routes.streams.values()), None)"
    return [rewritten(Streams, "named", right, wrong)]


@sharing
def a_session_of_any_stream_is_taken() -> list[Patch]:
    """A node takes every session that is pushed to it, also of another stream."""
    return [
        *the_first_stream_is_served_for_every_name(),
        rewritten(Inboxes, "claim", "or identity.stream != self._stream", "or False"),
    ]


@sharing
def a_stream_that_fails_ends_all() -> list[Patch]:
    """Once a stream has failed, the process serves no other either."""
    return [rewritten(Streams, "drop", "if each != name", "if False")]


@sharing
def a_change_of_the_other_stream_is_carried_out() -> list[Patch]:
    """A node uses the stream of the connection, and not the one that the request names."""
    made = rewritten(asked_stream, "demand_stream", "named not in (None, own)", "False")
    return [(shared_node, *made[1:])]


@sharing
def a_change_without_a_stream_is_carried_out() -> list[Patch]:
    """Where a connection may be for any stream, a change that names none hits the first."""
    made = rewritten(asked_stream, "demand_stream", "named is None and is_change", "False")
    right = '("", self._refuse) if self._has_several else (name, handler)'
    return [
        (shared_node, *made[1:]),
        rewritten(Streams, "_replace", right, "unnamed.get(question, (name, handler))"),
    ]
