"""How long the fake device takes."""

from __future__ import annotations

import attrs

from luce.engines.seam import PatchImage, SlotWork, StepPlan, WorkKind

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
    work: float = 0.0
    """Per item of work, whatever it is: for CAPTURE and ADOPT that is all."""
    saved_row: float = 0.0
    """Per row of a slot that is saved."""
    restored_row: float = 0.0
    """Per row of a slot that is restored."""

    def of_step(self, plan: StepPlan) -> float:
        seconds = self.step + self.row * plan.num_rows if self.step or self.row else 0.0
        if plan.work:
            seconds += sum(map(self.of_work, plan.work))
        return seconds

    def of_work(self, item: SlotWork) -> float:
        if item.kind is WorkKind.SAVE:
            return self.work + self.saved_row * item.position
        if item.kind is WorkKind.RESTORE:
            return self.work + self.restored_row * item.position
        return self.work

    def of_image(self, image: PatchImage) -> float:
        return self.patch * image.grid[0] * image.grid[1]
