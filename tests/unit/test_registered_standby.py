"""A standby reader waits for its cursor, whatever the nodes are at meanwhile."""

from types import SimpleNamespace

from rt.client.readers.registered import Registered, RegisteredReader
from rt.errors import Refused
from rt.net.admin import NoLeader
from rt.net.loop.event_loop import EventLoop


def test_a_standby_waits_over_an_election():
    """It ended just when the machine of the active reader, and with it a node, was lost."""
    answers = [
        Refused("held", "another reader holds it"), NoLeader("no node leads"),
        {"epoch": 2, "position": "0.0.0"},
    ]  # fmt: skip

    def ask(request):
        if request["do"] != "cursor-open":
            return {"position": "0.0.0"}
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    loop = EventLoop()
    nodes = SimpleNamespace(ask=ask, close=lambda: None)
    held = RegisteredReader(nodes, Registered("etl", takeover="wait"), "", loop)
    assert held.state.epoch == 2
    held.close()
    loop.stop()
