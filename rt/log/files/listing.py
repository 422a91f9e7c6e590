"""Files: lists the log files in a directory, and loads its manifest."""

from typing import Final

from rt.errors import ManifestError
from rt.format.manifest import Manifest
from rt.limits import MANIFEST_BYTES_MAX
from rt.log.files.disk import Disk, File, OsFile
from rt.position import Position, file_position

_INODE_BITS: Final = 64


def log_files(disk: Disk, directory: str) -> list[Position]:
    """Return the start positions of a directory's log files, oldest first; skip other names."""
    starts = (file_position(name) for name in disk.names(directory))
    return sorted(start for start in starts if start is not None)


def load_manifest(file: File, path: str) -> Manifest:
    """Read a manifest for its owner.

    Raises:
        ManifestError: a finished line is damaged, or the manifest is too long to be one that rt has
            written; the message names the file.
    """
    manifest = Manifest()
    try:
        manifest.feed(file.pread(manifest_size(file), 0))
    except ManifestError as error:
        raise ManifestError(f"{path}: {error}") from None
    return manifest


def manifest_size(file: File) -> int:
    """Return the bytes of a manifest; `ManifestError` if they are too many to be read."""
    size = file.size()
    if size > MANIFEST_BYTES_MAX:
        raise ManifestError(
            f"a manifest of {size} bytes is not one of ours, which have {MANIFEST_BYTES_MAX} at "
            "most; put the one of a backup in its place"
        )
    return size


def place_of(file: File) -> int:
    """Return device and inode of a file as one integer, to save memory; 0 without an inode."""
    device, inode = file.inode if isinstance(file, OsFile) else (0, 0)
    return device << _INODE_BITS | inode
