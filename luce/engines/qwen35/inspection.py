"""Looking at the engine's numbers: hidden rows of every layer, and the audit of a slot's stored state.

Both run the very arithmetic of serving, on the engine thread between steps, over a state pool of their own.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from luce.engines.qwen35.slots import Greedy, Slot, cut
from luce.engines.qwen35.state import CONV_ROWS, RING, StatePool
from luce.engines.qwen35.step import StepRunner
from luce.engines.qwen35.text import LOGIT_ROWS
from luce.engines.seam import SlotSpec

__all__ = ["audit", "forward_all"]

F32 = npt.NDArray[np.float32]


def _alone(
    runner: StepRunner, spec: SlotSpec, ids: npt.NDArray[np.int64], rows: int
) -> tuple[StepRunner, Slot]:
    """A runner with an empty pool for one sequence of ``rows`` rows, and its slot."""
    size = runner.pool.block_size
    blocks = -(-rows // size)
    pool = StatePool(runner.config, 1, blocks, size)
    pool.clear(0)
    slot = Slot(0, spec, Greedy(runner.config.vocab_size), ids, table=tuple(range(blocks)))
    return StepRunner(runner.model, pool, runner.rope), slot


def forward_all(runner: StepRunner, spec: SlotSpec) -> tuple[F32, list[F32]]:
    """Logits [T, V] of every prompt row, and per layer the rows [T, hidden] that leave it."""
    count = len(spec.token_ids)
    alone, slot = _alone(runner, spec, np.asarray(spec.token_ids, np.int64), count)
    config = runner.config
    logits = np.empty((count, config.vocab_size), np.float32)
    hidden = [np.empty((count, config.hidden), np.float32) for _ in range(config.num_layers)]
    for start, rows in cut(0, count):

        def tap(layer: int, x: F32, start: int = start) -> None:
            hidden[layer][start : start + len(x)] = x

        last, _ = alone.forward([(slot, slot.table, start, rows)], tap)
        for first in range(0, rows, LOGIT_ROWS):
            part = last[first : first + LOGIT_ROWS]
            logits[start + first : start + first + len(part)] = runner.model.logits(part)
    return logits, hidden


def _differs(a: npt.NDArray[np.floating], b: npt.NDArray[np.floating]) -> bool:
    return a.tobytes() != b.tobytes()


def audit(runner: StepRunner, slot: Slot) -> list[str]:
    """Recompute everything stored for ``slot`` from its content and compare bit for bit.

    The content is the slot's token ids, positions and image rows up to its last computed row. Compared are S at the
    committed chunk, the ring rows and log decays after it, the convolution rows that a next segment could read, and
    every key and value. Returns one line for each array that differs; an empty list is the expected result.
    """
    alone, copy = _alone(runner, slot.spec, slot.ids.copy(), max(slot.high, 1))
    for start, rows in [*cut(0, slot.start), (slot.start, slot.high - slot.start)]:
        if rows:
            alone.forward([(copy, copy.table, start, rows)])
    if (copy.base, copy.high) != (slot.base, slot.high):
        return [f"base and rows are {slot.base}, {slot.high}; recomputed {copy.base}, {copy.high}"]
    wrong = []
    ring = np.arange(slot.base, slot.high) % RING
    kept = np.arange(max(slot.start - 3, 0), slot.high) % CONV_ROWS
    for index, (mine, fresh) in enumerate(zip(runner.pool.deltanet, alone.pool.deltanet, strict=True)):
        pairs: dict[str, tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]] = {
            "S": (mine.s[slot.index], fresh.s[0]),
            "ring k": (mine.k[slot.index][:, ring], fresh.k[0][:, ring]),
            "ring u": (mine.u[slot.index][:, :, ring], fresh.u[0][:, :, ring]),
            "ring G": (mine.g[slot.index][:, ring], fresh.g[0][:, ring]),
            "convolution rows": (mine.conv[slot.index][kept], fresh.conv[0][kept]),
        }
        wrong += [f"DeltaNet layer {index}: {name}" for name, (a, b) in pairs.items() if _differs(a, b)]
    position = np.arange(slot.high)
    size = runner.pool.block_size
    rows_at = np.asarray(slot.table, np.intp)[position // size] * size + position % size
    for index, (kv, fresh_kv) in enumerate(zip(runner.pool.kv, alone.pool.kv, strict=True)):
        for name, a, b in (("keys", kv.k, fresh_kv.k), ("values", kv.v, fresh_kv.v)):
            if _differs(a[rows_at], b[: slot.high]):
                wrong.append(f"attention layer {index}: {name}")
    return wrong
