"""Is a plan legal? The fake engine refuses what a real one would answer with garbage.

A violation is a bug of policy, so it is an assertion, but one that cannot be switched off.
"""

from __future__ import annotations

import attrs

from luce.engines.seam import Capabilities, RowSource, Segment, SegmentKind, SlotSpec, StepPlan

__all__ = ["PlanChecker", "PlanError"]


class PlanError(AssertionError):
    """Policy broke the seam's contract."""


def require(condition: bool, message: str) -> None:
    if not condition:
        raise PlanError(message)


@attrs.define(eq=False)
class _Slot:
    """What policy has asked of one slot so far, finished or not."""

    spec: SlotSpec
    length: int
    rows: int = 0
    sampled_at: int = -1
    """Position of the newest token that was asked for; -1 is none."""
    table: tuple[int, ...] = ()


class PlanChecker:
    """Follows plans as they are launched, ahead of their execution."""

    def __init__(self, capabilities: Capabilities) -> None:
        self._capabilities = capabilities
        self._slots: dict[int, _Slot] = {}
        self._number = -1

    def open(self, slot: int, spec: SlotSpec) -> None:
        length = len(spec.token_ids)
        require(0 <= slot < self._capabilities.num_slots, f"slot {slot} does not exist")
        require(slot not in self._slots, f"slot {slot} is open already")
        require(length > 0, "a prompt has at least one token")
        require(spec.positions.shape == (3, length), f"positions must be [3, {length}]")
        require(not spec.spans or self._capabilities.images, "this engine takes no images")
        for span in spec.spans:
            require(span.start >= 0 and span.start + span.length <= length, f"{span} is outside the prompt")
            require(0 <= span.image < len(spec.image_rows), f"{span} names no image")
        self._slots[slot] = _Slot(spec, length)

    def close(self, slot: int) -> None:
        require(slot in self._slots, f"slot {slot} is not open")
        del self._slots[slot]

    def plan(self, plan: StepPlan) -> None:
        """Check a plan against everything launched before it, and follow it.

        Raises:
            PlanError: names the segment and what is wrong with it.
        """
        if plan.number <= self._number:
            raise PlanError(f"step {plan.number} after step {self._number}")
        if not plan.segments or len(plan.segments) != len(plan.block_tables):
            raise PlanError(f"{len(plan.segments)} segments, {len(plan.block_tables)} block tables")
        self._number = plan.number
        seen: set[int] = set()
        writers: dict[int, int] = {}
        for segment, table in zip(plan.segments, plan.block_tables, strict=True):
            slot = self._slots.get(segment.slot)
            if slot is None or segment.slot in seen:
                raise PlanError(f"{segment}: the slot is not open, or named twice in the step")
            seen.add(segment.slot)
            fault = self._wrong_rows(slot, segment) or self._wrong_table(slot, segment, table, writers)
            if fault:
                raise PlanError(f"{segment}: {fault}")
            slot.rows = segment.start + segment.count
            slot.sampled_at = slot.rows if segment.sample else -1

    def _wrong_rows(self, slot: _Slot, segment: Segment) -> str | None:
        start, end = segment.start, segment.start + segment.count
        if segment.layers is not None:
            return "this engine does not slice layers"
        if segment.count < 1 or not 0 <= start <= slot.rows:
            return f"a gap after {slot.rows} rows"
        if end > self._capabilities.max_context:
            return f"exceeds the context of {self._capabilities.max_context}"
        if segment.source is RowSource.LAST_SAMPLED:
            if segment.kind is not SegmentKind.DECODE or segment.count != 1:
                return "only a decode row, one at a time, continues a sampled token"
            if not slot.length <= start <= slot.sampled_at:
                return "no token was sampled at its start"
            return None
        if segment.kind is not SegmentKind.PREFILL or end > slot.length:
            return f"not prefill of the prompt's {slot.length} rows"
        if segment.sample and end != slot.length:
            return "samples in the middle of the prompt"
        return self._wrong_images(slot.spec, start, end)

    def _wrong_images(self, spec: SlotSpec, start: int, end: int) -> str | None:
        for span in spec.spans:
            low, high = span.start, span.start + span.length
            if low >= end or high <= start:
                continue
            rows = spec.image_rows[span.image]
            if rows is None or rows.ndim != 2 or len(rows) != span.length:
                return f"image {span.image} is not there in {span.length} rows"
            if self._capabilities.whole_image_blocks and not (start <= low and high <= end):
                return f"splits {span}"
        return None

    def _wrong_table(
        self, slot: _Slot, segment: Segment, table: tuple[int, ...], writers: dict[int, int]
    ) -> str | None:
        size = self._capabilities.block_size
        first, last = segment.start // size, (segment.start + segment.count - 1) // size
        if last >= len(table):
            return f"a table of {len(table)} blocks does not cover it"
        if table is not slot.table:
            if len(set(table)) != len(table):
                return "a block stands twice in its table"
            if min(table) < 0 or max(table) >= self._capabilities.num_blocks:
                return "its table names a block that does not exist"
            slot.table = table
        for block in table[first : last + 1]:
            other = writers.setdefault(block, segment.slot)
            if other != segment.slot:
                return f"block {block} is written by slot {other} too"
        return None
