"""Is a plan legal? The fake engine refuses what a real one would answer with garbage.

A violation is a bug of policy, so it is an assertion, but one that cannot be switched off.
"""

from __future__ import annotations

from weakref import WeakSet

import attrs

from luce.engines.fake.block_checks import BlockChecker
from luce.engines.fake.staged_checks import StagedChecker
from luce.engines.fake.violations import PlanError, require
from luce.engines.late_captures import may_be_late
from luce.engines.seam import (
    Capabilities,
    RowSource,
    Segment,
    SegmentKind,
    SlotSpec,
    SlotWork,
    StepPlan,
    WorkKind,
)

__all__ = ["PlanChecker", "PlanError", "require"]


@attrs.define(eq=False)
class _Slot:
    """What policy has asked of one slot so far, finished or not."""

    spec: SlotSpec
    length: int
    rows: int = 0
    committed: int = 0
    """No segment may start before it."""
    sampled_at: int = -1
    """Position of the newest token that was asked for; -1 is none."""
    table: tuple[int, ...] = ()


@attrs.frozen
class _Stored:
    kind: WorkKind
    position: int
    sampled_at: int


class PlanChecker:
    """Follows plans as they are launched, ahead of their execution."""

    def __init__(self, capabilities: Capabilities) -> None:
        self._capabilities = capabilities
        self._slots: dict[int, _Slot] = {}
        self._blocks = BlockChecker(capabilities.num_blocks, capabilities.block_size)
        self._staged = StagedChecker(capabilities)
        self._stored: dict[int, _Stored | None] = {}
        """By handle, until it is discarded; None where nothing was stored after all."""
        self._handles: set[int] = set()
        """All that were ever used or discarded."""
        self._number = -1
        self._computed: WeakSet[SlotSpec] = WeakSet()
        """Sequences whose rows have been computed and cannot be computed again."""

    def open(self, slot: int, spec: SlotSpec) -> None:
        length = len(spec.token_ids)
        require(0 <= slot < self._capabilities.num_slots, f"slot {slot} does not exist")
        require(slot not in self._slots, f"slot {slot} is open already")
        require(length > 0, "a prompt has at least one token")
        require(spec.positions.shape == (3, length), f"positions must be [3, {length}]")
        require(0 <= spec.num_generated < length, f"{spec.num_generated} of {length} ids are generated")
        require(not spec.spans or self._capabilities.images, "this engine takes no images")
        for span in spec.spans:
            require(span.start >= 0 and span.start + span.length <= length, f"{span} is outside the prompt")
            require(0 <= span.image < len(spec.image_rows), f"{span} names no image")
        self._slots[slot] = _Slot(spec, length)

    def close(self, slot: int) -> None:
        require(slot in self._slots, f"slot {slot} is not open")
        del self._slots[slot]
        self._staged.close(slot)

    def discard(self, handle: int) -> None:
        require(
            handle in self._stored or handle not in self._handles, f"handle {handle} is discarded already"
        )
        self._stored.pop(handle, None)
        self._handles.add(handle)

    def failed(self, item: SlotWork) -> None:
        """``item`` was executed and could not be done."""
        if item.kind in (WorkKind.SAVE, WorkKind.CAPTURE):
            if item.handle in self._stored:
                self._stored[item.handle] = None
        elif item.slot in self._slots:
            slot = self._slots[item.slot]
            slot.rows = slot.committed = 0
            slot.sampled_at = -1
            slot.table = ()

    def plan(self, plan: StepPlan) -> None:
        """Check a plan against everything launched before it, and follow it.

        Raises:
            PlanError: names the segment or the item of work and what is wrong with it.
        """
        if plan.number <= self._number:
            raise PlanError(f"step {plan.number} after step {self._number}")
        if not (plan.segments or plan.work) or len(plan.segments) != len(plan.block_tables):
            raise PlanError(
                f"{len(plan.segments)} segments, {len(plan.work)} items of work, {len(plan.block_tables)} block tables"
            )
        if plan.masks and len(plan.masks) != len(plan.segments):
            raise PlanError(f"{len(plan.masks)} masks for {len(plan.segments)} segments")
        for segment, mask in zip(plan.segments, plan.masks, strict=False):
            if mask is not None:
                require(segment.sample, f"{segment}: a mask for a segment that samples nothing")
                require(not mask.flags.writeable, f"{segment}: its mask may still change")
        self._number = plan.number
        if plan.freed_blocks or plan.fresh_blocks:
            self._blocks.change(plan, [slot.table for slot in self._slots.values()])
        for item in plan.work:
            fault = self._wrong_work(item)
            if fault:
                raise PlanError(f"{item}: {fault}")
        self._staged.slices([s for s in plan.segments if s.kind is SegmentKind.STAGED])
        seen: set[int] = set()
        for segment, table in zip(plan.segments, plan.block_tables, strict=True):
            slot = self._slots.get(segment.slot)
            if slot is None or segment.slot in seen:
                raise PlanError(f"{segment}: the slot is not open, or named twice in the step")
            seen.add(segment.slot)
            if segment.kind is SegmentKind.STAGED:
                fault = "its table is not empty" if table else None
                fault = fault or self._staged.wrong(segment, slot.spec, slot.rows)
                if segment.start == 0 and segment.layers and segment.layers[0] == 0:
                    fault = fault or self._wrong_again(slot, 0)
                if fault:
                    raise PlanError(f"{segment}: {fault}")
                continue
            fault = self._wrong_rows(slot, segment) or self._wrong_table(slot, segment, table)
            if fault:
                raise PlanError(f"{segment}: {fault}")
            slot.rows = segment.start + segment.count
            slot.committed = segment.commits
            slot.sampled_at = slot.rows if segment.sample else -1

    # -- segments -------------------------------------------------------------------------------------------------

    def _wrong_rows(self, slot: _Slot, segment: Segment) -> str | None:
        start, end = segment.start, segment.start + segment.count
        if segment.layers is not None:
            return "only staged passes are sliced into layers"
        if self._staged.staged(segment.slot):
            return "its prompt is in staged passes"
        if segment.count < 1 or not 0 <= start <= slot.rows:
            return f"a gap after {slot.rows} rows"
        if start < slot.committed:
            return f"the rows before {slot.committed} are committed"
        if end > self._capabilities.max_context:
            return f"exceeds the context of {self._capabilities.max_context}"
        if segment.source is RowSource.LAST_SAMPLED:
            if segment.kind is not SegmentKind.DECODE or segment.count != 1:
                return "only a decode row, one at a time, continues a sampled token"
            if not slot.length <= start <= slot.sampled_at:
                return "no token was sampled at its start"
            return None
        last = segment.kind is SegmentKind.DECODE and segment.count == 1 and segment.sample
        if not (segment.kind is SegmentKind.PREFILL or last) or end > slot.length:
            return f"not prefill of the prompt's {slot.length} rows"
        if segment.sample and end != slot.length:
            return "samples in the middle of the prompt"
        return self._wrong_images(slot.spec, start, end) or self._wrong_again(slot, start)

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

    def _wrong_again(self, slot: _Slot, start: int) -> str | None:
        if self._capabilities.recomputes(slot.spec):
            return None
        if not start and not slot.rows and (slot.spec.num_generated or slot.spec in self._computed):
            return "the rows of such a sequence cannot be computed again"
        self._computed.add(slot.spec)
        return None

    def _wrong_table(self, slot: _Slot, segment: Segment, table: tuple[int, ...]) -> str | None:
        fault = None
        if table is not slot.table:
            fault = self._blocks.wrong_table(table)
            slot.table = table
        return fault or self._blocks.write(slot, table, segment.start, segment.start + segment.count)

    # -- work -----------------------------------------------------------------------------------------------------

    def _wrong_work(self, item: SlotWork) -> str | None:
        allowed = self._capabilities
        can = {
            WorkKind.SAVE: allowed.parking,
            WorkKind.RESTORE: allowed.parking,
            WorkKind.IMPORT: allowed.whole_image_blocks,
        }
        if not can.get(item.kind, allowed.snapshots):
            return "this engine does not do that"
        slot = self._slots.get(item.slot)
        if slot is None:
            return "the slot is not open"
        if item.kind is WorkKind.IMPORT:
            return self._wrong_import(slot, item)
        if self._staged.staged(item.slot):
            return "its prompt is in staged passes"
        if item.kind in (WorkKind.SAVE, WorkKind.CAPTURE):
            return self._wrong_copy(slot, item)
        return self._wrong_fill(slot, item)

    def _wrong_copy(self, slot: _Slot, item: SlotWork) -> str | None:
        if item.handle in self._handles:
            return "its handle was used or discarded before"
        late = item.kind is WorkKind.CAPTURE and may_be_late(item.position, slot.committed, slot.rows)
        if not late and not max(slot.committed, 1) <= item.position <= slot.rows:
            return f"only positions from {max(slot.committed, 1)} to {slot.rows} can be stored"
        slot.committed = max(slot.committed, item.position)
        self._handles.add(item.handle)
        sampled_at = item.position if slot.length <= item.position <= slot.sampled_at else -1
        self._stored[item.handle] = _Stored(item.kind, item.position, sampled_at)
        return None

    def _wrong_import(self, slot: _Slot, item: SlotWork) -> str | None:
        fault = self._staged.imported(item.slot, item.position, slot.length)
        if fault:
            return fault
        slot.table, slot.rows, slot.committed = item.blocks, item.position, item.position
        return self._blocks.wrong_table(item.blocks) or self._blocks.write(
            slot, item.blocks, 0, item.position
        )

    def _wrong_fill(self, slot: _Slot, item: SlotWork) -> str | None:
        stored, position = self._stored.get(item.handle), item.position
        restores = item.kind is WorkKind.RESTORE
        if stored is None or stored.kind is not (WorkKind.SAVE if restores else WorkKind.CAPTURE):
            return "its handle holds no such state"
        if stored.position != position:
            return f"its handle was stored at position {stored.position}"
        if slot.rows:
            return f"the slot has {slot.rows} rows already"
        if not restores and position >= slot.length:
            return f"leaves nothing of the {slot.length} prompt rows to compute"
        first = 0 if restores else position // self._capabilities.block_size * self._capabilities.block_size
        slot.table = item.blocks
        slot.rows = slot.committed = position
        slot.sampled_at = stored.sampled_at
        return self._blocks.wrong_table(item.blocks) or self._blocks.write(slot, item.blocks, first, position)
