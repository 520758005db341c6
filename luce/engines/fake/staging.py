"""Staging caches of the fake engine: one for each slot, there from the start, filled by layer slices of passes.

A pass carries a hash over the layers that its rows went through. Rows whose layers were left out, taken twice or in
another order come out as other rows, so that a wrong slice shows as a wrong token.
"""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt

from luce.engines.fake.content import EMPTY, MASK, mix, prompt_content
from luce.engines.fake.lanes import FakeModel, Lane
from luce.engines.seam import Capabilities, Outcome, Segment, SlotWork
from luce.errors import DeviceError

__all__ = ["FakeStaging"]


@attrs.define(eq=False)
class _Streams:
    """Rows of one slot between two slices."""

    lane: Lane
    start: int
    contents: list[int]
    layers: int = EMPTY


class FakeStaging:
    """Args:
    model: has the lanes, and the blocks that staged prompts are copied to.
    capabilities: how many slots, rows and layers there are.
    """

    def __init__(self, model: FakeModel, capabilities: Capabilities) -> None:
        self._model = model
        rows = (capabilities.num_slots, capabilities.max_context if capabilities.whole_image_blocks else 0)
        self.states: npt.NDArray[np.uint64] = np.zeros(rows, np.uint64)
        """S(q) by slot and row."""
        self.sums: npt.NDArray[np.uint64] = np.zeros(rows, np.uint64)
        """A(q) by slot and row."""
        self._filled: dict[int, tuple[Lane, int]] = {}
        """By slot: whose rows its cache holds, and how many."""
        self._streams: dict[int, _Streams] = {}
        self._whole = EMPTY
        """What the hash over all layers must be."""
        for layer in range(capabilities.num_layers):
            self._whole = mix(self._whole, layer)
        self._num_layers = capabilities.num_layers

    def run(self, segment: Segment) -> Outcome:
        """One slice of one slot's rows."""
        slot = segment.slot
        lane = self._model.lanes[slot]
        lane.failure = self._model.failing.pop(slot, lane.failure)
        if lane.failure is not None:
            return Outcome(slot, 0, (), lane.failure)
        assert segment.layers is not None
        first, end = segment.layers
        if first == 0:
            stop = segment.start + segment.count
            self._streams[slot] = _Streams(
                lane, segment.start, prompt_content(lane.spec, segment.start, stop)
            )
        streams = self._streams.get(slot)
        if streams is None or streams.lane is not lane:
            return Outcome(slot, 0, (), f"layer {first} of rows that did not go through the layers before")
        for layer in range(first, end):
            streams.layers = mix(streams.layers, layer)
        if end == self._num_layers:
            self._take_in(slot, self._streams.pop(slot))
        return Outcome(slot, segment.count)

    def _take_in(self, slot: int, streams: _Streams) -> None:
        state, attention = EMPTY, 0
        if streams.start:
            state, attention = (int(kept[slot, streams.start - 1]) for kept in (self.states, self.sums))
        wrong = streams.layers ^ self._whole
        states, sums = [], []
        for content in streams.contents:
            state = mix(state, content ^ wrong)
            attention = (attention + mix(state, attention)) & MASK
            states.append(state)
            sums.append(attention)
        rows = slice(streams.start, streams.start + len(states))
        self.states[slot, rows], self.sums[slot, rows] = states, sums
        self._filled[slot] = (streams.lane, rows.stop)

    def copy_out(self, item: SlotWork, lane: Lane) -> None:
        """An IMPORT: the staged rows go to the slot's blocks.

        Raises:
            DeviceError: the slot's staging cache does not hold these rows; nothing has changed.
        """
        position, size, model = item.position, self._model.block_size, self._model
        if self._filled.get(item.slot) != (lane, position):
            raise DeviceError(
                f"the staging cache of slot {item.slot} does not hold its first {position} rows"
            )
        sums: list[int] = self.sums[item.slot, :position].tolist()
        before = 0
        for row, total in enumerate(sums):
            if row % size == 0:
                before = sums[row - 1] if row else 0
            inside = (total - before) & MASK
            block = item.blocks[row // size]
            model.sums[block * size + row % size] = inside
            if row % size == size - 1:
                model.whole[block] = inside
        lane.first, lane.states, lane.table = (
            position,
            [int(self.states[item.slot, position - 1])],
            item.blocks,
        )
