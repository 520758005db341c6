"""What a page at /ui costs the step loop, in a real Chromium on the same machine: 64 busy slots at 100 steps a second.

The engine is the fake one, whose step takes so long that the loop makes a hundred a second; requests are asked for
within the process, so that the page's stream is all there is of HTTP. Steps a second with the page open, without it,
and with the page in a tab that the system has stopped, in turns; and the frames a second that the page draws meanwhile.
The browser gets a core that the server does not use, with and without a page: it is the server's cost that is measured.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import attrs
import numpy as np
import psutil  # type: ignore[import-untyped]
import trio

from benchmarks.measure import Result, python_loop
from benchmarks.turns import ByteTokenizer, Prompt
from luce.actors.options import ServiceOptions
from luce.actors.service import Service
from luce.actors.submission import Submission
from luce.actors.token_buffer import End
from luce.engines.fake.engine import FakeEngine, Mode, fake_capabilities
from luce.engines.fake.times import Times
from luce.engines.loaded import GenerationDefaults, LoadedModel
from luce.http.app import create_app
from luce.http.connections import serve_app
from luce.http.options import HttpOptions
from luce.http.server import listen
from luce.sampling.parameters import SamplingParams

__all__ = ["main"]

SLOTS = 64
STEP = 0.0092
"""Seconds of a step on the fake device: with what the loop does for 64 slots that makes 100 a second."""
SECONDS = 2.0
"""Of one measurement."""
ROUNDS = 12
TOKENS = 300

BROWSER = """
import os, sys
if sys.argv[3]:
    os.sched_setaffinity(0, {int(sys.argv[3])})
from playwright.sync_api import sync_playwright

with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=sys.argv[2] or None, args=["--no-sandbox"])
    page = browser.new_page(viewport={"width": 1400, "height": 900}, bypass_csp=True)
    for line in sys.stdin:
        word = line.strip()
        if word == "open":
            page.goto(sys.argv[1])
            page.wait_for_function("window.luce && luce.store.records > 100")
        elif word == "close":
            page.goto("about:blank")
        elif word == "frames":
            print(page.evaluate("[luce.timeline.frames, performance.now()]"), flush=True)
            continue
        print("[]", flush=True)
"""


class _Browser:
    """Chromium in a process of its own, told what to do by lines."""

    def __init__(self, address: str, core: int | None) -> None:
        found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome") or ""
        self._process = subprocess.Popen(
            [sys.executable, "-c", BROWSER, address, found, "" if core is None else str(core)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, word: str) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(
                "the browser's process has ended; pip install playwright, and a chromium in the path"
            )
        return json.loads(answer)

    async def ask(self, word: str) -> Any:
        return await trio.to_thread.run_sync(self.tell, word)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """All of its processes, as a system stops a tab."""
        family = psutil.Process(self._process.pid).children(recursive=True)
        for one in family:
            one.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for one in family:
                one.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait(20)


def _model() -> LoadedModel:
    capabilities = fake_capabilities(num_slots=SLOTS, num_blocks=SLOTS * 32, max_context=512)
    return LoadedModel(
        name="fake",
        engine=FakeEngine(capabilities, mode=Mode.THREAD, times=Times(step=STEP)),
        tokenizer=ByteTokenizer(),  # type: ignore[arg-type]
        preparer=None,  # type: ignore[arg-type]
        eos_token_ids=(),
        defaults=GenerationDefaults(),
        created=0,
    )


async def _crowd(service: Service, number: int) -> None:
    """One client after the other, without a pause."""
    turn = 0
    while True:
        turn += 1
        prompt = Prompt(
            np.full(16, (number + turn) % 256, np.int32), np.tile(np.arange(16, dtype=np.int32), (3, 1))
        )
        tokens = TOKENS - number
        asked = Submission(f"r{number}-{turn}", prompt, (), SamplingParams(temperature=0, max_tokens=tokens))
        handle = service.submit(asked)
        while not isinstance(await handle.next(), End):
            pass


@attrs.define
class _Rates:
    without: list[float] = attrs.field(factory=list)
    open: list[float] = attrs.field(factory=list)
    stopped: list[float] = attrs.field(factory=list)
    frames: list[float] = attrs.field(factory=list)
    loops: list[float] = attrs.field(factory=list)


def _own_core() -> int | None:
    """A processor that this process leaves to the browser, which in earnest runs on another machine."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return None
    os.sched_setaffinity(0, cores[:-1])
    return cores[-1]


async def _rate(service: Service) -> float:
    before, started = service.loop.metrics.steps, time.perf_counter()
    await trio.sleep(SECONDS)
    return (service.loop.metrics.steps - before) / (time.perf_counter() - started)


async def _measure() -> _Rates:
    model = _model()
    http = HttpOptions(port=0, exit_grace=1.0)
    service = Service(model, ServiceOptions(coalesce=0.0))
    listener = listen(http)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/ui"
    rates, stop = _Rates(), trio.Event()
    browser = _Browser(address, _own_core())
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        await nursery.start(serve_app, create_app(service, model, http), listener, http, stop)
        for number in range(SLOTS):
            nursery.start_soon(partial(_crowd, service, number))
        await trio.sleep(1.0)
        for _ in range(ROUNDS):
            rates.loops.append(python_loop())
            rates.without.append(await _rate(service))
            await browser.ask("open")
            frames, at = await browser.ask("frames")
            rates.open.append(await _rate(service))
            later, then = await browser.ask("frames")
            rates.frames.append(1000 * (later - frames) / (then - at))
            with browser.stopped():
                await trio.sleep(2.0)  # until its buffers are full
                rates.stopped.append(await _rate(service))
            await browser.ask("close")
            await trio.sleep(0.5)
        await trio.to_thread.run_sync(browser.close)
        nursery.cancel_scope.cancel()
    return rates


def main() -> list[Result]:
    rates = trio.run(_measure)
    loop = 1000 * statistics.median(rates.loops)
    pairs = list(zip(rates.without, rates.open, rates.stopped, strict=True))

    def lost(place: int) -> float:
        return statistics.median(100 * (1 - pair[place] / pair[0]) for pair in pairs)

    return [
        Result("steps a second, 64 slots, no page", statistics.median(rates.without), "1/s", loop),
        Result("steps a second, a page open", statistics.median(rates.open), "1/s", loop),
        Result("lost by an open page", lost(1), "%", loop, goal=2.0),
        Result("lost by a page in a stopped tab", lost(2), "%", loop),
        Result("frames a second of the page", statistics.median(rates.frames), "1/s", loop, goal=20.0),
    ]
