"""The log on standard error: one line for a terminal or one JSON object for a machine, whoever wrote it.

Everything goes through the standard library's loggers; structlog's processors make the lines. Fields come from
``extra`` and from the context: the id of the HTTP request, which follows its tasks and worker threads.

Nothing that clients sent belongs into it. Errors that luce raises on purpose and the system's say what they say. Others
are bugs; where their messages may quote anything, only their type and the places of the code are shown. Level debug
shows the message, too.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Literal

import structlog
from structlog.typing import EventDict, Processor

from luce.errors import LuceError, printable

__all__ = ["LogForm", "LogLines", "logs"]

LogForm = Literal["console", "json"]

WITHHELD = "(message withheld; --log-level debug shows it)"
_SAFE = (
    *(LuceError, OSError, BaseExceptionGroup, AssertionError, MemoryError, ArithmeticError),
    *(AttributeError, NameError, ImportError, TypeError),
)
"""Errors whose messages are the program's own words and names. ValueError and KeyError quote what they were given."""
_OURS = ("luce", "hypercorn")
"""Loggers with the level that was asked for; other libraries' only say what is wrong."""


@contextmanager
def logs(level: str, form: LogForm) -> Iterator[None]:
    """Send all logs of this process to standard error while it lasts, crashes of other threads included.

    Args:
        level: "debug", "info", "warning" or "error".
    """
    chosen = logging.getLevelNamesMapping()[level.upper()]
    handler = logging.StreamHandler()
    handler.setFormatter(_formatter(form, messages=chosen <= logging.DEBUG))
    root, hook = logging.getLogger(), threading.excepthook
    levels = {logger: logger.level for logger in (root, *map(logging.getLogger, _OURS))}
    root.addHandler(handler)
    for logger in levels:
        logger.setLevel(max(chosen, logging.WARNING) if logger is root else chosen)
    logging.captureWarnings(True)
    threading.excepthook = _thread_crashed
    try:
        yield
    finally:
        threading.excepthook = hook
        logging.captureWarnings(False)
        for logger, before in levels.items():
            logger.setLevel(before)
        root.removeHandler(handler)


class LogLines(io.TextIOBase):
    """A text file whose lines are entries of a log."""

    def __init__(self, name: str) -> None:
        self._log = logging.getLogger(name)
        self._rest = ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._log.info("%s", line)
        return len(text)


def _formatter(form: LogForm, *, messages: bool) -> logging.Formatter:
    def reports(logger: Any, method: str, event: EventDict) -> EventDict:
        info = event.pop("exc_info", None)
        error = sys.exception() if info is True else info[1] if isinstance(info, tuple) else info
        if isinstance(error, BaseException):
            event["exception"] = "\n".join(_report(error, messages))
        return event

    before: list[Processor] = [
        structlog.stdlib.ExtraAdder(),
        _no_foreign_work,
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
    ]
    after: list[Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, reports]
    if form == "json":
        before.append(structlog.processors.TimeStamper(fmt="iso", utc=True))
        after += [_one_line, structlog.processors.JSONRenderer(ensure_ascii=False)]
    else:
        after.append(_console_line)
    return structlog.stdlib.ProcessorFormatter(processors=after, foreign_pre_chain=before)


def _no_foreign_work(logger: Any, method: str, event: EventDict) -> EventDict:
    """Another handler's formatter leaves what it has made on the record."""
    for name in ("message", "asctime"):
        event.pop(name, None)
    return event


def _one_line(logger: Any, method: str, event: EventDict) -> EventDict:
    event["event"] = printable(str(event["event"]))
    return event


def _console_line(logger: Any, method: str, event: EventDict) -> str:
    """``2026-11-29 17:31:08,412 INFO luce.http: what happened name=value``, and the report of an error below it."""
    now = datetime.now().isoformat(" ", "milliseconds").replace(".", ",")
    head = f"{now} {event.pop('level').upper()} {event.pop('logger')}: {printable(str(event.pop('event')))}"
    report = event.pop("exception", None)
    line = " ".join([head, *(f"{name}={_shown(value)}" for name, value in event.items())])
    return line if report is None else f"{line}\n{report}"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3f}" if isinstance(value, float) else printable(str(value))


def _report(error: BaseException, messages: bool) -> Iterator[str]:
    """The error and its causes as Python writes them, without values that it may quote, groups indented."""
    if error.__cause__ is not None:
        yield from _report(error.__cause__, messages)
        yield "The error above was the cause of this one:"
    elif error.__context__ is not None and not error.__suppress_context__:
        yield from _report(error.__context__, messages)
        yield "While the error above was handled, another one came up:"
    yield "Traceback (most recent call last):"
    for part in traceback.format_tb(error.__traceback__):
        yield part.rstrip("\n")
    yield f"{type(error).__module__}.{type(error).__qualname__}: {_message(error, messages)}"
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from (f"  {line}" for one in _report(inner, messages) for line in one.split("\n"))


def _message(error: BaseException, messages: bool) -> str:
    if messages or isinstance(error, _SAFE):
        return printable(str(error))
    return WITHHELD if str(error) else ""


def _thread_crashed(arguments: threading.ExceptHookArgs) -> None:
    name = arguments.thread.name if arguments.thread is not None else "a thread"
    logging.getLogger("luce").critical("%s crashed", name, exc_info=arguments.exc_value)
