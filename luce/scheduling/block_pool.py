"""The KV block pool: who holds which block, what is kept for later, and what is promised.

Passive and owned by the step loop alone. Blocks are in holds (`luce/scheduling/holds.py`), one for each slot and each
prefix entry; what a block may go through stands in ``statecharts/block.scxml``. Every call is all or nothing: when it
raises, nothing has changed. No call takes time that grows with the number of blocks in the pool, but for
:meth:`BlockPool.check_integrity`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from luce.scheduling.block_states import BlockChanges, BlockStates, Ids, RangeStep
from luce.scheduling.holds import Hold, OutOfBlocksError, StaleHoldError
from luce.scheduling.pool_check import check_blocks

__all__ = ["BlockPool", "blocks_for"]


def blocks_for(rows: int, block_size: int) -> int:
    """Blocks that ``rows`` rows take."""
    return -(-rows // block_size)


class BlockPool:
    """Blocks 0 <= block < num_blocks of one engine.

    Args:
        num_blocks: blocks in the engine's pool.
        block_size: rows (tokens) in a block.
        observer: called with every event of the block chart and the range that handled it, for the event stream.

    Every method that takes a hold raises :class:`StaleHoldError` when it is not a live hold of this pool. An event that
    is illegal for a block raises :class:`luce.errors.IllegalEvent`, which names block, state and event.
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, observer: Callable[[RangeStep], None] | None = None
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool needs blocks and rows in them, not {num_blocks} blocks of {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._blocks = BlockStates(num_blocks, observer)
        self._owed = 0
        self._holds: dict[int, Hold] = {}
        self._parking: dict[int, Hold] = {}
        self._serial = 0

    # -- counts -------------------------------------------------------------------------------------------------------

    @property
    def free(self) -> int:
        """Blocks without content."""
        return len(self._blocks.free)

    @property
    def cached(self) -> int:
        """Blocks that nobody holds and look-ups find."""
        return len(self._blocks.cached)

    @property
    def saving(self) -> int:
        """Blocks that become free when a copy to host memory ends."""
        return self._blocks.saving

    @property
    def held(self) -> int:
        """Blocks in holds, without those that are saving."""
        return self.num_blocks - self.free - self.cached - self.saving

    @property
    def available(self) -> int:
        """Blocks to be had now, fresh ones or cached ones: all free and cached ones but those that are promised."""
        return self.free + self.cached - self._owed

    def refs(self, block: int) -> int:
        """How many holds ``block`` is in."""
        return int(self._blocks.refs[block])

    def state(self, block: int) -> str:
        """The innermost state of ``block`` in the chart: free, held_open, held_hashed, cached or saving."""
        return str(self._blocks.table.configurations[self._blocks.bytes[block]].states[-1])

    def state_bytes(self) -> bytes:
        """The state of every block, a byte each, as the chart's table numbers them."""
        return self._blocks.bytes.tobytes()

    def gain(self, hold: Hold) -> int:
        """By how much ``available`` grows when ``hold`` is released: its blocks that no other hold has, and those
        that it was promised.
        """
        self._check(hold)
        return self._blocks.alone(hold.ids) + hold.owed

    # -- holding ------------------------------------------------------------------------------------------------------

    def allocate(self, count: int, owner: str = "") -> Hold:
        """A new hold of ``count`` fresh blocks; of 0, to grow later.

        Raises:
            OutOfBlocksError: fewer are available.
        """
        self._need(_count(count), "an allocation")
        return self._hold(self._blocks.take(count), owner)

    def extend(self, hold: Hold, count: int) -> None:
        """``hold`` grows by ``count`` fresh blocks. What was reserved for it is used first.

        Raises:
            OutOfBlocksError: fewer are reserved and available.
        """
        self.extend_all(((hold, count),))

    def extend_all(self, growth: Sequence[tuple[Hold, int]]) -> None:
        """Several holds grow, each by its own count, all or none. The first gets the lowest numbers.

        Raises:
            OutOfBlocksError: not all of them can.
            ValueError: a hold is named twice, or a count is negative.
        """
        total = beyond = 0
        for hold, count in growth:
            self._check(hold)
            total += _count(count)
            beyond += max(0, count - hold.owed)
        _each_once([hold for hold, _ in growth], "grown")
        self._need(beyond, "growth")
        fresh = self._blocks.tagged(self._blocks.take(total))
        at = 0
        for hold, count in growth:
            to = at + count
            self._owed -= min(count, hold.owed)
            hold.put(np.concatenate((hold.tagged, fresh[:, at:to]), axis=1))
            at = to

    def share(self, hold: Hold, count: int, owner: str = "") -> Hold:
        """A new hold of the first ``count`` blocks of ``hold``, which keeps them. All of them must be filled."""
        self._check(hold)
        ids = hold.ids[: _within(hold, count)]
        self._blocks.share(ids)
        return self._hold(ids, owner)

    def truncate(self, hold: Hold, count: int) -> None:
        """``hold`` gives back all but its first ``count`` blocks. A reservation stays, so it can grow again as far.

        Raises:
            OutOfBlocksError: others have these blocks, too, and too few are available to promise new ones instead.
        """
        self._check(hold)
        ids = hold.ids[_within(hold, count) :]
        owed = max(0, hold.reserved - count) - hold.owed
        self._need(owed - self._blocks.alone(ids), "the reservation of what is cut off")
        self._blocks.let_go("release", ids)
        self._owed += owed
        hold.put(hold.tagged[:, :count])

    def release(self, hold: Hold) -> None:
        """Ends ``hold`` and its reservation. Filled blocks that nobody else has stay in the cache. That no row of a
        step in flight is in its blocks is the caller's to know.
        """
        self._check(hold)
        self._blocks.let_go("release", hold.ids)
        self._unpromise(hold)
        del self._holds[hold.serial]

    # -- content ------------------------------------------------------------------------------------------------------

    def fill(self, hold: Hold, index: int, digests: Sequence[bytes]) -> None:
        """The blocks of ``hold`` from its ``index``-th on are complete and committed; these are their chain digests.

        A digest that another block has already stays with that block. Filled blocks can be shared, are never written
        again, and are kept in the cache when they are released.

        Raises:
            ValueError: the hold has fewer blocks, or the digests are not all different and not empty.
        """
        self.fill_all(((hold, index, digests),))

    def fill_all(self, fills: Sequence[tuple[Hold, int, Sequence[bytes]]]) -> None:
        """Several holds are filled, each as by :meth:`fill`, all or none. Of two blocks that get one digest the first
        one keeps it.

        Raises:
            ValueError: as :meth:`fill`, or a hold is named twice.
        """
        ids = []
        for hold, index, digests in fills:
            self._check(hold)
            if index < 0 or index + len(digests) > len(hold):
                raise ValueError(
                    f"{hold.name} has {len(hold)} blocks: no room for {len(digests)} digests from {index} on"
                )
            ids.append(hold.ids[index : index + len(_distinct(digests))])
        _each_once([hold for hold, _, _ in fills], "filled")
        if ids:
            self._blocks.fill(np.concatenate(ids), [digest for *_, digests in fills for digest in digests])

    def lookup(self, digests: Iterable[bytes]) -> Ids:
        """The blocks of the longest run of leading digests that are held or cached: intp (n,)."""
        return self._blocks.index.find(digests)

    def adoption_cost(self, digests: Iterable[bytes]) -> int:
        """By how much ``available`` shrinks when those of ``digests`` that :meth:`lookup` finds are adopted: how many
        of them nobody holds.
        """
        return sum(block in self._blocks.cached for block in self.lookup(digests).tolist())

    def adopt(self, digests: Sequence[bytes], owner: str = "") -> Hold:
        """A new hold of the blocks that :meth:`lookup` finds for these digests; it must find all.

        Raises:
            ValueError: it does not, or the digests are not all different.
            OutOfBlocksError: so many of them are cached that what is left does not cover the promises.
        """
        ids = self.lookup(_distinct(digests))
        if len(ids) < len(digests):
            raise ValueError(
                f"no block has digest {len(ids)} of {len(digests)}: adopt what a look-up has found"
            )
        self._need(self.adoption_cost(digests), "a cached prefix")
        self._blocks.share(ids)
        return self._hold(ids, owner)

    def evict(self, count: int) -> Ids:
        """Gives up the next ``count`` cached blocks, and says which: intp (count,). Where free blocks run out this
        happens by itself.

        Raises:
            ValueError: fewer are cached.
        """
        if _count(count) > self.cached:
            raise ValueError(f"{count} blocks are to be evicted, {self.cached} are cached")
        return self._blocks.evict(count)

    # -- parking ------------------------------------------------------------------------------------------------------

    def begin_save(self, hold: Hold) -> None:
        """The content of ``hold`` is being copied to host memory: it cannot be used until :meth:`saved`, which ends it.

        Its reservation ends at once. Its filled blocks can still be found and shared.
        """
        self._check(hold)
        self._blocks.save(hold.ids)
        self._unpromise(hold)
        self._parking[hold.serial] = self._holds.pop(hold.serial)

    def saved(self, hold: Hold) -> None:
        """The copy is over, well or not: ends ``hold``. Its filled blocks stay in the cache, the others are free."""
        if self._parking.get(hold.serial) is not hold:
            raise StaleHoldError(f"{hold.name} is not being saved")
        self._check_generations(hold)
        self._blocks.let_go("saved", hold.ids)
        del self._parking[hold.serial]

    # -- promises -----------------------------------------------------------------------------------------------------

    def reserve(self, hold: Hold, total_blocks: int) -> None:
        """Whatever happens, ``hold`` can grow to ``total_blocks``. Takes the place of an earlier promise.

        Raises:
            OutOfBlocksError: what it does not have yet is not available.
        """
        self._check(hold)
        more = max(0, _count(total_blocks) - len(hold)) - hold.owed
        self._need(more, "a reservation")
        hold.reserved = total_blocks
        self._owed += more

    def unreserve(self, hold: Hold) -> None:
        """Takes the promise back."""
        self._check(hold)
        self._unpromise(hold)

    # -- for the engine and for checks --------------------------------------------------------------------------------

    def take_changes(self) -> BlockChanges:
        """Which blocks were given up and which are fresh since the last call, for the next plan."""
        return self._blocks.take_changes()

    def check_integrity(self, holds: Iterable[Hold] | None = None) -> None:
        """Counts everything again (invariant I2). Linear in the pool: for idle moments and tests.

        Args:
            holds: all holds that anybody has, those that are being saved included; None to believe the pool.

        Raises:
            AssertionError: says what does not add up.
        """
        parking = list(self._parking.values())
        live = [*self._holds.values(), *parking]
        if holds is not None:
            known = {id(hold): hold for hold in holds}
            for hold in live:
                if known.pop(id(hold), None) is None:
                    raise AssertionError(f"{hold.name} is nobody's: its holder has lost it")
            for hold in known.values():
                raise AssertionError(f"{hold.name} is believed to be live, and the pool has no such hold")
        check_blocks(self._blocks, live, parking)
        owed = sum(hold.owed for hold in live)
        if owed != self._owed:
            raise AssertionError(f"{owed} blocks are promised, {self._owed} are counted")
        if self.available < 0:
            raise AssertionError(f"{-self.available} blocks more are promised than there are")

    # -- inside -------------------------------------------------------------------------------------------------------

    def _check(self, hold: Hold) -> None:
        if self._holds.get(hold.serial) is not hold:
            saving = self._parking.get(hold.serial) is hold
            why = "is being saved" if saving else "was given back, or is not of this pool: a stale handle"
            raise StaleHoldError(f"{hold.name} {why}")
        self._check_generations(hold)

    def _check_generations(self, hold: Hold) -> None:
        generations = self._blocks.generations.take(hold.ids)
        # comparing bytes is several times as fast as numpy's comparison and its reduction
        if generations.tobytes() != hold.generations.tobytes():
            at = int(np.flatnonzero(generations != hold.generations)[0])
            raise StaleHoldError(
                f"{hold.name} has block {hold.ids[at]} of generation {hold.generations[at]}, "
                f"which is of generation {generations[at]} now: a stale handle"
            )

    def _need(self, count: int, what: str) -> None:
        if count > self.available:
            raise OutOfBlocksError(what, count, self.available)

    def _hold(self, ids: Ids, owner: str) -> Hold:
        hold = Hold(self._serial, owner, self._blocks.tagged(ids))
        self._serial += 1
        self._holds[hold.serial] = hold
        return hold

    def _unpromise(self, hold: Hold) -> None:
        self._owed -= hold.owed
        hold.reserved = 0


def _count(count: int) -> int:
    if count < 0:
        raise ValueError(f"{count} blocks")
    return count


def _within(hold: Hold, count: int) -> int:
    if not 0 <= count <= len(hold):
        raise ValueError(f"{hold.name} has {len(hold)} blocks, not {count}")
    return count


def _each_once(holds: Sequence[Hold], what: str) -> None:
    if len(holds) > 1 and len({hold.serial for hold in holds}) < len(holds):
        raise ValueError(f"a hold is to be {what} twice in one call")


def _distinct(digests: Sequence[bytes]) -> Sequence[bytes]:
    if not all(digests) or len(set(digests)) < len(digests):
        raise ValueError("the digests of one call must be different and not empty")
    return digests
