"""Flags that commands share, in the groups that `--help` shows. Each is also an environment variable and a TOML key.

Checked here, where they are read; the options they become are checked no further.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import attrs
from cyclopts import Group, Parameter, Token
from cyclopts.validators import Number

__all__ = [
    "COUNT",
    "FILE",
    "FILES",
    "NAME",
    "OPERANDS",
    "ROOM",
    "SECONDS",
    "SIZE",
    "ChatModelFlags",
    "ConfigFlags",
    "LogFlags",
    "ModelFlags",
    "ModelPath",
    "OperandsName",
    "chosen_operands",
    "parse_bytes",
    "whole",
]

MODEL = Group("Model", sort_key=1)
GENERAL = Group("General", sort_key=9)

MOST = 2**31 - 1
"""Of anything that is counted."""
MOST_SECONDS = 10**9

_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]?)(?P<binary>i?)B?", re.I)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_bytes(text: str) -> int:
    """A number of bytes: ``8GiB``, ``500MB``, ``1048576``. ``M`` alone is binary.

    Raises:
        ValueError: not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no size; write it as 8GiB or 500MB")
    decimal = text.strip().upper().endswith("B") and not match["binary"]
    base = 1000 if decimal else 1024
    return int(Decimal(match["number"]) * base ** _POWERS[match["unit"].upper()])


def _size(kind: Any, tokens: Sequence[Token]) -> int:
    return parse_bytes(tokens[0].value)


def _whole(kind: Any, tokens: Sequence[Token]) -> int:
    """Strict: cyclopts would round 3.5."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is no whole number") from None


def _path(kind: Any, tokens: Sequence[Token]) -> Path:
    """Strict: an empty value, as of a variable that is not set, would be the working directory."""
    if not tokens[0].value:
        raise ValueError("the path is empty")
    return Path(tokens[0].value)


def _paths(kind: Any, tokens: Sequence[Token]) -> tuple[Path, ...]:
    """As strict as :func:`_path`."""
    return tuple(_path(kind, [token]) for token in tokens)


def _not_empty(kind: Any, value: str | tuple[str, ...] | None) -> None:
    if value == "" or (isinstance(value, tuple) and "" in value):
        raise ValueError("Must not be empty.")


def _within(kind: Any, value: float | None) -> None:
    """Strict: what is no number at all is above and below no limit."""
    if value is not None and not 0 < value <= MOST_SECONDS:
        raise ValueError(f"Must be a number of seconds above 0 and at most {MOST_SECONDS}.")


def whole(least: int, most: int = MOST) -> Parameter:
    """A whole number from ``least`` to ``most``."""
    return Parameter(converter=_whole, n_tokens=1, accepts_keys=False, validator=Number(gte=least, lte=most))


COUNT = whole(1)
FILE = Parameter(converter=_path, n_tokens=1, accepts_keys=False)
FILES = Parameter(converter=_paths, n_tokens=-1, accepts_keys=False, negative="")
SECONDS = Parameter(validator=_within)
SIZE = Parameter(converter=_size, n_tokens=1, accepts_keys=False, validator=Number(gte=1, lte=2**63 - 1))
ROOM = Parameter(converter=_size, n_tokens=1, accepts_keys=False, validator=Number(gte=0, lte=2**63 - 1))
"""A size that may be nothing."""
NAME = Parameter(validator=_not_empty)

ModelPath = Annotated[
    Path | None,
    FILE,
    Parameter(
        help="Directory with config.json and safetensors, or a .gguf file. Without it: the bundled demo model."
    ),
]

OPERANDS = Parameter(
    help="What weight products on a GPU multiply: f16, the default, or bf16, which is farther from exact "
    "arithmetic and has numbers for activations over a million, too."
)
OperandsName = Literal["bf16", "f16"]


def chosen_operands(name: OperandsName | None) -> Any:
    """:class:`luce.compute.operands.Operands` of that name; None: the flag was not given."""
    from luce.compute.operands import Operands

    return None if name is None else Operands(name)


Slots = Annotated[int, COUNT, Parameter(group=MODEL, help="Requests that run at once; more wait in a queue.")]


@Parameter(name="*")
@attrs.frozen
class ModelFlags:
    """What is loaded, and how much memory it gets."""

    mmproj: Annotated[
        Path | None,
        FILE,
        Parameter(group=MODEL, help="Vision tower of a GGUF model; found beside it by itself."),
    ] = None
    name: Annotated[
        str | None,
        NAME,
        Parameter(group=MODEL, help="Model name that requests use; the files' own name by default."),
    ] = None
    slots: Slots = 4
    context: Annotated[
        int | None,
        COUNT,
        Parameter(
            group=MODEL,
            help="Longest sequence in tokens, prompt and answer; by default the model's own limit, at most 8192.",
        ),
    ] = None
    block_size: Annotated[
        int, COUNT, Parameter(group=MODEL, help="Tokens in one block of key/value memory.")
    ] = 64
    blocks: Annotated[
        int | None,
        COUNT,
        Parameter(
            group=MODEL,
            help="Blocks of key/value memory; by default enough for every slot at full context.",
        ),
    ] = None
    max_memory: Annotated[
        int | None,
        SIZE,
        Parameter(group=MODEL, help="Memory that the model may take, as 8GiB; by default what is free."),
    ] = None

    device: Annotated[
        str,
        NAME,
        Parameter(
            group=MODEL,
            help="Where the text model runs: cpu, cuda:N, hip:N (the GPU of that number, through CuPy), or auto: the "
            "first GPU if there is one.",
        ),
    ] = "auto"
    operands: Annotated[OperandsName | None, OPERANDS, Parameter(group=MODEL)] = None
    encoder_device: Annotated[
        str | None,
        NAME,
        Parameter(
            group=MODEL,
            help="Where pictures are encoded: cuda:N or hip:N, another GPU than the text model's, or cpu; by default "
            "on the text model's device, if it can.",
        ),
    ] = None

    def options(self, sampling: Mapping[str, float | int] | None = None) -> Any:
        """:class:`luce.engines.load_model.LoadOptions` of these flags, and of those about sampling that were given."""
        from luce.engines.load_model import LoadOptions

        return LoadOptions(
            mmproj=self.mmproj,
            name=self.name,
            slots=self.slots,
            context=self.context,
            block_size=self.block_size,
            num_blocks=self.blocks,
            max_memory=self.max_memory,
            device=self.device,
            operands=chosen_operands(self.operands),
            encoder_device=self.encoder_device,
            sampling=sampling or {},
        )


@Parameter(name="*")
@attrs.frozen
class ChatModelFlags(ModelFlags):
    """One conversation needs one slot."""

    slots: Slots = 1


@Parameter(name="*")
@attrs.frozen
class ConfigFlags:
    """Where flags come from beside the command line."""

    config: Annotated[
        Path | None,
        FILE,
        Parameter(
            group=GENERAL,
            help="TOML file with flags: a table per command, keys as the flags. The command line goes first, then the "
            "environment, then this file.",
        ),
    ] = None


@Parameter(name="*")
@attrs.frozen
class LogFlags:
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Parameter(group=GENERAL, help="What goes to standard error."),
    ] = "info"
    log_format: Annotated[
        Literal["console", "json"],
        Parameter(
            group=GENERAL,
            help="Lines for people, or JSON objects, one a line; what is printed at the start is then a part of them.",
        ),
    ] = "console"
    otel: Annotated[
        bool,
        Parameter(
            group=GENERAL,
            negative="",
            help="Send OpenTelemetry spans of requests where the OTEL_... variables say; needs the extra otel.",
        ),
    ] = False
