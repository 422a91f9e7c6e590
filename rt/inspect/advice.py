"""Advice: what an operator should do about each kind of finding of `rt verify`."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rt.inspect.compare import Comparison
from rt.inspect.verify import FileReport, LogReport, LogState
from rt.log.files.indexing import IndexState


class Finding(StrEnum):
    """The kinds of findings."""

    TORN = "torn"
    DAMAGED = "damaged"
    MISSING = "missing"
    NO_INDEX = "no index"
    BAD_INDEX = "bad index"
    CONTRADICTION = "contradiction"


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do about one kind of finding in one log.

    Attributes:
        finding: The kind.
        files: The affected files; empty if the finding concerns the log as a whole.
        text: What to do, as a sentence.
    """

    finding: Finding
    files: tuple[str, ...]
    text: str


_AGAIN: Final = (
    "or move DIR aside and let it be copied again: a subscriber's copy by rt pull; a node of "
    "several by stopping it, moving its whole stream directory aside, and starting it again"
)
_REPLACE: Final = (
    "every copy of a rolled file is equal byte for byte: with nothing writing to DIR, replace it "
    f"by the same file of another node's out or of a subscriber's copy, and verify again; {_AGAIN}"
)
_SESSION: Final = (
    "a node sets its own copy of a session (in/NAME) aside and fetches it again; of a publisher's "
    "log, what rt status shows as merged is safe on the nodes, and what follows the damage can be "
    "read with rt subscribe --own-session NAME --from POSITION and published under another name"
)
_TORN: Final = (
    "nothing to do: this is a batch that a crash cut short; it was never confirmed, and the writer "
    "removes it or starts a new file when it runs again"
)
_INDEX: Final = "rt index rebuild DIR; until then seeking takes longer, nothing else is affected"
_CONTRADICTION: Final = (
    "keep everything as it is, and compare with another copy: rt verify DIR OTHER; the copy "
    "without such a finding is the good one"
)
_DIFFER: Final = (
    "keep both, and compare each with a third copy: two that agree are right; move the other aside "
    "and let it be copied again, by rt pull, or by starting its node without its stream directory"
)
_APART: Final = (
    "these are different logs that share a name: of two clusters, or of a publisher whose "
    "directory was deleted; look at when and where each was made, and give one another name"
)


def advice_for(report: LogReport) -> list[Advice]:
    """Return what to do about a log, one entry for each kind of finding."""
    by_kind: dict[Finding, list[FileReport]] = {}
    for file in report.files:
        for kind in findings(file):
            by_kind.setdefault(kind, []).append(file)
    found = [
        Advice(kind, tuple(file.file for file in files), _text(kind, files, report))
        for kind, files in by_kind.items()
    ]
    if report.faults and not {Finding.DAMAGED, Finding.MISSING} & by_kind.keys():
        text = _CONTRADICTION.replace("DIR", report.directory)
        found.append(Advice(Finding.CONTRADICTION, (), text))
    return found


def findings(file: FileReport) -> list[Finding]:
    """Return the kinds of findings in a file's report."""
    if file.state is LogState.CORRUPT:
        return [Finding.MISSING if file.is_missing else Finding.DAMAGED]
    found = [Finding.TORN] if file.state is LogState.TORN else []
    if file.index == IndexState.MISSING:
        found.append(Finding.NO_INDEX)
    elif file.index not in ("", IndexState.GOOD):
        found.append(Finding.BAD_INDEX)
    return found


def advice_on(found: Comparison) -> str:
    """Return what to do about two copies; "" if they are equal."""
    if found.differs_at is None:
        return ""
    return _APART if found.made_apart else _DIFFER


def _text(kind: Finding, files: Sequence[FileReport], report: LogReport) -> str:
    if kind is Finding.TORN:
        return _TORN
    if kind in (Finding.NO_INDEX, Finding.BAD_INDEX):
        return _INDEX.replace("DIR", report.directory)
    if report.kind != "merged":
        return _SESSION.replace("NAME", report.name)
    rolled = all(file.is_rolled for file in files)
    return (_REPLACE if rolled else _AGAIN.removeprefix("or ")).replace("DIR", report.directory)
