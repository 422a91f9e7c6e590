"""The guide's Python runs as it is written: it is copied before it is read."""

import os
import re

import pytest
from archive_cluster import ArchiveCluster

pytestmark = pytest.mark.process
GUIDE = os.path.join(
    os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "docs", "GUIDE.md"
)
PRINTED = [
    "0 b'AA1' b'AA1 departed'",
    "2 b'' b'DL3 departed'",
    "b'AA1 departed'",
    "10",
    "1000",
    "[b'B6 2']",
    "[b'7']",
    "1002",
    "0 True",
    "range(0, 1000)",
    "b'order 7'",
    "b'UA4 departed'",
    "[b'AA1 departed', b'B6 2 departed', b'DL3 departed']",
]


def blocks():
    """Return the blocks of Python, in order."""
    with open(GUIDE, encoding="utf-8") as file:
        return re.findall(r"^```python\n(.*?)^```", file.read(), re.MULTILINE | re.DOTALL)


def test_the_guides_python_runs_in_order_and_prints_what_it_says(tmp_path, monkeypatch, capsys):
    """One reader after the other types it; the second block needs what the first one made."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    with ArchiveCluster(tmp_path / "rt-up", nodes=1):
        for block in blocks():
            exec(compile(block, GUIDE, "exec"), names)
    lines = capsys.readouterr().out.splitlines()
    assert len(blocks()) == 18
    assert any(re.match(r"session \w+ was opened by publisher \(at 0\.", line) for line in lines)
    for line in PRINTED:
        assert line in lines, line
