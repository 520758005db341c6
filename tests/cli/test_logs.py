"""The log's lines: for people, for machines, and what never stands in them."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.contextvars import bound_contextvars

from luce.cli.logs import WITHHELD, LogLines, logs
from luce.errors import DeviceError

SECRET = "Xyzzy"


@pytest.fixture(autouse=True)
def _root_as_in_a_process() -> Iterator[None]:
    root = logging.getLogger()
    kept = list(root.handlers)
    root.handlers.clear()
    yield
    root.handlers[:] = kept


def written(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_a_line_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    with logs("info", "console"), bound_contextvars(request_id="call-7"):
        logging.getLogger("luce.http").info(
            "all %s\nwell", "is", extra={"seconds": 0.5, "complete": False, "path": "a\x1b[31m"}
        )
    (line,) = written(capsys)
    stamp, said = line[:23], line[24:]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", stamp)
    assert said == (
        "INFO luce.http: all is\\nwell seconds=0.500 complete=no path=a\\x1b[31m request_id=call-7"
    )


def test_an_object_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    with logs("info", "json"), bound_contextvars(request_id="call-7"):
        logging.getLogger("luce.http").warning("all\n%s", "wöll", extra={"seconds": 0.5, "complete": False})
    (line,) = written(capsys)
    found = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", found.pop("timestamp"))
    assert found == {
        "event": "all\\nwöll",
        "seconds": 0.5,
        "complete": False,
        "request_id": "call-7",
        "logger": "luce.http",
        "level": "warning",
    }


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_levels_are_luce_s_own_and_other_libraries_only_warn(
    capsys: pytest.CaptureFixture[str], level: str
) -> None:
    names = ["debug", "info", "warning", "error"]
    with logs(level, "console"):
        for logger in ("luce.http", "hypercorn.error", "PIL.PngImagePlugin"):
            for name in names:
                getattr(logging.getLogger(logger), name)("%s of %s", name, logger)
    said = [line.split(": ", 1)[1] for line in written(capsys)]
    above = names[names.index(level) :]
    foreign = [name for name in above if name in ("warning", "error")]
    assert said == [
        *(f"{name} of luce.http" for name in above),
        *(f"{name} of hypercorn.error" for name in above),
        *(f"{name} of PIL.PngImagePlugin" for name in foreign),
    ]


def _breaks(secret: str) -> None:
    try:
        {}[secret]
    except KeyError:
        raise ExceptionGroup("both", [ValueError(secret), DeviceError("the device is gone")]) from None


@pytest.mark.parametrize("form", ["console", "json"])
@pytest.mark.parametrize("level", ["debug", "info"])
def test_reports_of_bugs_name_places_and_quote_nothing(
    capsys: pytest.CaptureFixture[str], form: Any, level: str
) -> None:
    with logs(level, form):
        try:
            _breaks(SECRET)
        except ExceptionGroup:
            logging.getLogger("luce.loop").exception("step 3 failed")
    text = "\n".join(written(capsys))
    if form == "json":
        text = json.loads(text)["exception"]
    assert "test_logs.py" in text and "in _breaks" in text
    assert "builtins.ExceptionGroup: both (2 sub-exceptions)" in text
    assert "luce.errors.DeviceError: the device is gone" in text
    assert f"builtins.ValueError: {SECRET if level == 'debug' else WITHHELD}" in text
    assert (SECRET in text) == (level == "debug")


def _fails(as_cause: bool) -> None:
    try:
        {}[SECRET]
    except KeyError as error:
        if as_cause:
            raise DeviceError("no good") from error
        raise DeviceError("worse")  # noqa: B904 - as bugs do


def test_causes_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with logs("info", "console"):
        for as_cause in (True, False):
            try:
                _fails(as_cause)
            except DeviceError:
                logging.getLogger("luce").exception("failed")
    text = "\n".join(written(capsys))
    assert text.count(f"builtins.KeyError: {WITHHELD}") == 2 and SECRET not in text
    assert "The error above was the cause of this one:" in text
    assert "While the error above was handled, another one came up:" in text


@pytest.mark.filterwarnings("default")
def test_warnings_and_crashes_of_threads_are_entries(capsys: pytest.CaptureFixture[str]) -> None:
    with logs("info", "json"):
        warnings.warn("an old way", DeprecationWarning, stacklevel=1)
        thread = threading.Thread(target=lambda: [][1], name="engine")
        thread.start()
        thread.join()
    warned, crashed = map(json.loads, written(capsys))
    assert "an old way" in warned["event"] and warned["logger"] == "py.warnings"
    assert crashed["event"] == "engine crashed" and crashed["level"] == "critical"
    assert "builtins.IndexError" in crashed["exception"]


def test_all_is_as_before_afterwards(capsys: pytest.CaptureFixture[str]) -> None:
    root, luce, hook = logging.getLogger(), logging.getLogger("luce"), threading.excepthook
    before = (root.level, luce.level, list(root.handlers))
    with logs("debug", "json"):
        assert (root.level, luce.level) == (logging.WARNING, logging.DEBUG)
    assert (root.level, luce.level, list(root.handlers)) == before
    assert threading.excepthook is hook


def test_a_file_of_entries(capsys: pytest.CaptureFixture[str]) -> None:
    with logs("info", "json"):
        print("one", 2, file=LogLines("luce.serve"))
    (line,) = written(capsys)
    assert json.loads(line)["event"] == "one 2"


FAULT = """
import sys
from luce.cli import serve
async def broken(*arguments):
    raise KeyError("Xyzzy")
serve.run_server = broken
from luce.cli.main import main
main(["serve", "--port", "0", "--log-format", "json"])
"""


def test_a_fault_of_the_server_is_a_report_and_code_1() -> None:
    """All that the process writes is JSON, what it serves included."""
    done = subprocess.run([sys.executable, "-c", FAULT], capture_output=True, text=True, check=False)
    entries = [json.loads(line) for line in done.stderr.splitlines()]
    assert (done.returncode, done.stdout) == (1, "")
    assert entries[0]["event"].startswith("model luce-demo from ")
    assert entries[-1]["level"] == "critical" and "in broken" in entries[-1]["exception"]
    assert SECRET not in entries[-1]["exception"].splitlines()[-1]
