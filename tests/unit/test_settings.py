"""Settings: one definition read from four places, and an error that says which place was wrong."""

import re
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from rt.cli.common.options import click_options
from rt.config.kinds import (
    Bytes,
    Seconds,
    kind_of,
    parse_bytes,
    parse_seconds,
    show_bytes,
    show_seconds,
)
from rt.config.settings import changed, explain, load
from rt.errors import Misuse
from rt.net.addresses import parse_address


class Sync(StrEnum):
    """When a file is synced."""

    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Example:
    """Settings with a field of every kind."""

    root: Path = field(metadata={"help": "Where the streams live."})
    port: int = field(default=5000, metadata={"help": "The port to listen on."})
    ratio: float = 0.5
    quiet: bool = False
    stream: str = "flights"
    nodes: tuple[str, ...] = ()
    frame_bytes: Bytes = 256 * 1024
    linger: Seconds = 0.25
    limit: Bytes | None = None
    sync: Sync = Sync.ALWAYS

    def __post_init__(self):
        if not 0 < self.port < 65536:
            raise ValueError("port must be 1 to 65535")
        if self.frame_bytes < 4096:
            raise ValueError("frame_bytes must be 4Ki or more")


ROOT = {"root": "/r"}


def toml(tmp_path, text):
    """Return the path of a TOML file with this text."""
    path = tmp_path / "rt.toml"
    path.write_text(text)
    return path


def refused(*arguments, **options):
    """Return the message of the refusal."""
    options.setdefault("environment", {})
    with pytest.raises(Misuse) as caught:
        load(Example, *arguments, **options)
    words = str(caught.value)
    assert "\n" not in words
    return words


def test_each_source_wins_over_the_one_before(tmp_path):
    """Defaults are ours, the file the site's, the environment the start's, options the hour's."""
    path = toml(tmp_path, 'root = "/file"\nport = 1\n')
    assert load(Example, path, environment={}).port == 1
    assert load(Example, path, environment={"RT_PORT": "2"}).port == 2
    settings = load(Example, path, environment={"RT_PORT": "2"}, options={"port": "3"})
    assert settings == Example(root=Path("/file"), port=3)


def test_every_kind_reads_the_same_from_text_and_from_toml(tmp_path):
    """Moving a setting from the environment into the file must not mean learning it again."""
    path = toml(
        tmp_path,
        """
        root = "/r"
        port = 7
        ratio = 1
        quiet = true
        stream = "x"
        nodes = ["a:1", "b:2"]
        frame_bytes = "1Mi"
        linger = "2s"
        limit = "90Gi"
        sync = "never"
        """,
    )
    environment = {
        "RT_ROOT": "/r",
        "RT_PORT": "7",
        "RT_RATIO": "1",
        "RT_QUIET": "yes",
        "RT_STREAM": "x",
        "RT_NODES": "a:1, b:2",
        "RT_FRAME_BYTES": "1Mi",
        "RT_LINGER": "2s",
        "RT_LIMIT": "90Gi",
        "RT_SYNC": "never",
    }
    expected = Example(
        Path("/r"), 7, 1.0, True, "x", ("a:1", "b:2"), 1 << 20, 2.0, 90 << 30, Sync.NEVER
    )
    assert load(Example, path, environment={}) == expected
    assert load(Example, environment=environment) == expected
    options = {name.removeprefix("RT_").lower(): text for name, text in environment.items()}
    assert load(Example, environment={}, options=options) == expected


def test_values_in_python_are_taken_as_they_are():
    """A test or a demo passes values and not texts."""
    values = {each.name: getattr(Example(Path("/r")), each.name) for each in fields(Example)}
    assert load(Example, environment={}, options=values) == Example(Path("/r"))


def test_optional_setting_is_turned_off_by_the_word_none(tmp_path):
    """An option must be able to take back what the file set."""
    path = toml(tmp_path, 'root = "/r"\nlimit = "1Gi"\n')
    assert load(Example, path, environment={}).limit == 1 << 30
    assert load(Example, path, environment={"RT_LIMIT": "none"}).limit is None
    path = toml(tmp_path, 'root = "/r"\nlimit = "none"\n')
    assert load(Example, path, environment={}).limit is None


