"""Prompts that come together get their first tokens together, where that is soon.

Theory of operation. A prompt beside answers' rows takes about twice as long as alone: the pieces are small, so that the
streams keep moving, and each of them runs the whole model beside the answers. So of prompts that came together the
first answer would slow all others down, and be slow itself until they are done. As long as nobody's answer is under
way, a prompt that is computed up to its last row therefore waits with that one for the others. Of equal prompts that
costs nothing: the first tokens come as early on average as one by one, and all answers end earlier.

It waits only for prompts that are not much longer than its own, and only for so many rows as measured times allow
(:class:`luce.scheduling.step_pace.StepPace`). It never waits while nothing else can be computed, as when the others'
pictures are still being encoded. Nobody's stream waits: there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from luce.engines.seam import Segment
from luce.scheduling.state import Lane

__all__ = ["LONGER", "gathered"]

LONGER = 2
"""Times its own length: a prompt does not wait for one of which more is left than that."""


def gathered(
    chunks: list[Segment], prefilling: Sequence[Lane], rows: int, cached: Mapping[int, int]
) -> list[Segment]:
    """The prompt chunks of a step without answers; those that end prompts without their last rows, where these prompts
    have to wait.

    Args:
        chunks: whole ones.
        prefilling: lanes whose prompts are not done, those with a chunk and those that wait for a picture or a copy.
        rows: that prompts may wait for.
        cached: of each prompt, by slot, rows that were there from the start.
    """
    counts = {chunk.slot: chunk.count for chunk in chunks}
    ending = {chunk.slot for chunk in chunks if chunk.sample}
    if not ending:
        return chunks
    left = [
        lane.prompt_rows - lane.next_row - counts.get(lane.slot, 0)
        for lane in prefilling
        if lane.slot not in ending
    ]
    shortest = min(lane.prompt_rows - cached.get(lane.slot, 0) for lane in prefilling if lane.slot in ending)
    if not left or sum(left) > rows or max(left) > LONGER * shortest:
        return chunks
    kept = [
        chunk._replace(count=chunk.count - 1, sample=False) if chunk.sample else chunk
        for chunk in chunks
        if chunk.count > 1 or not chunk.sample
    ]
    return kept or chunks
