"""The version of the package, of the log format and of the wire."""

from typing import Final

__version__: Final = "0.1.0"
SOFTWARE: Final = f"rt {__version__}"  # as peers introduce themselves
