"""Document types: the Python of GUIDE and README under mypy. `python -m tests.document_types`.

Each block becomes a function, since a reader who runs one block reuses the names of the others.
"""

import re
import sys
import tempfile
from pathlib import Path

from mypy import api

from tests.layout import ROOT

DOCUMENTS = ("docs/GUIDE.md", "README.md")


def as_module(texts: list[str]) -> str:
    """Return the code blocks of these documents as one module, with the imports that all need."""
    lines = ["import rt", "from rt import Publisher, Subscriber", ""]
    code = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
    blocks = [block for text in texts for block in code.findall(text)]
    for number, block in enumerate(blocks):
        lines += [f"def block_{number}() -> None:"]
        lines += [f"    {line}" if line else "" for line in block.splitlines()]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Check the documents' code blocks; print mypy's errors, each with its block."""
    module = as_module([(ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "documents.py")
        path.write_text(module, encoding="utf-8")
        said, _, code = api.run(["--config-file", str(ROOT / "pyproject.toml"), str(path)])
    for line in said.splitlines():
        place = re.match(r".*?documents\.py:(\d+)", line)
        print(line)
        if place:
            print("    " + module.splitlines()[int(place[1]) - 1].strip())
    return code


if __name__ == "__main__":
    sys.exit(main())
