"""Issued: the authority's record of the certificates it signed, one JSON object a line.

A name has as many valid certificates as it was renewed in the last 90 days, so to revoke a name is
to revoke all of them, and nothing but this file knows their serial numbers.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final

from rt.errors import Misuse
from rt.log.disk import FILE_MODE, sync_directory

ISSUED_NAME: Final = "issued.jsonl"
_FILE_BYTES_MAX: Final = 64 << 20  # 400,000 certificates


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """One certificate that was signed.

    Attributes:
        serial: its serial number, hexadecimal.
        name: of its holder.
        role: of its holder.
        until: when it expires, as ISO 8601.
    """

    serial: str
    name: str
    role: str
    until: str

    @property
    def number(self) -> int:
        """The serial number."""
        return int(self.serial, 16)

    @property
    def expires(self) -> datetime:
        """When it expires, in UTC."""
        return datetime.fromisoformat(self.until).astimezone(UTC)


def record_issued(directory: str, certificate: IssuedCertificate) -> None:
    """Append to the record and sync it; done before the certificate itself is written."""
    path = os.path.join(directory, ISSUED_NAME)
    is_new = not os.path.exists(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags, FILE_MODE)
    try:
        os.write(fd, json.dumps(asdict(certificate)).encode() + b"\n")
        os.fsync(fd)
    finally:
        os.close(fd)
    if is_new:
        sync_directory(directory)


def issued_to(directory: str, name: str) -> list[IssuedCertificate]:
    """Return what was issued to a name and has not expired.

    Raises:
        Misuse: a line of the record cannot be read.
    """
    now = datetime.now(UTC)
    return [each for each in _read(directory) if each.name == name and each.expires > now]


def _read(directory: str) -> Iterator[IssuedCertificate]:
    path = os.path.join(directory, ISSUED_NAME)
    try:
        with open(path, "rb") as file:
            data = file.read(_FILE_BYTES_MAX)
    except FileNotFoundError:
        return
    for number, line in enumerate(data.splitlines(), 1):
        try:
            issued = IssuedCertificate(**json.loads(line))
            _ = issued.number, issued.expires
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            words = f"{path}: line {number} is not a record of a certificate; restore the file"
            raise Misuse(words) from error
        yield issued
