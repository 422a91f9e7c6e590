"""Mistakes with frames that stay in memory until they are merged: ADR 29."""

from rt.log.write.appender import Appender
from rt.log.write.recent_frames import FrameMemory, RecentFrames
from rt.node.ingest.inbox import NodeInbox
from sequencer.planning.session_log import SessionLogs

from .mutants_merge import merging
from .mutation import Patch, noticed_by, rewritten


@merging
@noticed_by("unit/test_recent_frames.py::test_no_frame_outlives_its_copy")
def frames_outlive_their_copy() -> list[Patch]:
    """What was received of a copy that was reset or set aside stays in memory."""
    return [rewritten(Appender, "close", "self.recent.clear()", "pass")]


@merging
@noticed_by("unit/test_recent_frames.py::test_a_doubted_copy_is_read_from_its_file")
def frames_of_a_doubted_copy_are_used() -> list[Patch]:
    """A copy that may differ from what was merged is taken from memory, and not from the disk."""
    return [rewritten(SessionLogs, "forget", "copy.recent.clear()", "pass")]


@merging
@noticed_by(
    "unit/test_recent_frames.py::test_a_copy_that_is_not_what_was_carried_is_found_by_its_next_sync"
)
def carried_and_never_compared() -> list[Patch]:
    """A sync calls a copy durable whose file has other bytes than were merged from memory."""
    return [(NodeInbox, "_is_as_used", lambda self, recent: True)]


@merging
@noticed_by(
    "unit/test_recent_frames.py::test_a_copy_that_is_not_what_was_carried_is_found_by_its_next_sync"
)
def used_and_not_noted() -> list[Patch]:
    """It is not noted what was merged from memory, so no sync compares it."""
    return [(RecentFrames, "use", lambda self, frames: True)]


@merging
@noticed_by(
    "unit/test_recent_frames.py"
    "::test_what_is_merged_while_a_sync_compares_is_compared_by_the_next_and_alone"
)
def compared_and_not_forgotten() -> list[Patch]:
    """Each sync of a session that never pauses compares all that was merged since it began."""
    return [rewritten(RecentFrames, "take_used", "self.used, ()", "self.used, self.used")]


@merging
@noticed_by(
    "unit/test_recent_frames.py::test_what_was_archived_before_its_sync_is_not_called_damaged"
)
def archived_and_compared() -> list[Patch]:
    """A file that was archived before its copy's sync is compared, and called damaged."""
    return [rewritten(Appender, "compare", "begin.file in self.manifest.archived", "False")]


@merging
@noticed_by("unit/test_recent_frames.py::test_no_frame_past_the_end_is_returned")
def served_past_the_end() -> list[Patch]:
    """Pullers are sent from memory what may not be served yet."""
    return [rewritten(RecentFrames, "between", " and each.end <= end", "")]


@merging
@noticed_by("unit/test_recent_frames.py::test_what_was_merged_is_not_kept")
def merged_and_kept() -> list[Patch]:
    """A copy's frames stay in memory after they were merged."""
    return [rewritten(NodeInbox, "merge_to", "self.appender.recent.release(end)", "pass")]


@merging
def any_number_of_frames_of_a_log() -> list[Patch]:
    """The frames of one log in memory have no bound."""
    return [rewritten(RecentFrames, "keep", "> memory.bounds.log", "> 1 << 40")]


@merging
@noticed_by("unit/test_recent_frames.py::test_the_memory_of_all_logs_is_bounded_and_accounted_for")
def any_number_of_frames() -> list[Patch]:
    """The frames of all logs in memory have no bound."""
    right = "self.taken + self.bounds.step > self.bounds.all"
    return [rewritten(FrameMemory, "has_room", right, "False")]
