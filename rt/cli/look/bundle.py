"""`rt bundle`: collects what a support request needs, without payloads, keys or secrets."""

import io
import os
import platform
import re
import sys
import tarfile
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from typing import Final

import click

from rt.amounts import size_text
from rt.cli.common.asking import NodeAnswer, ask_nodes
from rt.cli.common.config import commands_with_settings, explained
from rt.cli.common.console import note, say, table
from rt.cli.common.options import click_options
from rt.cli.look.doctor import as_node, diagnose, node_settings
from rt.client.readers.settings import ConnectionSettings
from rt.errors import Misuse, RtError, spoken
from rt.inspect.history import history
from rt.inspect.history_text import HistoryText
from rt.masking import HIDDEN, masked, without_secrets
from rt.names import merged_directory
from rt.net.authority.certificates import certificate_files, load_certificate
from rt.text import counted, json_text, printable
from rt.version import __version__

_APART_S: Final = 2.0  # time between the two status answers, so that progress shows
_LINES: Final = 10_000  # lines kept of a log, the last ones
_FILES: Final = 5_000  # lines kept of the manifest's history, the last ones
_LINE_CHARS: Final = 2_000
_LOG_BYTES: Final = 32 << 20  # bytes read of a log, the last ones
# A command may contain a password. A path does not, so the paths of keys are shown.
_SECRET: Final = frozenset({"on_role"})
_ENVIRONMENT: Final = re.compile("RT_[A-Z0-9_]+")
_PEM: Final = re.compile("-----(BEGIN|END) ([A-Z ]+)-----")
_PACKAGES: Final = (
    "rt-transport", "click", "cryptography", "isal", "zstandard", "prometheus-client", "starlette",
    "uvicorn", "pyarrow", "rich",
)  # fmt: skip


@click.command()
@click_options(ConnectionSettings, "status")
@click.option(
    "--node", "node_file", metavar="FILE",
    help="Settings of the node on this machine; adds checks of the machine.",
)  # fmt: skip
@click.option(
    "--log", "logs", metavar="FILE", multiple=True,
    help="Add the last lines of this program log; repeat for more.",
)  # fmt: skip
@click.option("--out", metavar="FILE", help="File to write.  [default: rt-bundle-TIME.tar.gz]")
@click.pass_context
def bundle(
    context: click.Context, *, settings: ConnectionSettings, node_file: str | None,
    logs: tuple[str, ...], out: str | None,
) -> None:  # fmt: skip
    """Collect in one file what a support request needs, without payloads, keys or secrets.

    The file has the settings of every command, with their sources; the nodes' status, twice; what
    rt doctor finds; the history of the merged log's files; names and expiry of certificates;
    versions; and the end of each --log. It names nodes, sessions and peers. Nothing is sent.

    \b
    rt bundle --config flights/clients.toml
    rt bundle --node /etc/rt/n1.toml --log /var/log/rt/n1.log --out n1.tar.gz
    """  # noqa: D301 - click reads the backspace character
    node = None if node_file is None else node_settings(node_file)
    if node is not None:
        settings = as_node(settings, node)
    files = {f"log/{number}-{os.path.basename(path)}.txt": log_end(path)
             for number, path in enumerate(logs, 1)}  # fmt: skip
    files |= {
        "about.json": json_text(_about(), 1),
        "settings.json": json_text(_settings(context.find_root(), node_file), 1),
        "doctor.json": json_text(masked([asdict(each) for each in diagnose(settings, node)]), 1),
        "certificates.json": json_text(_certificates(settings), 1),
        "log-history.jsonl": _history(settings),
        **_status(settings),
    }
    path = out or time.strftime("rt-bundle-%Y%m%dT%H%M%SZ.tar.gz", time.gmtime())
    rows = [[name, size_text(len(text.encode()))] for name, text in sorted(files.items())]
    click.echo(table(("file", "size"), rows))
    _write(path, files)
    say("", f"{path} has {counted(len(files), 'file')}, {size_text(os.path.getsize(path))}; "
        "look through it before you send it")  # fmt: skip


def log_end(path: str, *, lines_max: int = _LINES, bytes_max: int = _LOG_BYTES) -> str:
    """Return the last lines of a log, with control characters escaped and private keys hidden.

    Args:
        path: The log's file.
        lines_max: How many lines to keep.
        bytes_max: How many bytes to read, at the end of the file.

    Raises:
        Misuse: The file is not text; it may be a log of messages, whose payloads must not be sent.
        OSError: The file cannot be read.
    """
    with open(path, "rb") as file:
        skipped = max(0, file.seek(0, os.SEEK_END) - bytes_max)
        file.seek(skipped)
        data = file.read(bytes_max)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "" if not skipped else data.partition(b"\n")[2].decode(errors="replace")
        if not skipped or "\0" in text:
            raise Misuse(f"{path}: not a log of text lines; name what a program logged") from None
    if "\0" in text:
        raise Misuse(f"{path}: not a log of text lines; name what a program logged")
    kept: deque[str] = deque(maxlen=lines_max)
    block = ""  # the kind of PEM block that the line is in; "" outside
    for line in text.split("\n"):
        marks = _PEM.findall(line)
        was_inside, block = bool(block), _after(marks, block)
        if marks or was_inside:
            line = HIDDEN
        kept.append(_shortened(printable(line)))
    return "\n".join(kept)


