"""Where the browser is that tests of pages run: the one of `make test`, or the machine's."""

import shutil
import sys
from pathlib import Path

_INSTALLED = Path(sys.prefix, "chromium", "chromium")  # by tools/chromium.py
CHROMIUM = (
    str(_INSTALLED)
    if _INSTALLED.exists()
    else next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
)
