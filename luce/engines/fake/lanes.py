"""Blocks, slots and the forward pass of the fake engine. Runs on the engine's thread, or wherever it is told to."""

from __future__ import annotations

import attrs

from luce.engines.fake.content import EMPTY, MASK, generated_content, mix, prompt_content, sampled, seed_key
from luce.engines.fake.reference import Script
from luce.engines.seam import Outcome, RowSource, SampledToken, Segment, SlotSpec

__all__ = ["FakeModel", "Lane"]


@attrs.define(eq=False)
class Lane:
    """Device state of one open slot."""

    spec: SlotSpec
    length: int
    """Prompt rows."""
    key: int
    states: list[int]
    """S(-1), S(0), ...: one entry more than there are rows."""
    tokens: list[SampledToken]
    """Generated tokens; the first stands at position ``length``."""
    failure: str | None = None
    """Set by the first failed row: what follows it fails too, until the slot is closed."""


class FakeModel:
    """Key/value blocks shared by all slots, and one :class:`Lane` per open slot."""

    def __init__(self, num_blocks: int, block_size: int, vocab_size: int, script: Script | None) -> None:
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._script = script
        self._sums = [0] * (num_blocks * block_size)
        """By block and row in it: sum of the values of the block's rows up to this one."""
        self._whole = [0] * num_blocks
        """The same for a block's last row."""
        self.lanes: dict[int, Lane] = {}
        self.failing: dict[int, str] = {}
        """Slots whose next segment fails, with the reason."""

    def open(self, slot: int, spec: SlotSpec) -> None:
        self.lanes[slot] = Lane(spec, len(spec.token_ids), seed_key(spec.sampling), [EMPTY], [])

    def close(self, slot: int) -> None:
        del self.lanes[slot]
        self.failing.pop(slot, None)

    def run(self, segment: Segment, table: tuple[int, ...]) -> Outcome:
        """One segment: void what stood at or past its start, take its rows in, sample if asked."""
        slot, start, count = segment.slot, segment.start, segment.count
        lane = self.lanes[slot]
        if self.failing:
            lane.failure = self.failing.pop(slot, lane.failure)
        if lane.failure is not None:
            return Outcome(slot, 0, (), lane.failure)
        states = lane.states
        if len(states) - 1 != start:
            assert start < len(states), f"slot {slot} has no row {start - 1}"
            del states[start + 1 :]
        if segment.source is RowSource.LAST_SAMPLED:
            token = lane.tokens[start - lane.length]
            contents = [generated_content(token.token, start + lane.spec.rope_delta)]
        else:
            contents = prompt_content(lane.spec, start, start + count)
        attention = self._take_in(contents, states, start, table)
        if not segment.sample:
            return Outcome(slot, count)
        return Outcome(slot, count, (self._sample(lane, start + count, attention),))

    def _take_in(self, contents: list[int], states: list[int], start: int, table: tuple[int, ...]) -> int:
        """Append rows to blocks and state; the attention sum of the last one."""
        size, sums, whole = self._block_size, self._sums, self._whole
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

    def _sample(self, lane: Lane, position: int, attention: int) -> SampledToken:
        """The token at ``position``, recorded in the lane in place of what stood there and after it."""
        index = position - lane.length
        draw = mix(mix(attention ^ lane.states[-1] ^ lane.key, position), position)
        forced = self._script(lane.spec, index) if self._script else None
        token = sampled(draw, self._vocab_size, lane.spec.sampling, forced)
        lane.tokens[index:] = [token]
        return token