def _shortened(line: str) -> str:
    """Return the beginning of a line, with secrets hidden."""
    if len(line) > 2 * _LINE_CHARS:
        line = line[: 2 * _LINE_CHARS]
        rest, _, last = line.rpartition(" ")
        if "://" in last:  # the cut may have left a password without the `@` after it
            line = rest
    return without_secrets(line)[:_LINE_CHARS]


def _after(marks: list[tuple[str, str]], block: str) -> str:
    """Return the kind of the PEM block that is open after a line with these marks; "" if none.

    `block` is the kind that was open before the line. A mark is BEGIN or END, with the kind that it
    names.
    """
    for what, name in marks:
        block = name if what == "BEGIN" else ""
    return block


def _about() -> dict[str, object]:
    """Return versions, and the names of `rt`'s variables that are set."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "rt": __version__, "python": sys.version, "platform": platform.platform(),
        "processors": os.cpu_count(), "packages": versions,
        "variables": sorted(name for name in os.environ if _ENVIRONMENT.fullmatch(name)),
        "at_ns": time.time_ns(),
    }  # fmt: skip


def _settings(program: click.Context, node_file: str | None) -> dict[str, object]:
    """Return the settings of each command, or why it would refuse them."""
    found: dict[str, object] = {}
    for command in commands_with_settings(program):
        path = node_file if command == "node" else None
        try:
            given = explained(program, command, path)
        except (click.UsageError, OSError) as error:
            found[command] = without_secrets(spoken(error))
            continue
        found[command] = {
            name: {"value": _shown(name, each.value), "from": each.source}
            for name, each in given.items()
        }  # fmt: skip
    return found


def _shown(name: str, value: object) -> str:
    return HIDDEN if name in _SECRET and value else without_secrets(str(value))


def _status(settings: ConnectionSettings) -> Mapping[str, str]:
    """Return two files by name, with the nodes' answers to two status requests 2 s apart.

    If no node can be asked, returns one file with the reason.
    """
    try:
        first = ask_nodes(settings)
        time.sleep(_APART_S)
        second = ask_nodes(settings)
    except (RtError, OSError) as error:
        note(f"no node was asked: {spoken(error)}")
        return {"status.json": json_text({"error": spoken(error)}, 1)}
    answers = {"status.json": first, "status-later.json": second}
    return {name: json_text([_answer(each) for each in asked], 1)
            for name, asked in answers.items()}  # fmt: skip


def _answer(asked: NodeAnswer) -> dict[str, object]:
    return {"address": asked.address, "asked_ns": asked.sent_ns, "took_s": round(asked.took_s, 4),
            "error": without_secrets(asked.error), **masked(asked.answer)}  # fmt: skip


def _certificates(settings: ConnectionSettings) -> list[dict[str, str]]:
    """Return subject, issuer and validity of this program's certificate and its authority's."""
    files = certificate_files(settings.certs, settings.identity)
    found = []
    for path in (files.cert, files.ca):
        try:
            certificate = load_certificate(path)
            found.append({
                "path": path, "subject": certificate.subject.rfc4514_string(),
                "issuer": certificate.issuer.rfc4514_string(),
                "begins": certificate.not_valid_before_utc.isoformat(),
                "ends": certificate.not_valid_after_utc.isoformat(),
            })  # fmt: skip
        except (Misuse, OSError) as error:
            found.append({"path": path, "error": spoken(error)})
    return found


def _history(settings: ConnectionSettings) -> str:
    """Return the history of the merged log's files on this machine as JSON lines, or the error."""
    directory = merged_directory(settings.root, settings.stream)
    try:
        text = HistoryText(directory, time.time_ns())
        return "\n".join(map(text.json, history(directory)[-_FILES:]))
    except (RtError, OSError) as error:
        return json_text({"directory": directory, "error": spoken(error)})


def _write(path: str, files: Mapping[str, str]) -> None:
    """Write the archive, readable by its owner only; never overwrites a file."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in sorted(files.items()):
            data = text.encode(errors="backslashreplace")
            member = tarfile.TarInfo(f"rt-bundle/{name}")
            member.size, member.mtime, member.mode = len(data), int(time.time()), 0o600
            archive.addfile(member, io.BytesIO(data))
