"""Saved, restored, captured, adopted, dropped and computed again, in any order and beside others: the same bits."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence

import attrs
import numpy as np
import pytest

from luce.engines.seam import SlotSpec, SlotWork
from tests.engines.harness import Driver, new_engine
from tests.engines.models import tiny_model
from tests.engines.requests import Request, adopted, capture, do, prompt, restored, save, step


@attrs.define
class Entry:
    """A snapshot with the blocks below it, as a cache would hold it."""

    work: SlotWork
    content: SlotSpec
    blocks: tuple[int, ...]


class Crowd:
    """Four sequences that are saved, dropped, captured and adopted in any order, blocks counted as a pool does."""

    def __init__(self, driver: Driver, seed: int) -> None:
        self.driver, self.random = driver, random.Random(seed)
        self.size = driver.engine.capabilities.block_size
        self.free_slots = [0, 1, 2, 3]
        self.counts: Counter[str] = Counter()
        self.entries: list[Entry] = []
        self.sequences: list[Request] = []

    def slot(self) -> int:
        return self.free_slots.pop(self.random.randrange(len(self.free_slots)))

    def leave(self, sequence: Request) -> None:
        """Close its slot; blocks that nobody else has are free, and NaN from the next plan on."""
        others = [one.opened.blocks for one in self.sequences if one is not sequence]
        self.driver.close(sequence.opened, keep=self.held(others))
        self.free_slots.append(sequence.slot)

    def held(self, tables: Iterable[Sequence[int]]) -> set[int]:
        """Blocks in tables or under snapshots."""
        return set[int]().union(*tables, *(entry.blocks for entry in self.entries))

    def park(self, sequence: Request) -> None:
        saved, content = save(sequence), sequence.content
        if self.random.random() < 0.3:
            content = sequence.so_far
        do(self.driver, saved)
        self.leave(sequence)
        do(self.driver, restored(sequence, self.slot(), saved, content))
        if self.random.random() < 0.5:
            assert self.driver.engine.audit_stored(saved.handle, sequence.so_far) == []
        self.driver.engine.discard(saved.handle)

    def drop(self, sequence: Request) -> None:
        self.leave(sequence)
        sequence.open(self.slot(), sequence.so_far)

    def capture(self, sequence: Request) -> None:
        taken = capture(sequence)
        do(self.driver, taken)
        blocks = tuple(sequence.opened.blocks[: taken.position // self.size])
        self.entries.append(Entry(taken, sequence.so_far, blocks))

    def adopt(self, sequence: Request) -> None:
        """Drop it and start again from a snapshot of the same content, its own or another's."""
        content = sequence.so_far
        fitting = [entry for entry in self.entries if self._fits(entry, content)]
        if not fitting:
            return
        self.leave(sequence)
        sequence.open(self.slot(), content)
        entry = self.random.choice(fitting)
        do(self.driver, adopted(sequence, entry.work, entry.blocks))
        self.counts["adopted"] += 1

    def _fits(self, entry: Entry, content: SlotSpec) -> bool:
        position = entry.work.position
        rows = slice(position)
        return (
            position < len(content.token_ids)
            and np.array_equal(entry.content.token_ids[rows], content.token_ids[rows])
            and np.array_equal(entry.content.positions[:, rows], content.positions[:, rows])
            and all(
                mine is theirs
                for mine, theirs in zip(entry.content.image_rows, content.image_rows, strict=True)
            )
        )

    def forget(self) -> None:
        """Evict the oldest snapshot, after a last look at it."""
        entry = self.entries.pop(0)
        engine, whole = self.driver.engine, len(entry.blocks) * self.size
        assert engine.audit_stored(entry.work.handle, entry.content) == []
        assert engine.audit_blocks(entry.content, entry.blocks, whole) == []
        engine.discard(entry.work.handle)
        still = self.held(one.opened.blocks for one in self.sequences)
        self.driver.free([block for block in entry.blocks if block not in still])


@pytest.mark.parametrize("seed", range(5))
def test_any_chain_of_everything(driver: Driver, seed: int) -> None:
    chain(driver, seed)


@pytest.mark.parametrize(("seed", "block_size"), [(5, 24), (6, 128), (9, 7)])
def test_blocks_of_other_sizes(seed: int, block_size: int) -> None:
    engine = new_engine(*tiny_model(), block_size=block_size, num_blocks=2000 // block_size)
    try:
        chain(Driver(engine), seed)
    finally:
        engine.shutdown()


def chain(driver: Driver, seed: int) -> None:
    """Every action five times, in any order, with steps of any requests between."""
    crowd = Crowd(driver, seed)
    specs = [prompt(crowd.random.randrange(8)) for _ in range(2)]
    sequences = [Request(driver, spec, crowd.slot()) for spec in [*specs, specs[0]]]
    crowd.sequences = sequences
    actions = [crowd.park, crowd.drop, crowd.capture, crowd.adopt] * 5
    crowd.random.shuffle(actions)
    for action in actions:
        for _ in range(crowd.random.randrange(1, 4)):
            chosen = [one for one in sequences if not one.done and crowd.random.random() < 0.7]
            if chosen:
                step(driver, chosen, [crowd.random.choice([1, 5, 30, 64, 100]) for _ in chosen])
        running = [one for one in sequences if not one.done and one.row]
        if running:
            sequence = crowd.random.choice(running)
            action(sequence)
            crowd.counts[action.__name__] += 1
            assert driver.engine.audit(sequence.slot) == []
        if len(crowd.entries) > 2:
            crowd.forget()
    while crowd.entries:
        crowd.forget()
    for sequence in sequences:
        sequence.finish()
        sequence.check()
        assert driver.engine.audit(sequence.slot) == []
    assert all(crowd.counts[name] for name in ("park", "drop", "capture", "adopted")), crowd.counts
