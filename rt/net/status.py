"""Status: asks a node for its status."""

import time
from typing import Final

from rt.errors import PeerError, Refused
from rt.net.addresses import Address, address_text
from rt.net.awaited import awaiting
from rt.net.contexts import Contexts
from rt.net.exchange import Fields, decode_fields, receive_all
from rt.net.question import STATUS_ALPN, connect_about
from rt.text import printable

STATUS_S: Final = 10.0  # to send a whole answer: 32 MiB for 100,000 sessions, at 3 MiB/s
_STATUS_BYTES_MAX: Final = 32 << 20  # of 100,000 sessions


def ask_status(address: Address, contexts: Contexts, *, answer_s: float = STATUS_S) -> Fields:
    """Ask a node for its status.

    Raises:
        OSError: the node does not answer, or not completely within `answer_s` seconds.
        PeerError: the answer is not a status.
        Refused: the node does not serve the stream that the contexts name.
    """
    with awaiting(address), connect_about(address, contexts, STATUS_ALPN) as sock:
        answer = decode_fields(receive_all(sock, _STATUS_BYTES_MAX, time.monotonic() + answer_s))
    if answer is None:
        raise PeerError(f"{address_text(address)} answers with something other than a status")
    if "error" in answer:
        raise Refused(str(answer.get("code")), printable(str(answer["error"])))
    return answer
