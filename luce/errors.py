"""Every error luce raises on purpose, as one small hierarchy.

Input always ends in one of these; anything else that escapes is a bug. The HTTP layer maps them to status codes,
the command line to one clear line and an exit code. What a file or a library gave goes into a message through
:func:`quoted` or :func:`reason`, so that the line stays short and printable whatever it was.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from reprlib import Repr

__all__ = [
    "MAX_QUOTED",
    "CapacityError",
    "ChartError",
    "ConfigError",
    "DeadlineError",
    "DeviceError",
    "IllegalEvent",
    "LuceError",
    "ModelFileError",
    "RequestError",
    "TraceFileError",
    "as_param",
    "printable",
    "quoted",
    "reason",
    "shown_name",
]

MAX_QUOTED = 100
"""The longest tensor names of the models served have about 65."""
MAX_REASON = 200

_repr = Repr()
_repr.fillvalue = "…"
_repr.maxlevel = 2
_repr.maxstring = _repr.maxother = _repr.maxlong = MAX_QUOTED


def quoted(value: object) -> str:
    """A value from outside as messages show it: like its ``repr``, printable, at most :data:`MAX_QUOTED` characters."""
    try:
        text = _repr.repr(value)
    except ValueError:  # Python writes out no integer of more than some thousand digits
        text = f"a huge {type(value).__name__}"
    text = printable(text)
    return text if len(text) <= MAX_QUOTED else text[: MAX_QUOTED - 1] + "…"


def reason(error: BaseException) -> str:
    """What a library's or the system's error says: one printable line of at most :data:`MAX_REASON` characters."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    lines = said.split("\n", 1)
    return printable(lines[0].strip()[:MAX_REASON])[:MAX_REASON] or type(error).__name__


_PLAIN_NAME = re.compile(r"[\w./:@+-]{1,100}", re.ASCII)


def shown_name(name: str) -> str:
    """A name that a client chose, for a message: as it is, if it is short and plain, else :func:`quoted`."""
    return name if _PLAIN_NAME.fullmatch(name) else quoted(name)


def as_param(name: str) -> str:
    """A name that a client chose, for :attr:`RequestError.field`: printable and cut, without quotes around it."""
    return name if _PLAIN_NAME.fullmatch(name) else quoted(name)[1:-1]


def printable(text: str) -> str:
    """``text`` in one line that any terminal shows: line ends and control characters as Python writes them."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class LuceError(Exception):
    """Base of all errors that luce raises on purpose."""


class RequestError(LuceError):
    """The request is at fault (HTTP 4xx). Names the field and says what would be accepted."""

    def __init__(
        self, message: str, *, field: str | None = None, status: int = 400, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.status = status
        self.code = code


class CapacityError(LuceError):
    """The server is full for now (HTTP 503 with Retry-After)."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after
        """Seconds after which a retry makes sense."""


class DeadlineError(LuceError):
    """The answer was not complete within the time limit of its request (HTTP 504). Says the limit and how far
    it got."""


class ModelFileError(LuceError):
    """A model file is missing, truncated, corrupt, hostile or not of a kind that luce serves.

    The message is one line that names the file and, where there is one, the tensor or the configuration field.
    """

    def __init__(self, path: str | os.PathLike[str], message: str, *, tensor: str | None = None) -> None:
        self.path = os.fspath(path)
        self.tensor = tensor
        where = f"{self.path}: tensor {quoted(tensor)}" if tensor is not None else self.path
        super().__init__(f"{where}: {message}")


class TraceFileError(LuceError):
    """A trace of requests cannot be read. The message is one line that names the file and, where there is one, the row
    (from 1)."""

    def __init__(self, path: str | os.PathLike[str], message: str, *, row: int | None = None) -> None:
        self.path = os.fspath(path)
        self.row = row
        super().__init__(
            f"{self.path}: row {row}: {message}" if row is not None else f"{self.path}: {message}"
        )


class ConfigError(LuceError):
    """A command-line flag, environment variable or configuration-file entry cannot be honoured."""

    def __init__(self, message: str, *, flag: str | None = None) -> None:
        super().__init__(f"{flag}: {message}" if flag else message)
        self.flag = flag


class DeviceError(LuceError):
    """The device failed or does not keep the exactness promise."""


class ChartError(LuceError):
    """A statechart file is not in the subset that luce runs, or does not fit its actor's guard class."""


class IllegalEvent(LuceError):  # noqa: N818 - the name the charts' documents use
    """An event arrived for which the current configuration has no transition. The machine did not change."""

    def __init__(self, machine: str, configuration: Iterable[str], event: str) -> None:
        self.machine = machine
        self.configuration = tuple(configuration)
        self.event = event
        super().__init__(f"{machine} in {', '.join(self.configuration)}: no transition for event {event!r}")
