"""What flags are where nobody says: what suits a CPU, or a GPU."""

from __future__ import annotations

__all__ = ["STEP_SECONDS", "prefill_rows", "step_seconds"]

CPU_PREFILL, GPU_PREFILL = 64, 2048
"""Prompt rows in one step."""
STEP_SECONDS = 0.04
"""Of a step with rows of answers, on a GPU."""


def prefill_rows(asked: int | None, *, on_gpu: bool) -> int:
    """Prompt rows in one step."""
    return asked or (GPU_PREFILL if on_gpu else CPU_PREFILL)


def step_seconds(asked: float | None, *, on_gpu: bool) -> float | None:
    """Seconds that a step with rows of answers is to take at most; None: prompt rows alone bound it. Large models take
    longer than a stream may pause for any step on a CPU."""
    return asked or (STEP_SECONDS if on_gpu else None)
