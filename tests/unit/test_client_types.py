"""The client's type annotations match the arguments that its methods accept."""

import inspect
from typing import get_type_hints

import pytest

import rt
from rt.client.arguments import (
    CursorArguments,
    LastValueArguments,
    MemberArguments,
    PublisherArguments,
    SubscriberArguments,
)
from rt.client.client import Client


def taken(method):
    """Names and types of what a method takes."""
    hints = get_type_hints(method)
    return {name: hints[name] for name in inspect.signature(method).parameters if name != "self"}


@pytest.mark.parametrize(
    ("method", "arguments", "beside"),
    [
        (Client.publisher, PublisherArguments, {"session"}),
        (Client.last_value, LastValueArguments, set()),
        (Client.subscriber, CursorArguments, {"cursor", "group"}),
        (Client.subscriber, SubscriberArguments, {"cursor", "group", "ack"}),
        (
            Client.subscriber,
            MemberArguments,
            {"cursor", "group", "share", "lag_max_s", "on_lag"},
        ),
    ],
)
def test_the_twin_and_the_overloads_name_every_argument_with_its_type(method, arguments, beside):
    """An argument that only one of them has would be refused by a type checker, and work."""
    wanted = {name: kind for name, kind in taken(method).items() if name not in beside}
    assert get_type_hints(arguments) == wanted


def test_a_module_shows_what_it_offers():
    """A completion that offers `Any` and `import_module` is read as part of the interface."""
    assert {name for name in dir(rt) if not name.startswith("_")} == {
        name for name in rt.__all__ if not name.startswith("_")
    }


def test_publishers_and_subscribers_say_what_they_are(tmp_path):
    """An object at 0x7f... in a log says nothing."""
    with rt.Publisher(tmp_path, stream="flights", session="jfk") as publisher:
        assert repr(publisher) == f"<Publisher of session 'jfk' in {tmp_path}/flights/jfk>"
    assert repr(publisher).endswith("jfk, closed>")
    subscriber = rt.Subscriber(tmp_path, stream="flights", session="jfk", follow=False)
    assert repr(subscriber) == f"<Subscriber of {tmp_path}/flights/jfk at 0.0.0>"
    subscriber.close()
    assert repr(subscriber).endswith("0.0.0, stopped>")
