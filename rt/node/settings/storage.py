"""StorageSettings: how a node uses its disk."""

from dataclasses import dataclass, field, replace
from typing import Self

from replicator.repair.scrubber import SCRUB_BYTES_S, SCRUB_EVERY_S
from rt.config.kinds import Bytes, Seconds
from rt.errors import Misuse
from rt.limits import KIB, MIB
from rt.position import FILE_BYTES_MAX


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """StorageSettings: when a node rolls, removes and scrubs files, and saves its state.

    Also when it refuses new data, and which log its cluster was founded from.
    """

    file_bytes: Bytes = field(
        default=FILE_BYTES_MAX,
        metadata={
            "help": "Roll a merged file before it exceeds this size; the same on all nodes, and "
            "fixed when the cluster is founded."
        },
    )
    file_age_s: Seconds = field(
        default=86_400.0,
        metadata={"help": "Roll a merged file at this age, or at the policy's time; 0 is never."},
    )
    fold_s: Seconds = field(
        default=0.0,
        metadata={"help": "Remove an empty archived file after this; 0 keeps it forever."},
    )
    snapshot_s: Seconds = field(
        default=5.0, metadata={"help": "Time between snapshots of the sequencer's state."}
    )
    scrub_bytes_s: Bytes = field(
        default=SCRUB_BYTES_S,
        metadata={
            "help": "Read this much of the rolled files each second, to find what the disk has "
            "lost and fetch it from another node; 0 reads none."
        },
    )
    scrub_every_s: Seconds = field(
        default=SCRUB_EVERY_S,
        metadata={"help": "Begin to read all rolled files again this long after the last time."},
    )
    reserve: Bytes = field(
        default=256 * MIB,
        metadata={"help": "Refuse new data while less disk space than this is free."},
    )

    lose_confirmed_on_power_cut: bool = field(
        default=False,
        metadata={
            "help": "Acknowledge before the journal is synced: faster, but if most nodes lose "
            "power, confirmed messages are lost and the cluster has to be founded again."
        },
    )
    founded_from: str = field(
        default="",
        metadata={
            "help": "The merged log that the cluster is founded from, for the first start; rt "
            "cluster init --from writes this, founded_at and founded_groups."
        },
    )
    founded_at: str = field(
        default="", metadata={"help": "Where the log of founded_from ends, and its digest."}
    )
    founded_groups: tuple[str, ...] = field(
        default=(), metadata={"help": "Groups of the log of founded_from: GROUP=SESSION,SESSION."}
    )
    founded_state: str = field(
        default="",
        metadata={"help": "A standby's state for the log of founded_from; the same on each node."},
    )
    log_id: str = field(
        default="",
        metadata={"help": "The id of the merged log, if it continues another cluster's log."},
    )

    @property
    def of_new_stream(self) -> Self:
        """The same settings for a stream that starts empty, without the founding log."""
        return replace(
            self, founded_from="", founded_at="", founded_groups=(), founded_state="", log_id=""
        )

    def __post_init__(self) -> None:
        if not 64 * KIB <= self.file_bytes <= FILE_BYTES_MAX:
            raise Misuse(f"file_bytes is {self.file_bytes}; use {64 * KIB} to {FILE_BYTES_MAX}")
        if self.file_age_s and self.file_age_s < 1:
            raise Misuse(f"file_age_s is {self.file_age_s:g}; use 1 or more, or 0 for never")
        if self.scrub_every_s < 0:
            raise Misuse(f"scrub_every_s is {self.scrub_every_s:g}; use 0 or more")
        if not 0.1 <= self.snapshot_s <= 3600:
            raise Misuse(f"snapshot_s is {self.snapshot_s}; use 0.1 to 3600")
