"""Executes one step plan: blocks, copies, lanes into passes over the layers, sampling. Runs on the engine thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import attrs
import numpy as np
import numpy.typing as npt

from luce.engines.qwen35.batch import Batch, Lane
from luce.engines.qwen35.rope import RopeTable
from luce.engines.qwen35.slots import Slot, cut
from luce.engines.qwen35.snapshots import PoolCopies
from luce.engines.qwen35.state import StatePool
from luce.engines.qwen35.stored_states import StoredStates
from luce.engines.qwen35.text import LOGIT_ROWS, Tap, TextModel
from luce.engines.seam import Mask, Outcome, SampledToken, Segment, StepPlan, WorkOutcome
from luce.errors import DeviceError, LuceError

__all__ = ["StepRunner"]

F32 = npt.NDArray[np.float32]


@attrs.define(eq=False)
class _Work:
    """One segment on its way through the step."""

    segment: Segment
    slot: Slot
    table: tuple[int, ...]
    pieces: deque[tuple[int, int]]
    mask: Mask | None
    hidden: int = -1
    """Its row among the rows to sample from."""
    error: str | None = None


class StepRunner:
    """The text model, its state pool and the arithmetic of a step, without thread or queue."""

    def __init__(self, model: TextModel, pool: StatePool, rope: RopeTable) -> None:
        self.model = model
        self.pool = pool
        self.rope = rope
        self.config = model.config
        self.stored = StoredStates(pool, pool.block_size, PoolCopies(pool))
        self._hidden: F32 = np.zeros((pool.num_slots, model.config.hidden), np.float32)

    def run(
        self, plan: StepPlan, slots: Mapping[int, Slot]
    ) -> tuple[tuple[Outcome, ...], tuple[WorkOutcome, ...]]:
        """Run a plan; one outcome per segment and one per work item, in order. What fails touches nothing else.

        Raises:
            DeviceError: the plan's fresh and freed blocks contradict those before.
        """
        self.pool.take_back(plan.freed_blocks)
        self.pool.give_out(plan.fresh_blocks)
        work = tuple(self.stored.run(item, slots) for item in plan.work)
        return self._segments(plan, slots), work

    def _segments(self, plan: StepPlan, slots: Mapping[int, Slot]) -> tuple[Outcome, ...]:
        outcomes: list[Outcome | None] = [None] * len(plan.segments)
        works: dict[int, _Work] = {}
        masks = plan.masks or (None,) * len(plan.segments)
        for index, (segment, table) in enumerate(zip(plan.segments, plan.block_tables, strict=True)):
            try:
                works[index] = self._prepare(segment, table, masks[index], slots, works)
            except LuceError as error:
                outcomes[index] = Outcome(segment.slot, 0, error=str(error))
        with np.errstate(all="ignore"):
            self._passes(list(works.values()))
            tokens = self._sample([work for work in works.values() if work.hidden >= 0])
        for index, work in works.items():
            if work.error is not None:
                work.slot.failed = work.error
                outcomes[index] = Outcome(work.slot.index, 0, error=work.error)
            else:
                kept = work.segment.count
                outcomes[index] = Outcome(work.slot.index, kept, tokens.get(work.slot.index, ()))
        assert all(outcome is not None for outcome in outcomes)
        return tuple(outcome for outcome in outcomes if outcome is not None)

    def _prepare(
        self,
        segment: Segment,
        table: tuple[int, ...],
        mask: Mask | None,
        slots: Mapping[int, Slot],
        works: Mapping[int, _Work],
    ) -> _Work:
        slot = slots.get(segment.slot)
        if slot is None:
            raise DeviceError(f"slot {segment.slot} is not open")
        if any(work.slot is slot for work in works.values()):
            raise DeviceError(f"slot {segment.slot} has two segments in one step")
        slot.check(segment, table, self.pool, self.config.hidden)
        slot.feed(segment)
        return _Work(segment, slot, table, deque(cut(segment.start, segment.count)), mask)

    def _passes(self, works: list[_Work]) -> None:
        """Run every piece, in as few passes as the row buffers allow, at most one piece of a slot in each."""
        sampled = 0
        while pending := [work for work in works if work.pieces and work.error is None]:
            batch: list[_Work] = []
            rows = 0
            for work in pending:
                if rows + work.pieces[0][1] <= self.model.max_rows:
                    rows += work.pieces[0][1]
                    batch.append(work)
            pieces = [(work.slot, work.table, *work.pieces.popleft()) for work in batch]
            hidden, ends = self.forward(pieces)
            finite: list[bool] = np.logical_and.reduce(np.isfinite(hidden[ends]), axis=1).tolist()
            for work, end, sound in zip(batch, ends, finite, strict=True):
                if not sound:
                    work.error = f"rows up to position {work.slot.high} are not finite"
                elif work.segment.sample and not work.pieces:
                    work.hidden = sampled
                    self._hidden[sampled] = hidden[end]
                    sampled += 1

    def forward(
        self, pieces: list[tuple[Slot, tuple[int, ...], int, int]], tap: Tap | None = None
    ) -> tuple[F32, npt.NDArray[np.intp]]:
        """One pass over the layers for (slot, block table, start, rows) pieces, at most one per slot.

        Returns last-layer rows [R, hidden], valid until the next pass, and the last row of each piece.
        """
        lanes, positions = [], []
        x = self.model.input_rows(sum(count for *_, count in pieces))
        ends, row = [], 0
        for slot, table, start, count in pieces:
            if start < slot.high:
                self.pool.drop_rows(slot.index, start, slot.high)
            lane = Lane(slot.index, start, count, slot.base, table)
            lanes.append(lane)
            positions.append(slot.positions(start, lane.end))
            slot.rows_into(start, x[row : row + count], self.model.weights.embed)
            row += count
            ends.append(row - 1)
            slot.start, slot.high, slot.table = start, lane.end, table
        batch = Batch(lanes, np.concatenate(positions, axis=1), self.config, self.pool, self.rope)
        for (slot, *_), rows in zip(pieces, batch.chunks, strict=True):
            slot.base = rows.chunk
        return self.model.forward(batch, self.pool, tap), np.array(ends)

    def _sample(self, works: list[_Work]) -> dict[int, tuple[SampledToken, ...]]:
        """Draw one token for each work that asks for it; a failing row fails its own work."""
        tokens: dict[int, tuple[SampledToken, ...]] = {}
        works = sorted(works, key=lambda work: work.hidden)
        for first in range(0, len(works), LOGIT_ROWS):
            part = works[first : first + LOGIT_ROWS]
            logits = self.model.logits(self._hidden[first : first + len(part)])
            for work, row in zip(part, logits, strict=True):
                slot, position = work.slot, work.segment.start + work.segment.count
                try:
                    token = slot.sampler.sample(row, position, work.mask)
                except LuceError as error:
                    work.error = str(error)
                    continue
                slot.sampled = (position, token.token)
                tokens[slot.index] = (token,)
        return tokens
