"""How long the fake device takes."""

from __future__ import annotations

import attrs

from luce.engines.seam import PatchImage, SlotWork, StepPlan, WorkKind

__all__ = ["Times"]


@attrs.frozen
class Times:
    """Seconds. All zero by default: results are there at once."""

    step: float = 0.0
    """Per step, unless it holds nothing but a slice of a staged pass."""
    row: float = 0.0
    """Per row of a step."""
    piece: float = 0.0
    """Per step that holds a piece of a prompt of more than one row."""
    layer: float = 0.0
    """Per layer of a slice of a staged pass, however many rows are in it."""
    imported: float = 0.0
    """Per staged prompt that is copied to its blocks."""
    picture: float = 0.0
    """Per encoded picture."""
    patch: float = 0.0
    """Per patch of an encoded picture."""
    work: float = 0.0
    """Per item of work, whatever it is: for CAPTURE and ADOPT that is all."""
    saved_row: float = 0.0
    """Per row of a slot that is saved."""
    restored_row: float = 0.0
    """Per row of a slot that is restored."""

    def of_step(self, plan: StepPlan) -> float:
        layers = next((segment.layers for segment in plan.segments if segment.layers is not None), None)
        seconds = 0.0
        if layers is not None:
            seconds = self.layer * (layers[1] - layers[0])
        if layers is None or plan.num_rows:
            seconds += self.step + self.row * plan.num_rows
            if self.piece and any(segment.count > 1 and segment.layers is None for segment in plan.segments):
                seconds += self.piece
        if plan.work:
            seconds += sum(map(self.of_work, plan.work))
        return seconds

    def of_work(self, item: SlotWork) -> float:
        if item.kind is WorkKind.SAVE:
            return self.work + self.saved_row * item.position
        if item.kind is WorkKind.IMPORT:
            return self.imported
        if item.kind is WorkKind.RESTORE:
            return self.work + self.restored_row * item.position
        return self.work

    def of_image(self, image: PatchImage) -> float:
        return self.picture + self.patch * image.grid[0] * image.grid[1]
