"""Where flags come from beside the command line: the environment and a TOML file. Nothing in them is ignored."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_origin

from cyclopts import Argument, ArgumentCollection
from cyclopts.config import Dict

from luce.cli.inputs import read_file
from luce.errors import ConfigError, reason

__all__ = ["PREFIX", "config_file", "environment_check", "file_source", "read_config", "variables"]

Source = Callable[[Any, tuple[str, ...], ArgumentCollection], None]
"""What cyclopts calls for more values of a verb's flags: (app, the command's words, flags)."""

PREFIX = "LUCE_"
MAX_BYTES = 1 << 20
"""Of a configuration file."""
TESTS = "LUCE_TEST_"
"""Variables that set up the tests; no flags."""


def config_file(arguments: Sequence[str]) -> Path | None:
    """`--config`, before anything else is read: the other flags' values may stand in it."""
    found = os.environ.get(f"{PREFIX}CONFIG")
    for index, argument in enumerate(arguments):
        if argument == "--":
            break
        if argument == "--config" and index + 1 < len(arguments):
            found = arguments[index + 1]
        elif argument.startswith("--config="):
            found = argument.removeprefix("--config=")
    return Path(found) if found else None


def read_config(path: Path, commands: Collection[tuple[str, ...]]) -> dict[str, Any]:
    """The tables of a configuration file. Their keys are checked by :func:`file_source`.

    Args:
        commands: by their words; the table of ("charts", "draw") is [charts.draw].

    Raises:
        ConfigError: the file cannot be read, is no TOML, or holds something else than a table for each verb; names
            the file and the table or key.
    """
    try:
        data = read_file(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {reason(error)}", flag="--config") from None
    try:
        tables = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:  # of TOML, or of UTF-8
        raise ConfigError(f"{path} is not TOML: {reason(error)}", flag="--config") from None
    if fault := _fault(tables, (), commands):
        raise ConfigError(f"{path}: {fault}", flag="--config")
    return tables


def _fault(
    tables: Mapping[str, Any], above: tuple[str, ...], commands: Collection[tuple[str, ...]]
) -> str | None:
    """What is wrong with the tables of the commands that begin with ``above``."""
    names = [".".join(command) for command in commands if command[: len(above)] == above]
    known = ", ".join(f"[{name}]" for name in names)
    for key, table in tables.items():
        here = (*above, key)
        name = ".".join(here)
        if not any(command[: len(here)] == here for command in commands):
            if isinstance(table, Mapping):
                return f"the table [{name}] is of no command{_meant(name, names, '[{}]')} Tables are {known}"
            where = f"[{'.'.join(above)}], which is no command's table" if above else "no table"
            return f"the key {key!r} stands in {where}; put it into one of {known}"
        if not isinstance(table, Mapping):
            return f"{name!r} must be a table, [{name}]"
        if here not in commands and (fault := _fault(table, here, commands)):
            return fault
    return None


def file_source(path: Path, tables: Mapping[str, Any]) -> Source:
    """The values of the running verb's table.

    The source raises :class:`ConfigError` for a key that is no flag of the verb; names the file, table and key.
    """
    values = Dict(dict(tables), source=str(path))

    def read(app: Any, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        table: Mapping[str, Any] = tables
        for word in commands:
            table = table.get(word, {})
        flags = {name[2:] for argument in arguments for name in argument.names if name.startswith("--")}
        name = ".".join(commands)
        for key in table:
            if key == "config":
                raise ConfigError(f"{path}: [{name}] {key}: a file cannot name another one", flag="--config")
            if key.replace("_", "-") not in flags:
                fault = f"{path}: [{name}] has no key {key!r}{_meant(key, flags, '{}')}"
                raise ConfigError(fault, flag="--config")
            if isinstance(table[key], list) and any(isinstance(one, list | dict) for one in table[key]):
                fault = f"{path}: [{name}] {key}: must be a value or a list of values, without lists in it"
                raise ConfigError(fault, flag="--config")
        values(app, commands, arguments)

    return read


def variables(arguments: Iterable[Argument]) -> set[str]:
    """The environment variables of some flags."""
    return {
        PREFIX + name.lstrip("-").upper().replace("-", "_")
        for argument in arguments
        for name in argument.names
        if name != "*"
    }


def environment_check(every: Callable[[], set[str]]) -> Source:
    """A source that adds no values: it refuses variables that look like flags and are no verb's, and empty lists, as
    where another variable was to be put in and was not set: no keys would be an open server.

    Args:
        every: the variables of all verbs; asked only when some are not the running verb's.
    """

    def check(app: Any, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        for argument in arguments:
            if get_origin(argument.hint) is tuple:
                for name in variables([argument]):
                    if name in os.environ and not os.environ[name].strip():
                        raise ConfigError("it is empty; give it a value or unset it", flag=name)
        given = {name for name in os.environ if name.startswith(PREFIX) and not name.startswith(TESTS)}
        if not (foreign := given - variables(arguments)):
            return
        known = every()
        for name in sorted(foreign - known):
            raise ConfigError(f"no command has such a flag{_meant(name, known, '{}')}", flag=name)

    return check


def _meant(name: str, known: Collection[str], form: str) -> str:
    close = get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {form.format(close[0])}?" if close else "."
