"""Saved slots and snapshots of the fake engine, by handle, and the work items that make and use them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import attrs
import numpy as np
import numpy.typing as npt

from luce.engines.digest import content_digest
from luce.engines.fake.lanes import FakeModel, Lane
from luce.engines.fake.staging import FakeStaging
from luce.engines.seam import Capabilities, SampledToken, SlotWork, WorkKind, WorkOutcome
from luce.errors import DeviceError

__all__ = ["FakeStates", "Stored"]


@attrs.frozen(eq=False)
class Stored:
    """A lane after exactly ``position`` rows. Everything in it is a copy."""

    kind: WorkKind
    """SAVE or CAPTURE."""
    position: int
    first: int
    """First row whose sum is here."""
    digest: bytes
    state: int
    """S(position - 1)."""
    sums: tuple[int, ...]
    """Of the rows ``first`` … ``position`` - 1, each inside its block."""
    ids: npt.NDArray[np.int64]
    length: int
    """Prompt rows of the lane."""
    first_generated: int
    tokens: tuple[SampledToken, ...]
    """SAVE: generated tokens from position ``length`` on, up to the one for ``position``."""


class FakeStates:
    """Stored states of one engine."""

    def __init__(self, model: FakeModel, capabilities: Capabilities, staging: FakeStaging) -> None:
        self._model = model
        self._staging = staging
        self._capabilities = capabilities
        self.states: dict[int, Stored] = {}
        self.failing: Mapping[WorkKind, deque[str]] = {kind: deque() for kind in WorkKind}
        """Reasons for which the next items of a kind fail."""

    @property
    def nbytes(self) -> int:
        """Host bytes that all of them take."""
        return sum(self._nbytes(stored.kind, stored.position) for stored in self.states.values())

    def run(self, item: SlotWork) -> WorkOutcome:
        """Do one item. One that fails changes neither lanes nor stored states."""
        try:
            lane = self._lane(item)
            if item.kind in (WorkKind.SAVE, WorkKind.CAPTURE):
                self.states[item.handle] = self._copy(item, lane)
                return WorkOutcome(item.slot, self._nbytes(item.kind, item.position))
            if item.kind is WorkKind.IMPORT:
                self._staging.copy_out(item, lane)
            else:
                self._fill(item, lane)
            return WorkOutcome(item.slot)
        except DeviceError as error:
            return WorkOutcome(item.slot, error=str(error))

    def _lane(self, item: SlotWork) -> Lane:
        lane, failing = self._model.lanes[item.slot], self.failing[item.kind]
        failure = failing.popleft() if failing else lane.failure
        if failure is not None:
            raise DeviceError(failure)
        return lane

    def _nbytes(self, kind: WorkKind, position: int) -> int:
        saves = kind is WorkKind.SAVE
        return (self._capabilities.saved_bytes if saves else self._capabilities.captured_bytes)(position)

    def _copy(self, item: SlotWork, lane: Lane) -> Stored:
        position, size, saves = item.position, self._model.block_size, item.kind is WorkKind.SAVE
        if not lane.first <= position <= lane.rows:
            raise DeviceError(f"position {position} cannot be stored: there are {lane.rows} rows")
        first = 0 if saves else position // size * size
        ids = lane.ids(position)
        return Stored(
            kind=item.kind,
            position=position,
            first=first,
            digest=content_digest(ids, lane.positions(position)),
            state=lane.states[position - lane.first],
            sums=tuple(
                self._model.sums[lane.table[row // size] * size + row % size]
                for row in range(first, position)
            ),
            ids=ids,
            length=lane.length,
            first_generated=lane.first_generated,
            tokens=tuple(lane.tokens[: max(position + 1 - lane.length, 0)]) if saves else (),
        )

    def _fill(self, item: SlotWork, lane: Lane) -> None:
        stored, position = self.states.get(item.handle), item.position
        if stored is None:
            raise DeviceError(f"handle {item.handle} holds nothing")
        tokens = stored.tokens[max(lane.length - stored.length, 0) :]
        trial = attrs.evolve(lane, tokens=list(tokens))
        same = content_digest(trial.ids(position), trial.positions(position)) == stored.digest
        if item.kind is WorkKind.RESTORE:
            same = same and lane.first_generated == stored.first_generated
        if not same:
            raise DeviceError(f"handle {item.handle} holds another sequence than slot {item.slot}")
        model, size = self._model, self._model.block_size
        for row, value in enumerate(stored.sums, stored.first):
            block = item.blocks[row // size]
            model.sums[block * size + row % size] = value
            if row % size == size - 1:
                model.whole[block] = value
        lane.first, lane.states, lane.tokens, lane.table = position, [stored.state], list(tokens), item.blocks
