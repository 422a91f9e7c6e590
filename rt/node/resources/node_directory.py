"""NodeDirectory: the directory of one running node."""

import os

from rt.latencies import Latencies
from rt.log.files.disk import OsDisk
from rt.log.files.lock import NODE_LOCK_NAME, take_lock
from rt.log.files.pooled_disk import PooledDisk
from rt.names import MERGED_NAME, stream_directory
from rt.net.authority.certificates import certificate_files, check_own
from rt.net.authority.identity import CertificateRole
from rt.node.resources.disk_guard import DiskGuard
from rt.node.settings.node import NodeSettings

SESSIONS, JOURNAL, MERGED = "session", "journal", "merged"  # kinds of measured syncs


class NodeDirectory:
    """NodeDirectory: a node's directory, locked until `close`, and the guard of its disk.

    Attributes:
        inputs: the directory of the copies of sessions.
        merged: the directory of the merged log.
        state: the directory of the consensus state.
        audit: the path of the audit log.
    """

    def __init__(self, settings: NodeSettings) -> None:
        """Lock the directory, creating it if it is missing.

        Raises:
            Misuse: the certificate is not this node's or has expired, or another node runs here.
        """
        files = certificate_files(settings.certs, settings.name)
        check_own(files, (CertificateRole.NODE,), settings.name)
        self.syncs = {kind: Latencies() for kind in (SESSIONS, JOURNAL, MERGED)}
        self.disk = self.disk_of(SESSIONS)
        # There may be more copies of sessions than descriptors.
        self.copies_disk = PooledDisk(syncs=self.syncs[SESSIONS])
        self.path = path = stream_directory(settings.root, settings.stream)
        self.inputs = os.path.join(path, "in")
        self.merged = os.path.join(path, MERGED_NAME)
        self.state = os.path.join(path, "state")
        self.audit = f"{path}.audit.jsonl"
        self.guard = DiskGuard(settings.name, self.path, settings.storage.reserve)
        self.disk.make_directory(self.path)
        self._lock_fd = take_lock(
            self.path,
            f"{self.path} has a running node; stop that, or give this one a --root of its own",
            NODE_LOCK_NAME,
        )

    def disk_of(self, kind: str) -> OsDisk:
        """Return a disk for one kind of files; their sync times are recorded in `syncs`."""
        return OsDisk(self.syncs[kind])

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock_fd)
