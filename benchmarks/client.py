"""`luce serve` as a child process, and a client that notes when each piece of a stream arrived."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import psutil  # type: ignore[import-untyped]

__all__ = ["Arrivals", "Child", "ask", "serving"]

MB = 1_000_000


@attrs.frozen
class Child:
    process: subprocess.Popen[str]
    url: str
    seconds_to_ready: float
    """From the process's start to the first 200 of /ready."""

    @property
    def resident(self) -> float:
        """Resident memory now, in MB."""
        return float(psutil.Process(self.process.pid).memory_info().rss / MB)

    @property
    def most_resident(self) -> float:
        """The most that was ever resident, in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024 / MB

    @property
    def cpu_seconds(self) -> float:
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)


@contextmanager
def serving(*flags: str) -> Iterator[Child]:
    """A server of the bundled model on a free port of the loopback interface, stopped on the way out.

    Raises:
        RuntimeError: it did not start; holds what it printed.
    """
    program = "from luce.cli.main import main; main()"
    command = [sys.executable, "-c", program, "serve", "--port", "0", *flags]
    with tempfile.TemporaryFile("w+") as log:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1)
        assert process.stdout is not None
        try:
            found = (re.match(r"serving .* at (http://\S+)/v1", line) for line in process.stdout)
            url = next((match[1] for match in found if match), None)
            if url is None:
                log.seek(0)
                raise RuntimeError(f"luce serve did not start: {log.read()}")
            httpx.get(f"{url}/ready").raise_for_status()
            yield Child(process, url, time.perf_counter() - started)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


@attrs.frozen
class Arrivals:
    """One streamed answer."""

    asked: float
    """When the request was sent, on :func:`time.perf_counter`'s clock."""
    pieces: tuple[float, ...]
    """When each piece of text arrived."""
    tokens: int
    """As the server counts them; text may come in fewer pieces."""

    @property
    def first(self) -> float:
        """Seconds from asking to the first text."""
        return self.pieces[0] - self.asked


async def ask(
    client: httpx.AsyncClient,
    text: str,
    pictures: list[str],
    tokens: int,
    on_piece: Callable[[float], None] | None = None,
) -> Arrivals:
    """Stream an answer of exactly ``tokens`` tokens, greedy.

    Args:
        pictures: `data:` URLs; they stand before the text.
        on_piece: called with the time of each piece as it comes.
    """
    pieces: list[float] = []
    content: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in pictures]
    body = {
        "messages": [{"role": "user", "content": [*content, {"type": "text", "text": text}]}],
        "temperature": 0,
        "max_tokens": tokens,
        "ignore_eos": True,
        "skip_special_tokens": False,  # past its end a model says little else, and every token must show
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    encoded = json.dumps(body).encode()
    counted = 0
    asked = time.perf_counter()
    async with client.stream(
        "POST", "/v1/chat/completions", content=encoded, headers={"content-type": "application/json"}
    ) as response:
        if response.status_code != 200:
            raise RuntimeError((await response.aread()).decode())
        async for line in response.aiter_lines():
            now = time.perf_counter()
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                if chunk.get("usage"):
                    counted = chunk["usage"]["completion_tokens"]
                elif chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                    pieces.append(now)
                    if on_piece is not None:
                        on_piece(now)
    assert counted == tokens, f"{counted} tokens, {tokens} asked for"
    assert 2 * len(pieces) > tokens, f"{tokens} tokens came in {len(pieces)} pieces"
    return Arrivals(asked, tuple(pieces), counted)
