"""The prefix cache as the step loop uses it: what a new request can start from, and what it leaves for later ones.

A prefix of a hybrid model is two things: key/value blocks, found in the block pool by their chain digests, and a
snapshot of the recurrent state after exactly P tokens, kept by the engine and listed in the index (design §7). Whole
blocks below P are shared, the block that P cuts is copied with the snapshot. A hit whose blocks were given up meanwhile
is shorter, or none. Copies are work items of plans like those of parking; a copy that fails loses nothing but itself.

Passive and owned by the step loop alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import cast

import attrs

from luce.actors.request import Request
from luce.charts.interpreter import Step
from luce.engines.late_captures import may_be_late
from luce.engines.seam import Engine, SlotWork, StoresStates, WorkKind, WorkOutcome
from luce.scheduling.block_pool import BlockPool
from luce.scheduling.capture_points import anchor_point, capture_points, next_cut, shared_point
from luce.scheduling.prefix_entry import Entry
from luce.scheduling.prefix_index import PrefixIndex

__all__ = ["Hit", "PrefixCache", "awaits_capture", "cut_row"]


@attrs.frozen
class Hit:
    """What a request can start from."""

    entry: Entry
    digests: list[bytes]
    """Of the whole blocks below its position."""
    cached_blocks: int
    """How many of them nobody holds at present: as many does adopting them take from the pool."""


class PrefixCache:
    """Args:
    engine: keeps the snapshots.
    pool: keeps the blocks.
    budget: bytes of snapshots; 0 for no cache.
    new_handle: names for stored states, never used twice.
    observer: told of every step of an entry's chart.
    """

    def __init__(
        self,
        engine: Engine,
        pool: BlockPool,
        budget: int,
        new_handle: Callable[[], int],
        observer: Callable[[Step], None] | None = None,
    ) -> None:
        self.capabilities = engine.capabilities
        self.enabled = budget > 0 and self.capabilities.snapshots
        self.budget = budget
        self.index = PrefixIndex(pool.block_size, observer=observer)
        self._engine = engine
        self._pool = pool
        self._new_handle = new_handle
        self._capturing: dict[int, Entry] = {}
        """By handle."""
        self._adopting: dict[int, Entry] = {}
        """By slot."""

    # -- before a request runs ------------------------------------------------------------------------------------

    def find(self, request: Request) -> Hit | None:
        """The longest prefix that is here, blocks and snapshot. Changes nothing but what turns out to be lost."""
        keys = request.keys
        if not self.enabled or keys is None:
            return None
        size = self._pool.block_size
        limit = request.prompt_rows - 1
        least = request.first_text_row
        while (entry := self.index.lookup(keys, limit)) is not None and entry.position >= least:
            digests = keys.block_digests(0, entry.position // size)
            found = len(self._pool.lookup(digests))
            if found == len(digests):
                return Hit(entry, digests, self._pool.adoption_cost(digests))
            # Its blocks are gone, and with them its use.
            if self.index.evict(entry):
                self._discard(entry)
            limit = (found + 1) * size - 1
        return None

    def take(self, request: Request) -> Hit | None:
        """:meth:`find`, and keep what was found until :meth:`adopted` says that it was copied."""
        while (hit := self.find(request)) is not None:
            assert request.keys is not None
            if self.index.hit(hit.entry, request.keys, request.order):
                return hit
            self._discard(hit.entry)  # its counts are not the prompt's
        if self.enabled:
            self.index.miss(request.order)
        return None

    def adopt(self, hit: Hit, slot: int, table: tuple[int, ...]) -> SlotWork:
        """The copy of a hit that was taken into a slot that was just opened with it; :meth:`adopted` follows."""
        entry = hit.entry
        self._adopting[slot] = entry
        return SlotWork(WorkKind.ADOPT, slot, entry.position, cast(int, entry.snapshot), table)

    @property
    def capturing(self) -> bool:
        """Is a copy under way, or to be made, that the next request may find?"""
        return bool(self._capturing)

    @property
    def adopting(self) -> Collection[int]:
        """Slots into which a copy is still to be made. Their requests may not run before."""
        return self._adopting.keys()

    def adopted(self, slot: int, *, failed: bool) -> None:
        """The copy was made or was not needed any more, or the entry is no good."""
        entry = self._adopting.pop(slot)
        gone = self.index.broken(entry) if failed else False
        if self.index.unlock(entry) or gone:
            self._discard(entry)

    def points(self, request: Request, start: int) -> tuple[int, ...]:
        """Where this request's prompt is captured on its way, from ``start`` on."""
        if not self.enabled or request.keys is None:
            return ()
        if request.staged:
            # Of a prompt in staged passes there is a state only when all of it is in its blocks.
            return (request.prompt_rows - 1,) if request.followers else ()
        prompt = request.submission.prompt
        return capture_points(
            request.keys,
            turn_ends=prompt.turn_ends,
            answer_start=prompt.answer_start,
            start=start,
            shared=bool(request.followers),
        )

    def shares(self, request: Request) -> bool:
        """Could others with the same prompt go on from what this request, a new one, leaves of it?"""
        keys = request.keys
        if not self.enabled or keys is None:
            return False
        point = shared_point(keys, request.submission.prompt.answer_start)
        if request.first_text_row:
            point = keys.before_image(request.prompt_rows - 1)
        return (
            point > 0
            and point >= request.first_text_row
            and self.capabilities.captured_bytes(point) <= self.budget
        )

    # -- while it runs --------------------------------------------------------------------------------------------

    def fill(self, computed: Iterable[tuple[Request, int]]) -> None:
        """So many leading rows of these requests are computed: their whole blocks can be found from now on."""
        if not self.enabled:
            return
        fills = []
        for request, rows in computed:
            keys, hold = request.keys, request.hold
            first, whole = request.filled_blocks, rows // self._pool.block_size
            if keys is None or hold is None or whole <= first:
                continue
            request.extend_keys(rows)
            fills.append((hold, first, keys.block_digests(first, whole)))
            request.filled_blocks = whole
        self._pool.fill_all(fills)

    def capture(self, request: Request, position: int) -> SlotWork | None:
        """The state after ``position`` rows is to be kept, if it is not yet and there is room; see :meth:`captured`."""
        keys = request.keys
        if not self.enabled or keys is None or position < 1 or request.slot is None:
            return None
        request.extend_keys(position)
        if keys.splits_image(position):
            return None
        anchor = position == anchor_point(keys, request.submission.prompt.answer_start)
        nbytes = self.capabilities.captured_bytes(position)
        entry = self.index.begin(keys, position, request.order, anchor=anchor, device_bytes=nbytes)
        if entry is None:
            return None
        for eviction in self.index.evict_until(device_bytes=self.budget, newcomer=entry):
            self._discard(eviction.entry)
        if self.index.device_bytes > self.budget:
            self.index.failed(entry)
            return None
        handle = self._new_handle()
        self._capturing[handle] = entry
        return SlotWork(WorkKind.CAPTURE, request.slot, position, handle)

    def captured(self, work: SlotWork, outcome: WorkOutcome | None) -> None:
        """A capture has been made or has failed; None: it was never launched."""
        entry = self._capturing.pop(work.handle)
        if outcome is None or outcome.error is not None:
            self.index.failed(entry)
            # A step that failed as a whole may have made the copy before it failed.
            cast(StoresStates, self._engine).discard(work.handle)
        else:
            self.index.filled(entry, work.handle, device_bytes=outcome.nbytes)

    def _discard(self, entry: Entry) -> None:
        if entry.snapshot is not None:
            cast(StoresStates, self._engine).discard(cast(int, entry.snapshot))

    def check_integrity(self) -> None:
        """Everything is counted right; called whenever the loop goes idle."""
        self.index.check_integrity()
        assert not self._adopting, self._adopting
        assert self.index.device_bytes <= self.budget, (self.index.device_bytes, self.budget)


def cut_row(request: Request) -> int | None:
    """Where the next chunk of a prompt ends at the latest. Those that wait for a leader's prompt are told when it has
    its first token, and are to find it then."""
    points: Sequence[int] = request.capture_points
    return next_cut(request.next_row, points, None if request.followers else request.prompt_rows)


def awaits_capture(request: Request) -> bool:
    """Is a row of it, still in flight, one after which its state is to be captured, so that the next one waits for the
    result? Longer chunks behind it would commit rows past that place before the copy is made. The first row of the
    answer does so too, but mostly leaves the state there."""
    first, row = request.computed_rows, request.next_row
    if row <= first:
        return False
    points = [point for point in request.capture_points if first < point <= row]
    if row < request.prompt_rows:
        return bool(points)
    return not all(may_be_late(point, row, row + 1) for point in points)
