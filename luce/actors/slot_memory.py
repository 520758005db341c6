"""The loop's slots, blocks and stored states: who has them, and the engine work that moves them.

Passive and owned by the step loop alone. What belongs to one request (slot, hold, saved state) is kept on the request;
here is what is shared: the block pool, the free slots, the work for the next plan, and the host memory in use.

A request that is saved keeps slot and blocks until the copy is done; one that is restored has both from the start of
the copy. Neither is looked at by the policy in between: its lane is missing or may not run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import partial
from typing import cast

from luce.actors.budgets import park_budget, prefix_budget
from luce.actors.free_memory import FreeMemory, machine_memory
from luce.actors.prefix_cache import PrefixCache
from luce.actors.request import Request
from luce.actors.request_data import SavedState
from luce.engines.seam import (
    NO_HANDLE,
    Engine,
    Segment,
    SlotWork,
    StoresStates,
    WorkKind,
    WorkOutcome,
)
from luce.scheduling.block_pool import BlockPool, blocks_for
from luce.scheduling.holds import Hold
from luce.trace.events import EventStream

__all__ = ["SlotMemory", "WorkItem"]

WorkItem = tuple[SlotWork, Request]


class SlotMemory:
    """Args:
    engine: opens and closes slots, keeps stored states.
    park_bytes: host memory that saved slots may take; None is a quarter of what is free, looked up at every save.
    prefix_bytes: host memory that the prefix cache's snapshots may take, 0 for no cache; None:
        :func:`luce.actors.budgets.prefix_budget`.
    free_memory: what budgets of None depend on.
    events: told of every step of a cached prefix and of a range of blocks.
    """

    def __init__(
        self,
        engine: Engine,
        park_bytes: int | None,
        prefix_bytes: int | None = None,
        free_memory: FreeMemory = machine_memory,
        events: EventStream | None = None,
    ) -> None:
        self.engine = engine
        self.capabilities = engine.capabilities
        blocks = None if events is None else partial(events.observe_range, "block")
        self.pool = BlockPool(self.capabilities.num_blocks, self.capabilities.block_size, observer=blocks)
        self.saved_bytes = 0
        """Host memory that saved slots take, those being copied included."""
        self.work: list[WorkItem] = []
        """For the next plan."""
        self._leaving: dict[int, int] = {}
        """Slots that are being saved, and how many blocks come free with them."""
        self._park_bytes = park_bytes
        self._free_memory = free_memory
        self._free_slots = list(range(self.capabilities.num_slots - 1, -1, -1))
        self._handles = itertools.count()
        self.cache = PrefixCache(
            engine,
            self.pool,
            prefix_budget(prefix_bytes, self.capabilities, free_memory),
            self._new_handle,
            None if events is None else events.observe,
        )

    def _new_handle(self) -> int:
        return next(self._handles)

    @property
    def free_slots(self) -> tuple[int, ...]:
        """In the order in which they are to be given out."""
        return tuple(reversed(self._free_slots))

    # -- slots ----------------------------------------------------------------------------------------------------

    def entry_blocks(self, request: Request) -> int:
        """Blocks that a request without a slot is promised when it gets one: its rows so far and one block more, or
        all that it can ever need when it could not be computed again (invariant I12)."""
        size = self.capabilities.block_size
        most = blocks_for(request.row_limit, size)
        if not request.recomputable:
            return most
        rows = request.saved.position if request.saved is not None else request.prompt_rows
        return min(blocks_for(rows, size) + 1, most)

    def entry_cost(self, request: Request) -> int:
        """Blocks that :meth:`open` takes from the pool: what is promised without what others hold of its prefix."""
        hit = None if request.saved is not None else self.cache.find(request)
        shared = 0 if hit is None else len(hit.digests) - hit.cached_blocks
        return self.entry_blocks(request) - shared

    def open(self, request: Request, slot: int) -> None:
        """Give a request a slot and the promise of its blocks, and start it from the longest prefix that is cached.
        Policy has checked that slot and blocks are there."""
        hit = self.cache.take(request)
        if hit is None or not hit.digests:
            hold = self.pool.allocate(0, request.submission.id)
        else:
            hold = self.pool.adopt(hit.digests, request.submission.id)
        position = 0 if hit is None else hit.entry.position
        self._open(request, slot, hold)
        request.start_at(position)
        request.filled_blocks = len(hold)
        request.capture_points = self.cache.points(request, position)
        if hit is not None:
            if position % self.capabilities.block_size:
                self.pool.extend(hold, 1)
            self.work.append((self.cache.adopt(hit, slot, hold.table), request))

    def _open(self, request: Request, slot: int, hold: Hold) -> None:
        self.pool.reserve(hold, self.entry_blocks(request))
        self._free_slots.remove(slot)
        request.slot, request.hold = slot, hold
        self.engine.open(slot, request.spec)

    def close(self, request: Request) -> None:
        """Take slot and blocks back. No row and no work of it is in flight."""
        self.pool.release(_hold(request))
        self._close_slot(request)

    def _close_slot(self, request: Request) -> None:
        assert request.slot is not None
        self.engine.close(request.slot)
        self._free_slots.append(request.slot)
        request.slot = request.hold = None

    def tables(self, segments: Iterable[Segment], requests: Iterable[Request]) -> tuple[tuple[int, ...], ...]:
        """Block tables that cover the segments; what is missing is allocated, for all or for none. Staged rows
        have staging caches for that: their tables are empty."""
        size = self.capabilities.block_size
        holds, growth = [], []
        for (slot, _, start, count, _, _, layers), request in zip(segments, requests, strict=True):
            hold = request.hold
            assert hold is not None, slot
            holds.append(hold)
            end = start + count
            if end > hold.count * size and layers is None:
                growth.append((hold, blocks_for(end, size) - hold.count))
        if growth:
            self.pool.extend_all(growth)
        return tuple([hold.table for hold in holds])

    def covered_rows(self, request: Request) -> int:
        hold = request.hold
        assert hold is not None, request.submission.id
        blocks = hold.count if hold.count > hold.reserved else hold.reserved
        return blocks * self.capabilities.block_size

    def end(self, request: Request) -> None:
        """A request has ended: it holds nothing any more. No row and no work of it is in flight."""
        dropped = [work for work, owner in self.work if owner is request]
        self.work = [item for item in self.work if item[1] is not request]
        saving = False
        for work in dropped:  # copies that will never be made
            if work.kind is WorkKind.SAVE:
                saving = True
            elif work.kind is WorkKind.ADOPT:
                self.cache.adopted(work.slot, failed=False)
            elif work.kind is WorkKind.CAPTURE:
                self.cache.captured(work, None)
        if saving:
            self._end_save(request)
        elif request.slot is not None:
            self.close(request)
        self.forget_state(request)

    # -- the prefix cache -----------------------------------------------------------------------------------------

    def computed(self, computed: Sequence[tuple[Request, int]]) -> None:
        """So many leading rows of these requests are there: blocks can be found, a state may be worth keeping."""
        self.cache.fill(computed)
        for request, rows in computed:
            while request.capture_points and request.capture_points[0] <= rows:
                self._capture(request, request.capture_points[0])
                request.capture_points = request.capture_points[1:]

    def finished(self, request: Request) -> bool:
        """A request's answer is complete: a later turn may go on from it. True: a copy is to be made first."""
        return self._capture(request, request.computed_rows)

    def _capture(self, request: Request, rows: int) -> bool:
        work = self.cache.capture(request, rows)
        if work is not None:
            self.work.append((work, request))
        return work is not None

    def is_captured(self, slot: int) -> bool:
        """Is a copy of this slot for the prefix cache still to be launched?"""
        return any(work.slot == slot and work.kind is WorkKind.CAPTURE for work, _ in self.work)

    # -- plans ----------------------------------------------------------------------------------------------------

    def take_work(self) -> list[WorkItem]:
        """What the next plan has to do first."""
        work, self.work = self.work, []
        return work

    def check_integrity(self, running: Iterable[Request]) -> None:
        """Every block is free, cached or somebody's, and every slot free or somebody's (invariants I1, I2)."""
        holds, slots = [], list(self._free_slots)
        for request in running:
            assert request.slot is not None
            holds.append(_hold(request))
            slots.append(request.slot)
        self.pool.check_integrity(holds)
        self.cache.check_integrity()
        assert sorted(slots) == list(range(self.capabilities.num_slots)), slots

    # -- staged prompts -------------------------------------------------------------------------------------------

    @property
    def importing(self) -> bool:
        """Does the next plan copy staged prompts into their blocks?"""
        return any(work.kind is WorkKind.IMPORT for work, _ in self.work)

    def begin_import(self, request: Request) -> None:
        """The next plan copies the prompt out of its staging cache; :meth:`end_import` follows."""
        assert request.slot is not None
        hold, rows = _hold(request), request.next_row
        self.pool.extend(hold, blocks_for(rows, self.capabilities.block_size))
        self.work.append((SlotWork(WorkKind.IMPORT, request.slot, rows, NO_HANDLE, hold.table), request))

    def end_import(self, request: Request) -> bool:
        """The prompt is in its blocks. True: a copy for those that wait for it is to be made first."""
        assert request.slot is not None
        request.imported = True
        self.computed([(request, request.next_row)])
        return self.is_captured(request.slot)

    # -- parking --------------------------------------------------------------------------------------------------

    def returning_blocks(self, ending: Iterable[Request]) -> int:
        """Blocks that come free by themselves: of slots that are being saved, and of ``ending`` requests."""
        held = (request.hold for request in ending)
        return sum(self._leaving.values()) + sum(self.pool.gain(hold) for hold in held if hold is not None)

    def room_to_save(self) -> int:
        """Host bytes that further saves may take now."""
        return park_budget(self._park_bytes, self.capabilities, self.saved_bytes, self._free_memory)

    def save_cost(self, request: Request) -> int:
        """Host bytes that saving this request takes now."""
        return self.capabilities.saved_bytes(request.next_row)

    def begin_save(self, request: Request) -> None:
        """The next plan copies the slot out; :meth:`end_save` follows."""
        assert request.slot is not None
        position = request.next_row
        state = SavedState(self._new_handle(), position, self.capabilities.saved_bytes(position))
        self.saved_bytes += state.nbytes
        request.saved = state
        hold = _hold(request)
        self._leaving[request.slot] = self.pool.gain(hold) - hold.owed
        self.pool.begin_save(hold)
        self.work.append((SlotWork(WorkKind.SAVE, request.slot, position, state.handle), request))

    def begin_restore(self, request: Request, slot: int) -> None:
        """The next plan copies the saved state into ``slot``; :meth:`end_restore` follows."""
        state = request.saved
        assert state is not None
        hold = self.pool.allocate(0, request.submission.id)
        self._open(request, slot, hold)
        request.filled_blocks = 0
        self.pool.extend(hold, blocks_for(state.position, self.capabilities.block_size))
        self.work.append(
            (SlotWork(WorkKind.RESTORE, slot, state.position, state.handle, hold.table), request)
        )

    def end_save(self, request: Request, outcome: WorkOutcome) -> None:
        """The copy is done, well or not: slot and blocks are free again."""
        self._end_save(request)
        if outcome.error is not None:
            self.forget_state(request)

    def _end_save(self, request: Request) -> None:
        assert request.slot is not None
        del self._leaving[request.slot]
        self.pool.saved(_hold(request))
        self._close_slot(request)

    def end_restore(self, request: Request, outcome: WorkOutcome) -> None:
        """The state is in its slot, or the slot is given back; the saved one is not needed any more either way."""
        self.forget_state(request)
        if outcome.error is not None:
            self.close(request)

    def forget_state(self, request: Request) -> None:
        """Give the host memory of a saved state back, if there is one."""
        if request.saved is not None:
            cast(StoresStates, self.engine).discard(request.saved.handle)
            self.saved_bytes -= request.saved.nbytes
            request.saved = None


def _hold(request: Request) -> Hold:
    hold = request.hold
    assert hold is not None, f"request {request.submission.id} holds no blocks"
    return hold
