"""Issued: the authority's record of the certificates it signed, one JSON object a line.

A name may have several valid certificates, one for each renewal in the last 90 days. Revoking a
name revokes all of them, and only this file knows their serial numbers.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from io import FileIO
from typing import Final

from rt.errors import Misuse
from rt.log.files.disk import FILE_MODE, sync_directory
from rt.net.authority.files import alone, read_file

ISSUED_NAME: Final = "issued.jsonl"
_FILE_BYTES_MAX: Final = 64 << 20  # 400,000 certificates
_LINE_BYTES_MAX: Final = 4096  # actual lines have at most 250


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """A certificate that was signed.

    Attributes:
        serial: its serial number, hexadecimal.
        name: its holder's name.
        role: its holder's role.
        until: when it expires, as ISO 8601.
    """

    serial: str
    name: str
    role: str
    until: str

    @property
    def number(self) -> int:
        """The serial number as an integer."""
        return int(self.serial, 16)

    @property
    def expires(self) -> datetime:
        """When it expires, in UTC."""
        return datetime.fromisoformat(self.until).astimezone(UTC)


def record_issued(directory: str, certificate: IssuedCertificate) -> None:
    """Append a certificate to the record and sync it; call this before writing the certificate."""
    path = os.path.join(directory, ISSUED_NAME)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with alone(directory), os.fdopen(os.open(path, flags, FILE_MODE), "r+b", 0) as file:
        end = _whole_end(file)
        file.truncate(end)  # drops a line torn by a crash; its certificate was never written
        file.seek(end)
        file.write(json.dumps(asdict(certificate)).encode() + b"\n")
        os.fsync(file.fileno())
    if not end:
        sync_directory(directory)


def _whole_end(file: FileIO) -> int:
    """Return where the last whole line ends."""
    size = os.fstat(file.fileno()).st_size
    begin = max(0, size - _LINE_BYTES_MAX)
    file.seek(begin)
    return begin + file.read().rfind(b"\n") + 1


def issued_to(directory: str, name: str) -> list[IssuedCertificate]:
    """Return the unexpired certificates issued to a name.

    Raises:
        Misuse: a line of the record cannot be read.
    """
    now = datetime.now(UTC)
    return [each for each in _read(directory) if each.name == name and each.expires > now]


def _read(directory: str) -> Iterator[IssuedCertificate]:
    path = os.path.join(directory, ISSUED_NAME)
    try:
        data = read_file(path, _FILE_BYTES_MAX)
    except FileNotFoundError:
        return
    whole = data[: data.rfind(b"\n") + 1]  # a torn line's certificate was never written
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            issued = IssuedCertificate(**json.loads(line))
            _ = issued.number, issued.expires
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            words = f"{path}: line {number} is not a record of a certificate; restore the file"
            raise Misuse(words) from error
        yield issued
