"""Policy: an operator's rules for when files of the merged log are archived."""

import json
import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from rt.errors import Misuse
from rt.names import shown

MINUTE_NS: Final = 60_000_000_000
TIME_DEFAULT: Final = 10_080  # a week
DISK_DEFAULT: Final = 90
TIME_MAX: Final = 100 * 366 * 24 * 60
_BYTES_MAX: Final = 1 << 62
MESSAGES_MAX: Final = 1 << 62
_TEXT_BYTES_MAX: Final = 1024
_LIMIT: Final = re.compile(r"([0-9]{1,19})(?:([KMGTP])i)?")
_POWERS: Final[dict[str, int]] = {letter: 1024**n for n, letter in enumerate("KMGTP", 1)}
_EXAMPLE: Final = '{"time": 10080, "limit": "90Gi", "disk": 90}'
_KEYS: Final = frozenset({"time", "limit", "disk", "messages"})
_ROLL_AGE_MIN_S: Final = 60.0
# Only whole files are archived. So that the number of messages kept is not far above the one asked
# for, a file is rolled once it has this fraction of it: a quarter.
_ROLLED_PART: Final = 4


@dataclass(frozen=True, slots=True)
class Policy:
    """When a rolled file of the merged log is archived; any one rule is enough.

    Attributes:
        time: archive a file this many minutes after it was rolled; 0 is off.
        limit: maximum total bytes of all files; None is off.
        disk: maximum percentage of the file system in use.
        messages: maximum total messages of all files; None is off.
    """

    time: int = TIME_DEFAULT
    limit: int | None = None
    disk: int = DISK_DEFAULT
    messages: int | None = None

    def __post_init__(self) -> None:
        if type(self.time) is not int or not 0 <= self.time <= TIME_MAX:
            raise Misuse(f"time is {_said(self.time)}; use minutes, 0 (off) to {TIME_MAX}")
        if self.limit is not None and not 0 < self.limit <= _BYTES_MAX:
            raise Misuse(f"limit is {self.limit}; use a size above 0, such as 90Gi")
        if type(self.disk) is not int or not 1 <= self.disk <= 100:
            raise Misuse(f"disk is {_said(self.disk)}; use percent, 1 to 100")
        if self.messages is not None and (
            type(self.messages) is not int or not 0 < self.messages <= MESSAGES_MAX
        ):
            raise Misuse(f"messages is {_said(self.messages)}; use a number above 0, or none")

    def text(self) -> str:
        """Return the policy as JSON; equal policies give equal text.

        >>> Policy(limit=90 << 30).text()
        '{"time":10080,"limit":"90Gi","disk":90}'
        """
        fields: dict[str, Any] = {"time": self.time}
        if self.limit is not None:
            fields["limit"] = show_limit(self.limit)
        fields["disk"] = self.disk
        if self.messages is not None:
            fields["messages"] = self.messages
        return json.dumps(fields, separators=(",", ":"))

    def roll_age_s(self, file_age_s: float, messages: int = 0) -> float:
        """Return the age at which an active file is rolled even if it is not full; 0 means never.

        With the rule `time`, a file is rolled at the latest `time` (but at least a minute) after it
        began. It is archived `time` later, when its first message is at most twice that old. With
        the rule `messages`, a file that has a quarter of the messages to keep is rolled once it is
        a minute old.

        Args:
            file_age_s: the node's setting; 0 means never, which also turns off the rolling for the
                rule `time`.
            messages: how many messages the file has.
        """
        if self.messages is not None and messages * _ROLLED_PART >= self.messages:
            return min(file_age_s or _ROLL_AGE_MIN_S, _ROLL_AGE_MIN_S)
        if not file_age_s or not self.time:
            return file_age_s
        return min(file_age_s, max(_ROLL_AGE_MIN_S, self.time * 60.0))


@lru_cache(16)  # a node parses its stream's policy several times a second
def parse_policy(text: str) -> Policy:
    r"""Parse a policy from JSON, or from TOML, which may hold it in a table `[policy]`.

    Raises:
        Misuse: the text is neither JSON nor TOML, or is not a policy.

    >>> parse_policy('{"time": 10080, "limit": "90Gi", "disk": 90}').limit
    96636764160
    >>> parse_policy('[policy]\ntime = 60').time
    60
    """
    if len(text) > _TEXT_BYTES_MAX:
        raise Misuse(f"a policy has at most {_TEXT_BYTES_MAX} characters")
    return policy_of(_json(text) if text.lstrip().startswith("{") else _toml(text))


def policy_of(fields: Any) -> Policy:
    """Return the policy in a JSON or TOML object; `Misuse` if `fields` are malformed."""
    if not isinstance(fields, dict):
        raise Misuse("a policy is an object, such as " + Policy(limit=90 << 30).text())
    if strange := sorted(fields.keys() - _KEYS):
        raise Misuse(f"a policy has no {shown(strange[0])}; it has time, limit, disk and messages")
    given = dict(fields)
    if "limit" in given:
        given["limit"] = parse_limit(given["limit"])
    if given.get("messages") == "none":
        given["messages"] = None
    return Policy(**given)


def parse_limit(value: object, name: str = "limit") -> int | None:
    """Parse a number of bytes, or a number with Ki, Mi, Gi, Ti or Pi; return None for `none`.

    >>> parse_limit("5Gi"), parse_limit(4096), parse_limit("none")
    (5368709120, 4096, None)
    """
    if value is None or value == "none":
        return None
    match = _LIMIT.fullmatch(str(value)) if type(value) in (int, str) else None
    if match is None:
        raise Misuse(f"{name} is {_said(value)}; use bytes, or a size such as 90Gi (K M G T P)")
    power: int = _POWERS.get(match[2] or "", 1)
    return int(match[1]) * power


def show_limit(size: int) -> str:
    """Format a size in the largest unit that divides it.

    >>> show_limit(1 << 31), show_limit(1000)
    ('2Gi', '1000')
    """
    for letter, power in reversed(_POWERS.items()):
        if size % power == 0:
            return f"{size // power}{letter}i"
    return str(size)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Misuse(f"not JSON: {error}") from None


def _toml(text: str) -> Any:
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise Misuse(f"neither JSON nor TOML: {error}; write it as {_EXAMPLE}") from None
    return document.get("policy", document)


def _said(value: object) -> str:
    return shown(value if isinstance(value, str) else repr(value))
