"""Changes the list of streams in a node's file as text, to keep comments and layout."""

import json
import re
import tomllib
from collections.abc import Sequence
from typing import Any, Final

from rt.errors import Misuse

_TABLE: Final = re.compile(r"^\s*\[node\]\s*(#.*)?$")
_OTHER_TABLE: Final = re.compile(r"^\s*\[")
_LIST: Final = re.compile(r"^streams\s*=\s*\[[^\]]*\][ \t]*(#[^\n]*)?\n?", re.MULTILINE)


def listed_streams(text: str) -> list[str]:
    """Return the further streams that a node's file lists; `Misuse` if the file is malformed."""
    found = _node_table(text).get("streams", [])
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise Misuse("streams in [node] is not a list of names")
    return found


def with_streams(text: str, streams: Sequence[str]) -> str:
    r"""Return the text of a node's file, changed to list these further streams.

    Raises:
        Misuse: the file is not TOML with a table [node], or is written in a way that cannot be
            changed safely.

    >>> with_streams('[node]\nstream = "a"\n', ["b"])
    '[node]\nstreams = ["b"]\nstream = "a"\n'
    """
    wanted = _parsed(text) | {"node": _node_table(text) | {"streams": list(streams)}}
    before, table, after = _around_table(text)
    entry = (
        "streams = [" + ", ".join(json.dumps(each, ensure_ascii=False) for each in streams) + "]\n"
    )
    changed = before + entry + _LIST.sub("", table, count=1) + after
    try:
        is_right = tomllib.loads(changed) == wanted
    except tomllib.TOMLDecodeError:
        is_right = False
    if not is_right:
        raise Misuse(f"the file cannot be changed safely; write {entry.strip()} below [node]")
    return changed


def _around_table(text: str) -> tuple[str, str, str]:
    """Return the text up to the line [node], the lines of that table, and the text after it."""
    lines = text.splitlines(keepends=True)
    begin = next((at for at, line in enumerate(lines, 1) if _TABLE.match(line)), None)
    if begin is None:
        raise Misuse("no line [node] is in the file")
    rest = lines[begin:]
    length = next((at for at, line in enumerate(rest) if _OTHER_TABLE.match(line)), len(rest))
    return "".join(lines[:begin]), "".join(rest[:length]), "".join(rest[length:])


def _node_table(text: str) -> dict[str, Any]:
    table = _parsed(text).get("node")
    if not isinstance(table, dict):
        raise Misuse("the file has no table [node]")
    return table


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Misuse(f"not TOML: {error}") from error
