"""A driver that feeds an engine by hand, keeping every row of logits it sampled from."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from weakref import WeakKeyDictionary

import attrs
import numpy as np
import numpy.typing as npt

from luce.engines.qwen35.config import Qwen35Config
from luce.engines.qwen35.engine import Qwen35Engine
from luce.engines.qwen35.weights import Qwen35Weights
from luce.engines.seam import (
    ImageSpan,
    Mask,
    Outcome,
    RowSource,
    SampledToken,
    Segment,
    SegmentKind,
    SlotSpec,
    SlotWork,
    StepPlan,
    StepResult,
)
from tests.engines.models import IMAGE, SAMPLED_IDS
from tests.engines.oracle import mrope_positions

F32 = npt.NDArray[np.float32]


def new_engine(
    config: Qwen35Config,
    weights: Qwen35Weights,
    *,
    num_slots: int = 4,
    num_blocks: int = 96,
    block_size: int = 16,  # gathered; test_exactness also reads blocks of 64 in place
    max_context: int = 512,
    poison: bool = True,
) -> Qwen35Engine:
    return Qwen35Engine(
        config,
        weights,
        num_slots=num_slots,
        num_blocks=num_blocks,
        block_size=block_size,
        max_context=max_context,
        poison=poison,
        num_token_ids=SAMPLED_IDS if config.text.vocab_size == 120 else None,
    )


def text_spec(ids: Sequence[int], max_tokens: int = 64) -> SlotSpec:
    token_ids = np.asarray(ids, np.int32)
    positions = np.broadcast_to(np.arange(len(token_ids), dtype=np.int32), (3, len(token_ids)))
    return SlotSpec(token_ids, positions, 0, None, max_tokens)


def image_spec(
    parts: Sequence[int | tuple[int, int]],
    rows: Sequence[F32 | None],
    *,
    image_id: int = IMAGE,
    merge: int = 2,
    max_tokens: int = 64,
) -> SlotSpec:
    """A prompt of token ids and image grids (gh, gw), with the images' encoded rows in order."""
    ids: list[int] = []
    spans, grids = [], []
    for part in parts:
        if isinstance(part, tuple):
            length = part[0] * part[1] // merge**2
            spans.append(ImageSpan(len(ids), length, len(grids)))
            grids.append(part)
            ids += [image_id] * length
        else:
            ids.append(part)
    positions, delta = mrope_positions(ids, image_id, grids, merge)
    return SlotSpec(np.asarray(ids, np.int32), positions, delta, None, max_tokens, tuple(spans), list(rows))


class Recorder:
    """A sampler that keeps the logits it saw, by position of the token to come, and plays a script or argmax."""

    def __init__(self, script: dict[int, int] | None = None) -> None:
        self.logits: dict[int, F32] = {}
        self._script = script or {}

    generated: tuple[int, ...] = ()

    def recall(self, generated: Iterable[int]) -> None:
        pass

    def sample(self, logits: F32, position: int, mask: Mask | None = None) -> SampledToken:
        assert mask is None
        self.logits[position] = logits.copy()
        return SampledToken(self._script.get(position, int(np.argmax(logits[:SAMPLED_IDS]))))


@attrs.define(eq=False)
class Opened:
    slot: int
    spec: SlotSpec
    blocks: list[int]
    recorder: Recorder
    high: int = 0


@attrs.frozen
class Rows:
    """What one sequence does in a step."""

    sequence: Opened
    start: int
    count: int
    source: RowSource = RowSource.PROMPT
    sample: bool = True


@attrs.define
class Blocks:
    """Which blocks of an engine are free, and what its next plan has to say of blocks."""

    free: list[int]
    fresh: list[int] = attrs.field(factory=list)
    freed: list[int] = attrs.field(factory=list)


_BLOCKS: WeakKeyDictionary[Qwen35Engine, Blocks] = WeakKeyDictionary()
"""By engine, so that a later driver goes on where an earlier one left off."""


