"""Launches step plans: segments into passes, and draws.

Runs on the engine thread, which waits for the device only where the host has to draw a token itself, and for copies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from luce.compute.activations import BUCKETS, bucket
from luce.compute.device import Array, Device, Graph
from luce.engines.qwen35.device.buffers import MAX_LANES, DescriptorRing, PieceUploads, ResultRing
from luce.engines.qwen35.device.copies import DeviceCopies
from luce.engines.qwen35.device.descriptors import BLOCK_ROWS, CHUNK_ROWS
from luce.engines.qwen35.device.draws import DrawFiller, draw_on_host
from luce.engines.qwen35.device.fill import ImageRows, fill_lanes, fill_step, image_rows
from luce.engines.qwen35.device.kept_rows import KeptRows
from luce.engines.qwen35.device.passes import (
    FEW_ROWS,
    GRAPH_ROWS,
    MANY_LANES,
    Piece,
    Work,
    piece_of,
    plan_passes,
)
from luce.engines.qwen35.device.pool import DevicePool
from luce.engines.qwen35.device.results import DeviceTicket, PassResults
from luce.engines.qwen35.device.slots import DeviceSlot
from luce.engines.qwen35.slots import Slot
from luce.engines.qwen35.stored_states import StoredStates
from luce.engines.seam import Outcome, RowSource, Segment, SegmentKind
from luce.errors import DeviceError, LuceError

__all__ = ["Program", "Runner", "Tap", "chunk_class", "graph_rows"]


WARM_LANES = (1, MANY_LANES)
"""Of the chunk passes that are recorded at the start."""

Tap = Callable[[int], None]
"""Called with a layer's number once its launches are queued."""


class Program(Protocol):
    """The layers of a model, from descriptors to draws, as launches on the current stream. ``parts``: the descriptors'
    parts on the device, by name."""

    device: Device
    hidden: int
    chunk_rows: int
    """Most rows of a chunk pass."""
    tile_rows: int
    """Rows of a tile of queries in a chunk pass."""
    x: Array
    """Residual rows f32 [rows, hidden]; image rows are put there before a pass."""
    logits: Array
    """f32 [64, ≥ vocabulary], by sample."""

    @property
    def nbytes(self) -> int:
        """Device memory that it holds."""

    def step_class(self, end: int) -> int:
        """Class of a step pass whose longest sequence has ``end`` rows: passes of a class have equal grids."""

    def step(self, pool: DevicePool, parts: Mapping[str, Array], rows: int, kind: int) -> None:
        """Launch a step pass of a bucket of ``rows`` rows."""

    def chunk(
        self,
        pool: DevicePool,
        parts: Mapping[str, Array],
        counts: tuple[int, int, int, int],
        end: int,
        tap: Tap | None = None,
    ) -> None:
        """Launch a chunk pass of ``counts`` rows, lanes, samples and tiles; its longest sequence has ``end`` rows."""

    def fold(self, pool: DevicePool, parts: Mapping[str, Array]) -> None:
        """Launch what commits the first lane, which has no rows: its chunks before ``base_after`` go into S."""


