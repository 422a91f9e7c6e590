"""ReadSettings: which stream a reading command reads."""

from dataclasses import dataclass, field

from rt.names import parse_stream


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """Each field is a key of the file, a variable and an option."""

    root: str = field(default="rt-data", metadata={"help": "Directory under which streams live."})
    stream: str = field(default="stream", metadata={"help": "Name of the stream."})

    def __post_init__(self) -> None:
        parse_stream(self.stream)
