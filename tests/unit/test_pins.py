"""Pins of cursors and groups: they hold files as long as their owners may, and not for ever."""

from rt.net.authority.grants import Grants
from rt.net.authority.identity import CertificateRole
from rt.node.notes.pins import Pins, is_due, may_lease_by, pins_of
from rt.node.notes.reading_group import GROUP_NOTE, ReadingGroup
from rt.node.notes.registered_cursor import CURSOR_NOTE, RegisteredCursor
from rt.node.retain.retention import leases_of_notes

NS = 1_000_000_000
DAY_NS = 24 * 3600 * NS
CURSOR = RegisteredCursor("etl", "spark", role="subscriber", pin_bytes=7, stored_ns=DAY_NS)
OLD = RegisteredCursor("old", "spark", pin_bytes=7, stored_ns=DAY_NS)  # of a version without roles
GROUP = ReadingGroup("etl", "nas", "subscriber", pin_bytes=9, stored_ns=DAY_NS)
FREE = RegisteredCursor("free", "spark", role="subscriber")
NOTES = {
    CURSOR_NOTE + "etl": CURSOR.text(), CURSOR_NOTE + "old": OLD.text(),
    GROUP_NOTE + "etl": GROUP.text(), CURSOR_NOTE + "free": FREE.text(),
}  # fmt: skip


def test_a_pin_ends_ten_minutes_after_its_owner_lost_the_grant(caplog):
    """It held a terabyte for ever; and a mistake in the file must not cost it at once."""
    granted = {"spark", "nas"}
    pins = Pins(lambda _role, name: name in granted)
    pins.check(NOTES, 0.0)
    granted.remove("spark")
    pins.check(NOTES, 10.0)
    pins.check(NOTES, 609.0)
    assert not pins.over
    pins.check(NOTES, 610.0)
    assert pins.over == {"cursor etl", "cursor old"}
    assert "cursor etl pins files no more: its owner is not granted leases" in caplog.text
    assert [each.holder for each in leases_of_notes(NOTES, pins.over)] == ["group.etl"]
    granted.add("spark")
    pins.check(NOTES, 611.0)
    assert not pins.over, "and it holds again once it is granted"


def test_a_mistake_in_the_grants_that_is_corrected_in_time_costs_no_pin():
    """Each look that finds a grant begins the time again."""
    granted = True
    pins = Pins(lambda _role, _name: granted)
    for now_s in range(0, 3000, 300):
        granted = not granted
        pins.check(NOTES, float(now_s))
        assert not pins.over


def test_a_pin_lasts_for_a_week_after_its_reader_was_heard_of():
    """Its certificate may be revoked, or its program gone; a lease lasts no longer either."""
    assert {each.until_ns for each in pins_of(NOTES)} == {8 * DAY_NS}
    assert not is_due(7, DAY_NS, 2 * DAY_NS)
    assert is_due(7, DAY_NS, 2 * DAY_NS + 1)
    assert not is_due(0, DAY_NS, 20 * DAY_NS)


def test_grants_are_read_as_they_are_now(tmp_path):
    """A file of grants may change at any time; nodes and operators need no entry."""
    path = tmp_path / "grants.toml"
    path.write_text('[subscriber.spark]\nstreams = ["*"]\nleases = true\n')
    path.chmod(0o644)
    may_lease = may_lease_by(Grants(str(path)), "flights")
    assert may_lease(CertificateRole.SUBSCRIBER, "spark")
    assert not may_lease(CertificateRole.PUBLISHER, "spark")
    assert may_lease(CertificateRole.OPERATOR, "alice")
    path.write_text('[subscriber.spark]\nstreams = ["*"]\n')
    assert not may_lease(CertificateRole.SUBSCRIBER, "spark")
