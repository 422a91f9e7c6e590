"""The package's version, and the name by which it introduces itself to peers."""

from typing import Final

__version__: Final = "0.2.0"
SOFTWARE: Final = f"rt {__version__}"  # sent to peers
