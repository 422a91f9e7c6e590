"""A client that reaches no node says so, names them and why, and makes no program wait."""

import asyncio
import os
import socket
import threading
from contextlib import closing, contextmanager
from functools import partial

import pytest
from faulty import FaultyDisk

import rt
from rt.client import aio
from rt.client.receipts import Receipts
from rt.errors import FlushTimeout, Stopped
from rt.log.files.lock import take_lock
from rt.log.notify.confirmations import Confirmations, ConfirmationsFile, Level
from rt.log.notify.shipping import ShippingNote
from rt.net.authority.certificates import init_authority, issue
from rt.net.authority.identity import CertificateRole
from rt.net.loop.event_loop import EventLoop
from tests.replicator_host import eventually

STREAM = "flights"


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    """Return a directory with the certificates of a publisher and a subscriber."""
    directory = str(tmp_path_factory.mktemp("certs"))
    init_authority(directory)
    issue(directory, "jfk", CertificateRole.PUBLISHER, sessions=["*"])
    issue(directory, "etl", CertificateRole.SUBSCRIBER, streams=["*"])
    return directory


@pytest.fixture
def closed():
    """Return an address that refuses connections."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{sock.getsockname()[1]}"


@pytest.fixture
def silent():
    """Return an address that takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield f"127.0.0.1:{sock.getsockname()[1]}"


def connected(certs, node, root, identity):
    """Return a client."""
    return rt.connect(nodes=[node], certs=certs, identity=identity, root=root, stream=STREAM)


def is_noted(root, words):
    """Return whether the pusher of session jfk says this; it looks once a second."""
    return words in ShippingNote(os.path.join(root, STREAM, "jfk")).read()


def test_publishing_to_an_address_without_a_node_says_so_once_and_goes_on(
    certs, closed, tmp_path, caplog
):
    """Nothing was raised until a flush, and its future ended without a word."""
    refused = rf"{closed}: no answer \(connection refused\)"
    client = connected(certs, closed, tmp_path, "jfk")
    publisher = client.publisher("jfk")
    future = publisher.publish_future(b"kept")
    assert eventually(lambda: is_noted(tmp_path, "connection refused"))
    with pytest.raises(FlushTimeout, match=f"merged was not reached within 1 s.*{refused}"):
        publisher.flush("merged", 1)
    with pytest.raises(FlushTimeout, match=refused):
        future.result(0.01)
    with pytest.raises(FlushTimeout, match=refused):
        future.exception(0.01)
    with pytest.raises(FlushTimeout, match=refused):
        publisher.publish(b"too", confirm="received", timeout_s=0.01)
    client.close(0.1)
    with pytest.raises(Stopped, match=f"was closed before that: {refused}"):
        future.result(0)
    shipping, closing = caplog.messages
    assert shipping == f"push to {closed}: no answer (connection refused); trying again"
    assert f"({closed}: no answer (connection refused))" in closing


@contextmanager
def receipts_of(publisher, confirmations):
    """Yield the receipts of a publisher that nothing ships, and the loop that they live in."""
    loop = EventLoop()
    try:
        with closing(Receipts(publisher, confirmations, loop)) as receipts:
            yield receipts
    finally:
        loop.stop()


def test_a_late_confirmation_names_the_level_of_its_own_message(tmp_path):
    """It said "only written" of a message that was safe on a majority, as others came after it."""
    with rt.Publisher(tmp_path, stream=STREAM, session="jfk") as publisher:
        confirmations = ConfirmationsFile(str(tmp_path / STREAM / "jfk"))
        with closing(confirmations), receipts_of(publisher, confirmations) as receipts:
            late = receipts.future(Level.MERGED, publisher.publish(b"first"))
            assert eventually(lambda: late.end)
            with pytest.raises(FlushTimeout, match="only synced"):
                late.result(0.01)
            confirmations.write(Confirmations(late.end, late.end))
            publisher.publish(b"later")
            with pytest.raises(FlushTimeout, match="only replicated"):
                late.result(0.01)


