"""``python -m benchmarks.gpu_engine --shape qwen3.5-27b --format Q4_K``: whole steps of the device engine on a GPU.

Weights are random in a released shape. Decode steps go through the engine's seam, two in flight, over sequences that
are set at ``--context`` rows of zeros; a prompt is prefilled in one plan. Beside them stands what the weights' bytes
alone take at the copy bandwidth that is measured in the same run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import attrs
import numpy as np

from luce.compute.cupy_device import open_device
from luce.compute.device import Device
from luce.compute.operands import DEFAULT_OPERANDS, Operands
from luce.engines.qwen35.device.engine import DeviceEngine
from luce.engines.qwen35.device.plan import DeviceSizes
from luce.engines.qwen35.device.runner import Runner
from luce.engines.qwen35.device.synthetic import synthetic_device_weights
from luce.engines.qwen35.shapes import RELEASED, released
from luce.engines.qwen35.slots import Slot
from luce.engines.seam import RowSource, Segment, SegmentKind, SlotSpec, StepPlan

STEPS = 40
WARM = 6


def copy_speed(device: Device) -> float:
    """Bytes a second that a device-to-device copy reads and writes."""
    size = 1 << 30
    a, b = device.empty(size, np.uint8), device.empty(size, np.uint8)
    begun, ended = device.event(), device.event()
    for _ in range(3):
        device.copy(b, a)
    begun.record()
    for _ in range(10):
        device.copy(b, a)
    ended.record()
    ended.synchronize()
    return 20 * size / ended.seconds_since(begun)


def experts_asked(runner: Runner, rows: int) -> int:
    """Of the last layer by the last step of ``rows`` rows; 0 without experts."""
    moe = getattr(runner.program, "moe", None)
    return 0 if moe is None else len(np.unique(runner.device.numpy(moe.chosen)[:rows]))


def spec(rows: int, slot: int = 0) -> SlotSpec:
    """Random ids: rows that are alike would choose the same experts, and numbers that repeat take less power, so that
    products of many rows are quicker than they are in earnest."""
    positions = np.broadcast_to(np.arange(rows, dtype=np.int32), (3, rows))
    ids = np.random.default_rng(slot).integers(0, 100_000, rows, dtype=np.int32)
    return SlotSpec(ids, positions, 0, None, 256)


@attrs.define(eq=False)
class Bench:
    engine: DeviceEngine
    number: int = 0
    asked: int = 0
    """Experts that the last layer's rows chose in the last decode step, the shared one among them."""

    def plan(
        self,
        segments: Sequence[Segment],
        tables: Sequence[tuple[int, ...]],
        fresh: tuple[int, ...] = (),
        freed: tuple[int, ...] = (),
    ) -> StepPlan:
        self.number += 1
        return StepPlan(self.number, tuple(segments), tuple(tables), fresh_blocks=fresh, freed_blocks=freed)

    def run(self, plan: StepPlan) -> float:
        """Device seconds."""
        result = self.engine.collect(self.engine.launch(plan))
        assert all(outcome.error is None for outcome in result.outcomes), result
        return result.seconds

    def decode(self, rows: int, context: int) -> tuple[float, float]:
        """Seconds of a step of ``rows`` sequences: of the host's clock, and the device's median."""
        engine, each = self.engine, (context + 256) // 64 + 1
        tables = [tuple(range(slot * each, (slot + 1) * each)) for slot in range(rows)]
        blocks = tuple(range(rows * each))
        for slot in range(rows):
            engine.open(slot, spec(context, slot))

        def place(runner: Runner, slots: dict[int, Slot]) -> None:
            pool = runner.pool
            for array in (*pool.state.values(), *pool.kv.values()):
                runner.device.fill(array, 0)
            for slot in range(rows):
                at = context - 1
                slots[slot].advance(at, at, at // 64 * 64, tables[slot])  # type: ignore[attr-defined]

        engine.call(place)
        first = [Segment(s, SegmentKind.PREFILL, context - 1, 1, RowSource.PROMPT, True) for s in range(rows)]
        self.run(self.plan(first, tables, fresh=blocks))
        tickets, seconds, begun = [], [], 0.0
        for step in range(WARM + STEPS):
            if step == WARM:
                begun = time.perf_counter()
            at = context + step
            segments = [
                Segment(slot, SegmentKind.DECODE, at, 1, RowSource.LAST_SAMPLED, True) for slot in range(rows)
            ]
            tickets.append(engine.launch(self.plan(segments, tables)))
            if len(tickets) == 2:
                seconds.append(engine.collect(tickets.pop(0)).seconds)
        seconds += [engine.collect(ticket).seconds for ticket in tickets]
        wall = (time.perf_counter() - begun) / STEPS
        self.asked = engine.call(lambda runner, _: experts_asked(runner, rows))
        for slot in range(rows):
            engine.close(slot)
        self.run(self.plan((), (), freed=blocks))
        return wall, float(np.median(seconds[WARM:]))

    def prefill(self, rows: int) -> tuple[float, float]:
        """Seconds of a prompt of ``rows`` rows, the better of two: of the host's clock, and the device's."""
        best = (1e9, 1e9)
        table = tuple(range(-(-rows // 64) + 1))
        for _ in range(2):
            self.engine.open(0, spec(rows))
            begun = time.perf_counter()
            segment = Segment(0, SegmentKind.PREFILL, 0, rows, RowSource.PROMPT, True)
            seconds = self.run(self.plan([segment], [table], fresh=table))
            best = min(best, (time.perf_counter() - begun, seconds))
            self.engine.close(0)
            self.run(self.plan((), (), freed=table))
        return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shape", choices=list(RELEASED), required=True)
    parser.add_argument("--format", default="Q4_K")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--prompt", type=int, default=8192)
    parser.add_argument("--operands", choices=[one.value for one in Operands], default=DEFAULT_OPERANDS.value)
    arguments = parser.parse_args()
    config = attrs.evolve(released(arguments.shape), vision=None)
    device = open_device(0, operands=Operands(arguments.operands))
    longest = max(arguments.prompt, arguments.context + 256)
    slots = max(arguments.rows)
    blocks = max(slots * ((arguments.context + 256) // 64 + 1), arguments.prompt // 64 + 2)
    speed = copy_speed(device)
    weights = synthetic_device_weights(config, arguments.format)
    engine = DeviceEngine(device, config, weights, DeviceSizes(slots, blocks, longest))
    weights_bytes = [part for part in engine.plan if part.part == "text weights" and part.name != "embedding"]
    read = sum(part.nbytes for part in weights_bytes)
    experts = sum(part.nbytes for part in weights_bytes if part.name.endswith("of experts"))
    moe = config.text.moe
    print(f"{device.fingerprint}; copy {speed / 1e12:.2f} TB/s; {arguments.shape} {arguments.format}")
    print(
        f"started in {engine.startup_seconds:.1f} s; weights {read / 1e9:.2f} GB, "
        f"{read / speed * 1e3:.2f} ms at that speed"
    )
    bench = Bench(engine)
    for rows in arguments.rows:
        wall, seconds = bench.decode(rows, arguments.context)
        idle = 0.0 if moe is None else experts * (1 - bench.asked / (moe.experts + 1))
        floor = (read - idle) / speed
        step = f"{wall * 1e3:.3f} ms a step ({seconds * 1e3:.3f} on the device), {rows / wall:.0f} tok/s"
        print(
            f"decode m = {rows}, {arguments.context} before: {step}; the weights' bytes are {floor / wall:.0%}"
            + ("" if moe is None else f", {bench.asked} experts in the last layer"),
            flush=True,
        )
    wall, seconds = bench.prefill(arguments.prompt)
    print(
        f"prefill {arguments.prompt}: {wall * 1e3:.0f} ms ({seconds * 1e3:.0f}), {arguments.prompt / wall:.0f} tok/s"
    )
    engine.shutdown()


if __name__ == "__main__":
    main()