def test_only_our_table_of_the_file_is_read(tmp_path):
    """One file may configure all programs of a machine."""
    path = toml(tmp_path, '[push]\nwhat = 1\n[node]\nroot = "/n"\n')
    assert load(Example, path, "node", environment={}).root == Path("/n")
    assert "root is not set" in refused(path, "pull")


@pytest.mark.parametrize("key", ["prot", "Port", "frame-bytes", "x" * 300, "\u0440ort"])
def test_unknown_key_names_itself_the_file_and_the_nearest_key(tmp_path, key):
    """A misspelt limit that is ignored is no limit at all."""
    path = toml(tmp_path, f'root = "/r"\n"{key}" = 1\n')
    words = refused(path)
    assert str(path) in words
    assert "unknown setting" in words
    assert "did you mean" in words
    assert len(words) < len(str(path)) + 120


def test_nearest_key_is_the_one_meant(tmp_path):
    """A hint helps only if it is right."""
    assert "did you mean port?" in refused(toml(tmp_path, "ports = 1"))
    assert "did you mean frame_bytes?" in refused(toml(tmp_path, "frame-bytes = 1"))
    assert "did you mean linger?" in refused(options={"ligner": "1s"})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('port = "5000"', "'5000' is not a whole number: str is the wrong type"),
        ("port = true", "'True' is not a whole number"),
        ("port = 1.5", "float is the wrong type"),
        ("port = {a = 1}", "dict is the wrong type"),
        ("ratio = nan", "not finite"),
        ("quiet = 1", "int is the wrong type"),
        ("stream = 1", "is not a string"),
        ('nodes = "a"', "str is the wrong type"),
        ("nodes = [1]", "not a list of strings"),
        ('frame_bytes = "256X"', "a size such as 64, 256Ki or 1G"),
        ("frame_bytes = -1", "not a whole number of bytes"),
        ("frame_bytes = inf", "not a whole number of bytes"),
        ("frame_bytes = true", "true and false are not numbers"),
        ("linger = -1", "not a length of time"),
        ("linger = nan", "not a length of time"),
        ('sync = "sometimes"', "one of always, never"),
        ('root = ""', "is not a path"),
        ('root = "a\\u0000b"', "is not a path"),
    ],
)
def test_value_of_another_kind_in_the_file_is_refused_by_name(tmp_path, line, words):
    """TOML has types, and a string where a number belongs is a mistake."""
    said = refused(toml(tmp_path, line))
    assert words in said
    assert said.startswith(f"{line.split()[0]} in {tmp_path}")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("port", ""),
        ("port", "x"),
        ("port", "\u0661"),
        ("port", "1_000"),
        ("port", "0x10"),
        ("port", "9" * 5000),
        ("ratio", "nan"),
        ("ratio", "inf"),
        ("ratio", "1e999"),
        ("quiet", "maybe"),
        ("frame_bytes", "1.5"),
        ("frame_bytes", "-1"),
        ("frame_bytes", "99999999999T"),
        ("linger", "2 weeks"),
        ("linger", "1e3s"),
        ("linger", ""),
        ("sync", "ALWAYS"),
    ],
)
def test_text_of_another_kind_is_refused_with_its_variable_or_option(name, text):
    """The person who reads the error did not always write the setting."""
    variable = f"RT_{name.upper()}"
    assert refused(environment={variable: text}).startswith(f"environment {variable}: ")
    option = f"--{name.replace('_', '-')}"
    assert refused(environment={}, options={name: text}).startswith(f"option {option}: ")


def test_value_out_of_range_names_where_it_came_from(tmp_path):
    """The dataclass knows the range, the loader knows the place; the reader needs both."""
    path = toml(tmp_path, 'root = "/r"\nport = 70000\n')
    words = refused(path, environment={"RT_FRAME_BYTES": "64Ki"})
    assert words == f"port must be 1 to 65535 (port = 70000, port in {path})"
    words = refused(environment={"RT_FRAME_BYTES": "1Ki", "RT_ROOT": "/r"})
    assert words.endswith("(frame_bytes = 1Ki, environment RT_FRAME_BYTES)")


