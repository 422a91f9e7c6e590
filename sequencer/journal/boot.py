"""Boot: records in which boot a state directory was last opened, to tell torn writes from damage.

Only a power cut tears writes. The kernel draws a random id at each boot. If the stored id is still
the current one, there was no power cut since, so unreadable bytes are damage.
"""

from typing import Final

from rt.log.files.disk import Disk, read_or_rotten, write_whole
from sequencer.journal.identity import seal, unseal

BOOT_NAME: Final = "boot"
# Holds the id of the boot in which entries are acknowledged before they are synced; "" once all are
# synced.
LATE_NAME: Final = "late"
BOOT_BYTES_MAX: Final = 256  # a UUID of 36 characters and its checksum


def read_boot(disk: Disk, path: str) -> str | None:
    """Return the stored boot id; "" if there is none, None if it is damaged."""
    return _read(disk, path, BOOT_NAME)


def write_boot(disk: Disk, path: str, boot: str) -> None:
    """Store the boot id durably."""
    write_whole(disk, path, BOOT_NAME, [seal(boot.encode())])


def begin_late(disk: Disk, path: str, boot: str) -> None:
    """Record durably that in this boot, entries are acknowledged before they are synced."""
    write_whole(disk, path, LATE_NAME, [seal((boot or "unknown").encode())])


def end_late(disk: Disk, path: str) -> None:
    """Record durably that all entries are synced."""
    if _read(disk, path, LATE_NAME) != "":
        write_whole(disk, path, LATE_NAME, [seal(b"")])


def may_have_lost(disk: Disk, path: str, boot: str) -> bool:
    """Whether entries that were acknowledged in an earlier boot may never have been synced.

    Also true if that cannot be known: the record is damaged, or it names a boot while the running
    boot is unknown.

    Args:
        disk: the disk.
        path: the state directory.
        boot: the id of the running boot, or "" if unknown.
    """
    stored = _read(disk, path, LATE_NAME)
    return stored != "" and (not boot or stored != boot)


def _read(disk: Disk, path: str, name: str) -> str | None:
    try:
        line = unseal(read_or_rotten(disk, f"{path}/{name}", BOOT_BYTES_MAX))
    except FileNotFoundError:
        return ""
    return None if line is None else line.decode()
