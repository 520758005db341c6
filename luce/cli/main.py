"""The `luce` command: finds the verb, imports only what it needs, and turns errors into one line and an exit code.

Exit codes: 0 done, 1 the model, the device or a bug, 2 a wrong flag, 130 stopped by a second signal or Ctrl-C.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cyclopts import App, CycloptsError, UnusedCliTokensError
from cyclopts.config import Env

from luce.cli.config_sources import (
    PREFIX,
    config_file,
    environment_check,
    file_source,
    read_config,
    variables,
)
from luce.errors import ConfigError, LuceError

__all__ = ["EXIT_FAILED", "EXIT_STOPPED", "EXIT_USAGE", "build_app", "main"]

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_STOPPED = 130

VERBS = {
    "serve": "Serve a model over HTTP.",
    "chat": "Talk to a model in the terminal; pictures by path.",
    "demo": "Ask the bundled model four chart questions at once.",
    "inspect": "Show what a model's files hold and what serving them takes.",
    "logits": "Write the logits of a prompt to a file, for comparison with other implementations.",
    "doctor": "Check this machine: Python, memory, device, exactness.",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit."""
    arguments = sys.argv[1:] if arguments is None else arguments
    sys.exit(_run(arguments))


def build_app(file: Path | None) -> App:
    """The command line. Verbs are imported when they are used.

    Args:
        file: the configuration file.

    Raises:
        ConfigError: the configuration file cannot be used.
    """
    sources: list[Any] = [environment_check(_variables), Env(PREFIX, command=False)]
    if file is not None:
        sources.append(file_source(file, read_config(file, VERBS)))
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
        app.command(f"luce.cli.{verb}:{verb}", name=verb, help=help_text)
    return app


def _run(arguments: Sequence[str]) -> int:
    try:
        result = build_app(config_file(arguments))(arguments)
    except CycloptsError as error:
        print(f"luce: {_usage(error)}", file=sys.stderr)
        return EXIT_USAGE
    except BaseException as error:
        if _interrupted(error):
            return EXIT_STOPPED
        known = list(_known(error))
        if not known:
            raise
        for one in known:
            print(f"luce: {one}", file=sys.stderr)
        return EXIT_USAGE if all(isinstance(one, ConfigError) for one in known) else EXIT_FAILED
    return result if isinstance(result, int) else 0


def _interrupted(error: BaseException) -> bool:
    """Ctrl-C, and nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_interrupted, error.exceptions))
    return isinstance(error, KeyboardInterrupt)


def _known(error: BaseException) -> Iterator[LuceError]:
    """The errors raised on purpose, if there is nothing else in it."""
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
    source = getattr(getattr(error, "token", None), "source", "")
    return line if source in ("", "cli", "env") or source in line else f"{line} (in {source})"


def _variables() -> set[str]:
    """The environment variables of all verbs. Imports all of them."""
    app = build_app(None)
    return set().union(*(variables(app[verb].assemble_argument_collection()) for verb in VERBS))


def _version() -> str:
    try:
        return version("luce")
    except PackageNotFoundError:
        return "unknown (not installed)"
