"""Names the files whose code differs between two revisions, ignoring docstrings and comments.

    python tools/same_code.py BASE [HEAD]

HEAD is the work tree by default. Exits with 1 if any file differs, was added or was removed.
"""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Final

_USAGE: Final = "usage: python tools/same_code.py BASE [HEAD]"


def code_of(text: str) -> str:
    """Return a module's syntax tree as text, without docstrings.

    Examples:
        >>> code_of("def f(): 'One.'; return 1  # why") == code_of("def f(): return 1")
        True
    """
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_text(each)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(node: ast.AST) -> bool:
    """Whether a statement is only a string: a docstring, or one after a field."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _git(*arguments: str) -> str:
    """Return what a git command prints; exits with git's message if it fails."""
    done = subprocess.run(["git", *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr.strip())
    return done.stdout


def _text_at(revision: str | None, path: str) -> str | None:
    """Return a file's text at a revision, or in the work tree; None if there is no such file."""
    if revision is None:
        return Path(path).read_text() if Path(path).exists() else None
    if not _git("ls-tree", "--name-only", "--full-tree", revision, "--", path):
        return None
    return _git("show", f"{revision}:{path}")


def differing(base: str, head: str | None) -> list[str]:
    """Return the Python files whose code differs; run at the top of the repository."""
    revisions = [base] if head is None else [base, head]
    changed = _git("diff", "--no-renames", "--name-only", *revisions, "--", "*.py").splitlines()
    found = []
    for path in changed:
        old, new = _text_at(base, path), _text_at(head, path)
        if old is None or new is None or code_of(old) != code_of(new):
            found.append(path)
    return found


def main(arguments: list[str]) -> int:
    """Print the files that differ; 1 if there is any."""
    if len(arguments) not in (1, 2):
        sys.exit(_USAGE)
    found = differing(arguments[0], arguments[1] if len(arguments) > 1 else None)
    print("\n".join(found) if found else "the same code")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
