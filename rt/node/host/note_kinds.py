"""Note kinds: validates a note before it is proposed."""

from collections.abc import Callable
from typing import Any, Final

from archiver.lease import parse_lease
from archiver.policy import parse_policy
from rt.errors import Misuse
from rt.names import shown
from rt.net.authority.certificates import is_cluster_id
from rt.node.notes.reading_group import GROUP_NOTE, parse_reading_group
from rt.node.notes.registered_cursor import CURSOR_NOTE, parse_registered
from rt.node.retain.retention import LEASE_NOTE, OFFLOAD_NOTE, POLICY_NOTE, offload_lease
from rt.node.sessions.policy import SESSIONS_NOTE, parse_session_policy
from rt.node.sessions.quotas import QUOTAS_NOTE, parse_quotas
from sequencer.ledger.format_level import LEVEL_NOTE, parse_level
from sequencer.ledger.founded import CERTIFICATES_NOTE
from sequencer.ledger.instruction import Instruction, Note
from sequencer.ledger.seal import SEALED_NOTE, parse_seal


def _parse_cluster(text: str) -> None:
    if not is_cluster_id(text):
        raise Misuse(f"not the id of a cluster: {shown(text)}")


# Each raises `Misuse` for text that no node could read. A name that ends in a space is a prefix.
_PARSERS: Final[dict[str, Callable[[str], Any]]] = {
    POLICY_NOTE: parse_policy,
    OFFLOAD_NOTE: offload_lease,
    SESSIONS_NOTE: parse_session_policy,
    QUOTAS_NOTE: parse_quotas,
    CERTIFICATES_NOTE: _parse_cluster,
    LEVEL_NOTE: parse_level,
    LEASE_NOTE: parse_lease,
    CURSOR_NOTE: parse_registered,
    GROUP_NOTE: parse_reading_group,
    SEALED_NOTE: parse_seal,
}


def demand_note(instruction: Instruction) -> None:
    """Refuse a note that this version could not read once the note was decided.

    Raises:
        Misuse: the text is not valid for a note of this name, or no note has the name.
    """
    if not isinstance(instruction, Note) or not instruction.text:
        return
    kind, space, _ = instruction.name.partition(" ")
    parse = _PARSERS.get(kind + space)
    if parse is None:
        raise Misuse(f"there is no note {shown(instruction.name)}")
    parse(instruction.text)
