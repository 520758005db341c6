"""What flags are where nobody says: what suits a CPU, or a GPU."""

from __future__ import annotations

__all__ = ["STEP_SECONDS", "prefill_rows", "rows_before_picture", "step_seconds"]

CPU_PREFILL, GPU_PREFILL = 64, 2048
"""Prompt rows in one step."""
STEP_SECONDS = 0.04
"""Of a step with rows of answers, on a GPU."""
GPU_BEFORE_PICTURE = 128
"""Prompt rows that take about as long as any piece of a prompt does, whatever its rows: 12 ms and 10 ms for 27B on an
H200."""


def prefill_rows(asked: int | None, *, on_gpu: bool) -> int:
    """Prompt rows in one step."""
    return asked or (GPU_PREFILL if on_gpu else CPU_PREFILL)


def step_seconds(asked: float | None, *, on_gpu: bool) -> float | None:
    """Seconds that a step with rows of answers is to take at most; None: prompt rows alone bound it. Large models take
    longer than a stream may pause for any step on a CPU."""
    return asked or (STEP_SECONDS if on_gpu else None)


def rows_before_picture(*, on_gpu: bool) -> int:
    """Prompt rows at least that do not wait for the picture behind them. On a CPU rows and pictures take turns on the
    cores anyway, and a piece of few rows takes little."""
    return GPU_BEFORE_PICTURE if on_gpu else 1
