"""The frozen picture of the world that :func:`luce.scheduling.plan.plan` decides on."""

from __future__ import annotations

from typing import NamedTuple

import attrs

from luce.engines.seam import Segment

__all__ = ["Decision", "Grant", "Lane", "Limits", "LoopState", "Waiting"]


@attrs.frozen
class Limits:
    """What does not change while the server runs."""

    num_slots: int
    block_size: int
    prefill_budget: int | None
    """Prompt rows per step over all lanes; None is the whole prompt at once."""


@attrs.frozen
class Waiting:
    """A queued request, first in first out."""

    key: int
    """Arrival number; also the FIFO order."""
    rows: int
    """Rows that the request can ever occupy: prompt + max_tokens."""


class Lane(NamedTuple):
    """A request that holds a slot. A tuple, because a plan looks at one for every slot in every step."""

    slot: int
    order: int
    """Arrival number of its request: prompts are served first in, first out."""
    next_row: int
    """Rows submitted so far = the position of the next segment."""
    prompt_rows: int
    ready_rows: int
    """Prompt rows from 0 on whose inputs are there: up to the first image that is not encoded yet."""
    last_row: int
    """Rows that may be submitted at most: prompt + max_tokens - 1 (the last token is never fed back)."""
    runnable: bool = True
    """False while the request's chart takes no rows: encoding, waiting for rows, ending, or its client stalls."""
    in_flight: bool = False
    """A segment that samples is launched and not collected: a further row may only continue it."""

    @property
    def prefilling(self) -> bool:
        return self.next_row < self.prompt_rows


@attrs.frozen
class LoopState:
    limits: Limits
    lanes: tuple[Lane, ...]
    waiting: tuple[Waiting, ...]
    """The head of the queue, at most as many as there are free slots."""
    free_slots: tuple[int, ...]
    available_blocks: int
    admitting: bool = True
    """False when this plan may not grant slots."""
    run_ahead: bool = False
    """Made right after a launch, before its results: only decode rows that continue a row in flight."""


@attrs.frozen
class Grant:
    key: int
    slot: int


@attrs.frozen
class Decision:
    """What to do next: hand out slots (then plan again when they have taken them), or run a step."""

    grants: tuple[Grant, ...] = ()
    segments: tuple[Segment, ...] = ()
