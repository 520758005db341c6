"""What is explored: a system's size, its requests, and how often each misfortune may strike."""

from __future__ import annotations

from typing import Any

import attrs

from luce.scheduling.staged_passes import PassLimits
from luce.scheduling.state import Limits

__all__ = ["Options", "Shape"]


@attrs.frozen
class Shape:
    """What a client asks for."""

    prompt_rows: int
    spans: tuple[tuple[int, int], ...] = ()
    """(first row, rows) of each image."""
    pictures: tuple[bytes, ...] = ()
    """Digest of each image; nothing: no two requests show the same picture, and none shows one twice."""
    max_tokens: int = 2
    recomputable: bool = True
    capture_points: tuple[int, ...] = ()
    """Prompt rows after which its state is copied for the prefix cache."""
    whole: bool = False
    """Its pictures are taken whole, in staged passes."""
    leader: int | None = None
    """Number of the request whose prompt is its own: it comes with that one, and waits for it to be computed."""
    masks: str = ""
    """What each token of its answer needs: f nothing, r a mask that is known at once, c one that a worker computes.
    Tokens past its end need nothing. The first one is no c: what a worker computes for it was there beforehand."""

    def needs(self, token: int) -> str:
        return self.masks[token] if token < len(self.masks) else "f"


@attrs.frozen
class Options:
    """One system to explore."""

    shapes: tuple[Shape, ...]
    depth: int = 1
    slots: int = 2
    blocks: int = 6
    block_size: int = 2
    prefill_budget: int | None = 1
    rows_before_picture: int = 1
    """Prompt rows at least that do not wait for the picture behind them."""
    layers: int = 0
    """Of a model with staged passes, one a slice; 0: a model without them."""
    cancels: int = 0
    """Requests whose client may go away, counted from the last one."""
    stalls: int = 0
    """Times that any client may leave its buffer full."""
    client_timeouts: bool = False
    queue_timeouts: bool = False
    deadlines: int = 0
    """Requests that have a time limit, counted from the last one. It may run out at any moment."""
    step_failures: int = 0
    image_failures: int = 0
    mask_failures: int = 0
    """Times that a mask cannot be computed."""
    saves: int = 0
    """Rows of parked requests that host memory has room for."""
    kept_images: int = 0
    """Pictures that the encoder's cache has room for when nobody needs them."""
    hits: int = 0
    """Times that a request finds all of its prompt but the last row in the prefix cache when it gets a slot."""
    keeps_answers: bool = False
    """Finished answers are copied for the prefix cache."""
    copy_failures: int = 0
    """Times that copies to or from host memory, those of the prefix cache included, may fail."""
    drains: int = 0
    """1: the server may drain; 2: and then abort."""
    late_submits: bool = False
    """Requests still come after the drain. The server refuses them; the loop's chart must not rely on it."""
    reduced: bool = False
    """Take deliveries that commute with everything else in one order, see `reduction.py`."""
    charts: tuple[tuple[str, Any], ...] = ()
    """Charts that stand in for the shipped ones."""
    planted: frozenset[str] = frozenset()
    """Defects to build in, see `system.py`."""
    limits: Limits = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        rows = self.prefill_budget or 99
        passes = PassLimits(self.layers, 1, 1, rows, rows) if self.layers else None
        limits = Limits(self.slots, self.block_size, self.prefill_budget, passes, self.rows_before_picture)
        object.__setattr__(self, "limits", limits)

    def fires(self, event: str) -> bool:
        """May a request's timer for this event run out?"""
        if event == "queue.expired":
            return self.queue_timeouts
        return self.client_timeouts if event == "client.timeout" else self.deadlines > 0
