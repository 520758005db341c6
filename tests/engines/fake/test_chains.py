"""Saved, restored, captured, adopted, dropped and computed again in any order: the reference answer."""

from __future__ import annotations

import random

import numpy as np
import pytest

from luce.engines.fake.engine import Mode
from luce.engines.fake.reference import reference_tokens
from luce.engines.seam import SlotSpec, SlotWork, WorkKind
from tests.engines.fake.harness import decode, prefill
from tests.engines.fake.stored import HANDLES, IMAGES, SIZE, TEXT, adopt, do, driver, item, restore


class Crowd:
    """Requests that are saved, dropped, captured and adopted in any order."""

    def __init__(self, mode: Mode, seed: int) -> None:
        self.random = random.Random(seed)
        self.running = driver(mode)
        self.free = [0, 1, 2, 3]
        self.specs: dict[int, SlotSpec] = {}
        """By request, as it came."""
        self.content: dict[int, SlotSpec] = {}
        """What its slot is open with."""
        self.slots: dict[int, int] = {}
        self.rows: dict[int, int] = {}
        self.tokens: dict[int, list[int]] = {}
        self.entries: list[tuple[SlotWork, SlotSpec, tuple[int, ...]]] = []
        self.counts: dict[str, int] = {}

    def so_far(self, request: int) -> SlotSpec:
        return self.specs[request].with_generated(self.tokens[request])

    def come(self, request: int, spec: SlotSpec) -> None:
        self.specs[request], self.tokens[request] = spec, []
        self.open(request, spec)
        self.running.open(self.slots[request], spec)

    def open(self, request: int, content: SlotSpec, row: int = 0) -> None:
        self.random.shuffle(self.free)
        self.slots[request], self.content[request], self.rows[request] = self.free.pop(), content, row

    def leave(self, request: int) -> None:
        slot = self.slots.pop(request)
        self.running.close(slot, keep=self.held(*(self.running.tables[s] for s in self.slots.values())))
        self.free.append(slot)

    def held(self, *tables: tuple[int, ...]) -> set[int]:
        return set[int]().union(*tables, *(blocks for _, _, blocks in self.entries))

    def step(self, chosen: list[int]) -> None:
        segments = []
        for request in chosen:
            slot, row, length = (
                self.slots[request],
                self.rows[request],
                len(self.content[request].token_ids),
            )
            if row < length:
                count = self.random.randrange(1, length - row + 1)
                segments.append(prefill(slot, row, count, sample=row + count == length))
            else:
                segments.append(decode(slot, row))
            self.rows[request] += segments[-1].count
        for request, token in zip(chosen, self.running.tokens(*segments), strict=True):
            self.tokens[request] += [] if token is None else [token]

    def park(self, request: int) -> None:
        saved = item(WorkKind.SAVE, self.slots[request], self.rows[request], next(HANDLES))
        assert do(self.running, saved)[0].error is None
        content = self.random.choice([self.content[request], self.so_far(request)])
        self.leave(request)
        self.open(request, content, saved.position)
        assert restore(self.running, self.slots[request], content, saved)[0].error is None
        assert self.running.engine.audit_stored(saved.handle, self.so_far(request)) == []
        self.running.engine.discard(saved.handle)

    def drop(self, request: int) -> None:
        self.leave(request)
        self.open(request, self.so_far(request))
        self.running.open(self.slots[request], self.content[request])

    def capture(self, request: int) -> None:
        taken = item(WorkKind.CAPTURE, self.slots[request], self.rows[request], next(HANDLES))
        assert do(self.running, taken)[0].error is None
        blocks = self.running.tables[taken.slot][: taken.position // SIZE]
        self.entries.append((taken, self.so_far(request), blocks))
        if len(self.entries) > 3:
            self.evict()

    def evict(self) -> None:
        taken, content, blocks = self.entries.pop(0)
        engine = self.running.engine
        assert engine.audit_stored(taken.handle, content) == []
        assert engine.audit_blocks(content, blocks, len(blocks) * SIZE) == []
        engine.discard(taken.handle)
        still = self.held(*(self.running.tables[slot] for slot in self.slots.values()))
        self.running.release(block for block in blocks if block not in still)

    def adopt(self, request: int) -> None:
        content = self.so_far(request)
        for taken, other, blocks in self.entries:
            rows = slice(taken.position)
            if (
                taken.position < len(content.token_ids)
                and np.array_equal(other.token_ids[rows], content.token_ids[rows])
                and len(other.spans) == len(content.spans)
            ):
                self.leave(request)
                self.open(request, content, taken.position)
                assert adopt(self.running, self.slots[request], content, taken, blocks)[0].error is None
                self.counts["adopted"] = self.counts.get("adopted", 0) + 1
                return


@pytest.mark.parametrize("mode", [Mode.INLINE, Mode.THREAD])
@pytest.mark.parametrize("seed", range(40))
def test_any_chain_gives_every_request_its_own_answer(seed: int, mode: Mode) -> None:
    crowd = Crowd(mode, seed)
    for request, spec in enumerate((TEXT, IMAGES, TEXT)):
        crowd.come(request, spec)
    actions = ["park", "drop", "capture", "adopt"] * 6
    crowd.random.shuffle(actions)
    for action in actions:
        for _ in range(crowd.random.randrange(3)):
            chosen = [
                one for one in crowd.slots if len(crowd.tokens[one]) < 25 and crowd.random.random() < 0.7
            ]
            if chosen:
                crowd.step(chosen)
        fitting = [one for one in crowd.slots if crowd.rows[one]]
        if fitting:
            request = crowd.random.choice(fitting)
            getattr(crowd, action)(request)
            crowd.counts[action] = crowd.counts.get(action, 0) + 1
            assert crowd.running.engine.audit(crowd.slots[request]) == []
    while crowd.entries:
        crowd.evict()
    for request, spec in crowd.specs.items():
        while len(crowd.tokens[request]) < 25:
            crowd.step([request])
        assert crowd.tokens[request] == reference_tokens(spec, len(crowd.tokens[request]))
    assert crowd.running.engine.stored_handles == frozenset()
    assert all(crowd.counts.get(name) for name in ("park", "drop", "capture")), crowd.counts
    crowd.running.engine.shutdown()


def test_chains_really_adopt() -> None:
    """Arms the test above."""
    total = 0
    for seed in range(10):
        crowd = Crowd(Mode.INLINE, seed)
        crowd.come(0, TEXT)
        for action in ("capture", "drop", "adopt", "capture", "adopt"):
            crowd.step([0])
            getattr(crowd, action)(0)
        total += crowd.counts.get("adopted", 0)
    assert total > 10
