"""Masking: removes passwords and tokens from text."""

import re
from typing import Any, Final

from rt.errors import Misuse

HIDDEN: Final = "(left out)"
_WORD: Final = r"(?:passw(?:or)?d|passphrase|pwd|secret|token|signature|credential|\bsig\b"
_WORD_KEY: Final = _WORD + r"|(?:api|access|account|private|shared)[-_ ]?key)"
_VALUE: Final = r"""(?:"(?:[^"\\]|\\.)*"(?=[\s,;&})\]]|$)|'(?:[^'\\]|\\.)*'(?=[\s,;&})\]]|$)|\S+)"""
# Everything in an address up to its last `@`: a password may contain slashes and quotes, and if it
# contains `@`, no part of it may be left. This hides too much of `a://b/c@d`.
_USER: Final = re.compile(r"://\S*@")
_NAMED: Final = re.compile(
    rf"""({_WORD_KEY}[\w.-]{{0,40}}["']?\s*(?:=|:(?!//))\s*){_VALUE}""", re.IGNORECASE
)
_OPTION: Final = re.compile(rf"(-{_WORD_KEY}[\w-]{{0,40}}\s+){_VALUE}", re.IGNORECASE)
_HEADER: Final = re.compile(r"""(\bauthorization["']?\s*[:=]\s*).*""", re.IGNORECASE)
_SCHEME: Final = re.compile(
    r"\b(bearer\s+)\S+|\b(basic\s+)(?=\w*(?-i:[A-Z0-9+/=]))\S{6,}", re.IGNORECASE
)
_JWT: Final = re.compile(r"\beyJ[\w-]+\.[\w-]+(?:\.[\w-]*)?")

_ELSEWHERE: Final = (
    "the address of copies is recorded in the log of decisions and shown to every reader; give "
    "credentials to this process alone, by the environment or a configuration file of the store"
)


def without_secrets(text: str) -> str:
    """Return a text without anything that looks like a password or token; more may be removed.

    >>> without_secrets("s3://me:p/w@x@store/a  password=hunter2  Bearer abc.def")
    's3://(left out)@store/a  password=(left out)  Bearer (left out)'
    """
    text = _HEADER.sub(rf"\1{HIDDEN}", text)
    text = _USER.sub(f"://{HIDDEN}@", text)
    text = _SCHEME.sub(lambda found: f"{found[1] or found[2]}{HIDDEN}", text)
    for pattern in (_NAMED, _OPTION):
        text = pattern.sub(rf"\1{HIDDEN}", text)
    return _JWT.sub(HIDDEN, text)


def masked(value: Any) -> Any:
    """Return a JSON value with the secrets in its texts left out."""
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, dict):
        return {name: masked(each) for name, each in value.items()}
    return [masked(each) for each in value] if isinstance(value, list | tuple) else value


def demand_no_secret(address: str) -> None:
    """Refuse the address of a store if it contains credentials.

    Raises:
        Misuse: it contains some; the message does not repeat them.

    >>> demand_no_secret("s3://bucket/flights@2026")
    """
    scheme, is_url, rest = address.partition("://")
    user, at, _ = rest.rpartition("@")
    has_user = at and ("/" not in user or ":" in user)  # otherwise the `@` belongs to a path
    _, _, query = rest.partition("?")
    if is_url and (has_user or "=" in query):
        where = f"{without_secrets(scheme)}://{HIDDEN}"
        raise Misuse(f"{where} has a user, password or token in it; {_ELSEWHERE}")
