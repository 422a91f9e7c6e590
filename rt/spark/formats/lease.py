"""Lease: asks the nodes of a stream to keep the files of a load for a bounded time."""

import time
from typing import Any, Final

from rt.net.addresses import parse_address
from rt.net.admin import ask_any
from rt.net.authority.certificates import certificate_files
from rt.net.tls import Contexts, client_context
from rt.position import Position
from rt.spark.reading.options import LeaseOptions

_NS: Final = 1_000_000_000


def take_lease(wanted: LeaseOptions, start: Position, stream: str) -> None:
    """Ask the nodes to keep the files of a stream's log from `start` on, or to keep them longer.

    A node keeps only the newest lease of each certificate name. If the name holds a lease already,
    perhaps for another load, the new lease covers both: it begins at the earlier of the positions,
    and ends at the later of the times.

    Raises:
        RtError: no node grants the lease; the message has each node's reason.
        OSError: a certificate cannot be read.
    """
    addresses = [parse_address(node, "leaseNodes") for node in wanted.nodes]
    contexts = Contexts(certificate_files(wanted.certs, wanted.identity), client_context, stream)
    seconds, size = wanted.seconds, wanted.bytes_max
    for held in ask_any(addresses, contexts, {"do": "policy", "latest": True})["leases"]:
        left = (held["until_ns"] - time.time_ns()) / _NS
        if held["holder"] == wanted.identity and left > 0:
            start = min(start, Position(held["start"]))
            seconds, size = max(seconds, left), max(size, held["bytes_max"])
    request: dict[str, Any] = {
        "do": "lease", "start": str(start), "seconds": seconds, "bytes": size,
    }  # fmt: skip
    ask_any(addresses, contexts, request)
