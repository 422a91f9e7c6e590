"""`rt demo --sites`: a site is lost and comes back, with real processes."""

import pytest

from rt.demo.sites import print_sites, show_sites

pytestmark = pytest.mark.faults


def test_a_site_is_lost_and_comes_back_and_every_flight_arrives_once(tmp_path, capsys):
    """What the demo shows is checked by the demo, and it is shown to people who decide."""
    flights = {
        airport: [b"%s %d" % (airport.encode(), number) for number in range(400)]
        for airport in ("EWR", "JFK", "LGA")
    }
    report = show_sites(str(tmp_path), flights, 20_000)
    assert report.flights == dict.fromkeys(flights, 400)
    assert report.sent_again == 300
    assert len(report.steps) == 8
    print_sites(report)
    shown = capsys.readouterr().out
    assert "Every flight of 1,200 arrived once" in shown
    assert "300 of them\nwere confirmed and nowhere else" in shown
