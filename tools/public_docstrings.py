"""Removes from the site's docstrings the block that says which thread may touch what."""

import re
from typing import Any, Final

import griffe

# From its heading to the next line that is indented no further, or to the end.
_THREADS: Final = re.compile(r"^( *)Threads:\n(?:\1 +.*\n?|\n)*", re.MULTILINE)


class PublicDocstrings(griffe.Extension):
    """Leaves out blocks headed `Threads:`, which name private fields; mkdocs.yml loads this."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of a class or function that was read."""
        if obj.docstring is not None:
            obj.docstring.value = _THREADS.sub("", obj.docstring.value)
