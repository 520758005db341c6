"""What a page at /ui costs the step loop, in a real Chromium on the same machine: 64 busy slots at 100 steps a second.

The engine is the fake one, whose step takes so long that the loop makes a hundred a second; requests are asked for
within the process, so that the page's stream is all there is of HTTP. Short runs with the page and without it take
turns, and each run with it is held against the mean of those just before and after. A machine that others use moves
both, and of what is left the quartiles say how far the runs agree.

The browser gets a core that the server does not use, with and without a page: it is the server's cost that is measured.
On one machine the two still share memory, caches and maybe a core's halves, so what the browser does is counted, too:
CPU seconds of all its processes, which say what is the page's doing even where the step rate is too noisy to.
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
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
from luce.compute.host_memory import spare_what_stays
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
PERIOD = 0.01
"""Seconds from one step to the next: the fake device takes what the loop does not, as far as it takes so little."""
LEAST_STEP = 0.002
SECONDS = 2.0
"""Of one measurement."""
SETTLE = 1.0
"""Seconds for a page to load, or to be gone."""
ROUNDS = 12
STOPPED_ROUNDS = 4
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

    def seconds(self) -> float:
        """CPU seconds of the browser so far, without the process that tells it what to do."""
        total = 0.0
        for one in psutil.Process(self._process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                times = one.cpu_times()
                total += times.user + times.system
        return total

    def close(self) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait(20)


def _model(step: float) -> LoadedModel:
    """Args: step: seconds of one on the device."""
    capabilities = fake_capabilities(num_slots=SLOTS, num_blocks=SLOTS * 32, max_context=512)
    return LoadedModel(
        name="fake",
        engine=FakeEngine(capabilities, mode=Mode.THREAD, times=Times(step=step)),
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


@attrs.frozen
class _Run:
    """A few seconds of steps."""

    rate: float
    """Steps a second."""
    trio: float
    """CPU seconds of the trio thread, a step."""
    browser: float = 0.0
    """CPU seconds of the browser, a second."""
    frames: float = 0.0
    """That the page draws, a second."""


@attrs.define
class _Runs:
    without: list[_Run] = attrs.field(factory=list)
    """One more than of the others: before and after each."""
    open: list[_Run] = attrs.field(factory=list)
    stopped: list[_Run] = attrs.field(factory=list)
    loops: list[float] = attrs.field(factory=list)


def _own_core() -> int | None:
    """A processor that this process leaves to the browser, which in earnest runs on another machine."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return None
    os.sched_setaffinity(0, cores[:-1])
    return cores[-1]


async def _steps(service: Service, browser: _Browser | None = None) -> _Run:
    """Args: browser: one with the page open, and counted."""
    frames, at = await browser.ask("frames") if browser else (0, 0)
    busy = browser.seconds() if browser else 0.0
    before, cpu, started = service.loop.metrics.steps, time.thread_time(), time.perf_counter()
    await trio.sleep(SECONDS)
    made, cpu = service.loop.metrics.steps - before, time.thread_time() - cpu
    taken = time.perf_counter() - started
    busy = browser.seconds() - busy if browser else 0.0
    later, then = await browser.ask("frames") if browser else (0, 1)
    return _Run(made / taken, cpu / made, busy / taken, 1000 * (later - frames) / (then - at))


async def _device_step() -> float:
    """Seconds that the device is to take for a step, so that the loop makes one in :data:`PERIOD`."""
    service = Service(_model(PERIOD / 2), ServiceOptions(coalesce=0.0))
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        for number in range(SLOTS):
            nursery.start_soon(partial(_crowd, service, number))
        await trio.sleep(SETTLE)
        rate = (await _steps(service)).rate
        nursery.cancel_scope.cancel()
    return max(LEAST_STEP, PERIOD / 2 + PERIOD - 1 / rate)


async def _measure(step: float, browser_core: int | None) -> _Runs:
    model = _model(step)
    http = HttpOptions(port=0, exit_grace=1.0)
    service = Service(model, ServiceOptions(coalesce=0.0))
    listener = listen(http)
    runs, stop = _Runs(), trio.Event()
    browser = _Browser(f"http://127.0.0.1:{listener.getsockname()[1]}/ui", browser_core)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        await nursery.start(serve_app, create_app(service, model, http), listener, http, stop)
        for number in range(SLOTS):
            nursery.start_soon(partial(_crowd, service, number))
        await browser.ask("open")  # compiled and in its caches from here on
        await browser.ask("close")
        await trio.sleep(SETTLE)
        spare_what_stays()  # as `luce serve` does: rounds of the garbage collector are a noise of their own
        runs.without.append(await _steps(service))
        for number in range(ROUNDS):
            runs.loops.append(python_loop())
            await browser.ask("open")
            await trio.sleep(SETTLE)
            runs.open.append(await _steps(service, browser))
            if number < STOPPED_ROUNDS:
                with browser.stopped():
                    await trio.sleep(2 * SETTLE)  # until its buffers are full
                    runs.stopped.append(await _steps(service))
            await browser.ask("close")
            await trio.sleep(SETTLE)
            runs.without.append(await _steps(service))
        await trio.to_thread.run_sync(browser.close)
        nursery.cancel_scope.cancel()
    return runs


def _lost(runs: Sequence[_Run], without: Sequence[_Run]) -> tuple[float, float, float]:
    """Quartiles of the percentage of the step rate that is lost; ``without``: before and after each of ``runs``."""
    around = [(before.rate + after.rate) / 2 for before, after in pairwise(without)]
    lost = [100 * (1 - run.rate / rate) for run, rate in zip(runs, around, strict=False)]
    low, middle, high = statistics.quantiles(lost, n=4)
    return low, middle, high


def main() -> list[Result]:
    cores = _own_core()
    runs = trio.run(_measure, trio.run(_device_step), cores)
    loop = 1000 * statistics.median(runs.loops)

    def median(field: str, of: Sequence[_Run]) -> float:
        return statistics.median(getattr(run, field) for run in of)

    low, middle, high = _lost(runs.open, runs.without)
    return [
        Result(
            "steps a second, 64 slots, no page", median("rate", runs.without), "1/s", loop, goal=1 / PERIOD
        ),
        Result("steps a second, a page open", median("rate", runs.open), "1/s", loop),
        Result("lost by an open page, median of rounds", middle, "%", loop, goal=2.0),
        Result("… first quartile", low, "%", loop),
        Result("… third quartile", high, "%", loop),
        Result("lost by a page in a stopped tab", _lost(runs.stopped, runs.without)[1], "%", loop),
        Result("trio thread, a step, no page", 1e6 * median("trio", runs.without), "us", loop),
        Result("trio thread, a step, a page open", 1e6 * median("trio", runs.open), "us", loop),
        Result("browser's CPU with the page open", 100 * median("browser", runs.open), "% of a core", loop),
        Result("frames a second of the page", median("frames", runs.open), "1/s", loop, goal=20.0),
    ]
