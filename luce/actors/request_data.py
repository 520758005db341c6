"""Small values that a request carries, and what can be said of its prompt's rows."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from luce.engines.seam import Capabilities, ImageSpan, SlotSpec
from luce.scheduling.staged_passes import StagedPrompt

__all__ = ["SavedState", "count_ready_rows", "first_text_row", "missing_spans", "staging_of"]


@attrs.frozen
class SavedState:
    """A slot's state in host memory."""

    handle: int
    """Its name at the engine."""
    position: int
    """Rows in it."""
    nbytes: int


def missing_spans(spec: SlotSpec, computed_rows: int) -> Iterator[ImageSpan]:
    """Spans of pictures that are not encoded and that rows to come need."""
    for span in spec.spans:
        if spec.image_rows[span.image] is None and span.start + span.length > computed_rows:
            yield span


def count_ready_rows(spec: SlotSpec, computed_rows: int) -> int:
    """Prompt rows from 0 on whose inputs are there."""
    missing = next(missing_spans(spec, computed_rows), None)
    return len(spec.token_ids) if missing is None else missing.start


def staging_of(spec: SlotSpec, prompt_rows: int, ready_rows: int, capabilities: Capabilities) -> StagedPrompt:
    """What goes through staged passes of a prompt."""
    blocks = tuple((span.start, span.start + span.length) for span in spec.spans)
    end = prompt_rows - 1
    return StagedPrompt(blocks, end, min(ready_rows, end), capabilities.min_staged_rows)


def first_text_row(spec: SlotSpec, capabilities: Capabilities) -> int:
    """On an engine that takes pictures whole, in staged passes: the row after the last of them. Those before it cannot
    be continued from a cached prefix. 0 on others."""
    if not capabilities.whole_image_blocks or not spec.spans:
        return 0
    return spec.spans[-1].start + spec.spans[-1].length
