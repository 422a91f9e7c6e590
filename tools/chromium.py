"""Install Chromium into the virtual environment, for the tests that look at pages.

    .venv/bin/python tools/chromium.py

It comes from npm, as a package that holds the browser compressed, for Linux on x86-64; npm asks the
registry that it is configured with. Without npm, or where the browser does not start, it says so
and exits with 1; those tests are skipped then, unless the machine has a Chromium of its own.
"""

import base64
import hashlib
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

PACKAGE: Final = "@sparticuz/chromium@153.0.0"
SHA512: Final = (
    "jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA=="
)
BROWSER: Final = Path(sys.prefix, "chromium", "chromium")
_COMPRESSED: Final = "package/bin/chromium.br"
_DECOMPRESS: Final = """
const {createReadStream, createWriteStream} = require("fs")
const {createBrotliDecompress} = require("zlib")
const [source, target] = process.argv.slice(1)
require("stream").pipeline(createReadStream(source), createBrotliDecompress(),
    createWriteStream(target, {mode: 0o755}), error => process.exit(error ? 1 : 0))
"""
_WAIT_S: Final = 300


def main() -> int:
    """Install it, unless it is there; return the exit code."""
    if BROWSER.exists():
        return 0
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return _say("there is a package for Linux on x86-64 only")
    if not (shutil.which("npm") and shutil.which("node")):
        return _say("npm was not found")
    with tempfile.TemporaryDirectory() as draft:
        try:
            made = _unpacked(Path(draft))
            started = subprocess.run(
                [made, "--version"], capture_output=True, text=True, timeout=_WAIT_S, check=False
            )
        except (
            OSError,
            subprocess.SubprocessError,
            tarfile.TarError,
            KeyError,
            ValueError,
        ) as error:
            return _say(f"{PACKAGE}: {error}")
        if started.returncode:  # most likely a library is missing
            return _say(f"it does not start: {started.stderr.strip()[:200]}")
        BROWSER.parent.mkdir(exist_ok=True)
        shutil.move(made, BROWSER)
    print(f"{BROWSER}: {started.stdout.strip()}")
    return 0


def _unpacked(draft: Path) -> Path:
    """Download the package and check it; return the path of the browser.

    Raises:
        ValueError: it is another package than the one that is recorded here.
    """
    subprocess.run(
        ["npm", "pack", PACKAGE, "--silent", "--pack-destination", draft],
        capture_output=True, timeout=_WAIT_S, check=True, cwd=draft,
    )  # fmt: skip
    [package] = draft.glob("*.tgz")
    found = base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()
    if found != SHA512:
        raise ValueError(f"its SHA-512 is {found}, where {SHA512} is recorded")
    made, compressed = draft / "chromium", draft / "chromium.br"
    with tarfile.open(package) as archive, compressed.open("xb") as file:
        source = archive.extractfile(_COMPRESSED)
        if source is None:
            raise ValueError(f"it has no file {_COMPRESSED}")
        shutil.copyfileobj(source, file)
    subprocess.run(["node", "-e", _DECOMPRESS, compressed, made], timeout=_WAIT_S, check=True)
    return made


def _say(why: str) -> int:
    print(f"Chromium was not installed, so tests of pages may be skipped: {why}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
