"""Blocks, slots and the forward pass of the fake engine. Runs on the engine's thread, or wherever it is told to."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import numpy as np
import numpy.typing as npt

from luce.engines.fake.content import (
    EMPTY,
    MASK,
    generated_content,
    history_key,
    mix,
    prompt_content,
    sampled,
    seed_key,
)
from luce.engines.fake.reference import Script
from luce.engines.seam import Mask, Outcome, RowSource, SampledToken, Segment, SlotSpec

__all__ = ["JUNK", "FakeModel", "Lane"]

JUNK = 0x13198A2E03707344
"""What blocks hold that are nobody's."""


@attrs.define(eq=False)
class Lane:
    """Device state of one open slot."""

    spec: SlotSpec
    length: int
    """Prompt rows."""
    key: int
    first: int = 0
    """Rows before it came with a stored state: only the last of their S is here."""
    states: list[int] = attrs.field(factory=lambda: [EMPTY])
    """S(first - 1), S(first), ...: one entry more than there are rows from ``first`` on."""
    tokens: list[SampledToken] = attrs.field(factory=list)
    """Generated tokens; the first stands at position ``length``."""
    table: tuple[int, ...] = ()
    """Of the last segment."""
    failure: str | None = None
    """Set by the first failed row: what follows it fails too, until the slot is closed."""

    @property
    def rows(self) -> int:
        return self.first + len(self.states) - 1

    @property
    def first_generated(self) -> int:
        """Position of the first generated token."""
        return self.length - self.spec.num_generated

    def ids(self, rows: int) -> npt.NDArray[np.int64]:
        """Token ids [rows] fed so far."""
        later = [token.token for token in self.tokens[: max(rows - self.length, 0)]]
        return np.concatenate([self.spec.token_ids[:rows], np.array(later, np.int64)])

    def positions(self, rows: int) -> npt.NDArray[np.int64]:
        """M-RoPE positions [3, rows] of the first rows."""
        later = np.arange(self.length, max(rows, self.length)) + self.spec.rope_delta
        return np.concatenate(
            [self.spec.positions[:, :rows], np.broadcast_to(later, (3, len(later)))], axis=1
        )

    def content(self, row: int) -> int:
        """Content of a generated row."""
        return generated_content(self.tokens[row - self.length].token, row + self.spec.rope_delta)

    def generated(self, position: int) -> list[int]:
        """Generated tokens before ``position``."""
        early: list[int] = self.spec.token_ids[self.first_generated :].tolist()
        return early + [token.token for token in self.tokens[: position - self.length]]


class FakeModel:
    """Key/value blocks shared by all slots, and one :class:`Lane` per open slot."""

    def __init__(self, num_blocks: int, block_size: int, vocab_size: int, script: Script | None) -> None:
        self.block_size = block_size
        self._vocab_size = vocab_size
        self._script = script
        self.sums = [JUNK] * (num_blocks * block_size)
        """By block and row in it: sum of the values of the block's rows up to this one."""
        self.whole = [JUNK] * num_blocks
        """The same for a block's last row."""
        self.lanes: dict[int, Lane] = {}
        self.failing: dict[int, str] = {}
        """Slots whose next segment fails, with the reason."""

    def open(self, slot: int, spec: SlotSpec) -> None:
        self.lanes[slot] = Lane(spec, len(spec.token_ids), seed_key(spec.sampling))

    def close(self, slot: int) -> None:
        del self.lanes[slot]
        self.failing.pop(slot, None)

    def take_back(self, blocks: Iterable[int]) -> None:
        """Nobody holds these blocks any more: reading them shows."""
        for block in blocks:
            self.whole[block] = JUNK
            self.sums[block * self.block_size : (block + 1) * self.block_size] = [JUNK] * self.block_size

    def run(self, segment: Segment, table: tuple[int, ...], mask: Mask | None = None) -> Outcome:
        """One segment: void what stood at or past its start, take its rows in, sample if asked."""
        slot, start, count = segment.slot, segment.start, segment.count
        lane = self.lanes[slot]
        if self.failing:
            lane.failure = self.failing.pop(slot, lane.failure)
        if lane.failure is not None:
            return Outcome(slot, 0, (), lane.failure)
        states = lane.states
        known = start - lane.first
        if len(states) - 1 != known:
            if not 0 <= known < len(states):  # the work that was to bring these rows has failed
                return Outcome(slot, 0, (), f"row {start} does not follow on the {lane.rows} rows computed")
            del states[known + 1 :]
        lane.table = table
        if segment.source is RowSource.LAST_SAMPLED:
            contents = [lane.content(start)]
        else:
            contents = prompt_content(lane.spec, start, start + count)
        attention = self._take_in(contents, states, start, table)
        if not segment.sample:
            return Outcome(slot, count)
        return Outcome(slot, count, (self._sample(lane, start + count, attention, mask),))

    def _take_in(self, contents: list[int], states: list[int], start: int, table: tuple[int, ...]) -> int:
        """Append rows to blocks and state; the attention sum of the last one."""
        size, sums, whole = self.block_size, self.sums, self.whole
        block, offset = divmod(start, size)
        before = sum(map(whole.__getitem__, table[:block]))
        place = table[block] * size
        inside = sums[place + offset - 1] if offset else 0
        state = states[-1]
        for content in contents:
            if offset == size:
                before += inside
                block, offset, inside = block + 1, 0, 0
                place = table[block] * size
            state = mix(state, content)
            states.append(state)
            inside = (inside + mix(state, (before + inside) & MASK)) & MASK
            sums[place + offset] = inside
            offset += 1
            if offset == size:
                whole[table[block]] = inside
        return (before + inside) & MASK

    def _sample(self, lane: Lane, position: int, attention: int, mask: Mask | None) -> SampledToken:
        """The token at ``position``, recorded in the lane in place of what stood there and after it."""
        index, params = position - lane.length, lane.spec.sampling
        key = lane.key
        if params is not None and params.penalises:
            key ^= history_key(lane.generated(position))
        draw = mix(mix(attention ^ lane.states[-1] ^ key, position), position)
        forced = self._script(lane.spec, index + lane.spec.num_generated) if self._script else None
        token = sampled(draw, self._vocab_size, params, forced, mask)
        lane.tokens[index:] = [token]
        return token
