"""The file of a local cursor survives a power cut as it was stored last."""

import os

from rt.client.readers.cursor import LocalCursor
from rt.log.files.disk import OsDisk
from rt.position import Position


class FrailFile:
    """A file of which the disk forgets what was not synced."""

    def __init__(self, file, path, disk):
        self.file, self.path, self.disk = file, path, disk

    def truncate(self, length):
        self.file.truncate(length)

    def append(self, parts):
        self.disk.unsynced.add(self.path)
        return self.file.append(parts)

    def sync(self):
        self.file.sync()
        self.disk.unsynced.discard(self.path)

    def close(self):
        self.file.close()


class FrailDisk(OsDisk):
    """A disk whose power is cut right after each rename: the name is durable, the bytes may not."""

    def __init__(self):
        super().__init__()
        self.unsynced = set()

    def open(self, path, *, create=False):
        return FrailFile(super().open(path, create=create), path, self)

    def replace(self, source, target):
        if source in self.unsynced:
            os.truncate(source, 0)
        super().replace(source, target)


def test_an_acknowledgement_with_sync_survives_a_power_cut(tmp_path):
    """A file that is renamed before it is synced is empty then, and the place is lost."""
    cursor = LocalCursor(str(tmp_path), "flights", "etl", disk=FrailDisk())
    cursor.open_at(Position(0), "5" * 32)
    cursor.ack(Position(64), sync=True)
    cursor.close()
    again = LocalCursor(str(tmp_path), "flights", "etl")
    assert again.state.position == 64
    again.close()
