"""How long the fake device takes."""

from __future__ import annotations

import attrs

from luce.engines.seam import PatchImage, StepPlan

__all__ = ["Times"]


@attrs.frozen
class Times:
    """Seconds. All zero by default: results are there at once."""

    step: float = 0.0
    """Per step, whatever is in it."""
    row: float = 0.0
    """Per row of a step."""
    patch: float = 0.0
    """Per patch of an encoded picture."""

    def of_step(self, plan: StepPlan) -> float:
        return self.step + self.row * plan.num_rows if self.step or self.row else 0.0

    def of_image(self, image: PatchImage) -> float:
        return self.patch * image.grid[0] * image.grid[1]
