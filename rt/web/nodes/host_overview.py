"""The overview of a process that serves several streams: one object with a row for each."""

import time
from collections.abc import Mapping, Sequence
from typing import Final

from rt.node.observe.sample import NodeSample
from rt.node.settings.node import NodeSettings
from rt.version import __version__
from rt.web.nodes.node_overview import own_verdict
from rt.web.nodes.verdict import BROKEN, DEGRADED, OK
from rt.web.serving.site import Fields

_WORST_FIRST: Final = {BROKEN: 0, DEGRADED: 1, OK: 2}


def stream_row(sample: NodeSample, settings: NodeSettings) -> Fields:
    """Return a stream's row on the page, from what this node knows without asking others."""
    level, text = own_verdict(sample, settings)
    engine, flow = sample.view.engine, sample.flow
    return {
        "stream": settings.stream, "level": level, "text": text, "leader": engine.leader,
        "role": engine.role.name.lower(), "bytes_per_s": round(flow.merged.bytes_per_s),
        "messages_per_s": round(flow.merged.messages_per_s), "messages": sample.view.number,
        "lag_bytes": sample.unmerged, "waiting_s": round(sample.waiting_s, 1),
        "sessions": len(sample.sessions), "began_ns": sample.began_ns,
    }  # fmt: skip


def host_overview(node: str, rows: Sequence[Fields], failures: Mapping[str, str]) -> Fields:
    """Return what the page of all streams shows, with streams in trouble first.

    Args:
        node: the node's name.
        rows: the streams' rows, from `stream_row`.
        failures: why streams are not served, by name.
    """
    failed = [_failed(name, why) for name, why in failures.items()]
    ordered = sorted([*failed, *rows], key=lambda each: (_WORST_FIRST[each["level"]],
                                                         each["stream"]))  # fmt: skip
    level, text = _verdict(ordered)
    return {
        "kind": "host", "name": node, "version": __version__, "at_ns": time.time_ns(),
        "began_ns": min((each["began_ns"] for each in rows), default=time.time_ns()),
        "verdict": {"level": level, "text": text}, "streams": ordered,
    }  # fmt: skip


def _failed(name: str, why: str) -> Fields:
    return {
        "stream": name, "level": BROKEN, "text": f"Not served: {why}.", "leader": "", "role": "",
        "bytes_per_s": 0, "messages_per_s": 0, "messages": None, "lag_bytes": 0, "waiting_s": 0.0,
        "sessions": 0, "began_ns": 0,
    }  # fmt: skip


def _verdict(rows: Sequence[Fields]) -> tuple[str, str]:
    """Return a level and a sentence: about the worst stream, the first row, or that all is well."""
    troubled = [each for each in rows if each["level"] != OK]
    if not troubled:
        return OK, f"All {len(rows)} streams are well."
    worst = troubled[0]
    more = len(troubled) - 1
    rest = f" {more} more of {len(rows)} streams need{'s' * (more == 1)} a look." if more else ""
    return worst["level"], f"Stream {worst['stream']}: {worst['text']}{rest}"
