"""Mistakes on the short road of a lone message, which is compared with the general one.

Few lone messages of the worlds meet what these are about, so tests of the road itself notice them.
"""

from sequencer.execution.lone_messages import LoneMessages

from .mutants_merge import merging
from .mutation import Patch, noticed_by, rewritten


@merging
@noticed_by("unit/test_lone_messages.py::test_a_repeat_is_left_to_the_general_road")
def lone_repeats() -> list[Patch]:
    """A lone message that repeats another is merged as if it were new."""
    wrong = "not header.messages"
    return [rewritten(LoneMessages, "plan", "header.sequence < following or " + wrong, wrong)]


@merging
@noticed_by("unit/test_lone_messages.py::test_an_instruction_for_another_state_is_not_merged")
def lone_at_any_number() -> list[Patch]:
    """A lone message is merged whose numbers were planned on another state."""
    return [
        rewritten(
            LoneMessages, "merge", "ledger.watermarks.get(session, 0) != each.watermark", "False"
        )
    ]


@merging
@noticed_by(
    "unit/test_lone_messages.py::test_a_copy_whose_message_comes_later_than_the_leaders_is_doubted"
)
def lone_and_not_doubted() -> list[Patch]:
    """A copy counts as what was merged, although the message came from the leader first."""
    return [
        rewritten(LoneMessages, "_headings", "executor.unproven[session] = None", "pass")
    ]  # fmt: skip


@merging
@noticed_by("unit/test_lone_messages.py::test_a_file_that_is_full_is_rolled_by_the_general_road")
def lone_past_the_end_of_a_file() -> list[Patch]:
    """A lone message is appended to a file that is full."""
    wrong = "(place & _IN_FILE) + size > ledger.file_bytes_max"
    return [rewritten(LoneMessages, "merge", wrong, "False")]
