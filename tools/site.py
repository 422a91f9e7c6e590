"""Pages of the documentation site that are not files under docs/; mkdocs.yml names this as a hook.

The README is the first page, and the two references are made from the code: the commands from their
options, and the Python interface by mkdocstrings from the names listed here.
"""

import posixpath
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

sys.path.insert(0, str(Path(__file__).parents[1]))

import rt
from tools.command_reference import command_reference

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT: Final = Path(__file__).parents[1]
# What a program may import, by its use. A test compares this with what `rt` and `rt.spark` export.
PYTHON: Final = {
    "A log in a directory": (
        "rt.publisher.Publisher", "rt.log.write.batcher.Batching",
        "rt.log.notify.confirmations.Confirmed",
        "rt.log.notify.confirmations.Confirmations", "rt.log.notify.confirmations.Level",
        "rt.log.write.syncer.Fsync", "rt.log.write.syncer.WriterSettings",
        "rt.log.write.disk_room.DiskLimit",
        "rt.subscriber.Subscriber", "rt.log.read.start.AtTime", "rt.log.read.start.Last",
        "rt.log.read.start.AtSequence",
        "rt.position.Position", "rt.format.message.Message", "rt.format.message.Batch",
    ),
    "Connected": (
        "rt.client.client.connect", "rt.client.client.Client",
        "rt.client.publisher.ClientPublisher", "rt.client.flight.FlightLimit",
        "rt.client.readers.subscription.Subscription", "rt.client.readers.registered.Registered",
        "rt.client.groups.group.Group", "rt.client.groups.group.Delivery",
        "rt.client.groups.group.DeadLetter",
        "rt.client.groups.group_subscriber.GroupSubscriber",
    ),
    "With asyncio": (
        "rt.client.aio.connect", "rt.client.aio.AsyncClient", "rt.client.aio.AsyncPublisher",
    ),
    "Logging": ("rt.client.handler.StreamHandler",),
    "Events": (
        "rt.events.CaughtUp", "rt.events.NewRun", "rt.events.NoMatch",
        "rt.events.SessionChange",
        "rt.events.SessionEvent", "rt.events.Gap", "rt.events.BeyondEnd", "rt.events.Poisoned",
        "rt.events.Dropped", "rt.events.RangeLost", "rt.events.Superseded",
        "rt.events.Lagging", "rt.events.Current", "rt.events.Stalled", "rt.events.Flowing",
    ),
    "Errors": (
        "rt.errors.RtError", "rt.errors.Misuse", "rt.errors.Refused", "rt.errors.LimitReached",
        "rt.errors.SessionFull", "rt.errors.MessagesDropped", "rt.errors.Fenced",
        "rt.errors.ClaimLost", "rt.errors.FlushTimeout",
        "rt.errors.WriterFailed", "rt.errors.CorruptLog", "rt.errors.GapError",
        "rt.errors.SupersededError", "rt.errors.LagError",
        "rt.errors.PoisonError", "rt.errors.ReplacedLog", "rt.errors.PeerError",
        "rt.errors.Stopped",
    ),
    "Spark and Arrow": (
        "rt.spark.session", "rt.spark.register", "rt.spark.read",
        "rt.spark.gaps", "rt.spark.ship", "rt.spark.to_parquet", "rt.arrow.read_arrow",
    ),
}  # fmt: skip
_LINK: Final = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")


def on_config(config: Any) -> Any:
    """Add each decision to the navigation, so that none is listed by hand; mkdocs calls it."""
    config["nav"] = with_decisions(config["nav"])
    return config


def with_decisions(nav: list[Any]) -> list[Any]:
    """Return a navigation in which every decision follows their index."""
    found: list[Any] = []
    for each in nav:
        if isinstance(each, dict):
            found.append(
                {name: with_decisions(inner) if isinstance(inner, list) else inner
                 for name, inner in each.items()}
            )  # fmt: skip
        else:
            found.append(each)
            if each == "adr/index.md":
                found += [f"adr/{path.name}" for path in _decision_files()]
    return found


def _decision_files() -> list[Path]:
    return sorted((ROOT / "docs" / "adr").glob("*.md"))


def on_files(files: "Files", config: Any) -> "Files":
    """Add the pages that are not under docs/, as mkdocs calls it."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - tests import this without mkdocs

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def pages() -> dict[str, str]:
    """Return each generated page, by its path in the site."""
    return {
        "index.md": "---\nhide: [navigation]\n---\n" + _moved("README.md"),
        "CHANGELOG.md": _moved("CHANGELOG.md"),
        "CONTRIBUTING.md": _moved("CONTRIBUTING.md"),
        "LICENSE.txt": (ROOT / "LICENSE").read_text(encoding="utf-8"),
        "adr/index.md": _decisions(),
        "reference/commands.md": command_reference(),
        "reference/python.md": _python_reference(),
    }


def _moved(name: str) -> str:
    """Return a page of the project's root with its links adapted to docs/."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return _LINK.sub(lambda found: _target(found[1]), text)


def _target(link: str) -> str:
    moved = {"docs/adr": "adr/index.md", "LICENSE": "LICENSE.txt"}
    return moved.get(link, posixpath.relpath(link, "docs") if link.startswith("docs/") else link)


def _decisions() -> str:
    lines = ["# Decisions\n\nEach could have gone the other way; its page says why it did not.\n"]
    for path in _decision_files():
        title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        number, _, rest = title.partition(". ")
        lines.append(f"{number}. [{rest}]({path.name})")
    return "\n".join(lines) + "\n"


def _python_reference() -> str:
    parts = ["# Python\n\nThe names of a section are imported from `rt`, or from what it names.\n"]
    for title, names in PYTHON.items():
        parts.append(f"## {title}\n")
        modules = {_imported_from(name) for name in names} - {"rt"}
        parts += [f"Imported from `{module}`.\n" for module in sorted(modules)]
        parts += [f"::: {name}\n" for name in names]
    return "\n".join(parts)


def _imported_from(path: str) -> str:
    """Return the module that a program imports a name from: `rt` if that offers it."""
    module, _, name = path.rpartition(".")
    is_offered = name in rt.__all__ and getattr(rt, name).__module__ == module
    return "rt" if is_offered else module
