"""Disclosure: what the HTTP port shows to those who need no certificate."""

import hashlib
import json
import os
import re
import secrets
from typing import Any, Final

from rt.node.observe.status import without_directories
from rt.text import json_safe

_SALT: Final = secrets.token_bytes(16)  # else a guessed address could be checked
_CONNECTIONS: Final = ("peer", "connect_time")  # fields of what is connected
_PATHS: Final = ("directory", "target_directory")
# A log line begins with who it is about.
_ENDPOINT: Final = re.compile(r"(?:\b\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-fA-F:%.]+\]):\d{1,5}\b")


def encoded(value: object, *, is_open: bool = False) -> bytes:
    """Return JSON without spaces, as it is sent.

    Args:
        value: what to show.
        is_open: whether anyone who reaches the port may read it: of directories only the last
            name is shown then, and of the peers that are connected no addresses.
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
    """Return what tells two connections apart, and nothing else."""
    return hashlib.sha256(_SALT + address.encode()).hexdigest()[:8] if address else ""