def test_missing_setting_says_all_the_ways_to_give_it(tmp_path):
    """A first start without settings is a reader's first contact with them."""
    assert refused() == "root is not set: give --root, RT_ROOT"
    assert refused(toml(tmp_path, "")).endswith(f"RT_ROOT or root in {tmp_path}/rt.toml")


@pytest.mark.parametrize("text", ["port = ", "[port", "port = 1\nport = 2", "\udcff"])
def test_file_that_is_not_toml_is_named(tmp_path, text):
    """A parser's traceback tells an operator nothing."""
    path = tmp_path / "rt.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    assert refused(path).startswith(f"{path}: not TOML")


def test_huge_file_and_invalid_table_are_refused(tmp_path):
    """A log given as settings by mistake must not be read into memory."""
    assert "longer than" in refused(toml(tmp_path, "#" * (1 << 20) + "\n"))
    assert "not a table" in refused(toml(tmp_path, "node = 1"), "node")


def test_every_value_can_be_traced_to_its_source(tmp_path):
    """`Why does it listen there?` is answered without reading code."""
    path = toml(tmp_path, '[node]\nroot = "/r"\nport = 1\n')
    given = explain(Example, path, "node", {"RT_QUIET": "1"}, {"sync": "never", "port": None})
    assert given["root"].source == f"root in [node] of {path}"
    assert given["port"].source == f"port in [node] of {path}"
    assert given["quiet"].source == "environment RT_QUIET"
    assert given["sync"].source == "option --sync"
    assert given["linger"].source == "default"


def test_type_without_a_written_form_is_refused_at_once():
    """The author of a dataclass learns it from the first test, not from a user."""
    with pytest.raises(Misuse, match="no written form"):
        kind_of(dict[str, str])
    with pytest.raises(Misuse, match="no written form"):
        kind_of(int | str)


@given(st.integers(0, (1 << 63) - 1))
def test_size_reads_back_as_it_was_shown(size):
    """Help texts show defaults that a user may paste."""
    assert parse_bytes(show_bytes(size)) == size


@given(st.integers(0, 999_999))
def test_time_reads_back_as_it_was_shown(milliseconds):
    """Six digits are what a timeout needs."""
    assert parse_seconds(show_seconds(milliseconds / 1000)) == pytest.approx(
        milliseconds / 1000, rel=1e-5
    )


@pytest.mark.parametrize(
    ("text", "size"), [("64", 64), ("1K", 1000), ("1Ki", 1024), ("1KiB", 1024), ("1.5 Gi", 3 << 29)]
)
def test_binary_units_have_an_i(text, size):
    """IEC 80000-13: a K is a thousand; guessing would make limits wrong by 7 percent at G."""
    assert parse_bytes(text) == size


@click.command()
@click_options(Example, table="node")
@click.option("--json", "as_json", is_flag=True)
def program(settings, as_json):
    """Run an example."""
    click.echo(f"{settings} {as_json}")


def run(*arguments, environment=None):
    """Run the example program."""
    return CliRunner(env=environment or {}).invoke(program, arguments)


def test_option_variable_and_file_reach_the_program(tmp_path):
    """Option, variable and file all end in one dataclass."""
    path = toml(tmp_path, '[node]\nroot = "/r"\nstream = "s"\n')
    result = run(
        *("--config", str(path), "--nodes", "a", "--nodes", "b", "--quiet", "--json"),
        environment={"RT_FRAME_BYTES": "8Ki"},
    )
    expected = Example(Path("/r"), quiet=True, stream="s", nodes=("a", "b"), frame_bytes=8192)
    assert result.output == f"{expected} True\n"
    assert run(environment={"RT_CONFIG": str(path)}).exit_code == 0


