"""Saved slots and prefix snapshots of one engine, by handle, and the work items that make and use them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any, Generic, Protocol, TypeVar

import attrs
import numpy as np
import numpy.typing as npt

from luce.engines.digest import content_digest
from luce.engines.late_captures import may_be_late
from luce.engines.qwen35.slots import Holder, Slot
from luce.engines.seam import SlotWork, WorkKind, WorkOutcome
from luce.errors import DeviceError, LuceError

__all__ = ["Copies", "Progress", "Stored", "StoredStates"]

_SOURCE = {WorkKind.RESTORE: WorkKind.SAVE, WorkKind.ADOPT: WorkKind.CAPTURE}


@attrs.frozen(eq=False)
class Progress:
    """What a saved slot has besides arrays."""

    ids: npt.NDArray[np.int64]
    """[position] ids fed."""
    sampled: tuple[int, int] | None
    """(position, token) if a token was sampled for ``position``."""
    first_generated: int
    """Position of the first generated token."""
    generated: tuple[int, ...]
    """Tokens generated so far, the one in ``sampled`` included."""


class Snapshot(Protocol):
    """State after exactly ``position`` tokens, in host memory."""

    @property
    def position(self) -> int: ...

    @property
    def digest(self) -> bytes:
        """Of the token ids and M-RoPE positions of the ``position`` rows."""

    @property
    def nbytes(self) -> int: ...


S = TypeVar("S", bound=Snapshot)


class Copies(Protocol[S]):
    """Moves the state of slots between a pool and host memory."""

    def commit(self, slot: Slot, position: int) -> None:
        """Make the rows before ``position`` of ``slot`` final, as a segment that starts there would."""

    def take(self, slot: Slot, first: int) -> S:
        """The state of ``slot`` where it is committed, with keys and values from position ``first`` on.

        Raises:
            MemoryError: there is no memory for it.
        """

    def put(self, slot: Slot, snapshot: S, table: tuple[int, ...]) -> None:
        """Make the empty ``slot`` one that has computed ``snapshot.position`` rows, with ``table`` as its blocks."""


@attrs.frozen(eq=False)
class Stored(Generic[S]):
    kind: WorkKind
    """SAVE or CAPTURE."""
    snapshot: S
    progress: Progress | None = None
    """Of a saved slot."""


class StoredStates(Generic[S]):
    """Owned by the engine thread."""

    def __init__(self, holder: Holder, block_size: int, copies: Copies[S]) -> None:
        self._holder, self._block_size, self._copies = holder, block_size, copies
        self.states: dict[int, Stored[S]] = {}

    @property
    def nbytes(self) -> int:
        """Host bytes of all arrays."""
        return sum(stored.snapshot.nbytes for stored in self.states.values())

    def run(self, item: SlotWork, slots: Mapping[int, Slot]) -> WorkOutcome:
        """Do one item. One that cannot be done changes neither slots nor stored states and says why."""
        try:
            slot = self._slot(item, slots)
            if item.kind in _SOURCE:
                self._fill(item, slot)
                return WorkOutcome(item.slot)
            return WorkOutcome(item.slot, self._store(item, slot).snapshot.nbytes)
        except LuceError as error:
            return WorkOutcome(item.slot, error=str(error))
        except MemoryError as error:
            return WorkOutcome(item.slot, error=f"no host memory left to {item.kind.value} a slot: {error}")

    def discard(self, handle: int) -> None:
        """Forget a stored state, if there is one."""
        self.states.pop(handle, None)

    def _slot(self, item: SlotWork, slots: Mapping[int, Slot]) -> Slot:
        slot = slots.get(item.slot)
        if slot is None:
            raise DeviceError(f"slot {item.slot} is not open")
        if slot.failed is not None:
            raise DeviceError(f"the sequence failed before: {slot.failed}")
        return slot

    def _store(self, item: SlotWork, slot: Slot) -> Stored[S]:
        position, saves = item.position, item.kind is WorkKind.SAVE
        if item.handle in self.states:
            raise DeviceError(f"handle {item.handle} is in use")
        late = not saves and may_be_late(position, slot.start, slot.high)
        if not late and not max(slot.start, 1) <= position <= slot.high:
            raise DeviceError(
                f"position {position} cannot be stored: the slot is committed at {slot.start} and has {slot.high} rows"
            )
        if late:
            slot = copy(slot)  # which goes on from where it is
            slot.start = position
        else:
            self._copies.commit(slot, position)
        size = self._block_size
        snapshot = self._copies.take(slot, 0 if saves else position // size * size)
        stored = Stored(item.kind, snapshot, _progress(slot, position) if saves else None)
        self.states[item.handle] = stored
        return stored

    def _fill(self, item: SlotWork, slot: Slot) -> None:
        stored, position = self.states.get(item.handle), item.position
        if stored is None or stored.kind is not _SOURCE[item.kind]:
            held = "nothing" if stored is None else f"the result of a {stored.kind.value}"
            raise DeviceError(
                f"handle {item.handle} holds {held}; it cannot be used to {item.kind.value} a slot"
            )
        if stored.snapshot.position != position:
            raise DeviceError(
                f"handle {item.handle} was stored at position {stored.snapshot.position}, not {position}"
            )
        if slot.high:
            raise DeviceError(f"slot {slot.index} has {slot.high} rows already")
        if not self._holder.covers(item.blocks, position):
            raise DeviceError(f"the blocks do not cover {position} rows with blocks that were given out")
        last = len(slot.ids) - 1 if stored.progress else slot.prompt_length - 1
        if position > last:
            raise DeviceError(f"position {position} leaves no row to go on with: the last one is {last}")
        ids = _ids(slot, stored, position)
        if content_digest(ids, slot.positions(0, position)) != stored.snapshot.digest:
            raise DeviceError(
                f"handle {item.handle} holds other token ids or positions than slot {slot.index}"
            )
        self._put(slot, stored, item.blocks, ids)

    def _put(self, slot: Slot, stored: Stored[S], table: tuple[int, ...], ids: npt.NDArray[np.int64]) -> None:
        progress = stored.progress
        if progress is not None and progress.first_generated != slot.first_generated:
            raise DeviceError(
                f"the answer began at {progress.first_generated} when the slot was saved; now at {slot.first_generated}"
            )
        self._copies.put(slot, stored.snapshot, table)
        slot.ids[: len(ids)] = ids
        if progress is None:
            return
        slot.sampled = progress.sampled
        if len(progress.generated) > slot.spec.num_generated:
            slot.sampler.recall(progress.generated)


def _ids(slot: Slot, stored: Stored[Any], position: int) -> npt.NDArray[np.int64]:
    """Ids fed before ``position``: the slot's prompt, then what the saved slot had generated."""
    if stored.progress is None:
        return slot.ids[:position]
    return np.concatenate(
        [slot.ids[: min(slot.prompt_length, position)], stored.progress.ids[slot.prompt_length :]]
    )


def _progress(slot: Slot, position: int) -> Progress:
    token = slot.token_for(position)
    sampled = None if token is None else (position, token)
    generated = position - slot.first_generated + (sampled is not None)
    return Progress(
        ids=slot.ids[:position].copy(),
        sampled=sampled,
        first_generated=slot.first_generated,
        generated=slot.sampler.generated[: max(generated, slot.spec.num_generated)],
    )