class Driver:
    """Opens sequences at chosen slots with randomly placed blocks and runs steps by hand."""

    def __init__(self, engine: Qwen35Engine, seed: int = 0) -> None:
        self.engine = engine
        self.random = random.Random(seed)
        capabilities = engine.capabilities
        self._blocks = _BLOCKS.setdefault(engine, Blocks(list(range(capabilities.num_blocks))))
        self.random.shuffle(self._blocks.free)
        self._size = capabilities.block_size
        self._number = 0

    def open(
        self,
        spec: SlotSpec,
        slot: int = 0,
        script: dict[int, int] | None = None,
        *,
        blocks: Sequence[int] | None = None,
    ) -> Opened:
        self.engine.open(slot, spec)
        recorder = Recorder(script)

        def install(_: object, slots: dict[int, object]) -> None:
            slots[slot].sampler = recorder  # type: ignore[attr-defined]

        self.engine.call(install)
        taken = list(blocks or ())
        for block in taken:
            self._blocks.free.remove(block)
        self._blocks.fresh += taken
        return Opened(slot, spec, taken, recorder)

    def close(self, sequence: Opened, *, keep: Sequence[int] = ()) -> None:
        """Close the slot and free its blocks, but for those that somebody else has."""
        self.engine.close(sequence.slot)
        self.free([block for block in sequence.blocks if block not in keep])
        sequence.blocks = []

    def take(self, count: int) -> list[int]:
        """Fresh blocks, anywhere in the pool."""
        free = self._blocks.free
        taken = [free.pop(self.random.randrange(len(free))) for _ in range(count)]
        self._blocks.fresh += taken
        return taken

    def reset(self, held: Sequence[int]) -> None:
        """Nobody has any block; ``held`` are those that the engine was told of."""
        self._blocks.fresh, self._blocks.freed = [], list(held)
        self._blocks.free = list(range(self.engine.capabilities.num_blocks))

    def free(self, blocks: Sequence[int]) -> None:
        """Nobody has these blocks any more."""
        for block in blocks:
            if block in self._blocks.fresh:  # no plan has named it
                self._blocks.fresh.remove(block)
            else:
                self._blocks.freed.append(block)
        self._blocks.free += blocks

    def plan(self, rows: Sequence[Rows] = (), work: Sequence[SlotWork] = ()) -> StepPlan:
        segments, tables = [], []
        for item in rows:
            sequence, end = item.sequence, item.start + item.count
            sequence.blocks += self.take(max(-(-end // self._size) - len(sequence.blocks), 0))
            kind = SegmentKind.PREFILL if item.source is RowSource.PROMPT else SegmentKind.DECODE
            segments.append(Segment(sequence.slot, kind, item.start, item.count, item.source, item.sample))
            tables.append(tuple(sequence.blocks))
            sequence.high = end
        self._number += 1
        fresh, freed = tuple(self._blocks.fresh), tuple(self._blocks.freed)
        self._blocks.fresh, self._blocks.freed = [], []
        return StepPlan(self._number, tuple(segments), tuple(tables), tuple(work), fresh, freed)

    def run(self, rows: Sequence[Rows] = (), work: Sequence[SlotWork] = ()) -> StepResult:
        return self.engine.collect(self.engine.launch(self.plan(rows, work)))

    def step(self, rows: Sequence[Rows]) -> tuple[Outcome, ...]:
        return self.run(rows).outcomes

    def prefill(self, sequence: Opened, *cuts: int) -> None:
        """The whole prompt, in pieces that end at ``cuts`` and at its end; all must succeed."""
        at = 0
        for end in [*cuts, len(sequence.spec.token_ids)]:
            (outcome,) = self.step([Rows(sequence, at, end - at)])
            assert outcome.error is None, outcome
            at = end

    def decode(self, sequence: Opened, count: int) -> list[int]:
        """``count`` more tokens, one step each; returns all tokens sampled after the prompt."""
        for _ in range(count):
            (outcome,) = self.step([Rows(sequence, sequence.high, 1, RowSource.LAST_SAMPLED)])
            assert outcome.error is None, outcome
        first = len(sequence.spec.token_ids)
        logits = sequence.recorder.logits
        return [int(np.argmax(logits[p][:SAMPLED_IDS])) for p in range(first, first + count + 1)]


def same_bits(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> bool:
    return bool(
        np.array_equal(np.ascontiguousarray(a).view(np.uint32), np.ascontiguousarray(b).view(np.uint32))
    )


def random_ids(count: int, seed: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, 110, count)]
