"""Prompts, and a small honest scheduler that drives a fake engine as policy would."""

from __future__ import annotations

import select
from collections.abc import Iterable, Sequence

import attrs
import numpy as np

from luce.engines.fake.engine import FakeEngine, FakeTicket
from luce.engines.fake.pictures import make_picture
from luce.engines.fake.reference import encoded_rows
from luce.engines.seam import (
    ImageSpan,
    RowSource,
    Segment,
    SegmentKind,
    SlotSpec,
    SlotWork,
    StepPlan,
    StepResult,
)
from luce.sampling.parameters import SamplingParams

GREEDY = SamplingParams(temperature=0)
PAD = 250


def text_spec(ids: Sequence[int], params: SamplingParams = GREEDY, max_tokens: int = 50) -> SlotSpec:
    count = len(ids)
    return SlotSpec(
        token_ids=np.array(ids, np.int32),
        positions=np.tile(np.arange(count, dtype=np.int32), (3, 1)),
        rope_delta=0,
        sampling=params,
        max_tokens=max_tokens,
    )


def image_spec(before: Sequence[int], pictures: Sequence[bytes], after: Sequence[int]) -> SlotSpec:
    """Text, some pictures of 2 x 2 rows each with their grid positions, text."""
    ids, columns, spans = list(before), [(i, i, i) for i in range(len(before))], list[ImageSpan]()
    clock = len(before)
    for index in range(len(pictures)):
        spans.append(ImageSpan(len(ids), 4, index))
        ids += [PAD] * 4
        columns += [(clock, clock + h, clock + w) for h in range(2) for w in range(2)]
        clock += 2
    ids += after
    columns += [(clock + i,) * 3 for i in range(len(after))]
    spec = text_spec(ids)
    spec.positions = np.array(columns, np.int32).T
    spec.rope_delta = clock + len(after) - len(ids)
    spec.spans = tuple(spans)
    spec.image_rows = [encoded_rows(make_picture(name), 8) for name in pictures]
    return spec


def prefill(slot: int, start: int, count: int, *, sample: bool = False) -> Segment:
    return Segment(slot, SegmentKind.PREFILL, start, count, RowSource.PROMPT, sample)


def decode(slot: int, start: int) -> Segment:
    return Segment(slot, SegmentKind.DECODE, start, 1, RowSource.LAST_SAMPLED, sample=True)


@attrs.define
class Driver:
    """Launches plans with ever higher numbers; owns block tables like a pool."""

    engine: FakeEngine
    number: int = 0
    tables: dict[int, tuple[int, ...]] = attrs.field(factory=dict)
    free: list[int] = attrs.field(factory=list)
    freed: list[int] = attrs.field(factory=list)
    """To be told in the next plan."""
    held: set[int] = attrs.field(factory=set)
    """Told as fresh and not as freed."""

    def __attrs_post_init__(self) -> None:
        self.free = list(range(self.engine.capabilities.num_blocks))[::-1]

    def open(self, slot: int, spec: SlotSpec) -> None:
        self.engine.open(slot, spec)
        self.tables[slot] = ()

    def close(self, slot: int, keep: Iterable[int] = ()) -> None:
        """Close the slot and free its blocks, but for those that somebody else has."""
        self.engine.close(slot)
        self.release(block for block in self.tables.pop(slot) if block not in keep)

    def release(self, blocks: Iterable[int]) -> None:
        """Nobody has these blocks any more."""
        for block in blocks:
            self.free.append(block)
            if block in self.held:
                self.held.remove(block)
                self.freed.append(block)

    def take(self, count: int) -> tuple[int, ...]:
        return tuple(self.free.pop() for _ in range(count))

    def table(self, segment: Segment) -> tuple[int, ...]:
        size = self.engine.capabilities.block_size
        held = self.tables[segment.slot]
        held += self.take(max(-(-(segment.start + segment.count) // size) - len(held), 0))
        self.tables[segment.slot] = held
        return held

    def launch(
        self,
        *segments: Segment,
        tables: Iterable[tuple[int, ...]] | None = None,
        work: Sequence[SlotWork] = (),
    ) -> FakeTicket:
        """Blocks that exist and are named for the first time are fresh, whoever names them."""
        self.number += 1
        used = tuple(tables) if tables is not None else tuple(self.table(segment) for segment in segments)
        named = {block for table in (*used, *(item.blocks for item in work)) for block in table}
        fresh = {block for block in named - self.held if 0 <= block < self.engine.capabilities.num_blocks}
        self.held |= fresh
        self.free = [block for block in self.free if block not in fresh]
        freed, self.freed = tuple(self.freed), []
        return self.engine.launch(StepPlan(self.number, segments, used, tuple(work), tuple(fresh), freed))

    def step(
        self,
        *segments: Segment,
        tables: Iterable[tuple[int, ...]] | None = None,
        work: Sequence[SlotWork] = (),
    ) -> StepResult:
        ticket = self.launch(*segments, tables=tables, work=work)
        assert select.select([ticket.fd], [], [], 30)[0], "the step never finished"
        return self.engine.collect(ticket)

    def tokens(self, *segments: Segment) -> list[int | None]:
        """One step; its sampled ids, None for a lane that did not sample."""
        return [
            outcome.tokens[0].token if outcome.tokens else None for outcome in self.step(*segments).outcomes
        ]

    def generate(self, slot: int, spec: SlotSpec, count: int, chunk: int = 10**6) -> list[int | None]:
        """A whole answer, alone in its steps, prompt in chunks."""
        length, out = len(spec.token_ids), list[int | None]()
        for start in range(0, length, chunk):
            rows = min(chunk, length - start)
            out = self.tokens(prefill(slot, start, rows, sample=start + rows == length))
        for index in range(count - 1):
            out += self.tokens(decode(slot, length + index))
        return out
