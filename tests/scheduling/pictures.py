"""Frozen states for tests of the policy."""

from __future__ import annotations

from luce.scheduling.state import Lane, Limits, LoopState

__all__ = ["LIMITS", "lane", "state"]

LIMITS = Limits(num_slots=4, block_size=16, prefill_budget=8)


def lane(slot: int, next_row: int, prompt: int, **more: object) -> Lane:
    """A lane whose rows are all ready and covered, unless `more` says otherwise."""
    fields: dict[str, object] = {
        "slot": slot,
        "order": slot,
        "next_row": next_row,
        "prompt_rows": prompt,
        "ready_rows": prompt,
        "last_row": prompt + 10,
        "covered_rows": 10_000,
    }
    return Lane(**(fields | more))  # type: ignore[arg-type]


def state(*lanes: Lane, **more: object) -> LoopState:
    fields: dict[str, object] = {
        "limits": LIMITS,
        "lanes": lanes,
        "waiting": (),
        "free_slots": (),
        "available_blocks": 100,
    }
    return LoopState(**(fields | more))  # type: ignore[arg-type]
