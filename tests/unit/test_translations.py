"""Checks that every command, option and call in the tables for other systems' users exists."""

import dataclasses
import inspect
import re

import click
import pytest

import rt
from rt.cli.common.environment import FOREIGN, variables
from rt.cli.program import rt as program
from rt.client import aio
from rt.log.notify.confirmations import Level
from rt.node.settings.node import NodeSettings
from tests.layout import source

DOCUMENTS = ("docs/FEATURES.md", "docs/COMING-FROM.md")
# Values, paths and what is quoted of other systems; everything else has to be a name of ours.
PLAIN = {
    "log.run.roll", "ROOT/STREAM/in", "out", "state", "all", "never", "grants.toml", "bytes_s",
    "sessions", "ca.pem", "/metrics", "/readiness", "/healthz", "time", "limit", "disk",
    'spark.read.format("rt-history")', 'format("rt-history")',
}  # fmt: skip
CLASSES = (
    rt.Client, rt.ClientPublisher, rt.Publisher, rt.Subscriber, rt.Subscription, rt.GroupSubscriber,
    rt.Message, rt.Batch, rt.Delivery, rt.DeadLetter, rt.Registered, rt.Group, rt.WriterSettings,
    rt.Batching, rt.DiskLimit, rt.FlightLimit, rt.Confirmed, rt.Confirmations, rt.Dropped, rt.Gap,
    rt.SessionEvent, rt.GapError, rt.FlushTimeout, rt.Last, rt.AtTime, rt.Position,
    rt.MessagesDropped, aio.AsyncClient, aio.AsyncPublisher, NodeSettings,
)  # fmt: skip
FUNCTIONS = (rt.connect, rt.read_arrow)


def names_of(callable_):
    """The names of a callable's parameters."""
    try:
        return set(inspect.signature(callable_).parameters)
    except (TypeError, ValueError):
        return set()


def vocabulary():
    """Every name that a program may use."""
    known = {
        "rt",
        "client",
        "publisher",
        "subscription",
        "message",
        "handler",
        "True",
        *rt.__all__,
        *(level.name.lower() for level in Level),
    }
    known |= {change.value for change in rt.SessionChange}
    for each in FUNCTIONS:
        known |= names_of(each)
    for each in CLASSES:
        known |= names_of(each) | {name for name in dir(each) if not name.startswith("_")}
        if dataclasses.is_dataclass(each):
            known |= {field.name for field in dataclasses.fields(each)}
        for name in dir(each):
            if not name.startswith("_"):
                known |= names_of(getattr(each, name))
    return known


VOCABULARY = vocabulary()
VARIABLES = variables(program, click.Context(program))


def commands(command=program, path=("rt",)):
    """Every command and the options that it takes."""
    yield path, {name for option in command.params for name in option.opts}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), (*path, name))


COMMANDS = dict(commands())
OPTIONS = set().union(*COMMANDS.values()) | {"-v", "--debug", "--help"}


def wrong_command(text):
    """Return the parts of a command line that do not exist."""
    words = text.split()
    depth = next(
        (length for length in range(len(words), 0, -1) if tuple(words[:length]) in COMMANDS), 0
    )
    if depth < 2:
        return [text]
    rest = words[depth:]
    takes = COMMANDS[tuple(words[:depth])]
    is_group = any(path[:depth] == tuple(words[:depth]) and len(path) > depth for path in COMMANDS)
    unknown = [word for word in rest if word.startswith("-") and word.split("=")[0] not in takes]
    return unknown + (rest[:1] if is_group and rest and not rest[0].startswith("-") else [])


def wrong(text):
    """Return what does not exist of a name, call or command line."""
    if text.startswith(("tests/", "adr/")) or text in PLAIN:
        return []
    if text.startswith("rt ") and not text.startswith("rt ="):
        return wrong_command(text)
    if text.startswith("-"):
        return [word for word in text.split() if word not in OPTIONS]
    if text.isupper() and text.startswith("RT_"):
        return [] if text in VARIABLES else [text]
    bare = re.sub(r'"[^"]*"|\b\d[\w/.]*', "", text)
    return [name for name in re.findall(r"[A-Za-z_]\w*", bare) if name not in VOCABULARY | PLAIN]


def rows():
    """Each row of a table: the document, and the cell that says how it is here."""
    for document in DOCUMENTS:
        for line in source(document).splitlines():
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            is_head = set(line) <= set("|- ") or "here" in cells[1:2]
            if line.startswith("| ") and not is_head:
                yield document, cells[1]


@pytest.mark.parametrize(("document", "cell"), list(rows()))
def test_what_a_table_calls_ours_is_ours(document, cell):
    """A name that does not exist costs a reader more than a row that is missing."""
    for text in re.findall(r"`([^`]+)`", cell):
        assert wrong(text) == [], f"{document}: {text}"


@pytest.mark.parametrize(
    "text", ["rt policy set", "rt push --wrong", "publisher(sessionn=)", "RT_STRAEM", "--wrong"]
)
def test_a_name_that_does_not_exist_is_found(text):
    """A check that passes everything would be a decoration."""
    assert wrong(text)


def test_the_calls_of_kx_rt_and_their_variables_have_a_row():
    """Its users look for the name they know."""
    text = source("docs/COMING-FROM.md")
    calls = (
        "/readiness", "/log-history", "/rt-clients", "/dedup-rt-clients", "/hard-reset",
        "/soft-reset", ".rt.pub", ".rt.sub", "publisher_id", "dedup_id", "topic_prefix",
    )  # fmt: skip
    assert [name for name in (*calls, *FOREIGN) if name not in text] == []


def test_a_console_lists_and_explains_every_name():
    """Names that are imported on first use were not in what a reader types Tab for."""
    assert {*rt.__all__} <= {*dir(rt)}
    for name in set(rt.__all__) - {"__version__"}:
        assert inspect.getdoc(getattr(rt, name)), name


@pytest.mark.parametrize("name", ["publish", "publish_many"])
def test_every_publisher_says_that_it_takes_what_it_takes(name):
    """A type checker refuses a program that would run, if the hint is narrower than the call."""
    arguments = [
        inspect.signature(getattr(each, name)).parameters
        for each in (rt.Publisher, rt.ClientPublisher, aio.AsyncPublisher)
    ]
    for argument in set(arguments[0]) - {"self"}:
        hints = {str(each[argument].annotation) for each in arguments}
        assert len(hints) == 1, (argument, hints)


@pytest.mark.parametrize(
    ("blocking", "twin"), [(rt.Client, aio.AsyncClient), (rt.ClientPublisher, aio.AsyncPublisher)]
)
def test_the_asyncio_twin_has_the_same_names_and_arguments(blocking, twin):
    """A program that moves from one to the other changes nothing but `await`."""
    for name, method in inspect.getmembers(blocking):
        if name.startswith("_"):
            continue
        assert hasattr(twin, name), name
        ours, theirs = names_of(method), names_of(getattr(twin, name))
        assert ours == theirs or "arguments" in theirs, name
