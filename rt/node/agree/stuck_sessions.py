"""Stuck sessions: logs why sessions are not merged, and refuses publishers that never will be."""

import logging
from collections.abc import Mapping
from typing import Final

from rt.errors import Refused
from rt.node.ingest.inboxes import Inboxes
from sequencer.planning.group_join_check import Stuck

_log: Final = logging.getLogger("rt.node")
_CODE: Final = "group"


def report_stuck(
    stuck: Mapping[str, Stuck], before: Mapping[str, Stuck], sessions: Inboxes
) -> None:
    """Log newly stuck sessions, and refuse the publishers of those that can never be merged.

    Args:
        stuck: the sessions that this node, while it leads, cannot merge.
        before: the stuck sessions of the previous call.
        sessions: the copies on this node.
    """
    for session, each in stuck.items():
        if session not in before:
            _log.warning("%s", each.words)
        held = sessions.get(session) if each.is_refused else None
        if held is not None:
            held.refuse(Refused(_CODE, each.words))
