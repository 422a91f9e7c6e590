"""The cost of encrypting the log: AES-256-GCM for each frame, which ADR 9 decides against.

Run it with `python -m benchmarks --only encryption`; other runs leave it out.
"""

import os
import struct
from collections.abc import Callable
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from benchmarks.log import FRAME_BYTES, directory
from benchmarks.report import Row, interleaved, seconds

_FRAMES: Final = 1600  # 400 MiB: more than any cache holds
_HEADER_BYTES: Final = 64  # stays readable, and is authenticated
_NONCE: Final = struct.Struct("<IQ")


def rows(quick: bool) -> list[Row]:
    """Return what writing and reading frames reaches with a cipher, and without one."""
    frames = _FRAMES // (10 if quick else 1)
    data = os.urandom(FRAME_BYTES)
    sealed = data[:_HEADER_BYTES] + _cipher().encrypt(
        _NONCE.pack(0, 0), data[_HEADER_BYTES:], data[:_HEADER_BYTES]
    )
    write = interleaved(lambda: _write_sealed(data, frames), lambda: _write(data, frames))
    read = interleaved(lambda: _read_sealed(sealed, frames), lambda: _read(data, frames))
    return [
        Row(f"{what} frames, AES-256-GCM", value, "MB/s", 0.8, limit, is_ratio=True)
        for what, (value, limit) in (("write", write), ("read", read))
    ]


def _cipher() -> AESGCM:
    return AESGCM(bytes(32))


def _write(data: bytes, frames: int) -> float:
    with directory() as path, open(os.path.join(path, "log"), "wb", buffering=0) as file:

        def work() -> None:
            file.writelines(data for _ in range(frames))

        return frames * len(data) / seconds(work) / 1e6


def _write_sealed(data: bytes, frames: int) -> float:
    cipher, view = _cipher(), memoryview(data)
    with directory() as path, open(os.path.join(path, "log"), "wb", buffering=0) as file:

        def work() -> None:
            for number in range(frames):
                nonce, head = _NONCE.pack(0, number), view[:_HEADER_BYTES]
                file.write(head)
                file.write(cipher.encrypt(nonce, view[_HEADER_BYTES:], head))

        return frames * len(data) / seconds(work) / 1e6


def _read(data: bytes, frames: int) -> float:
    return _reading(data, frames, lambda _frame: None)


def _read_sealed(sealed: bytes, frames: int) -> float:
    cipher = _cipher()

    def opened(frame: memoryview) -> None:
        cipher.decrypt(_NONCE.pack(0, 0), frame[_HEADER_BYTES:], frame[:_HEADER_BYTES])

    return _reading(sealed, frames, opened)


def _reading(frame: bytes, frames: int, take: Callable[[memoryview], None]) -> float:
    with directory() as path:
        name = os.path.join(path, "log")
        with open(name, "wb") as file:
            file.writelines(frame for _ in range(frames))
        space = memoryview(bytearray(len(frame)))
        with open(name, "rb", buffering=0) as file:

            def work() -> None:
                while file.readinto(space):
                    take(space)

            return frames * len(frame) / seconds(work) / 1e6
