"""The `luce` command: finds the verb, imports only what it needs, and turns errors into one line and an exit code.

Exit codes: 0 done, 1 the model, the device, the output or a bug, 2 a wrong flag, 130 stopped by a second signal or
Ctrl-C.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cyclopts import App, ArgumentCollection, CycloptsError, UnusedCliTokensError
from cyclopts.config import Env

from luce.cli.config_sources import (
    PREFIX,
    config_file,
    environment_check,
    file_source,
    read_config,
    variables,
)
from luce.errors import ConfigError, LuceError, printable

__all__ = [
    "COMMANDS",
    "EXIT_FAILED",
    "EXIT_STOPPED",
    "EXIT_USAGE",
    "arguments_of",
    "build_app",
    "main",
    "meant",
]

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_STOPPED = 130

VERBS = {
    "serve": "Serve a model over HTTP.",
    "chat": "Talk to a model in the terminal; pictures by path.",
    "demo": "Ask the bundled model four chart questions at once.",
    "inspect": "Show what a model's files hold and what serving them takes.",
    "logits": "Write the logits of a prompt to a file, for comparison with other implementations.",
    "bench": "Measure speed beside the limits of memory and arithmetic.",
    "charts": "Check, explore and draw statecharts.",
    "replay": "Check, run again, show, compare and convert what luce serve --trace recorded.",
    "doctor": "Check this machine: Python, memory, device, exactness.",
}
PARTS = {
    "bench": {
        "run": "Measure a model, through the engine's seam and through HTTP.",
        "compare": "Show two reports side by side.",
    },
    "charts": {
        "check": "Load charts and compare them with the actors that run them.",
        "explore": "List every configuration of one chart, or visit every state of all together.",
        "draw": "Draw one chart as SVG or PNG, or as text for Graphviz.",
    },
    "replay": {
        "check": "Step every machine of a trace again by the charts in it.",
        "run": "Drive the actors along a trace again and compare all that they do.",
        "exact": "Run the requests of a trace again and compare every token.",
        "load": "Send the requests of a trace to any OpenAI-compatible server at their times.",
        "show": "Draw a trace in the terminal, requests as lanes.",
        "diff": "Find the first difference of every machine between two traces.",
        "export": "Write a trace in Chrome's format, for Perfetto, or as CSV.",
    },
}
"""Verbs of verbs: `luce charts check`. Each is a function of its verb's module."""
DEFAULT_PARTS = {"bench": "run"}
"""The part that is meant where none is named: `luce bench --rows 1` is `luce bench run --rows 1`."""
COMMANDS = tuple((verb, *part) for verb in VERBS for part in ([[one] for one in PARTS.get(verb, ())] or [[]]))
"""All that can be run, by its words: ("serve",), ("charts", "check")."""


UNWRITABLE = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What the system says when standard output takes no more. Files that commands write have errors of their own."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit."""
    arguments = sys.argv[1:] if arguments is None else arguments
    _take_any_text()
    sys.exit(_run(arguments))


def _take_any_text() -> None:
    """What the encoding of a stream lacks is written as Python writes it, and read as a surrogate; it ends nothing."""
    streams = (
        (sys.stdout, "backslashreplace"),
        (sys.stderr, "backslashreplace"),
        (sys.stdin, "surrogateescape"),
    )
    for stream, errors in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def build_app(file: Path | None) -> App:
    """The command line. Verbs are imported when they are used.

    Args:
        file: the configuration file.

    Raises:
        ConfigError: the configuration file cannot be used.
    """
    sources: list[Any] = [environment_check(_variables), Env(PREFIX, command=False)]
    if file is not None:
        sources.append(file_source(file, read_config(file, COMMANDS)))
    app = App(
        name="luce",
        help="An LLM server: exact answers under batching, visible state.",
        version=_version,
        config=sources,
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
    )
    for verb, help_text in VERBS.items():
        if verb not in PARTS:
            app.command(f"luce.cli.{verb}:{verb}", name=verb, help=help_text)
            continue
        group = App(name=verb, help=help_text, version_flags=())
        for part, part_help in PARTS[verb].items():
            group.command(f"luce.cli.{verb}:{part}", name=part, help=part_help)
        app.command(group)
    return app


