"""PublishSettings: how `rt publish` writes a session."""

from dataclasses import dataclass, field

from rt.config.kinds import Bytes, Seconds
from rt.limits import FRAME_BYTES_DEFAULT, MESSAGE_BYTES_MAX
from rt.log.confirmations import Level
from rt.log.writer import Fsync, WriterSettings
from rt.names import parse_group, parse_session, parse_stream
from rt.position import FILE_BYTES_MAX
from rt.publisher import Batching


@dataclass(frozen=True, slots=True)
class PublishSettings:
    """Everything `rt publish` is told; each field is a key, a variable and an option."""

    session: str = field(metadata={"help": "This publisher's own name in the stream."})
    root: str = field(
        default="rt-data", metadata={"help": "Directory under which streams live; made if need be."}
    )
    stream: str = field(default="stream", metadata={"help": "Name of the stream."})
    group: str = field(
        default="", metadata={"help": "Redundant publishers of the same messages share a group."}
    )
    fsync: str = field(
        default=Fsync.INTERVAL.value,
        metadata={"help": "When to sync unasked: always, interval or never."},
    )
    fsync_interval_s: Seconds = field(
        default=0.2, metadata={"help": "Between two syncs of the policy interval."}
    )
    flush: str = field(
        default="synced",
        metadata={"help": "Wait at the end for: written, synced, received, replicated or merged."},
    )
    flush_timeout_s: Seconds = field(default=30.0, metadata={"help": "How long to wait for that."})
    file_bytes: Bytes = field(
        default=FILE_BYTES_MAX, metadata={"help": "A file rolls before it passes this."}
    )
    file_age_s: Seconds = field(
        default=0.0, metadata={"help": "A file rolls so long after its first message; 0 is never."}
    )
    frame_bytes: Bytes = field(
        default=FRAME_BYTES_DEFAULT, metadata={"help": "How much goes into one frame at most."}
    )
    compression: int = field(default=0, metadata={"help": "Level of zstd, 1 to 19; 0 is none."})
    message_bytes_max: Bytes = field(
        default=MESSAGE_BYTES_MAX, metadata={"help": "Longer messages are refused."}
    )

    def __post_init__(self) -> None:
        parse_session(self.session)
        parse_stream(self.stream)
        parse_group(self.group)
        Level.parse(self.flush)
        if self.fsync not in [policy.value for policy in Fsync]:
            raise ValueError(f"fsync is {self.fsync!r}; use always, interval or never")
        self.writer()
        self.batching()

    def writer(self) -> WriterSettings:
        """How the session's files are written."""
        return WriterSettings(
            fsync=Fsync(self.fsync),
            fsync_interval_s=self.fsync_interval_s,
            file_bytes_max=self.file_bytes,
            file_age_s=self.file_age_s,
            compression=self.compression,
        )

    def batching(self) -> Batching:
        """How messages become frames."""
        return Batching(frame_bytes=self.frame_bytes, message_bytes_max=self.message_bytes_max)
