"""Files: lists the log files of a directory, and loads its manifest."""

from rt.errors import ManifestError
from rt.format.manifest import Manifest
from rt.log.disk import Disk, File
from rt.position import Position, file_position


def log_files(disk: Disk, directory: str) -> list[Position]:
    """Return where the log files in a directory start, oldest first; other names are ignored."""
    starts = (file_position(name) for name in disk.names(directory))
    return sorted(start for start in starts if start is not None)


def load_manifest(file: File, path: str) -> Manifest:
    """Read a manifest for its owner.

    Raises:
        ManifestError: a finished line is damaged; the message names the file.
    """
    manifest = Manifest()
    try:
        manifest.feed(file.pread(file.size(), 0))
    except ManifestError as error:
        raise ManifestError(f"{path}: {error}") from None
    return manifest
