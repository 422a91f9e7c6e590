"""Tracing: one trace from the span that publishes to the one that receives."""

import logging
import sys
import warnings

import pytest

from rt.client.handler import StreamHandler, record_headers
from rt.client.tracing import publish_traced, receiving, traced_headers
from rt.errors import Misuse
from rt.format.headers import encode_headers
from rt.log.notify.headers_note import HeadersNote
from rt.publisher import Publisher
from rt.subscriber import Subscriber
from tests.logs import MergedLog

STREAM = "flights"


@pytest.fixture(scope="module")
def spans():
    """The spans that ended, in order, as OpenTelemetry exports them."""
    pytest.importorskip("opentelemetry.sdk", reason="needs opentelemetry-sdk")
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import (
        InMemorySpanExporter,
    )

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


def test_publish_merge_and_receive_are_one_trace(spans, tmp_path):
    """Where a message was slow is what the trace is looked at for."""
    spans.clear()
    with Publisher(tmp_path / "pub", stream=STREAM, session="jfk") as publisher:
        publish_traced(publisher, b"AA1", b"key", headers={"a": b"1"})
    [published] = _messages(tmp_path / "pub", "jfk")
    assert published.headers.keys() == {"a", "traceparent"}
    with MergedLog(str(tmp_path / "node" / STREAM / "out")) as log:
        log.merge("jfk", [b"AA1"], headers=encode_headers(published.headers))
    [message] = _messages(tmp_path / "node", None)
    with receiving(message) as span:
        span.set_attribute("handled", value=True)
    publish, merge, receive = spans.get_finished_spans()
    assert [each.name for each in (publish, merge, receive)] == [
        "publish jfk", "merge", "receive jfk",
    ]  # fmt: skip
    assert len({each.context.trace_id for each in (publish, merge, receive)}) == 1
    assert merge.parent.span_id == publish.context.span_id
    assert receive.parent.span_id == merge.context.span_id
    assert merge.end_time == message.merge_time_ns
    assert receive.attributes["messaging.message.id"] == "jfk/0"


def test_a_message_without_a_trace_begins_one(spans, tmp_path):
    """And so does one whose header is not a trace: a publisher may write anything there."""
    spans.clear()
    with Publisher(tmp_path, stream=STREAM, session="jfk") as publisher:
        publisher.publish_many([b"0", b"1"], headers=[None, {"traceparent": b"\xff\n"}])
    for message in _messages(tmp_path, "jfk"):
        with receiving(message):
            pass
    found = spans.get_finished_spans()
    assert [each.parent for each in found] == [None, None]
    assert [each.name for each in found] == ["receive jfk"] * 2, "a session's log is not merged"


def test_the_current_span_can_be_named_in_other_calls(spans):
    """`publish_many` has one call for many messages."""
    from opentelemetry import trace

    with trace.get_tracer("test").start_as_current_span("batch") as span:
        headers = traced_headers({"a": b"1"})
    assert headers["a"] == b"1"
    assert f"{span.get_span_context().trace_id:032x}".encode() in headers["traceparent"]


def test_without_opentelemetry_the_error_names_the_extra(monkeypatch):
    """An optional part is missed by name."""
    monkeypatch.setitem(sys.modules, "opentelemetry.propagate", None)
    with pytest.raises(Misuse, match="the extra 'otel'"):
        traced_headers()


def test_log_records_have_their_attributes_as_headers(tmp_path):
    """What OpenTelemetry's handler exports is found in the message, and its trace with it."""
    extra = {
        "user": "ada", "tries": 3, "thing": object(), "otelTraceID": "a" * 32,
        "otelSpanID": "b" * 16, "otelTraceSampled": True, "long": "x" * 9999,
        **{f"e{each}": each for each in range(99)},
    }  # fmt: skip
    logger = logging.getLogger("app")
    logger.propagate = False
    with Publisher(tmp_path, stream=STREAM, session="web") as publisher:
        handler = StreamHandler(publisher, headers=record_headers)
        logger.addHandler(handler)
        try:
            try:
                raise ValueError("late")
            except ValueError:
                logger.exception("failed", extra=extra)
        finally:
            logger.removeHandler(handler)
    [found] = _messages(tmp_path, "web")
    headers = found.headers
    assert headers["severity_text"] == b"ERROR"
    assert headers["exception.type"] == b"ValueError"
    assert headers["exception.message"] == b"late"
    assert (headers["user"], headers["tries"]) == (b"ada", b"3")
    assert headers["traceparent"] == b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"
    assert len(headers["long"]) == 256
    assert "thing" not in headers


def test_our_handler_and_opentelemetrys_stand_beside_each_other(spans, tmp_path):
    """A program that exports its logs already adds ours, and gets neither a double nor a loop."""
    from opentelemetry import trace
    from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
    from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor

    exporter, provider = InMemoryLogRecordExporter(), LoggerProvider()
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    logger = logging.getLogger("shop")
    logger.propagate = False
    with warnings.catch_warnings(), Publisher(tmp_path, stream=STREAM, session="web") as publisher:
        warnings.simplefilter("ignore", DeprecationWarning)  # of where its handler will be
        ours = StreamHandler(publisher, headers=lambda each: traced_headers(record_headers(each)))
        handlers = [ours, LoggingHandler(logger_provider=provider)]
        for each in handlers:
            logger.addHandler(each)
        try:
            with trace.get_tracer("test").start_as_current_span("order"):
                logger.warning("sold %d", 7, extra={"user": "ada"})
        finally:
            for each in handlers:
                logger.removeHandler(each)
    [message], [exported] = _messages(tmp_path, "web"), exporter.get_finished_logs()
    record = exported.log_record
    assert (message.payload, record.body) == (b"sold 7", "sold 7")
    assert message.headers["user"].decode() == record.attributes["user"] == "ada"
    [span] = [each for each in spans.get_finished_spans() if each.name == "order"]
    assert record.trace_id == span.context.trace_id
    assert f"{span.context.trace_id:032x}" in message.headers["traceparent"].decode()


def test_log_records_come_without_headers_while_a_node_cannot_read_them(tmp_path):
    """A log line without attributes is better than none."""
    with Publisher(tmp_path, stream=STREAM, session="web") as publisher:
        HeadersNote(str(tmp_path / STREAM)).write("node n3 is old")
        record = logging.makeLogRecord({"name": "app", "msg": "up"})
        StreamHandler(publisher, headers=record_headers).handle(record)
    [message] = _messages(tmp_path, "web")
    assert (message.payload, message.headers) == (b"up", {})


def _messages(root, session):
    with Subscriber(root, stream=STREAM, session=session, follow=False) as reader:
        return list(reader)
