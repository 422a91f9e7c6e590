"""Floods by strangers and by each role, with a publisher and a subscriber at work beside them."""

import time

import pytest

from rt import Subscriber
from tests.faults.flooded import PATIENCE_S, STREAM, Stream, flooded
from tests.faults.flooder import KINDS

GROWTH_BYTES_MAX = 128 << 20  # of each node
# Three times the usual; the floor is the noise of a machine whose two cores run everything here.
SLOWER_MAX, FLOOR_S = 3.0, 0.1


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    """Return a cluster that is pushed to and pulled from."""
    stream = Stream(tmp_path_factory.mktemp("floods"))
    stream.begin()
    yield stream
    stream.close()


@pytest.mark.faults
@pytest.mark.process
@pytest.mark.parametrize("kind", KINDS)
def test_a_flood_costs_a_publisher_and_a_subscriber_little(stream, kind, capsys):
    """Nothing of theirs is refused, nothing waits for the flood to end, memory stays bounded."""
    found = flooded(stream, kind)
    with capsys.disabled():
        print(f"\n{found}")
    assert len(found.grown_bytes) == 3
    assert found.flooded_s <= max(SLOWER_MAX * found.usual_s, FLOOR_S), str(found)
    assert max(found.grown_bytes) <= GROWTH_BYTES_MAX
    assert not [each.error for each in stream.push.status() if each.error]
    assert received(stream) == stream.sent


def received(stream: Stream) -> int:
    """Return how many messages of the publisher the copy holds, once it has all."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        with Subscriber(
            str(stream.top / "sub"), stream=STREAM, sessions=["jfk"], follow=False
        ) as subscriber:
            count = sum(1 for _ in subscriber)
        if count >= stream.sent:
            return count
        time.sleep(0.2)
    return count
