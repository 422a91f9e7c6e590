"""Stall reasons: sentences that say which hops of a node do not move, and what each waits for."""

from typing import Final

from rt.amounts import size_text
from rt.node.observe.sample import NodeSample
from rt.node.observe.stall_clock import PULL, SYNC
from rt.text import first_few

_NAMED_MAX: Final = 3


def stalls_of(sample: NodeSample) -> dict[str, str]:
    """Return a sentence for each hop that does not move."""
    return {hop: stall_words(hop, names, sample) for hop, names in names_by_hop(sample).items()}


def names_by_hop(sample: NodeSample) -> dict[str, list[str]]:
    """For each hop that does not move, return the sessions or subscribers that wait for it."""
    hops: dict[str, list[str]] = {}
    for name in sample.stalled:
        hop, _, what = name.partition(" ")
        hops.setdefault(hop, []).append(what)
    return hops


def stall_words(hop: str, names: list[str], sample: NodeSample) -> str:
    """Return a sentence: which hop does not move, for whom, and what it waits for if known."""
    named = first_few(names, _NAMED_MAX)
    if hop == SYNC:
        return f"what was received is not synced ({named}): is the disk slow, or failing?"
    if hop == PULL:
        return f"what is merged is not taken by {named}: is its disk full, or the line down?"
    return f"what is synced is not merged (session {named}): {merge_waits_for(sample)}"


def merge_waits_for(sample: NodeSample) -> str:
    """Return what merging waits for, as far as this node knows."""
    waiting = sample.view.waiting
    if waiting.copy is not None:
        return "the merged log is being copied from another node first"
    if waiting.paused:
        return f"the merged log cannot be written here: {waiting.paused}"
    if waiting.missing is not None:
        return f"session {waiting.missing[0]} has not arrived here up to {waiting.missing[1]}"
    if not sample.view.engine.leader:
        return "no node leads; a majority of the nodes has to be up and to reach each other"
    if not sample.disk.takes_data:
        return f"the disk has {size_text(sample.disk.available)} left"
    return "fewer than a majority of the nodes hold it; can its publisher reach the others?"
