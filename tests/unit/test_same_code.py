"""The proof that a rewrite of prose left the code alone."""

import pytest

from tools.same_code import code_of

CODE = '''"""A module."""
class Pair:
    """Two."""

    first: int = 1  # of them
    """The first."""

    def total(self) -> int:
        """Add."""
        return self.first + 1
'''


def test_docstrings_and_comments_are_not_code():
    """A rewrite of a thousand of them is accepted because this shows that the code is the same."""
    bare = "class Pair:\n first: int = 1\n def total(self) -> int:\n  return self.first + 1"
    assert code_of(CODE) == code_of(bare)


@pytest.mark.parametrize(
    ("old", "new"), [("= 1 ", "= 2 "), ("first", "second"), ("-> int", "-> str")]
)
def test_every_other_change_is_a_change_of_code(old, new):
    """Reading a large diff does not reveal a slip of the editor; this does."""
    assert code_of(CODE.replace(old, new)) != code_of(CODE)
