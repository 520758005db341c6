"""Looking at the engine's numbers: logits and hidden rows of every layer.

It runs the very arithmetic of serving, on the engine thread between steps, over a pool of its own.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from luce.engines.qwen35.device.descriptors import STEP_ROWS
from luce.engines.qwen35.device.pool import DevicePool
from luce.engines.qwen35.device.runner import Runner
from luce.engines.qwen35.device.slots import DeviceSlot
from luce.engines.qwen35.slots import Greedy
from luce.engines.seam import SlotSpec

__all__ = ["alone", "forward_all"]

F32 = npt.NDArray[np.float32]


def alone(runner: Runner, spec: SlotSpec, ids: npt.NDArray[np.int64], rows: int) -> tuple[Runner, DeviceSlot]:
    """A runner with an empty pool for one sequence of ``rows`` rows, and its slot."""
    pool = runner.pool
    blocks = -(-rows // pool.block_size)
    solo = DevicePool(pool.device, pool.config, 1, blocks, rows)
    solo.give_out(range(blocks))
    pool.device.upload(solo.histories[0, :rows], ids[:rows].astype(np.int32))
    slot = DeviceSlot(0, spec, Greedy(pool.config.vocab_size), ids, table=tuple(range(blocks)))
    return runner.on(solo), slot


def forward_all(runner: Runner, spec: SlotSpec) -> tuple[F32, list[F32]]:
    """Logits [T, V] of every prompt row, and per layer the rows [T, hidden] that leave it."""
    count = len(spec.token_ids)
    solo, slot = alone(runner, spec, np.asarray(spec.token_ids, np.int64), count)
    config, program, device = runner.pool.config, runner.program, runner.device
    logits = np.empty((count, config.vocab_size), np.float32)
    hidden = [np.empty((count, config.hidden), np.float32) for _ in range(config.num_layers)]
    for start in range(0, count, STEP_ROWS):
        rows = min(STEP_ROWS, count - start)

        def tap(layer: int, start: int = start, rows: int = rows) -> None:
            hidden[layer][start : start + rows] = device.numpy(program.x[:rows])

        solo.alone(slot, start, rows, every_row=True, tap=tap)
        logits[start : start + rows] = device.numpy(program.logits[:rows])[:, : config.vocab_size]
    return logits, hidden