def _run(arguments: Sequence[str]) -> int:
    try:
        arguments = _with_part(arguments)
        result = build_app(config_file(arguments))(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except CycloptsError as error:
        _say(_usage(error))
        return EXIT_USAGE
    except BaseException as error:
        if _only(error, lambda one: isinstance(one, KeyboardInterrupt)):
            return EXIT_STOPPED
        if _only(error, _unwritable):
            return _output_ended(error)
        known = meant(error)
        if not known:
            raise
        for one in known:
            _say(str(one))
        return EXIT_USAGE if all(isinstance(one, ConfigError) for one in known) else EXIT_FAILED
    return result if isinstance(result, int) else 0


def _with_part(arguments: Sequence[str]) -> Sequence[str]:
    """The same with the part that a verb has by default."""
    if not arguments or (part := DEFAULT_PARTS.get(arguments[0])) is None:
        return arguments
    if len(arguments) > 1 and arguments[1] in (*PARTS[arguments[0]], "--help", "-h"):
        return arguments
    return [arguments[0], part, *arguments[1:]]


def _say(message: str) -> None:
    print(f"luce: {printable(message)}", file=sys.stderr)


def _only(error: BaseException, kind: Callable[[BaseException], bool]) -> bool:
    """Is it of that kind, and are all of a group?"""
    if isinstance(error, BaseExceptionGroup):
        return all(_only(one, kind) for one in error.exceptions)
    return kind(error)


def _unwritable(error: BaseException) -> bool:
    """Standard output takes no more. rich leaves with SystemExit when its reader is gone."""
    if isinstance(error, OSError):
        return error.errno in UNWRITABLE and error.filename is None
    return isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError)


def _output_ended(error: BaseException) -> int:
    """A reader that has seen enough is no fault to speak of; a full disk is. What is left to write is dropped, or
    Python would fail once more at its end.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, OSError) and error.errno != errno.EPIPE:
        _say(f"standard output: {error.strerror}")
    with suppress(OSError):  # of a stream without a file descriptor
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
    return EXIT_FAILED


def meant(error: BaseException) -> list[LuceError]:
    """The errors raised on purpose, if there is nothing else in it: what ends in one line. All else is a bug."""
    return list(_known(error))


def _known(error: BaseException) -> Iterator[LuceError]:
    if isinstance(error, LuceError):
        yield error
    elif isinstance(error, BaseExceptionGroup):
        inner = [list(_known(one)) for one in error.exceptions]
        if all(inner):
            for found in inner:
                yield from found


def _usage(error: CycloptsError) -> str:
    """What is wrong with a flag, in one line."""
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f"unexpected argument {error.unused_tokens[0]!r}; luce VERB --help lists what there is"
    line = " ".join(str(error).split())
    name = getattr(getattr(error, "argument", None), "name", "")
    if name and not name.startswith("-") and name not in line:  # it is named by its place
        line = f"{name}: {line}"
    source = getattr(getattr(error, "token", None), "source", "")
    return line if source in ("", "cli", "env") or source in line else f"{line} (in {source})"


def _variables() -> set[str]:
    """The environment variables of all verbs. Imports all of them."""
    app = build_app(None)
    return set().union(*(variables(arguments_of(app, command)) for command in COMMANDS))


def arguments_of(app: App, command: Iterable[str]) -> ArgumentCollection:
    """The flags of a command, given by its words. Imports its verb."""
    for word in command:
        app = app[word]
    return app.assemble_argument_collection()


def _version() -> str:
    try:
        return version("luce")
    except PackageNotFoundError:
        return "unknown (not installed)"
