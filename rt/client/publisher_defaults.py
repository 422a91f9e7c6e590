"""PublisherDefaults: what publishers wait for where a program does not say."""

from dataclasses import dataclass, field

from rt.config.kinds import Seconds
from rt.log.notify.confirmations import Level


@dataclass(frozen=True, slots=True)
class PublisherDefaults:
    """PublisherDefaults: the table `[publisher]` of a client's configuration.

    The operator of a stream decides so for all programs that are given the file.
    """

    confirm: str = field(
        default="merged",
        metadata={"help": "Level that publishers wait for: received, replicated or merged."},
    )
    confirm_timeout_s: Seconds = field(
        default=30.0, metadata={"help": "How long they wait for a level."}
    )

    def __post_init__(self) -> None:
        try:
            Level.parse(self.confirm)
        except ValueError as error:
            raise ValueError(f"confirm: {error}") from None
