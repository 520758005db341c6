"""Slots, blocks and host memory, counted: what `freeze` asks of `luce.actors.slot_memory.SlotMemory`."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace

import attrs

from luce.actors.slot_memory import SlotMemory
from luce.composition.world import Request, World
from luce.engines.seam import WorkKind

__all__ = ["Memory"]


class Memory:
    """Blocks are counted by slot."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._loop = world.loop
        self.capabilities = SimpleNamespace(block_size=world.options.block_size)
        self.free_slots = tuple(slot for slot in range(world.options.slots) if slot not in world.loop.running)
        self.work = tuple((work, work.request) for work in world.loop.work)
        taken = sum(map(self._taken, world.loop.running))
        self.cache = SimpleNamespace(
            adopting={slot for slot in world.loop.running if world.loop.adopting(slot)}
        )
        self.pool = SimpleNamespace(available=world.options.blocks - taken)

    def _taken(self, slot: int) -> int:
        return max(self._loop.held[slot], self._loop.reserved[slot])

    @property
    def importing(self) -> bool:
        return any(work.kind is WorkKind.IMPORT for work in self._loop.work)

    def returning_blocks(self, ending: Iterable[Request]) -> int:
        slots = [request.slot for request in ending if request.slot is not None]
        return sum(map(self._taken, [*slots, *self._loop.saving]))

    def covered_rows(self, request: Request) -> int:
        assert request.slot is not None
        rows: int = self._taken(request.slot) * self.capabilities.block_size
        return rows

    def is_captured(self, slot: int) -> bool:
        return SlotMemory.is_captured(self, slot)  # type: ignore[arg-type]

    def entry_cost(self, request: Request) -> int:
        return self.entry_blocks(request)

    def entry_blocks(self, request: Request) -> int:
        if "short-promise" in self._world.options.planted:
            shape = attrs.evolve(request.shape, recomputable=True)
            request = attrs.evolve(request, shape=shape)
        return SlotMemory.entry_blocks(self, request)  # type: ignore[arg-type]

    def room_to_save(self) -> int:
        return self._world.options.saves - sum(r.saved_rows or 0 for r in self._world.requests)

    def save_cost(self, request: Request) -> int:
        return request.next_row
