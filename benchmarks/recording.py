"""What recording costs: steps of 64 requests that decode, with and without `luce serve --trace`, in one run.

As in `benchmarks/scheduler.py` the engine is a stub and CPU seconds are counted, so these are steps with nothing in
them but luce's own work. Two figures: of the trio thread, which is what a step waits for, and of the whole process,
where the recorder's thread packs and writes beside it; the second one is to be held against the time of a real step,
during which it has a core of its own or waits for the GIL. Runs with and without take turns in the same step loop.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from pathlib import Path

import trio

from benchmarks.measure import Result, python_loop
from benchmarks.scheduler import house
from luce.compute.host_memory import spare_what_stays
from luce.trace.files import Limits
from luce.trace.recorder import Recorder
from luce.trace.schema import VERSION, Header, Snapshot

__all__ = ["main"]

SLOTS = 64
STEPS = 20
PAIRS = 100
REAL_STEP_MS = 10.0
"""A hundred steps a second."""


def main() -> list[Result]:
    """Shares in percent, and what a record takes."""
    thresholds = gc.get_threshold()
    spare_what_stays()
    with tempfile.TemporaryDirectory() as directory:
        results = trio.run(_measured, Path(directory))
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    return results


async def _measured(directory: Path) -> list[Result]:
    loops, trio_with, trio_without, all_with, all_without = [], [], [], [], []
    size = count = 0
    recorder = Recorder(directory, Limits(1 << 30))
    async with house(SLOTS, 1, runs=2 * PAIRS * STEPS // 100 + 20) as (engine, loop):
        events = loop._wiring.events
        recorder.attach(events, _header(), lambda: Snapshot((), {}))
        files, reader = recorder.files, recorder.reader
        assert files is not None and reader is not None
        for pair in range(PAIRS):
            if pair % 10 == 0:
                loops.append(python_loop())
            for wanted in (False, True) if pair % 2 else (True, False):
                recorder.flush()
                (events.join if wanted else events.leave)(reader)
                before = files.total_bytes, files.total_records
                started = time.process_time()
                taken = await engine.seconds_of_step(STEPS)
                if wanted:  # what the recorder's task does a few times a second
                    recorder.flush()
                    size += files.total_bytes - before[0]
                    count += files.total_records - before[1]
                whole = (time.process_time() - started) / STEPS
                (trio_with if wanted else trio_without).append(taken)
                (all_with if wanted else all_without).append(whole)
                for request in loop.running.values():
                    while len(request.buffer):
                        await request.buffer.get()
        recorder.close()
    loop_ms = 1000 * statistics.median(loops)
    without, whole = statistics.median(trio_without), statistics.median(all_without)
    ratio = statistics.median(a / b for a, b in zip(trio_with, trio_without, strict=True))
    extra = statistics.median(a - b for a, b in zip(all_with, all_without, strict=True))
    return [
        Result("step, 64 slots, nothing recorded", 1e6 * without, "us", loop_ms),
        Result("recording, of the trio thread", 100 * (ratio - 1), "%", loop_ms, goal=1.0),
        Result("recording, of the process, a step", 1e6 * extra, "us", loop_ms),
        Result("… of a step of 10 ms", 1e5 * extra / REAL_STEP_MS, "%", loop_ms, goal=1.0),
        Result("… of a step with nothing in it", 100 * extra / whole, "%", loop_ms),
        Result("bytes a record, packed", size / count, "B", loop_ms),
    ]


def _header() -> Header:
    return Header(
        version=VERSION,
        run="benchmark",
        file=0,
        first=0,
        wall=0.0,
        clock=0.0,
        charts={},
        hashes={},
        content=False,
        model="",
        fingerprint=None,
        options={},
        capabilities={},
        versions={},
    )


if __name__ == "__main__":
    for one in main():
        print(f"{one.name:40} {one.value:10.2f} {one.unit}")
