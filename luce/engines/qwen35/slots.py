"""One open slot: what the engine knows of a sequence, and the checks that it and its segments may run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import attrs
import numpy as np
import numpy.typing as npt

from luce.engines.qwen35.state import CHUNK, MAX_LANE_ROWS
from luce.engines.seam import Mask, RowSource, SampledToken, Segment, SegmentKind, SlotSpec
from luce.errors import DeviceError, RequestError
from luce.sampling.masks import allowed_ids
from luce.sampling.sampler import NonFiniteLogitsError, Sampler

__all__ = ["Greedy", "Holder", "Slot", "TokenSampler", "cut", "new_sampler", "new_slot"]


class Holder(Protocol):
    """Knows which KV blocks are given out."""

    def covers(self, table: Sequence[int], rows: int) -> bool:
        """Is there a held block in ``table`` for each of ``rows`` rows?"""


class TokenSampler(Protocol):
    """Draws one token after another for a slot (:class:`luce.sampling.sampler.Sampler`)."""

    @property
    def generated(self) -> tuple[int, ...]: ...

    def sample(
        self, logits: npt.NDArray[np.float32], position: int, mask: Mask | None = None
    ) -> SampledToken: ...

    def recall(self, generated: Iterable[int]) -> None: ...


class Greedy:
    """Argmax, lowest id on ties, for slots opened without sampling parameters (tools and tests)."""

    generated: tuple[int, ...] = ()
    """Nothing is remembered."""

    def __init__(self, num_token_ids: int) -> None:
        self._num_ids = num_token_ids

    def sample(
        self, logits: npt.NDArray[np.float32], position: int, mask: Mask | None = None
    ) -> SampledToken:
        """The most likely token with its log-probability (of the unprocessed logits).

        Raises:
            NonFiniteLogitsError: a logit is NaN or infinite.
        """
        row = logits[: self._num_ids].astype(np.float64)
        bad = int(len(row) - np.count_nonzero(np.isfinite(row)))
        if bad:
            raise NonFiniteLogitsError(position, bad, len(row))
        if mask is None:
            token = int(row.argmax())
        else:
            token = int(np.where(allowed_ids(mask, self._num_ids), row, -np.inf).argmax())
        return SampledToken(token, float(-np.log(np.exp(row - row[token]).sum())))

    def recall(self, generated: Iterable[int]) -> None:
        """As :meth:`luce.sampling.sampler.Sampler.recall`."""


@attrs.define(eq=False)
class Slot:
    """A sequence on the device, owned by the engine thread once it is open."""

    index: int
    spec: SlotSpec
    sampler: TokenSampler
    ids: npt.NDArray[np.int64]
    """Token fed at each position so far; prompt ids from the start."""
    base: int = 0
    """Start of the committed 64-chunk, the last multiple of 64 up to ``start``."""
    start: int = 0
    """Rows before it are committed: where the last lane began, or where the slot was stored after that."""
    high: int = 0
    """Rows computed, committed or not."""
    sampled: tuple[int, int] | None = None
    """(position, token) of the token sampled last."""
    table: tuple[int, ...] = ()
    failed: str | None = None

    @property
    def prompt_length(self) -> int:
        return len(self.spec.token_ids)

    def positions(self, start: int, end: int) -> npt.NDArray[np.integer]:
        """M-RoPE positions [3, end - start]: the prompt's table, then token count plus delta (spec qwen35 §10)."""
        prompt = self.prompt_length
        given = self.spec.positions[:, start : min(end, prompt)]
        if end <= prompt:
            return given
        later = np.arange(max(start, prompt), end) + self.spec.rope_delta
        return np.concatenate([given, np.broadcast_to(later, (3, len(later)))], axis=1)

    @property
    def first_generated(self) -> int:
        """Position of the first generated token."""
        return self.prompt_length - self.spec.num_generated

    def token_for(self, position: int) -> int | None:
        """The token sampled for ``position``, None when none was. A row that was fed with it may turn out to be void
        and start there once more."""
        if self.sampled is not None and self.sampled[0] == position:
            return self.sampled[1]
        return int(self.ids[position]) if self.prompt_length <= position < self.high else None

    def check(self, segment: Segment, table: tuple[int, ...], pool: Holder, hidden: int) -> None:
        """Refuse a segment that this slot cannot run. ``hidden``: width of input rows.

        Raises:
            DeviceError: the slot failed before, a gap, a position before the commit, rows without a source, a block
                table that is short or names blocks that nobody holds.
        """
        end = segment.start + segment.count
        if self.failed is not None:
            raise DeviceError(f"the sequence failed before: {self.failed}")
        if segment.kind not in (SegmentKind.PREFILL, SegmentKind.DECODE) or segment.layers is not None:
            raise DeviceError(f"segments of kind {segment.kind.value!r} or layer ranges are not served")
        if segment.count < 1 or segment.start > self.high:
            raise DeviceError(f"rows {segment.start} to {end} do not follow on the {self.high} rows computed")
        if segment.start < self.start:
            raise DeviceError(
                f"row {segment.start} is committed: the slot goes on from {self.start} or later"
            )
        if end > len(self.ids):
            raise DeviceError(f"rows up to {end} exceed the {len(self.ids)} that the slot was opened for")
        if not pool.covers(table, end):
            raise DeviceError(f"the block table does not cover {end} rows with blocks that were given out")
        if segment.source is RowSource.LAST_SAMPLED:
            if segment.count != 1 or self.token_for(segment.start) is None:
                raise DeviceError(f"no token was sampled for row {segment.start}")
        elif end > self.prompt_length:
            raise DeviceError(f"rows up to {end} are not in the prompt of {self.prompt_length} tokens")
        for span in self.spec.spans:
            if span.start < end and segment.start < span.start + span.length:
                rows = self.spec.image_rows[span.image]
                if rows is None:
                    raise DeviceError(f"image {span.image} has no rows for its {span.length} positions yet")
                if rows.shape != (span.length, hidden):
                    raise DeviceError(
                        f"image {span.image} has rows {rows.shape}; [{span.length}, {hidden}] are needed"
                    )

    def feed(self, segment: Segment) -> None:
        """Put the segment's token ids in their places: the prompt's own, or the token sampled last."""
        end = segment.start + segment.count
        if segment.source is RowSource.LAST_SAMPLED:
            token = self.token_for(segment.start)
            assert token is not None
            self.ids[segment.start] = token
        else:  # an overrun row may have left a guess there
            self.ids[segment.start : end] = self.spec.token_ids[segment.start : end]

    def rows_into(self, start: int, x: npt.NDArray[np.float32], embed: npt.NDArray[np.float32]) -> None:
        """Input rows of positions from ``start``: embeddings, image rows in their place."""
        end = start + len(x)
        np.take(embed, self.ids[start:end], axis=0, out=x, mode="clip")
        for span in self.spec.spans:
            low, high = max(start, span.start), min(end, span.start + span.length)
            if low < high:
                rows = self.spec.image_rows[span.image]
                assert rows is not None
                x[low - start : high - start] = rows[low - span.start : high - span.start]