def test_a_late_confirmation_promises_no_sync_before_it_is_done(tmp_path):
    """A power cut may still take the message."""
    disk, gate = FaultyDisk(), threading.Semaphore(0)
    with rt.Publisher(tmp_path, stream=STREAM, session="jfk", disk=disk) as publisher:
        disk.step = lambda call: gate.acquire(timeout=60) if call == "sync" else None
        confirmations = ConfirmationsFile(str(tmp_path / STREAM / "jfk"))
        with receipts_of(publisher, confirmations) as receipts:
            late = receipts.future(Level.MERGED, publisher.publish(b"first"))
            with pytest.raises(FlushTimeout, match="only written"):
                late.result(0.01)
            gate.release(1000)


def test_an_awaited_publisher_names_the_node_that_it_waits_for(certs, closed, tmp_path):
    """The asyncio twin has time-outs of its own."""

    async def publish():
        async with aio.connect(
            nodes=[closed], certs=certs, identity="jfk", root=tmp_path, stream=STREAM
        ) as client:
            publisher = await client.publisher("jfk")
            await publisher.publish(b"x", confirm="written")
            is_refused = partial(is_noted, tmp_path, "connection refused")
            assert await asyncio.to_thread(eventually, is_refused)
            with pytest.raises(FlushTimeout, match="connection refused"):
                await publisher.publish(b"x", confirm="merged", timeout_s=1)
            await publisher.close(0.1)

    asyncio.run(publish())


def test_reading_from_an_address_without_a_node_says_so(certs, closed, tmp_path, caplog):
    """A subscriber that follows waits for ever, as it has to; what for is said once."""
    with connected(certs, closed, tmp_path, "etl") as client:
        reader = client.subscriber()
        assert eventually(lambda: caplog.messages)
        why = rf"no answer from {closed} \(connection refused\)"
        with pytest.raises(TimeoutError, match=why):
            client.wait_caught_up(0.01)
        with pytest.raises(TimeoutError, match=why):
            client.subscriber(follow=False, timeout_s=0.01)
        with pytest.raises(TimeoutError, match=why):
            client.last_value(timeout_s=0.01)
        reader.close()
    line = f"pull from {closed}: no answer (connection refused); trying again"
    assert caplog.messages == [line]


def test_a_silent_address_holds_up_no_program_and_is_named_at_once(certs, silent, tmp_path):
    """It takes ten seconds to fail; until then the copy was just `not connected yet`."""
    client = connected(certs, silent, tmp_path, "jfk")
    publisher = client.publisher("jfk")
    publisher.publish(b"kept")
    assert eventually(lambda: is_noted(tmp_path, "no answer yet"))
    with pytest.raises(FlushTimeout, match=f"{silent}: no answer yet"):
        publisher.flush("merged", 1)
    client.close(0.1)


def test_a_client_that_dials_a_silent_address_is_closed_without_waiting_for_it(
    certs, silent, tmp_path
):
    """It waited two seconds for each dial, and left its event loops and a locked copy behind."""
    before = set(threading.enumerate())
    client = connected(certs, silent, tmp_path, "jfk")
    publisher = client.publisher("jfk")
    publisher.publish(b"kept")
    assert eventually(lambda: is_noted(tmp_path, "no answer yet"))
    with pytest.raises(FlushTimeout, match=f"{silent}: no answer yet"):
        publisher.publish(b"kept", confirm="merged", timeout_s=1)
    reading = connected(certs, silent, tmp_path, "etl")
    reader = reading.subscriber()
    client.close(0)
    reading.close(0)
    kept = {"peer", "certificates"}  # the next client's dials and warnings go on in these
    assert eventually(lambda: {each.name for each in {*threading.enumerate()} - before} <= kept)
    os.close(take_lock(reader.directory, "the copy is locked"))
