"""Limits: every ceiling, with its arithmetic."""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# A connection holds one frame in memory per direction: 100 subscribers of one node take 3.2 GiB at
# worst, and 25 MiB with frames of the usual size (256 KiB).
BODY_BYTES_MAX: Final = 32 * MIB

# Half a body, so that a message and its key always fit into a body, together with their columns.
MESSAGE_BYTES_MAX: Final = 16 * MIB

# The headers of one message, encoded: a page of names and tokens, 0.1 % of the largest message.
HEADERS_BYTES_MAX: Final = 16 * KIB
HEADERS_MAX: Final = 64
HEADER_NAME_BYTES_MAX: Final = 255  # its length is one byte

# A publisher's frame: at 1 GB/s it fills in 0.25 ms, and its header is 0.02 % of it.
FRAME_BYTES_DEFAULT: Final = 256 * KIB

# One read of a log: four usual frames, and small compared with a processor's cache.
READ_BYTES: Final = MIB

# Frames up to this size are also sent at once by the thread that writes them: they fit in one TLS
# record, which a socket has room for.
SMALL_BYTES: Final = 8 * KIB

# zstd frames state their window; no honest body needs a window larger than the body.
ZSTD_WINDOW_BYTES_MAX: Final = BODY_BYTES_MAX

# A manifest line is a short JSON object; we never write a longer one.
MANIFEST_LINE_BYTES_MAX: Final = 4 * KIB

# A million files, each with two lines of about 120 bytes; a longer manifest is not read.
MANIFEST_BYTES_MAX: Final = 256 * MIB

# Session logs are indexed once per this many bytes: 4,096 entries in a full file of 1 GiB.
INDEX_EVERY_BYTES: Final = 256 * KIB
