"""Looking at the engine's numbers: logits and hidden rows of every layer.

It runs the very arithmetic of serving, on the engine thread between steps, over a state pool of its own.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from luce.engines.qwen35.slots import Greedy, Slot, cut
from luce.engines.qwen35.state import StatePool
from luce.engines.qwen35.step import StepRunner
from luce.engines.qwen35.text import LOGIT_ROWS
from luce.engines.seam import SlotSpec

__all__ = ["alone", "forward_all"]

F32 = npt.NDArray[np.float32]


def alone(
    runner: StepRunner, spec: SlotSpec, ids: npt.NDArray[np.int64], rows: int
) -> tuple[StepRunner, Slot]:
    """A runner with an empty pool for one sequence of ``rows`` rows, and its slot."""
    size = runner.pool.block_size
    blocks = -(-rows // size)
    pool = StatePool(runner.config, 1, blocks, size)
    pool.give_out(range(blocks))
    pool.clear(0)
    slot = Slot(0, spec, Greedy(runner.config.vocab_size), ids, table=tuple(range(blocks)))
    return StepRunner(runner.model, pool, runner.rope), slot


def forward_all(runner: StepRunner, spec: SlotSpec) -> tuple[F32, list[F32]]:
    """Logits [T, V] of every prompt row, and per layer the rows [T, hidden] that leave it."""
    count = len(spec.token_ids)
    solo, slot = alone(runner, spec, np.asarray(spec.token_ids, np.int64), count)
    config = runner.config
    logits = np.empty((count, config.vocab_size), np.float32)
    hidden = [np.empty((count, config.hidden), np.float32) for _ in range(config.num_layers)]
    for start, rows in cut(0, count):

        def tap(layer: int, x: F32, start: int = start) -> None:
            hidden[layer][start : start + len(x)] = x

        last, _ = solo.forward([(slot, slot.table, start, rows)], tap)
        for first in range(0, rows, LOGIT_ROWS):
            part = last[first : first + LOGIT_ROWS]
            logits[start + first : start + first + len(part)] = runner.model.logits(part)
    return logits, hidden
