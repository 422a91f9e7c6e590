"""The version of the package, and how peers introduce themselves."""

from typing import Final

__version__: Final = "0.1.0"
SOFTWARE: Final = f"rt {__version__}"  # how peers introduce themselves
