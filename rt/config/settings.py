"""Settings: loads a program's dataclass from defaults, a TOML file, the environment and options.

Each source overrides the ones before it. A field is called `frame_bytes` in the file,
`RT_FRAME_BYTES` in the environment and `--frame-bytes` on the command line
(`rt.cli.common.options`). A field whose type is itself a dataclass is a part; the part's fields are
settings on the same level.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_type_hints

from rt.config.kinds import SettingKind, kind_of
from rt.errors import Misuse
from rt.names import shown

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ENVIRONMENT_PREFIX: Final = "RT_"
# Several programs may share a file: one table for each, and one for `rt archive policy set`.
TABLES: Final = (
    "archive", "bridge", "export", "gateway", "node", "policy", "publish", "publisher", "pull",
    "push", "session", "status", "subscribe", "verify",
)  # fmt: skip
FILE_BYTES_MAX: Final = 1 << 20  # a thousand settings of a thousand bytes

SettingsType = TypeVar("SettingsType", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class Given:
    """A value and its source.

    Attributes:
        value: The converted value.
        source: "default", "environment RT_PORT", "option --port" or "port in /etc/rt.toml".
    """

    value: Any
    source: str


def load(
    cls: type[SettingsType], toml_path: str | os.PathLike[str] | None = None,
    table: str | None = None, environment: Mapping[str, str] = os.environ,
    options: Mapping[str, object] | None = None,
) -> SettingsType:  # fmt: skip
    """Return the settings of a program.

    Args:
        cls: A frozen dataclass whose fields have types that `rt.config.kinds` knows, and whose
            `__post_init__` raises a `ValueError` that names the field.
        toml_path: The file, if there is one.
        table: The file's table for this program; the whole file if None.
        environment: Where `RT_<FIELD>` is looked up.
        options: Field name to text or value; None means that the option was not given.

    Raises:
        Misuse: A key is unknown, or a value is missing, of the wrong kind or out of range. The
            message names the key, the value and its source in one sentence.
        OSError: The file cannot be read.
    """
    given = explain(cls, toml_path, table, environment, options)
    try:
        return _built(cls, given)
    except ValueError as error:
        raise Misuse(f"{error}{_culprits(str(error), cls, given)}") from error


def explain(
    cls: type[SettingsType], toml_path: str | os.PathLike[str] | None = None,
    table: str | None = None, environment: Mapping[str, str] = os.environ,
    options: Mapping[str, object] | None = None,
) -> dict[str, Given]:  # fmt: skip
    """Return every field's value and its source; arguments and errors as for `load`."""
    kinds = kinds_of(cls)
    given = {
        name: Given(_default(field), "default") for name, (field, _) in settings_of(cls).items()
    }
    if toml_path is not None:
        given |= _from_file(kinds, os.fspath(toml_path), table)
    given |= _from_environment(kinds, environment)
    given |= _from_options(kinds, options or {})
    for name, each in given.items():
        if each.value is MISSING:
            file_hint = f" or {name} in {toml_path}" if toml_path else ""
            raise Misuse(
                f"{name} is not set: give {option_name(name)}, {variable_name(name)}{file_hint}"
            )
    return given


def settings_of(cls: type["DataclassInstance"]) -> dict[str, tuple[Field[Any], SettingKind]]:
    """Return the field and the kind of each setting, by name, in the order of the class.

    A field whose type is a dataclass is not a setting, but each of that dataclass's fields is.
    """
    hints = get_type_hints(cls, include_extras=True)
    found: dict[str, tuple[Field[Any], SettingKind]] = {}
    for field in fields(cls):
        hint = hints[field.name]
        if isinstance(hint, type) and is_dataclass(hint):
            found |= settings_of(hint)
        else:
            found[field.name] = field, kind_of(hint)
    return found


def kinds_of(cls: type["DataclassInstance"]) -> dict[str, SettingKind]:
    """Return the kind of each setting, in class order."""
    return {name: kind for name, (_, kind) in settings_of(cls).items()}


def changed(before: "DataclassInstance", after: "DataclassInstance") -> list[str]:
    """Return the sorted names of the settings that differ between two instances of a class."""
    now = _values(after)
    return sorted(name for name, value in _values(before).items() if now[name] != value)


def _values(settings: "DataclassInstance") -> dict[str, Any]:
    """Return the value of each setting, by name; the settings are those of `settings_of`."""
    found: dict[str, Any] = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        is_part = is_dataclass(value) and not isinstance(value, type)
        found |= _values(value) if is_part else {field.name: value}
    return found


