"""Disclosure: limits what the HTTP port shows to clients without a certificate."""

import hashlib
import json
import os
import re
import secrets
from typing import Any, Final

from rt.node.observe.status import without_directories
from rt.text import json_safe

# without it, a guessed address could be checked against its label
_SALT: Final = secrets.token_bytes(16)
_CONNECTIONS: Final = ("peer", "connect_time")  # fields that hold the addresses of connections
_PATHS: Final = ("directory", "target_directory")
# A log line about a connection begins with its address.
_ENDPOINT: Final = re.compile(r"(?:\b\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-fA-F:%.]+\]):\d{1,5}\b")


def encoded(value: object, *, is_open: bool = False) -> bytes:
    """Encode a value as compact JSON.

    Args:
        value: The value.
        is_open: Whether anyone who reaches the port may read it; then only the last name of each
            directory is shown, and no address of a connected peer.
    """
    text = json.dumps(_public(value) if is_open else value, separators=(",", ":"))
    return json_safe(without_directories(text) if is_open else text).encode()


def _public(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_public(each) for each in value]
    if not isinstance(value, dict):
        return value
    shown = {name: _field(name, each) for name, each in value.items()}
    if "address" in shown and any(name in shown for name in _CONNECTIONS):
        shown["address"] = _label(str(shown["address"]))
    return shown


def _field(name: Any, value: Any) -> Any:
    if name in _PATHS and isinstance(value, str):
        return os.path.basename(value)
    if name == "text" and isinstance(value, str):
        return _ENDPOINT.sub("(address)", value)
    return _public(value)


def _label(address: str) -> str:
    """Return a label that distinguishes connections without revealing the address."""
    return hashlib.sha256(_SALT + address.encode()).hexdigest()[:8] if address else ""
