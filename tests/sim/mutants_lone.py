"""Mistakes on the short road of a lone message, which is compared with the general one."""

from sequencer.execution.lone_messages import LoneMessages

from .mutants_merge import merging
from .mutation import Patch, rewritten


@merging
def lone_repeats() -> list[Patch]:
    """A lone message that repeats another is merged as if it were new."""
    wrong = "not header.messages"
    return [rewritten(LoneMessages, "plan", "header.sequence < following or " + wrong, wrong)]


@merging
def lone_at_any_number() -> list[Patch]:
    """A lone message is merged whose numbers were planned on another state."""
    return [
        rewritten(
            LoneMessages, "merge", "ledger.watermarks.get(session, 0) != each.watermark", "False"
        )
    ]


@merging
def lone_and_not_doubted() -> list[Patch]:
    """A copy counts as what was merged, although the message came from the leader first."""
    return [
        rewritten(LoneMessages, "_headings", "executor.unproven[session] = None", "pass")
    ]  # fmt: skip


@merging
def lone_of_another_copy() -> list[Patch]:
    """What the leader carries is not compared with what this node has received."""
    return [rewritten(LoneMessages, "_headings", "frames.data != each.carried", "False")]


@merging
def lone_past_the_end_of_a_file() -> list[Patch]:
    """A lone message is appended to a file that is full."""
    wrong = "(place & _IN_FILE) + size > ledger.file_bytes_max"
    return [rewritten(LoneMessages, "merge", wrong, "False")]
