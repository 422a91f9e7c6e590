"""Writes a session following docs/LOG_FORMAT.md, without our code: ROOT STREAM SESSION TEXT..."""

import json
import os
import struct
import sys
import time
from zlib import crc32


def frame(position, sequence, session, payloads):  # noqa: D103
    times = [time.time_ns()] * len(payloads)
    ends = [sum(map(len, payloads[:count])) for count in range(len(payloads) + 1)]
    body = struct.pack(f"<{len(times)}q{len(ends)}I", *times, *ends) + b"".join(payloads)
    fields = struct.pack(
        "<QQqQIIIIBBBBI", position, sequence, times[0], 0, len(payloads), len(body), len(body),
        crc32(body), 0, 0, 0, 0, crc32(session.encode()),
    )  # fmt: skip
    data = b"RTF\x01" + struct.pack("<I", crc32(fields)) + fields + body
    return data + bytes(-len(data) % 8)


def write(root, stream, session, texts):  # noqa: D103
    directory = os.path.join(root, stream, session)
    os.makedirs(directory)
    line = json.dumps({
        "rt": 1, "what": "log", "kind": "session", "stream": stream, "name": session,
        "id": os.urandom(16).hex(), "created_ns": time.time_ns(),
    }).encode()  # fmt: skip
    with open(os.path.join(directory, "manifest"), "wb") as manifest:
        manifest.write(line + b" %08x\n" % crc32(line))
    with open(os.path.join(directory, "log.0.0"), "wb") as log:
        for number in range(0, len(texts), 3):
            data = frame(log.tell(), number, session, texts[number : number + 3])
            log.write(data)


if __name__ == "__main__":
    write(*sys.argv[1:4], [text.encode() for text in sys.argv[4:]])
