"""Staged passes: prompts with pictures on engines that take pictures whole (spec deepseek4 §22.9, §22.10). Pure.

All rows of such a prompt but the last go through passes of their own, apart from the shared batch. Several requests
share a pass, oldest first, each with as many rows as :mod:`luce.scheduling.staged_chunks` allows; a request joins only
with rows whose pictures are encoded. While others decode or prefill, a pass is smaller and is cut into slices of
layers, one a step, so that nobody waits for more than one slice and one step (invariant I9); alone it runs whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import attrs

from luce.engines.seam import Capabilities, ImageSpan, RowSource, Segment, SegmentKind
from luce.scheduling.staged_chunks import Block, BlockEnds, choose_rows

__all__ = [
    "PassLimits",
    "StagedPass",
    "StagedPrompt",
    "StagedRows",
    "pass_after",
    "pass_limits",
    "staged_fault",
    "staged_rows",
    "staged_segments",
    "without",
]


@attrs.frozen
class PassLimits:
    """What passes are cut by; does not change while the server runs."""

    num_layers: int
    slice_layers: int
    """Layers of one slice; 0: passes are not cut."""
    min_rows: int
    rows: int
    """Rows of one pass over all its requests, when others decode or prefill. Exceeded only to finish a picture or to
    leave no stub."""
    rows_alone: int
    """The same when nobody does."""


def pass_limits(capabilities: Capabilities, rows: int, rows_alone: int) -> PassLimits | None:
    """Those of an engine; None where there are no passes."""
    if not capabilities.whole_image_blocks:
        return None
    return PassLimits(
        capabilities.num_layers, capabilities.slice_layers, capabilities.min_staged_rows, rows, rows_alone
    )


class StagedPrompt(NamedTuple):
    """What is to be staged of a prompt: all but its last row."""

    blocks: tuple[Block, ...]
    """Rows [begin, end) of each picture, in order."""
    end: int
    """Its rows but the last."""
    ready: int
    """Rows from 0 on whose pictures are encoded."""
    min_rows: int


@attrs.frozen
class StagedRows:
    """One request's share in a pass."""

    slot: int
    start: int
    count: int


class StagedPass(NamedTuple):
    """A pass between two of its slices."""

    rows: tuple[StagedRows, ...]
    layer: int
    """The first one that it has not been through."""


def staged_fault(spans: Sequence[ImageSpan], prompt_rows: int, capabilities: Capabilities) -> str | None:
    """Why this prompt can never be staged; None if it can or need not."""
    if not capabilities.whole_image_blocks or not spans:
        return None
    end, least = prompt_rows - 1, capabilities.min_staged_rows
    if any(span.start + span.length > end for span in spans):
        return "the prompt ends with a picture; this model needs text after the last one"
    if end < least:
        return f"a prompt with pictures needs at least {least + 1} tokens on this model, and this one has {prompt_rows}"
    return None


def staged_rows(prompt: StagedPrompt, start: int, budget: int) -> int:
    """Rows that this prompt brings to the next pass, from row ``start`` on; 0 while a picture is missing.

    The rule of :func:`luce.scheduling.staged_chunks.staged_chunk`, as far as pictures are there; where it would grow a
    chunk into rows that are not, the longest shorter one that keeps the rule.
    """
    ends, left, ready = BlockEnds(prompt.blocks, start), prompt.end - start, prompt.ready - start
    count = choose_rows(ends, left, budget, prompt.min_rows)
    if count <= ready:
        return count
    shorter = ends.at_most(min(ready, left - prompt.min_rows))
    return shorter if shorter >= prompt.min_rows else 0


def staged_segments(
    under_way: StagedPass | None,
    ready: Iterable[tuple[int, int, StagedPrompt]],
    limits: PassLimits,
    alone: bool,
) -> tuple[Segment, ...]:
    """The next slice of the pass under way, or the first one of a new pass.

    Args:
        ready: slot, first row and prompt of those that want to join, oldest first.
        alone: nobody decodes or prefills beside it.
    """
    if under_way is None:
        under_way = StagedPass(_join(ready, limits, limits.rows_alone if alone else limits.rows), 0)
    end = limits.num_layers
    if limits.slice_layers and not alone:
        end = min(end, under_way.layer + limits.slice_layers)
    layers = (under_way.layer, end)
    return tuple(
        Segment(
            row.slot, SegmentKind.STAGED, row.start, row.count, RowSource.PROMPT, sample=False, layers=layers
        )
        for row in under_way.rows
    )


def _join(
    ready: Iterable[tuple[int, int, StagedPrompt]], limits: PassLimits, budget: int
) -> tuple[StagedRows, ...]:
    """Who is in a new pass. Only the first may exceed the budget, and nobody overtakes one that does not fit."""
    rows: list[StagedRows] = []
    for slot, start, prompt in ready:
        count = staged_rows(prompt, start, budget)
        if rows and (count > budget or budget < limits.min_rows):
            break
        if count:
            rows.append(StagedRows(slot, start, count))
            budget -= count
    return tuple(rows)


def pass_after(
    under_way: StagedPass | None, segments: Iterable[Segment], num_layers: int
) -> StagedPass | None:
    """Where the pass under way stands when ``segments`` are launched."""
    rows, layer = [], 0
    for segment in segments:
        if segment.layers is not None:
            rows.append(StagedRows(segment.slot, segment.start, segment.count))
            layer = segment.layers[1]
    if not rows:
        return under_way
    return StagedPass(tuple(rows), layer) if layer < num_layers else None


def without(under_way: StagedPass | None, slot: int) -> StagedPass | None:
    """The same pass when the request in ``slot`` has ended."""
    if under_way is None:
        return None
    rows = tuple(row for row in under_way.rows if row.slot != slot)
    return StagedPass(rows, under_way.layer) if rows else None
