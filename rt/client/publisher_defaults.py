"""PublisherDefaults: what publishers wait for and keep by default."""

from dataclasses import dataclass, field

from rt.client.standby_reach import parse_keep
from rt.config.kinds import Seconds
from rt.log.notify.confirmations import Level


@dataclass(frozen=True, slots=True)
class PublisherDefaults:
    """PublisherDefaults: the table `[publisher]` of a client's configuration.

    With this table, a stream's operator sets defaults for all programs that use the file.
    """

    confirm: str = field(
        default="merged",
        metadata={"help": "Level that publishers wait for: received, replicated or merged."},
    )
    confirm_timeout_s: Seconds = field(
        default=30.0, metadata={"help": "How long they wait for a level."}
    )
    keep: str = field(
        default="",
        metadata={
            "help": "How much longer merged files are kept: a time such as 1h, or standby, until a "
            "standby has them."
        },
    )

    def __post_init__(self) -> None:
        try:
            Level.parse(self.confirm)
        except ValueError as error:
            raise ValueError(f"confirm: {error}") from None
        parse_keep(self.keep)