def _built(cls: type[SettingsType], given: dict[str, Given]) -> SettingsType:
    """Construct the settings, each part first."""
    hints = get_type_hints(cls)
    parts = {
        name: _built(hint, given)
        for name, hint in hints.items()
        if isinstance(hint, type) and is_dataclass(hint)
    }
    values = {field.name: given[field.name].value for field in fields(cls) if field.name in given}
    return cls(**values, **parts)


def option_name(name: str) -> str:
    """Return a field's option name on the command line.

    >>> option_name("frame_bytes"), variable_name("frame_bytes")
    ('--frame-bytes', 'RT_FRAME_BYTES')
    """
    return f"--{name.replace('_', '-')}"


def variable_name(name: str) -> str:
    """Return a field's variable name in the environment."""
    return f"{ENVIRONMENT_PREFIX}{name.upper()}"


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _from_file(kinds: dict[str, SettingKind], path: str, table: str | None) -> dict[str, Given]:
    with open(path, "rb") as file:
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise Misuse(f"{path}: longer than {FILE_BYTES_MAX} bytes; not a file of settings")
    try:
        document = tomllib.loads(content.decode())
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError are both ValueErrors
        raise Misuse(f"{path}: not TOML: {error}") from error
    ours = document if table is None else document.get(table, {})
    if table in TABLES:
        _refuse_strays(document, path, table)
    if not isinstance(ours, dict):
        raise Misuse(f"{path}: {table} is a value, not a table; write [{table}] above the settings")
    where = path if table is None else f"[{table}] of {path}"
    _refuse_unknown(ours, kinds, where)
    return {
        name: _given(kinds[name].convert, kinds[name], value, f"{name} in {where}")
        for name, value in ours.items()
    }


def _refuse_strays(document: dict[str, Any], path: str, table: str) -> None:
    """Refuse what would be ignored: a misspelt table, or settings above the first table."""
    if table == "node" and "policy" in document:
        raise Misuse(
            f"{path}: a node does not read [policy], which belongs to the stream; keep it in "
            "another file, and set it with rt archive policy set --file"
        )
    for name, value in document.items():
        if name not in TABLES:
            if not isinstance(value, dict):
                raise Misuse(f"{path}: {shown(name)} is in no table; write it below [{table}]")
            raise Misuse(f"{path}: unknown table {shown(name)}; use {', '.join(TABLES)}")


def _from_environment(
    kinds: dict[str, SettingKind], environment: Mapping[str, str]
) -> dict[str, Given]:
    # An unknown RT_ variable is not an error: another rt program may use it.
    return {
        name: _given(kind.convert_text, kind, environment[variable], f"environment {variable}")
        for name, kind in kinds.items()
        if (variable := variable_name(name)) in environment
    }


def _from_options(kinds: dict[str, SettingKind], options: Mapping[str, object]) -> dict[str, Given]:
    _refuse_unknown(options, kinds, "options")
    given = {}
    for name, value in options.items():
        if value is not None:
            kind = kinds[name]
            convert = kind.convert_text if isinstance(value, str) else kind.convert
            given[name] = _given(convert, kind, value, f"option {option_name(name)}")
    return given


def _refuse_unknown(names: Iterable[str], kinds: dict[str, SettingKind], where: str) -> None:
    for name in names:
        if name not in kinds:
            nearest = difflib.get_close_matches(name, kinds, n=1, cutoff=0)
            hint = f"did you mean {nearest[0]}?" if nearest else "there are none"
            raise Misuse(f"{where}: unknown setting {shown(name)}; {hint}")


def _given(convert: Callable[[Any], Any], kind: SettingKind, value: object, source: str) -> Given:
    try:
        return Given(convert(value), source)
    except ValueError as error:
        said = shown(value if isinstance(value, str) else repr(value))
        raise Misuse(f"{source}: {said} is not {kind.expected}: {error}") from error


def _culprits(message: str, cls: type[SettingsType], given: dict[str, Given]) -> str:
    """Return, as text, the sources of those values that an error message names."""
    words = set(re.findall(r"\w+", message))
    kinds = kinds_of(cls)
    named = [name for name in given if name in words] or [
        name for name in given if given[name].source != "default"
    ]
    told = [
        f"{name} = {kinds[name].explained_text(given[name].value)}, {given[name].source}"
        for name in named
    ]
    return f" ({'; '.join(told)})" if told else ""
