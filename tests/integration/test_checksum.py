"""Checksum: the fast CRC-32 and zlib's are one function, and either is enough."""

import subprocess
import sys
import zlib

from hypothesis import given
from hypothesis import strategies as st

from rt.format.checksum import crc32

WITHOUT_ISAL = """
import sys, zlib
sys.modules["isal"] = None
from rt.format.checksum import crc32
from rt.format.frame import body_matches
assert crc32 is zlib.crc32
"""


def test_the_tests_run_with_the_fast_one():
    """It is a dependency: a slow benchmark should not be how its absence is found."""
    assert crc32 is not zlib.crc32


@given(st.binary(max_size=5000), st.integers(0, (1 << 32) - 1), st.integers(0, 100))
def test_both_checksums_are_equal_over_any_bytes(data, start, cut):
    """A frame that was sealed by one is read by the other, on another machine."""
    for view in (data, bytearray(data), memoryview(data)[cut:], memoryview(bytearray(data))[cut:]):
        assert crc32(view) == zlib.crc32(view)
        assert crc32(view, start) == zlib.crc32(view, start)
    assert crc32(data[cut:], crc32(data[:cut])) == zlib.crc32(data)


def test_both_checksums_are_equal_over_every_length_up_to_a_page():
    """The fast one goes by blocks of 16 to 256 bytes, and its ends are other code."""
    data = bytes(index * 37 % 251 for index in range(4200))
    for length in range(4200):
        assert crc32(data[:length]) == zlib.crc32(data[:length])


def test_without_the_package_zlib_does_it():
    """A Spark executor may have been sent this package and nothing else."""
    command = [sys.executable, "-c", WITHOUT_ISAL]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
