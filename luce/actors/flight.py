"""A step on its way, and the counters of all steps."""

from __future__ import annotations

from functools import cached_property

import attrs

from luce.actors.histogram import Histogram
from luce.actors.request import Request
from luce.engines.seam import StepPlan, Ticket

__all__ = ["Flight", "StepMetrics"]


_ROWS = tuple(2.0**power for power in range(15))


@attrs.define
class StepMetrics:
    """Counters over the loop's life; read by metrics and tests."""

    steps: int = 0
    step_rows: Histogram = attrs.field(factory=lambda: Histogram(_ROWS))
    """Prompt and answer tokens in a step."""
    lanes: int = 0
    """Sum over steps of requests in the step: lanes / steps is the mean batch."""
    max_lanes: int = 0
    device_seconds: float = 0.0
    longest_mixed: float = 0.0
    """Seconds on the device of the longest step that held rows of answers and prompts; kept where steps are paced."""
    passes: int = 0
    """Staged passes begun."""
    shared_passes: int = 0
    """Of these, passes of more than one request."""
    saves: int = 0
    """Slots saved to host memory under pressure."""
    drops: int = 0
    """Slots dropped under pressure, to be computed again."""
    resumes: int = 0

    @property
    def rows(self) -> int:
        """Of all steps."""
        return int(self.step_rows.sum)


@attrs.frozen(eq=False)
class Flight:
    """A launched step that is not collected yet."""

    plan: StepPlan
    ticket: Ticket
    requests: tuple[Request, ...]
    """Per segment, who it belongs to."""
    moving: tuple[Request, ...]
    """Per work item, who it belongs to."""

    @cached_property
    def slots(self) -> frozenset[int]:
        """That it touches. Nobody asks while one step alone is in flight and no request ends."""
        rows = [segment.slot for segment in self.plan.segments]
        return frozenset(rows + [item.slot for item in self.plan.work])

    @cached_property
    def sampling(self) -> frozenset[int]:
        """Slots of which it samples a token."""
        return frozenset([segment.slot for segment in self.plan.segments if segment.sample])
