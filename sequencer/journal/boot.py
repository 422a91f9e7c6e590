"""The boot in which a state directory was last written, to tell torn writes from damage.

Only a power cut tears writes. The kernel draws a random id at each boot. While the stored id is the
current one, there was no power cut, so unreadable bytes are damage.
"""

from typing import Final

from rt.format.checksum import crc32
from rt.log.files.disk import Disk, read_or_rotten
from sequencer.journal.identity import write_whole

BOOT_NAME: Final = "boot"
BOOT_BYTES_MAX: Final = 256  # a UUID of 36 characters and its checksum


def read_boot(disk: Disk, path: str) -> str | None:
    """The stored boot id, "" if there is none, or None if it is damaged."""
    try:
        line, _, rest = read_or_rotten(disk, f"{path}/{BOOT_NAME}", BOOT_BYTES_MAX).partition(b"\n")
    except FileNotFoundError:
        return ""
    return line.decode() if rest == b"%08x\n" % crc32(line) else None


def write_boot(disk: Disk, path: str, boot: str) -> None:
    """Store the boot id durably."""
    line = boot.encode()
    write_whole(disk, path, BOOT_NAME, [b"%s\n%08x\n" % (line, crc32(line))])
