"""Are a plan's staged segments legal? (:class:`luce.engines.seam.StepPlan`, staged passes)"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from luce.engines.fake.violations import PlanError
from luce.engines.seam import Capabilities, RowSource, Segment, SlotSpec

__all__ = ["StagedChecker"]


@attrs.define(eq=False)
class _Staged:
    """What went through passes of one open slot."""

    rows: int = 0
    start: int = 0
    count: int = 0
    """Rows in the pass under way."""


class StagedChecker:
    """Follows the passes of plans as they are launched."""

    def __init__(self, capabilities: Capabilities) -> None:
        self._capabilities = capabilities
        self._slots: dict[int, _Staged] = {}
        """Those with staged rows that are not copied to blocks yet."""
        self._passing: set[int] = set()
        self._left_out: set[int] = set()
        """Slots that a pass went on without."""
        self._layer = 0
        """The first one that the pass under way has not been through."""

    def close(self, slot: int) -> None:
        self._slots.pop(slot, None)
        self._passing.discard(slot)
        self._left_out.discard(slot)

    def staged(self, slot: int) -> bool:
        """Does it have staged rows, so that nothing else may be asked of it?"""
        return slot in self._slots

    def slices(self, segments: Sequence[Segment]) -> None:
        """The staged segments of one plan, as a whole.

        Raises:
            PlanError: they are not one slice of one pass.
        """
        if not segments:
            return
        layers = segments[0].layers
        if not self._capabilities.whole_image_blocks or layers is None:
            raise PlanError(f"{segments[0]}: not of a staged pass of this engine")
        if any(segment.layers != layers for segment in segments):
            raise PlanError(f"one plan holds slices of different layers: {list(segments)}")
        slots = {segment.slot for segment in segments}
        if layers[0] not in (0, self._layer) or not layers[0] < layers[1] <= self._capabilities.num_layers:
            raise PlanError(f"layers {layers} when the pass under way is at layer {self._layer}")
        if layers[0] and not slots <= self._passing:
            raise PlanError(f"slots {sorted(self._passing)} are in the pass, and {sorted(slots)} go on")
        self._left_out |= self._passing - slots if layers[0] else self._passing
        if slots & self._left_out:
            raise PlanError(f"slots {sorted(slots & self._left_out)} go on, which a pass has left out")
        last = layers[1] == self._capabilities.num_layers
        self._layer = 0 if last else layers[1]
        self._passing = set() if last else slots

    def wrong(self, segment: Segment, spec: SlotSpec, rows: int) -> str | None:
        """One of them; ``rows``: what the slot has outside of passes."""
        assert segment.layers is not None
        first, end = segment.layers
        known = self._slots.get(segment.slot, _Staged())
        if first:
            if (known.start, known.count) != (segment.start, segment.count):
                return f"its pass holds {known.count} rows from {known.start}"
        else:
            fault = self._wrong_rows(segment, spec, known, rows)
            if fault:
                return fault
            known.start, known.count = segment.start, segment.count
            self._slots[segment.slot] = known
        if end == self._capabilities.num_layers:
            known.rows = segment.start + segment.count
        return None

    def _wrong_rows(self, segment: Segment, spec: SlotSpec, known: _Staged, rows: int) -> str | None:
        start, stop, prefix = segment.start, segment.start + segment.count, len(spec.token_ids) - 1
        least = self._capabilities.min_staged_rows
        if segment.source is not RowSource.PROMPT or segment.sample:
            return "staged rows are prompt rows, and sample nothing"
        if rows:
            return f"the slot has {rows} rows outside of passes"
        if not spec.spans:
            return "a prompt without pictures needs no passes"
        if start != known.rows:
            return f"{known.rows} rows are staged"
        if segment.count < least or not (stop == prefix or stop <= prefix - least):
            return f"it or the rest of the {prefix} rows is shorter than {least}"
        for span in spec.spans:
            low, high = span.start, span.start + span.length
            if low < stop < high:
                return f"splits {span}"
            there = spec.image_rows[span.image]
            if start <= low < stop and (there is None or len(there) != span.length):
                return f"image {span.image} is not there in {span.length} rows"
        return None

    def imported(self, slot: int, position: int, prompt_rows: int) -> str | None:
        """An IMPORT: the slot is an ordinary one from here on."""
        known = self._slots.get(slot, _Staged())
        if slot in self._passing or known.rows != position or position != prompt_rows - 1:
            return f"{known.rows} of {prompt_rows - 1} rows are staged, or a pass is under way"
        del self._slots[slot]
        return None