def test_help_shows_each_setting_with_its_variable_and_default():
    """The help is the reference: nothing else lists the settings."""
    text = re.sub(r"\s+", " ", run("--help").output)
    assert "--config FILE TOML file with these settings, table [node]. [RT_CONFIG]" in text
    assert "--root VALUE Where the streams live. [RT_ROOT; required]" in text
    assert "--port VALUE The port to listen on. [RT_PORT; default 5000]" in text
    assert "--quiet / --no-quiet [RT_QUIET; default false]" in text
    assert "[RT_FRAME_BYTES; default 256Ki]" in text
    assert "[RT_LINGER; default 250ms]" in text
    assert "[RT_LIMIT; default none]" in text
    assert "[RT_SYNC; default always]" in text


def test_switch_can_take_back_what_the_environment_set():
    """A flag that can only be set is a trap in a container with fixed variables."""
    result = run("--no-quiet", "--root", "/r", environment={"RT_QUIET": "1"})
    assert "quiet=False" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "root is not set"),
        (["--root", "/r", "--port", "x"], "option --port: 'x' is not a whole number"),
        (["--root", "/r", "--port", "0"], "port must be 1 to 65535 (port = 0, option --port)"),
        (["--config", "/nowhere.toml"], "/nowhere.toml"),
    ],
)
def test_wrong_setting_is_a_usage_error_and_no_traceback(arguments, words):
    """Exit code 2 and a line, as for every other wrong use of a command."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "text", ["", ":7420", "localhost", "[]:7420", "a..b:7420", ".b:7420", f"{'a' * 64}.b:7420",
             "localhost:65536", "localhost:-1"],
)  # fmt: skip
def test_what_cannot_be_dialled_is_not_an_address(text):
    """Python raises no OSError for such a name: the thread that dials would end, silently."""
    with pytest.raises(Misuse, match="not an address"):
        parse_address(text)


@pytest.mark.parametrize("host", ["localhost", "node-1.example.com.", "10.0.0.1", "b\u00fccher"])
def test_a_host_is_a_name_or_a_number(host):
    """The certificate says whether it is the right one."""
    assert parse_address(f"{host}:7420") == (host, 7420)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of settings."""

    level: int = 3
    sync: Sync = Sync.NEVER

    def __post_init__(self):
        if self.level > 9:
            raise ValueError("level must be 0 to 9")


@dataclass(frozen=True, slots=True)
class Whole:
    """Settings that have a part."""

    name: str
    part: Part = field(default_factory=Part)


def test_fields_of_a_part_are_settings_of_the_same_level(tmp_path):
    """A class with too many fields can come apart without a change to any file or command."""
    path = toml(tmp_path, 'name = "a"\nlevel = 5\n')
    assert load(Whole, path, environment={}) == Whole("a", Part(5, Sync.NEVER))
    found = load(Whole, path, environment={"RT_SYNC": "always"}, options={"level": "7"})
    assert found == Whole("a", Part(7, Sync.ALWAYS))
    assert explain(Whole, path, environment={})["level"].source == f"level in {path}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('name = "a"\nlevel = 10\n', "level must be 0 to 9 (level = 10, level in "),
        ('name = "a"\nlevle = 1\n', "did you mean level?"),
        ('name = "a"\npart = 1\n', "unknown setting 'part'"),
        ("level = 1\n", "name is not set"),
    ],
)
def test_mistakes_in_a_part_are_named_as_any_other(tmp_path, text, reason):
    """The user does not see how a class is put together."""
    with pytest.raises(Misuse) as caught:
        load(Whole, toml(tmp_path, text), environment={})
    assert reason in str(caught.value)


def test_what_changed_is_named_as_the_file_names_it():
    """A reload tells its reader which of the settings wait for a restart."""
    before = Whole("a", Part(5))
    assert changed(before, before) == []
    assert changed(before, Whole("b", Part(5, Sync.ALWAYS))) == ["name", "sync"]


def test_a_command_has_the_options_of_a_part():
    """What the file takes, the command line takes."""
    found = []

    @click.command()
    @click_options(Whole)
    def command(settings):
        found.append(settings)

    done = CliRunner().invoke(command, ["--name", "a", "--level", "4"])
    assert done.exit_code == 0, done.output
    assert found == [Whole("a", Part(4))]
