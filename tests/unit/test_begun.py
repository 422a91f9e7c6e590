"""The file that says after which instructions a node's copies of sessions were begun."""

import pytest

from rt.errors import Misuse, Refused
from rt.log.disk import OsDisk
from rt.node.begun import Begun, BegunCopies


def test_what_was_noted_is_known_after_a_restart(tmp_path):
    """A log that was retired is refused for good."""
    BegunCopies(OsDisk(), str(tmp_path)).note("jfk", Begun(7, "a" * 32))
    again = BegunCopies(OsDisk(), str(tmp_path))
    assert again.get("jfk") == Begun(7, "a" * 32)
    assert again.get("lga") == Begun()
    with pytest.raises(Refused, match="was retired"):
        again.demand_not_retired("jfk", "a" * 32)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"jfk": 7}', b'{"jfk": ["x", ""]}', b"\xff"])
def test_a_damaged_file_is_refused_and_not_taken_for_none(tmp_path, data):
    """Taken for none, it would let a retired log be merged again, and remove newer copies."""
    (tmp_path / ".begun").write_bytes(data)
    with pytest.raises(Misuse, match=r"is damaged.*empty this node's directory"):
        BegunCopies(OsDisk(), str(tmp_path))
