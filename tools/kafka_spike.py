"""A spike for docs/adr/0040-kafka.md: a stream behind Kafka's protocol, only to measure it.

    pip install kio confluent-kafka                      # beside rt; and Debian's kcat
    rt up --nodes 3 --root rt-up --stream flights &
    python tools/kafka_spike.py rt-up/clients.toml 9092

One topic, the stream, with one partition; an offset is a message's number. All messages are kept in
memory, groups have one member and are forgotten, and nothing is encrypted or authorized.
"""

import asyncio
import io
import os
import struct
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from kio.index import load_entity_module, load_request_schema
from kio.records.readers import read_batch
from kio.records.schema import NewRecordBatch, Record, RecordHeader
from kio.records.writers import write_new_batch
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

import rt

# One version of each API: old enough for a simple shape, new enough for librdkafka 2.x.
VERSIONS = {
    "produce": 7, "fetch": 11, "list_offsets": 2, "metadata": 4, "api_versions": 0,
    "init_producer_id": 1, "find_coordinator": 2, "join_group": 5, "sync_group": 3,
    "heartbeat": 3, "leave_group": 1, "offset_commit": 7, "offset_fetch": 5,
}  # fmt: skip
SHAPES = {
    name: load_entity_module(name, version, EntityType.response)
    for name, version in VERSIONS.items()
}
NONE, NOW = ErrorCode.none, timedelta(0)
KEYS = {
    getattr(SHAPES[name], "".join(part.title() for part in name.split("_")) + "Response")
    .__api_key__: name
    for name in VERSIONS
}  # fmt: skip
FETCH_BYTES = 1 << 20


class Stream:
    """The merged log in memory, by number, and a session for each producer."""

    def __init__(self, config: str, root: str) -> None:
        self.client = rt.connect(config, root=root)
        self.messages: list[rt.Message] = []
        self.grown = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self.producers: dict[int, rt.ClientPublisher] = {}
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        for message in self.client.subscriber():
            self.messages.append(message)
            self.loop.call_soon_threadsafe(self.grown.set)

    def publish(self, data: bytes, *, waits: bool) -> None:
        """Publish what a batch adds: a producer's sequence numbers are those of its session."""
        offset = 0
        while offset < len(data):
            batch, size = read_batch(data, offset)
            offset += size
            if batch.attributes & 0b111:
                raise NotImplementedError("compressed batches")
            name = "kafka-anonymous" if batch.producer_id < 0 else f"kafka-{batch.producer_id}"
            if batch.producer_id not in self.producers:
                self.producers[batch.producer_id] = self.client.publisher(name, confirm="merged")
            publisher = self.producers[batch.producer_id]
            known = publisher.next_sequence - batch.base_sequence
            fresh = batch.records[max(0, known) if batch.producer_id >= 0 else 0 :]
            if fresh:
                publisher.publish_many(
                    [each.value or b"" for each in fresh], [each.key or b"" for each in fresh],
                    [round(each.timestamp.timestamp() * 1e9) for each in fresh],
                )  # fmt: skip
            if waits:
                publisher.flush("merged", timeout_s=60)

    def batch(self, offset: int) -> bytes:
        """Return the records from an offset on, up to a size, as one batch."""
        size, records = 0, []
        for message in self.messages[offset:]:
            size += len(message.payload) + len(message.key) + 32
            if records and size > FETCH_BYTES:
                break
            headers = tuple(
                RecordHeader(key=name.encode(), value=value)
                for name, value in message.headers.items()
            )
            records.append(
                Record(
                    attributes=0, offset=message.number, key=message.key or None,
                    timestamp=datetime.fromtimestamp(message.time_ns / 1e9, UTC),
                    value=message.payload, headers=headers,
                )
            )  # fmt: skip
        if not records:
            return b""
        with io.BytesIO() as file:
            write_new_batch(file, NewRecordBatch(
                producer_id=-1, producer_epoch=-1, base_sequence=-1, attributes=0,
                records=tuple(records),
            ))  # fmt: skip
            return file.getvalue()


