"""`luce serve` as a process of its own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
from openai import OpenAI

from tests.suite_traces import suite

LUCE = (sys.executable, "-c", "from luce.cli.main import main; main()")


@attrs.define
class ServerProcess:
    process: subprocess.Popen[str]
    url: str
    lines: list[str]
    """What it printed, as it comes."""

    def openai(self) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def http(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, verify=False, **options)

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float) -> int:
        return self.process.wait(seconds)


@contextmanager
def serving(
    model: Path | None,
    *flags: str,
    env: dict[str, str] | None = None,
    program: tuple[str, ...] = LUCE,
) -> Iterator[ServerProcess]:
    """A server on a free port; killed on the way out if it is still there. What it did until then has to follow from
    the charts."""
    traces = suite.new_folder()
    if "--trace" not in flags:
        env = {**(os.environ if env is None else env), "LUCE_TRACE": str(traces)}
    command = [*program, "serve", *([str(model)] if model else []), "--port", "0", *flags]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, bufsize=1
    )
    assert process.stdout is not None
    lines: list[str] = []
    reader: threading.Thread | None = None
    try:
        for line in process.stdout:
            lines.append(line.rstrip())
            if found := re.match(r"serving .* at (https?://\S+)/v1", line):
                # Someone has to read on, or the server stops at a full pipe.
                reader = threading.Thread(target=lambda: lines.extend(map(str.rstrip, process.stdout or ())))
                reader.start()
                yield ServerProcess(process, found[1], lines)
                break
        else:
            raise AssertionError("\n".join(lines))
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if reader is not None:
            reader.join()
        process.stdout.close()
    if traces.exists():
        found = suite.faults(traces, suite.test)
        shutil.rmtree(traces)
        assert not found, found


def until(condition: Any, seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
