"""Tracing: publishing, merging and receiving a message as one OpenTelemetry trace."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final, Protocol

from rt.errors import Misuse
from rt.format.headers import Headers
from rt.format.message import Message
from rt.log.write.checked import Bytes

_SYSTEM: Final = {"messaging.system": "rt"}


class TracedPublisher(Protocol):
    """The publisher that `publish_traced` needs: `rt.Publisher` or `ClientPublisher`."""

    @property
    def name(self) -> str:
        """The name of the session."""

    def publish(
        self,
        payload: Bytes,
        key: Bytes | None = None,
        time_ns: int | None = None,
        *,
        headers: Headers | None = None,
    ) -> int:
        """Publish one message."""


def traced_headers(headers: Headers | None = None) -> dict[str, bytes]:
    """Return headers that name the current span: W3C `traceparent`, and other propagated fields.

    Use it with `publish_many` and other calls that `publish_traced` does not cover.

    Raises:
        Misuse: OpenTelemetry is not installed.
    """
    found: dict[str, str] = {}
    _api().propagate.inject(found)
    return {**(headers or {}), **{name: value.encode() for name, value in found.items()}}


def publish_traced(
    publisher: TracedPublisher,
    payload: Bytes,
    key: Bytes | None = None,
    time_ns: int | None = None,
    *,
    headers: Headers | None = None,
) -> int:
    """Publish a message within a span of its own, which the message's headers name.

    Args:
        publisher: any publisher whose `publish` need not be awaited.
        payload: the message.
        key: as for `publish`.
        time_ns: as for `publish`.
        headers: as for `publish`; `traceparent` is added.

    Returns:
        The sequence number.

    Raises:
        Misuse: OpenTelemetry is not installed.
        RtError: as for `publish`.
    """
    api = _api()
    with api.trace.get_tracer("rt").start_as_current_span(
        f"publish {publisher.name}", kind=api.trace.SpanKind.PRODUCER, attributes=_SYSTEM
    ) as span:
        sequence = publisher.publish(payload, key, time_ns, headers=traced_headers(headers))
        span.set_attribute("messaging.message.id", f"{publisher.name}/{sequence}")
        return sequence


@contextmanager
def receiving(message: Message) -> Iterator[Any]:
    """Run a block within a span that continues the trace of a message.

    Before the block runs, a span `merge` is recorded here from the message's publish and merge
    times, since nodes send no spans themselves. A message without `traceparent` starts a new trace.

    Args:
        message: just received.

    Yields:
        The span `receive`, an `opentelemetry.trace.Span`.

    Raises:
        Misuse: OpenTelemetry is not installed.
    """
    api = _api()
    tracer, about = api.trace.get_tracer("rt"), _attributes(message)
    context = api.propagate.extract(_texts(message.headers))
    if message.merge_time_ns is not None:
        begun_ns = min(message.time_ns, message.merge_time_ns)  # its publisher's clock may differ
        merge = tracer.start_span("merge", context, attributes=about, start_time=begun_ns)
        merge.end(message.merge_time_ns)
        context = api.trace.set_span_in_context(merge, context)
    with tracer.start_as_current_span(
        f"receive {message.session}", context, api.trace.SpanKind.CONSUMER, about
    ) as span:
        yield span


def _attributes(message: Message) -> dict[str, str | int]:
    return {
        **_SYSTEM,
        "messaging.message.id": f"{message.session}/{message.sequence}",
        "messaging.message.body.size": len(message.payload),
        "rt.number": message.number,
    }


def _texts(headers: Mapping[str, bytes]) -> dict[str, str]:
    return {name: value.decode(errors="replace") for name, value in headers.items()}


class _Api:
    def __init__(self) -> None:
        # optional, and in a namespace whose modules mypy does not find
        self.propagate: Any = import_module("opentelemetry.propagate")
        self.trace: Any = import_module("opentelemetry.trace")


def _api() -> _Api:
    try:
        return _Api()
    except ImportError:
        raise Misuse(
            "tracing needs OpenTelemetry; install rt-transport with the extra 'otel'"
        ) from None