def chunk_class(counts: tuple[int, int, int, int], tile_rows: int) -> tuple[int, int, int, int] | None:
    """The counts that a chunk pass of ``counts`` rows, lanes, samples and tiles is launched with: a pass has as many
    blocks and lets those past its own counts end at once, and may sample from every lane. None: there would be many of
    its kind, or it samples from all of its rows."""
    rows, lanes, samples, _ = counts
    if samples > lanes or (rows > GRAPH_ROWS and rows % GRAPH_ROWS):
        return None
    wide = FEW_ROWS if rows <= FEW_ROWS else -(-rows // CHUNK_ROWS) * CHUNK_ROWS
    size = 1 if lanes == 1 else max(bucket(lanes), MANY_LANES)
    return wide, size, size, wide // tile_rows + size


def graph_rows(chunk_rows: int) -> tuple[int, ...]:
    """Rows of the chunk passes that are recorded at the start, of those of up to ``chunk_rows`` rows."""
    return FEW_ROWS, *range(CHUNK_ROWS, min(GRAPH_ROWS, chunk_rows) + 1, CHUNK_ROWS)


class Runner:
    """A model, the state of its sequences, and the steps they take."""

    def __init__(
        self,
        program: Program,
        pool: DevicePool,
        step_ring: DescriptorRing,
        chunk_ring: DescriptorRing,
        results: ResultRing,
        draws: DrawFiller,
        copies: dict[str, Array] | None = None,
        *,
        eager: bool = False,
    ) -> None:
        """Args:
        copies: as :class:`DeviceCopies` takes arrays.
        eager: no graphs.
        """
        self.program, self.pool = program, pool
        self.device = program.device
        self.results = results
        self._rings = (chunk_ring, step_ring)
        self._draws = draws
        self.copies = DeviceCopies(pool, self.commit, copies)
        self.stored = StoredStates(pool, pool.block_size, self.copies)
        self._uploads = PieceUploads(self.device)
        self.kept: KeptRows | None = None
        """Where pictures' rows may be found on the device."""
        self._eager = eager
        self._graphs: dict[tuple[int, ...], Graph | None] = {}
        """By (bucket, class) of a step and the counts of a chunk; None after the first run, which loads what a capture
        must not."""

    def segments(self, ticket: DeviceTicket, slots: Mapping[int, Slot]) -> None:
        """Check and launch the plan's segments; what cannot run is refused alone."""
        self._prepare(ticket, slots)
        for is_step, pieces in plan_passes(ticket.works, self.program.chunk_rows, MAX_LANES):
            ticket.passes.append(self._pass(is_step, pieces))

    def _prepare(self, ticket: DeviceTicket, slots: Mapping[int, Slot]) -> None:
        plan = ticket.plan
        masks = plan.masks or (None,) * len(plan.segments)
        taken: set[int] = set()
        for index, (segment, table) in enumerate(zip(plan.segments, plan.block_tables, strict=True)):
            try:
                slot = slots.get(segment.slot)
                if slot is None:
                    raise DeviceError(f"slot {segment.slot} is not open")
                if segment.slot in taken:
                    raise DeviceError(f"slot {segment.slot} has two segments in one step")
                assert isinstance(slot, DeviceSlot)
                slot.check(segment, table, self.pool, self.program.hidden)
                self._draws.check(masks[index])
                slot.feed(segment)
                taken.add(segment.slot)
                ticket.works.append(Work(index, segment, slot, table, masks[index]))
            except LuceError as error:
                ticket.refused[index] = Outcome(segment.slot, 0, error=str(error))

    def commit(self, slot: DeviceSlot, position: int) -> None:
        """Make the rows before ``position`` of ``slot`` final, as a segment that starts there would."""
        base = position // CHUNK_ROWS * CHUNK_ROWS
        if base > slot.base:
            ring = self._rings[False]
            descriptors = ring.take()
            descriptors.header[0] = (0, 1, 0, 0)
            descriptors.lanes[0] = (slot.index, position, 0, 0, slot.base, base, 0, 0)
            ring.upload(descriptors, 0)
            self.program.fold(self.pool, ring.parts)
        slot.advance(position, slot.high, base, slot.table)

    def on(self, pool: DevicePool) -> Runner:
        """The same model over other sequences."""
        chunk_ring, step_ring = self._rings
        return Runner(self.program, pool, step_ring, chunk_ring, self.results, self._draws, eager=True)

    def alone(
        self,
        slot: DeviceSlot,
        start: int,
        count: int,
        *,
        sample: bool = False,
        every_row: bool = False,
        tap: Tap | None = None,
    ) -> PassResults:
        """Run ``count`` rows of ``slot``, at most a chunk pass's, and wait for them (tools and tests).

        Args:
            sample: draw a token from the last row.
            every_row: from each of up to 64 rows, which makes their logits.
        """
        segment = Segment(slot.index, SegmentKind.PREFILL, start, count, RowSource.PROMPT, sample)
        work = Work(0, segment, slot, slot.table, None)
        part = self._pass(False, [piece_of(work, start, count)], tap, every_row=every_row)
        self.device.synchronize()
        return part

    def recount(self, slot: int) -> None:
        """The next draw of a slot counts the tokens of its history anew."""
        self._draws.recount(slot)

    def _pass(
        self,
        is_step: bool,
        pieces: Sequence[Piece],
        tap: Tap | None = None,
        *,
        every_row: bool = False,
    ) -> PassResults:
        ring = self._rings[is_step]
        for piece in pieces:
            self._update_table(piece.work.slot, piece.work.table, piece.end)
        descriptors = ring.take()
        if is_step:
            fill_step(descriptors, pieces, self.pool.table_stride)
        else:
            fill_lanes(descriptors, pieces, self.pool.table_stride, self.program.tile_rows)
        draws, lists = self._draws.fill(descriptors, pieces)
        if every_row:
            self._draws.fill_rows(descriptors)
        ring.upload(descriptors, lists)
        for found in image_rows(pieces):
            self._put_image_rows(found)
        end = max(piece.end for piece in pieces)
        if is_step:
            self._launch_step(ring.parts, bucket(len(pieces)), self.program.step_class(end))
        else:
            self._launch_chunk(ring.parts, descriptors.header[0].tolist(), end, tap)
        part = PassResults(pieces, draws, self.results.download(), self.device.operands.advice)
        if any(draw.on_host for draw in draws):
            self._draw_on_host(part)
        return part

    def warm(self) -> None:
        """Record the passes that serving needs again and again. Launched with no rows they touch no sequence."""
        self.copies.prepare()
        for ring in self._rings:
            descriptors = ring.take()
            descriptors.header[0] = (0, 0, 0, 0)
            ring.upload(descriptors, 0)
        chunk_parts, step_parts = (ring.parts for ring in self._rings)
        for rows in BUCKETS:
            self._launch_step(step_parts, rows, self.program.step_class(0))
            self._launch_step(step_parts, rows, self.program.step_class(0))
        for rows in graph_rows(self.program.chunk_rows):
            self._launch_chunk(chunk_parts, (rows, 1, 1, 1), rows, None)
            for lanes in WARM_LANES:
                self._launch_chunk(chunk_parts, (rows, lanes, 1, 1), rows, None, loaded=True)

    def close(self) -> None:
        """Wait for copies that are under way. There must be no steps any more."""
        self.copies.close()

    def _launch_step(self, parts: Mapping[str, Array], size: int, kind: int) -> None:
        """Every bucket is a graph."""
        self._from_graph((size, kind), lambda: self.program.step(self.pool, parts, size, kind))

    def _launch_chunk(
        self,
        parts: Mapping[str, Array],
        counts: tuple[int, int, int, int],
        end: int,
        tap: Tap | None,
        *,
        loaded: bool = False,
    ) -> None:
        """A short chunk pass takes the host longer to launch than the device to run, so it is a graph like a step, of
        the least counts of a few that hold its own."""
        padded = chunk_class(counts, self.program.tile_rows)
        if tap is not None or padded is None or padded[0] > self.program.chunk_rows:
            self.program.chunk(self.pool, parts, counts, end, tap)
        else:
            self._from_graph(padded, lambda: self.program.chunk(self.pool, parts, padded, end), loaded=loaded)

    def _from_graph(self, key: tuple[int, ...], launch: Callable[[], None], *, loaded: bool = False) -> None:
        """The first pass of a kind runs launch by launch, which loads what a capture must not; the next is recorded.

        Args:
            loaded: another pass has loaded all that it needs.
        """
        if self._eager or not (loaded or key in self._graphs):
            self._graphs[key] = None
            launch()
            return
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = self.device.capture(launch)
        graph.launch()

    def _draw_on_host(self, part: PassResults) -> None:
        logits = self.device.numpy(self.program.logits[: len(part.draws)])
        draw_on_host(part.draws, part.results.faults, logits[:, : self.pool.config.vocab_size], part.advice)
        for draw in part.draws:
            if draw.token is not None:
                history = self.pool.histories[draw.work.slot.index, draw.position : draw.position + 1]
                self.device.upload(history, np.array([draw.token.token], np.int32))

    def _put_image_rows(self, found: ImageRows) -> None:
        """To where the pass reads them."""
        to = self.program.x[found.row : found.end]
        if self.kept is None or not self.kept.put(found.rows, found.start, to):
            self._uploads.upload(to, np.asarray(found.values, np.float32))

    def _update_table(self, slot: DeviceSlot, table: tuple[int, ...], rows: int) -> None:
        """Bring the device's block table up to date for ``rows`` rows."""
        needed, known = -(-rows // BLOCK_ROWS), slot.device_table
        if table[:needed] == known[:needed] and len(known) >= needed:
            return
        same = next((at for at, (a, b) in enumerate(zip(table, known, strict=False)) if a != b), len(known))
        slot.device_table = table
        changed = np.array(table[same:], np.int32)
        self.device.upload(self.pool.tables[slot.index, same : same + len(changed)], changed)