def new_slot(index: int, spec: SlotSpec, max_context: int, vocab_size: int, num_token_ids: int) -> Slot:
    """An empty slot for ``spec``, checked against what the engine can hold.

    Raises:
        RequestError: no prompt or one too long, ids outside the vocabulary, positions or image spans that do not fit.
    """
    ids = np.asarray(spec.token_ids, np.int64)
    count = len(ids)
    if not 0 < count <= max_context:
        raise RequestError(
            f"the prompt has {count} tokens; 1 to {max_context} are possible", field="messages"
        )
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise RequestError("the prompt holds token ids outside the vocabulary", field="prompt")
    positions = spec.positions
    if positions.shape != (3, count) or positions.min() < 0 or positions.max() > max_context:
        raise RequestError(
            f"M-RoPE positions must be [3, {count}] with values 0 to {max_context}", field="messages"
        )
    if not -count <= spec.rope_delta <= 0:
        raise RequestError(f"a rope delta of {spec.rope_delta} does not fit {count} tokens", field="messages")
    for span in spec.spans:
        inside = 0 <= span.start < span.start + span.length <= count
        if not inside or not 0 <= span.image < len(spec.image_rows):
            raise RequestError(f"image span {span} does not fit the prompt", field="messages")
    # One more than the answer needs: a row launched ahead may overrun.
    fed = np.zeros(min(count + spec.max_tokens, max_context) + 1, np.int64)
    fed[:count] = ids
    return Slot(index, spec, new_sampler(spec, count, num_token_ids), fed)


def new_sampler(spec: SlotSpec, position: int, num_token_ids: int) -> Sampler | Greedy:
    """The sampler of a sequence that goes on at ``position``: of ``spec``'s generated tokens it has those before."""
    if spec.sampling is None:
        return Greedy(num_token_ids)
    ids = np.asarray(spec.token_ids, np.int64)
    prompt = len(ids) - spec.num_generated
    return Sampler(
        spec.sampling, ids[:prompt], num_token_ids, generated=ids[prompt : max(position, prompt)].tolist()
    )


def cut(start: int, count: int) -> list[tuple[int, int]]:
    """(start, rows) of the lanes that run a segment: one, or pieces that end at multiples of 64."""
    if count <= MAX_LANE_ROWS:
        return [(start, count)]
    pieces, at, end = [], start, start + count
    while at < end:
        stop = min(end, (at // CHUNK + 1) * CHUNK)
        pieces.append((at, stop - at))
        at = stop
    return pieces
