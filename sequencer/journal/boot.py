"""The boot in which a state directory was last written, to tell torn writes from damage.

Only a power cut tears writes. The kernel draws a random id at each boot. While the stored id is the
current one, there was no power cut, so unreadable bytes are damage.
"""

from typing import Final

from rt.log.files.disk import Disk, read_or_rotten, write_whole
from sequencer.journal.identity import seal, unseal

BOOT_NAME: Final = "boot"
BOOT_BYTES_MAX: Final = 256  # a UUID of 36 characters and its checksum


def read_boot(disk: Disk, path: str) -> str | None:
    """The stored boot id, "" if there is none, or None if it is damaged."""
    try:
        line = unseal(read_or_rotten(disk, f"{path}/{BOOT_NAME}", BOOT_BYTES_MAX))
    except FileNotFoundError:
        return ""
    return None if line is None else line.decode()


def write_boot(disk: Disk, path: str, boot: str) -> None:
    """Store the boot id durably."""
    write_whole(disk, path, BOOT_NAME, [seal(boot.encode())])
