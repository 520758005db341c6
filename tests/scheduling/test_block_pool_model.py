"""The block pool against a model of sets and lists that is slow and plain, by random calls, legal ones and others.

Beside it every block has a machine of the interpreter that is fed the events which the pool says it stepped.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from luce.charts.interpreter import Machine
from luce.charts.loader import load_chart
from luce.errors import IllegalEvent
from luce.scheduling.block_pool import BlockPool
from luce.scheduling.block_states import RangeStep
from luce.scheduling.holds import Hold, OutOfBlocksError, StaleHoldError
from tests.charts.independent import GuardTable, guard_table
from tests.scheduling.pool_probe import refused

DIGESTS = [bytes([65 + i]) for i in range(6)]
CHART = load_chart("block")

counts = st.integers(0, 5)
runs = st.lists(st.sampled_from(DIGESTS), max_size=4)


@attrs.define(eq=False)
class Block:
    state: str = "free"
    digest: bytes | None = None
    since: int = 0
    """When it got its digest."""
    history: str = ""
    """Since the last plan: a was allocated, g was given up."""
    generation: int = 0


@attrs.define(eq=False)
class Held:
    hold: Hold
    ids: list[int]
    reserved: int = 0
    saving: bool = False

    @property
    def owed(self) -> int:
        return max(0, self.reserved - len(self.ids))


class PoolAgainstModel(RuleBasedStateMachine):
    @initialize(num_blocks=st.integers(1, 10), block_size=st.sampled_from([16, 64, 128]))
    def start(self, num_blocks: int, block_size: int) -> None:
        self.pool = BlockPool(num_blocks, block_size, observer=self.observe)
        self.guards: list[GuardTable] = [guard_table(CHART) for _ in range(num_blocks)]
        self.machines = [Machine(CHART, guards) for guards in self.guards]
        for machine in self.machines:
            machine.start()
        self.blocks = [Block() for _ in range(num_blocks)]
        self.cache: list[int] = []
        self.held: list[Held] = []
        self.dead: list[Hold] = []
        self.clock = 0

    def observe(self, step: RangeStep) -> None:
        for block, byte, bits in zip(
            step.ids.tolist(),
            step.after.tolist(),
            step.bits if step.bits is not None else step.after,
            strict=True,
        ):
            if step.bits is not None:
                answers = [bool(bits >> i & 1) for i in range(len(CHART.guard_order))]
                self.guards[block].answers = dict(zip(CHART.guard_order, answers, strict=True))
            self.guards[block].asked.clear()
            self.machines[block].feed(step.event)
            assert self.machines[block].current is self.pool._blocks.table.configurations[byte]
            assert step.bits is not None or not self.guards[block].asked

    # The model

    @property
    def available(self) -> int:
        free = sum(block.state == "free" for block in self.blocks)
        return free + len(self.cache) - sum(held.owed for held in self.held)

    def refs(self, block: int) -> int:
        return sum(block in held.ids for held in self.held)

    def first(self, digest: bytes | None) -> int | None:
        """The block that has had the digest longest."""
        has = [(block.since, i) for i, block in enumerate(self.blocks) if digest and block.digest == digest]
        return min(has)[1] if has else None

    def find(self, digests: list[bytes]) -> list[int]:
        found: list[int] = []
        for digest in digests:
            block = self.first(digest)
            if block is None:
                break
            found.append(block)
        return found

    def give_up(self, block: int) -> None:
        before = self.blocks[block]
        self.blocks[block] = Block(history=before.history + "g", generation=before.generation + 1)

    def take(self, count: int) -> list[int]:
        for _ in range(count - sum(block.state == "free" for block in self.blocks)):
            self.give_up(self.cache.pop(0))
        ids = [i for i, block in enumerate(self.blocks) if block.state == "free"][:count]
        for i in ids:
            self.blocks[i].state = "held_open"
            self.blocks[i].history += "a"
        return ids

    def let_go(self, held: Held, keep: int) -> None:
        """The end of a hold, the deepest block first."""
        going, held.ids = held.ids[keep:], held.ids[:keep]
        firsts = {block: self.first(self.blocks[block].digest) for block in going}
        for block in reversed(going):
            if self.refs(block):
                continue
            if self.blocks[block].digest is None:
                self.give_up(block)
                continue
            first = firsts[block]
            assert first is not None
            if first == block:
                self.blocks[block].state = "cached"
                self.cache.append(block)
            else:
                self.give_up(block)
                if first in self.cache:
                    self.cache.remove(first)
                    self.cache.append(first)

    def began(self, hold: Hold, ids: list[int]) -> None:
        self.held.append(Held(hold, ids))

    def ended(self, held: Held) -> None:
        self.held.remove(held)
        self.dead.append(held.hold)

    def refuses(self, error: type[Exception], call: Callable[[], object]) -> None:
        with refused(self.pool, error):
            call()

    def pick(self, data: st.DataObject, saving: bool = False) -> Held:
        return data.draw(st.sampled_from([held for held in self.held if held.saving == saving]))

    def some_live(self) -> bool:
        return any(not held.saving for held in self.held)

    # Calls

    @rule(count=counts)
    def allocate(self, count: int) -> None:
        if count > self.available:
            self.refuses(OutOfBlocksError, lambda: self.pool.allocate(count))
        else:
            self.began(self.pool.allocate(count), self.take(count))

    @rule(start=st.integers(0, 3), count=st.integers(1, 3))
    def prefill(self, start: int, count: int) -> None:
        """A prompt that others may have, too."""
        if count <= self.available:
            self.allocate(count)
            self.pool.fill(self.held[-1].hold, 0, DIGESTS[start : start + count])
            self.filled(self.held[-1], 0, DIGESTS[start : start + count])

    @precondition(some_live)
    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        live = [held for held in self.held if not held.saving]
        chosen = data.draw(st.lists(st.sampled_from(live), max_size=3, unique=True))
        growth = [(held, data.draw(counts)) for held in chosen]
        call = [(held.hold, count) for held, count in growth]
        if sum(max(0, count - held.owed) for held, count in growth) > self.available:
            self.refuses(OutOfBlocksError, lambda: self.pool.extend_all(call))
            return
        if len(call) == 1:
            self.pool.extend(*call[0])
        else:
            self.pool.extend_all(call)
        fresh = self.take(sum(count for _, count in growth))
        for held, count in growth:
            held.ids, fresh = held.ids + fresh[:count], fresh[count:]

    @precondition(some_live)
    @rule(data=st.data(), count=counts)
    def share(self, data: st.DataObject, count: int) -> None:
        held = self.pick(data)
        if count > len(held.ids):
            self.refuses(ValueError, lambda: self.pool.share(held.hold, count))
        elif any(self.blocks[block].digest is None for block in held.ids[:count]):
            self.refuses(IllegalEvent, lambda: self.pool.share(held.hold, count))
        else:
            self.began(self.pool.share(held.hold, count), held.ids[:count])

    @precondition(some_live)
    @rule(data=st.data(), count=counts)
    def truncate(self, data: st.DataObject, count: int) -> None:
        held = self.pick(data)
        if count > len(held.ids):
            self.refuses(ValueError, lambda: self.pool.truncate(held.hold, count))
            return
        alone = sum(self.refs(block) == 1 for block in held.ids[count:])
        if max(0, held.reserved - count) - held.owed - alone > self.available:
            self.refuses(OutOfBlocksError, lambda: self.pool.truncate(held.hold, count))
            return
        self.pool.truncate(held.hold, count)
        self.let_go(held, count)

    @precondition(some_live)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        held = self.pick(data)
        before, gain = self.pool.available, self.pool.gain(held.hold)
        self.pool.release(held.hold)
        self.let_go(held, 0)
        self.ended(held)
        assert self.pool.available == before + gain

    @precondition(some_live)
    @rule(data=st.data(), index=st.integers(-1, 5), digests=runs)
    def fill(self, data: st.DataObject, index: int, digests: list[bytes]) -> None:
        held = self.pick(data)
        if index < 0 or index + len(digests) > len(held.ids) or len(set(digests)) < len(digests):
            self.refuses(ValueError, lambda: self.pool.fill(held.hold, index, digests))
        elif any(self.blocks[i].digest for i in held.ids[index : index + len(digests)]):
            self.refuses(IllegalEvent, lambda: self.pool.fill(held.hold, index, digests))
        else:
            self.pool.fill(held.hold, index, digests)
            self.filled(held, index, digests)

    @precondition(some_live)
    @rule(data=st.data(), start=st.integers(0, len(DIGESTS) - 1))
    def fill_what_is_open(self, data: st.DataObject, start: int) -> None:
        """Half of all random fills are refused, so here is one that is not."""
        held = self.pick(data)
        at = next((n for n, i in enumerate(held.ids) if self.blocks[i].digest is None), None)
        if at is not None:
            more = [n for n in range(at, len(held.ids)) if self.blocks[held.ids[n]].digest]
            digests = DIGESTS[start : start + (min(more) if more else len(held.ids)) - at]
            self.pool.fill(held.hold, at, digests)
            self.filled(held, at, digests)

    def filled(self, held: Held, index: int, digests: list[bytes]) -> None:
        for i, digest in zip(held.ids[index:], digests, strict=False):
            self.clock += 1
            self.blocks[i].state, self.blocks[i].digest, self.blocks[i].since = (
                "held_hashed",
                digest,
                self.clock,
            )

    @rule(digests=runs)
    def adopt(self, digests: list[bytes]) -> None:
        found = self.find(digests)
        cost = len({block for block in found if block in self.cache})
        assert self.pool.lookup(digests).tolist() == found
        if len(set(digests)) < len(digests) or len(found) < len(digests):
            self.refuses(ValueError, lambda: self.pool.adopt(digests))
            digests = digests[: len(found)]
        if len(set(digests)) == len(digests):
            assert self.pool.adoption_cost(digests) == cost
            if cost > self.available:
                self.refuses(OutOfBlocksError, lambda: self.pool.adopt(digests))
                return
            self.began(self.pool.adopt(digests), found)
            self.cache = [block for block in self.cache if block not in found]
            for block in found:
                self.blocks[block].state = "held_hashed"

    @rule(count=st.integers(0, 3))
    def evict(self, count: int) -> None:
        if count > len(self.cache):
            self.refuses(ValueError, lambda: self.pool.evict(count))
            return
        going, self.cache = self.cache[:count], self.cache[count:]
        assert self.pool.evict(count).tolist() == going
        for block in going:
            self.give_up(block)

    @precondition(some_live)
    @rule(data=st.data())
    def begin_save(self, data: st.DataObject) -> None:
        held = self.pick(data)
        self.pool.begin_save(held.hold)
        held.saving, held.reserved = True, 0
        for i in held.ids:
            if self.blocks[i].digest is None:
                self.blocks[i].state = "saving"

    @precondition(lambda self: any(held.saving for held in self.held))
    @rule(data=st.data())
    def saved(self, data: st.DataObject) -> None:
        held = self.pick(data, saving=True)
        self.pool.saved(held.hold)
        self.let_go(held, 0)
        self.ended(held)

    @precondition(some_live)
    @rule(data=st.data(), total=st.none() | st.integers(0, 10))
    def reserve(self, data: st.DataObject, total: int | None) -> None:
        held = self.pick(data)
        if total is None:
            self.pool.unreserve(held.hold)
            held.reserved = 0
        elif max(0, total - len(held.ids)) - held.owed > self.available:
            self.refuses(OutOfBlocksError, lambda: self.pool.reserve(held.hold, total))
        else:
            self.pool.reserve(held.hold, total)
            held.reserved = total

    @precondition(lambda self: bool(self.dead) or any(held.saving for held in self.held))
    @rule(data=st.data())
    def use_a_stale_hold(self, data: st.DataObject) -> None:
        pool, hold = (
            self.pool,
            data.draw(st.sampled_from([*self.dead, *(h.hold for h in self.held if h.saving)])),
        )
        uses: list[Callable[[], object]] = [
            lambda: pool.extend(hold, 1), lambda: pool.share(hold, 0), lambda: pool.truncate(hold, 0),
            lambda: pool.release(hold), lambda: pool.fill(hold, 0, []), lambda: pool.begin_save(hold),
            lambda: pool.reserve(hold, 1), lambda: pool.unreserve(hold), lambda: pool.gain(hold),
        ]  # fmt: skip
        self.refuses(StaleHoldError, data.draw(st.sampled_from(uses)))

    @precondition(some_live)
    @rule(data=st.data())
    def end_a_save_that_never_began(self, data: st.DataObject) -> None:
        hold = self.pick(data).hold
        self.refuses(StaleHoldError, lambda: self.pool.saved(hold))

    @rule()
    def plan(self) -> None:
        freed = [i for i, block in enumerate(self.blocks) if block.history[:1] == "g"]
        fresh = [i for i, block in enumerate(self.blocks) if block.history[-1:] == "a"]
        assert self.pool.take_changes() == (tuple(freed), tuple(fresh))
        for block in self.blocks:
            block.history = ""

    # What must hold between calls

    @invariant()
    def the_pool_is_as_the_model(self) -> None:
        pool = self.pool
        pool.check_integrity([held.hold for held in self.held])
        assert pool.available == self.available >= 0
        states = [block.state for block in self.blocks]
        assert [pool.state(i) for i in range(pool.num_blocks)] == states
        assert [pool.refs(i) for i in range(pool.num_blocks)] == [
            self.refs(i) for i in range(pool.num_blocks)
        ]
        assert pool.free == states.count("free")
        assert pool.held == states.count("held_open") + states.count("held_hashed")
        assert pool.cached == states.count("cached") == len(self.cache)
        assert pool.saving == states.count("saving")
        assert list(pool._blocks.cached) == self.cache
        for held in self.held:
            assert held.hold.table == tuple(held.ids)
            assert held.hold.generations.tolist() == [self.blocks[i].generation for i in held.ids]
            assert (held.hold.reserved, held.hold.owed) == (held.reserved, held.owed)
        for digest in DIGESTS:
            assert pool.lookup([digest]).tolist() == self.find([digest])
        assert [machine.configuration[-1] for machine in self.machines] == states

    def teardown(self) -> None:
        """Whatever happened, everything can be given back."""
        if not hasattr(self, "pool"):
            return
        for held in list(self.held):
            (self.pool.saved if held.saving else self.pool.release)(held.hold)
        self.pool.evict(self.pool.cached)
        self.pool.check_integrity([])
        assert self.pool.free == self.pool.available == self.pool.num_blocks
        assert self.pool.allocate(self.pool.num_blocks).table == tuple(range(self.pool.num_blocks))


TestPoolAgainstModel = PoolAgainstModel.TestCase
TestPoolAgainstModel.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