class Broker:
    """Answers requests."""

    def __init__(self, stream: Stream, name: str, port: int) -> None:
        self.stream, self.name, self.port = stream, name, port
        self.committed: dict[tuple[str, str], int] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection, one after the other."""
        try:
            while True:
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                data = await reader.readexactly(length)
                key, version, correlation = struct.unpack(">hhi", data[:8])
                name = KEYS[key]
                if version != VERSIONS[name]:  # only a client that asks for versions may do so
                    print(f"{name} {version} is asked for", file=sys.stderr)
                    answer = self.api_versions(None, ErrorCode.unsupported_version)
                else:
                    request = load_request_schema(key, version)
                    _, used = entity_reader(request.__header_schema__)(data, 0)
                    body, _ = entity_reader(request)(data, used)
                    made = getattr(self, name)(body)
                    answer = await made if asyncio.iscoroutine(made) else made
                if answer is None:
                    continue
                with io.BytesIO() as file:
                    file.write(struct.pack(">i", correlation))
                    entity_writer(type(answer))(file, answer)
                    found = file.getvalue()
                writer.write(struct.pack(">i", len(found)) + found)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def api_versions(self, _: Any, error: ErrorCode = NONE) -> Any:
        """List the APIs; librdkafka 2.0 wants the oldest version of each to be among them."""
        shape = SHAPES["api_versions"]
        keys = tuple(
            shape.ApiVersion(api_key=key, min_version=0, max_version=VERSIONS[name])
            for key, name in KEYS.items()
        )
        return shape.ApiVersionsResponse(error_code=error, api_keys=keys)

    def metadata(self, _: Any) -> Any:
        """One broker leads the one partition of the one topic."""
        shape = SHAPES["metadata"]
        partition = shape.MetadataResponsePartition(
            error_code=NONE, partition_index=0, leader_id=1, replica_nodes=(1,), isr_nodes=(1,)
        )  # fmt: skip
        topic = shape.MetadataResponseTopic(
            error_code=NONE, name=self.name, is_internal=False, partitions=(partition,)
        )
        broker = shape.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port)
        return shape.MetadataResponse(
            throttle_time=NOW, brokers=(broker,), cluster_id="rt", controller_id=1, topics=(topic,)
        )

    def init_producer_id(self, _: Any) -> Any:
        """A producer is a session of its own, under a random number."""
        number = int.from_bytes(os.urandom(4)) & 0x7FFFFFFF
        return SHAPES["init_producer_id"].InitProducerIdResponse(
            throttle_time=NOW, error_code=NONE, producer_id=number, producer_epoch=0
        )

    async def produce(self, request: Any) -> Any:
        """Publish; the answer does not know the offset, which only the merged log gives."""
        shape = SHAPES["produce"]
        for topic in request.topic_data:
            for each in topic.partition_data:
                await asyncio.to_thread(
                    self.stream.publish, bytes(each.records or b""), waits=request.acks != 0
                )
        done = shape.PartitionProduceResponse(
            index=0, error_code=NONE, base_offset=-1, log_append_time=None
        )
        topic = shape.TopicProduceResponse(name=self.name, partition_responses=(done,))
        answer = shape.ProduceResponse(responses=(topic,), throttle_time=NOW)
        return answer if request.acks else None

    async def fetch(self, request: Any) -> Any:
        """Return records, or wait for some."""
        shape, stream = SHAPES["fetch"], self.stream
        offset = next((p.fetch_offset for t in request.topics for p in t.partitions), 0)
        stream.grown.clear()
        if offset >= len(stream.messages):
            with suppress(TimeoutError):
                await asyncio.wait_for(stream.grown.wait(), request.max_wait.total_seconds())
        end = len(stream.messages)
        is_there = 0 <= offset <= end
        part = shape.PartitionData(
            partition_index=0, error_code=NONE if is_there else ErrorCode.offset_out_of_range,
            high_watermark=end, last_stable_offset=end, log_start_offset=0,
            aborted_transactions=(), records=stream.batch(offset) if is_there else b"",
        )  # fmt: skip
        topics = (shape.FetchableTopicResponse(topic=self.name, partitions=(part,)),)
        return shape.FetchResponse(
            throttle_time=NOW, error_code=NONE, responses=topics if request.topics else ()
        )

    def list_offsets(self, request: Any) -> Any:
        """-1 is the end, -2 the beginning, anything else a time in ms."""
        shape, found = SHAPES["list_offsets"], []
        for topic in request.topics:
            for each in topic.partitions:
                at, end = each.timestamp, len(self.stream.messages)
                later = (m.number for m in self.stream.messages if m.time_ns >= at * 1_000_000)
                offset = end if at == -1 else 0 if at == -2 else next(later, end)
                found.append(shape.ListOffsetsPartitionResponse(
                    partition_index=0, error_code=NONE, timestamp=-1, offset=offset
                ))  # fmt: skip
        topic = shape.ListOffsetsTopicResponse(name=self.name, partitions=tuple(found))
        return shape.ListOffsetsResponse(throttle_time=NOW, topics=(topic,))

    # Groups of one member

    def find_coordinator(self, _: Any) -> Any:
        """This broker."""
        return SHAPES["find_coordinator"].FindCoordinatorResponse(
            throttle_time=NOW, error_code=NONE, error_message=None, node_id=1, host="127.0.0.1",
            port=self.port,
        )  # fmt: skip

    def join_group(self, request: Any) -> Any:
        """Its only member leads."""
        shape, protocol = SHAPES["join_group"], request.protocols[0]
        member = shape.JoinGroupResponseMember(
            member_id="one", group_instance_id=None, metadata=protocol.metadata
        )
        return shape.JoinGroupResponse(
            throttle_time=NOW, error_code=NONE, generation_id=1, protocol_name=protocol.name,
            leader="one", member_id="one", members=(member,),
        )  # fmt: skip

    def sync_group(self, request: Any) -> Any:
        """Return what the leader has assigned."""
        assigned = next((each.assignment for each in request.assignments), b"")
        return SHAPES["sync_group"].SyncGroupResponse(
            throttle_time=NOW, error_code=NONE, assignment=assigned
        )

    def heartbeat(self, _: Any) -> Any:
        """All is well."""
        return SHAPES["heartbeat"].HeartbeatResponse(throttle_time=NOW, error_code=NONE)

    def leave_group(self, _: Any) -> Any:
        """Nothing is kept of a member."""
        return SHAPES["leave_group"].LeaveGroupResponse(throttle_time=NOW, error_code=NONE)

    def offset_commit(self, request: Any) -> Any:
        """Keep the offset: a registered cursor would be this."""
        shape = SHAPES["offset_commit"]
        for topic in request.topics:
            for each in topic.partitions:
                self.committed[request.group_id, topic.name] = each.committed_offset
        part = shape.OffsetCommitResponsePartition(partition_index=0, error_code=NONE)
        topic = shape.OffsetCommitResponseTopic(name=self.name, partitions=(part,))
        return shape.OffsetCommitResponse(throttle_time=NOW, topics=(topic,))

    def offset_fetch(self, request: Any) -> Any:
        """Return the committed offset."""
        shape = SHAPES["offset_fetch"]
        part = shape.OffsetFetchResponsePartition(
            partition_index=0, metadata="", error_code=NONE,
            committed_offset=self.committed.get((request.group_id, self.name), -1),
        )  # fmt: skip
        topic = shape.OffsetFetchResponseTopic(name=self.name, partitions=(part,))
        return shape.OffsetFetchResponse(throttle_time=NOW, topics=(topic,), error_code=NONE)


async def main() -> None:
    """Serve until stopped."""
    config, port = sys.argv[1], int(sys.argv[2])
    stream = Stream(config, "kafka-spike")
    broker = Broker(stream, stream.client.stream, port)
    server = await asyncio.start_server(broker.serve, "127.0.0.1", port, limit=1 << 24)
    print(f"topic {broker.name} at 127.0.0.1:{port}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
