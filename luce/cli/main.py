"""The `luce` command: finds the verb, imports only what it needs, and turns errors into one line and an exit code.

Exit codes: 0 done, 1 the model, the device or a bug, 2 a wrong flag, 130 stopped by a second signal or Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from cyclopts import App
from cyclopts.config import Env, Toml

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


def build_app(config_file: Path | None) -> App:
    """The command line. Verbs are imported when they are used.

    Raises:
        ConfigError: the configuration file does not exist.
    """
    sources: list[Env | Toml] = [Env("LUCE_", command=False)]
    if config_file is not None:
        if not config_file.is_file():
            raise ConfigError(f"{config_file} does not exist", flag="--config")
        sources.append(Toml(config_file))
    app = App(
        name="luce",
        help="An LLM server: exact answers, visible state, exact replay.",
        version=_version,
        config=sources,
        result_action="return_value",
        exit_on_error=True,
    )
    for verb, help_text in VERBS.items():
        app.command(f"luce.cli.{verb}:{verb}", name=verb, help=help_text)
    return app


def _run(arguments: Sequence[str]) -> int:
    try:
        result = build_app(_config_file(arguments))(arguments)
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


def _config_file(arguments: Sequence[str]) -> Path | None:
    """`--config`, before anything else is read: the other flags' values may stand in it."""
    found = os.environ.get("LUCE_CONFIG")
    for index, argument in enumerate(arguments):
        if argument == "--":
            break
        if argument == "--config" and index + 1 < len(arguments):
            found = arguments[index + 1]
        elif argument.startswith("--config="):
            found = argument.removeprefix("--config=")
    return Path(found) if found else None


def _version() -> str:
    try:
        return version("luce")
    except PackageNotFoundError:
        return "unknown (not installed)"
