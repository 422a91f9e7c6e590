"""Decoders: hostile bytes with right checksums end in an error that has a name."""

import os
from random import Random

import pytest

from archiver.lease import parse_lease
from replicator.repair.scrub_record import NAME, ScrubRecord
from rt.client.readers.checkpoint import Checkpoint, Values
from rt.errors import CorruptLog, Misuse
from rt.net.authority.issued import ISSUED_NAME, issued_to
from rt.node.retain.retention import leases_of_notes
from rt.offload.offload import copy_of
from rt.offload.store import open_store
from rt.position import Position
from rt.publisher import Publisher
from tests.data_fuzz import DECODERS, demand_tried
from tests.note_fuzz import NOTES
from tests.peer_fuzz import PEERS

RUNS = 1500  # `make faults` does 200,000
FUZZERS = DECODERS | NOTES | PEERS
NESTED = b"[" * 1000  # `json.loads` raises a RecursionError, which is no ValueError


def nested_in(directory, name):
    """Write a file that is nested deeper than Python reads."""
    with open(os.path.join(directory, name), "wb") as file:
        file.write(NESTED + b"\n")
    return str(directory)


@pytest.mark.parametrize("name", FUZZERS)
def test_no_sealed_bytes_raise_an_unnamed_error(name):
    """An error that is not expected ends the thread that serves a peer, or the node."""
    demand_tried(FUZZERS[name], Random(15), RUNS)


def test_a_deeply_nested_record_of_scrubbing_is_one_that_is_not_there(tmp_path):
    """It ended a node at its start."""
    assert ScrubRecord(nested_in(tmp_path, NAME)).finished_ns == 0


def test_a_deeply_nested_record_of_certificates_is_named(tmp_path):
    """A certificate could be revoked no more, and nothing said why."""
    with pytest.raises(Misuse, match="line 1 is not a record of a certificate"):
        issued_to(nested_in(tmp_path, ISSUED_NAME), "jfk")


def test_deeply_nested_facts_of_a_copy_are_named(tmp_path):
    """Others may write to the store that a log was offloaded to."""
    store = open_store(nested_in(tmp_path, "log.0.0.json"))
    [name] = store.names()
    with pytest.raises(CorruptLog, match=name):
        copy_of(store, "log.0.0")


@pytest.mark.parametrize("start", ["1e999", "-1e999", "NaN", "1.5", '"x"', "[]", "null", "-1"])
def test_a_lease_without_a_position_is_named(start):
    """A committed one raised an OverflowError on every node, again after each restart."""
    text = f'{{"holder":"spark","start":{start},"until_ns":9,"bytes_max":1}}'
    with pytest.raises(Misuse, match="not a lease"):
        parse_lease(text)
    [held] = leases_of_notes({"lease spark": text})
    assert held.holder == "unreadable", "nothing is archived on an inference"


def test_a_deeply_nested_lease_is_named():
    """As every other text that is not a lease."""
    with pytest.raises(Misuse, match="not a lease"):
        parse_lease(NESTED.decode())


def test_a_deeply_nested_checkpoint_is_passed_over(tmp_path):
    """The other one of the two may be whole."""
    checkpoint = Checkpoint(str(tmp_path), "flights", "prices", "0" * 32)
    checkpoint.store(Values(Position(8), {}))
    with Publisher(checkpoint.directory, stream="values", session="b") as publisher:
        publisher.publish(NESTED)
    assert checkpoint.load() == Values(Position(8), {})
