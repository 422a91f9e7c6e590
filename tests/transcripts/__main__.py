"""Play every transcript; `--rewrite` records the new output, for review."""

import sys
from pathlib import Path

from .player import Stage

HERE = Path(__file__).parent


def play(text: str) -> str:
    """The same transcript with the output of the current code.

    A line that begins with `> ` is a command; the indented lines after it are its output; every
    other line is kept as it is.
    """
    stage, lines, answering = Stage(), [], False
    for line in text.splitlines():
        if line.startswith("> "):
            lines += [line, *(f"  {output}" for output in stage.perform(line[2:]))]
            answering = True
        elif not answering or not line.startswith("  "):
            lines.append(line)
            answering = False
    return "\n".join(lines) + "\n"


def transcripts() -> list[Path]:
    """All of them, by name."""
    return sorted(HERE.glob("*.txt"))


def main() -> int:
    """Compare, or rewrite."""
    differing = 0
    for path in transcripts():
        now = play(path.read_text())
        if now != path.read_text():
            differing += 1
            print(f"{path.name}: {'rewritten' if '--rewrite' in sys.argv else 'differs'}")
            if "--rewrite" in sys.argv:
                path.write_text(now)
    return 0 if "--rewrite" in sys.argv else min(differing, 1)


if __name__ == "__main__":
    sys.exit(main())
