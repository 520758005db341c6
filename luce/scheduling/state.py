"""The frozen picture of the world that :func:`luce.scheduling.plan.plan` decides on, and what it may decide."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import NamedTuple

import attrs

from luce.engines.seam import Segment
from luce.scheduling.staged_passes import PassLimits, StagedPass, StagedPrompt

__all__ = [
    "Decision",
    "Grant",
    "Lane",
    "Limits",
    "LoopState",
    "Park",
    "ParkKind",
    "Parked",
    "Policy",
    "Resume",
    "Waiting",
]


@attrs.frozen
class Limits:
    """What does not change while the server runs."""

    num_slots: int
    block_size: int
    prefill_budget: int | None
    """Prompt rows per step over all lanes; None is the whole prompt at once."""
    passes: PassLimits | None = None
    """None for engines that know no staged passes."""
    rows_before_picture: int = 1
    """Prompt rows at least that do not wait for the picture behind them: see :mod:`.before_pictures`."""


@attrs.frozen
class Waiting:
    """A queued request, first in first out."""

    key: int
    """Arrival number; also the FIFO order."""
    blocks: int
    """Blocks that it takes on a grant beyond those that others hold already."""
    pictures: bool = False
    """Some picture of it is to be encoded."""


class Lane(NamedTuple):
    """A request that holds a slot. A tuple, because a plan looks at one for every slot in every step."""

    slot: int
    order: int
    """Arrival number of its request: prompts are served first in, first out."""
    next_row: int
    """Rows submitted so far = the position of the next segment."""
    prompt_rows: int
    ready_rows: int
    """Prompt rows from 0 on whose inputs are there: up to the first image that is not encoded yet."""
    last_row: int
    """Rows that may be submitted at most: prompt + max_tokens - 1 (the last token is never fed back)."""
    covered_rows: int
    """Rows that the blocks it holds or was promised have room for; a row at or past it needs one more block."""
    runnable: bool = True
    """False while the request's chart takes no rows: encoding, waiting for rows, ending, or its client stalls."""
    in_flight: bool = False
    """A segment that samples is launched and not collected: a further row may only continue it."""
    busy: bool = False
    """A step in flight holds a row of it, or what its next token may be is being computed: it may not be parked before
    that is done."""
    can_save: bool = False
    """Its state may go to host memory, and there is room for it."""
    can_drop: bool = False
    """Its state can be computed again from its prompt and tokens."""
    cut_row: int | None = None
    """A prompt chunk ends here at the latest, so that the state after this row can be captured."""
    staged: StagedPrompt | None = None
    """It waits to join a staged pass; not runnable."""
    imported: bool = False
    """Its prompt went through staged passes: only its last row is left, and goes along with the decode rows."""
    masked: bool = False
    """What its next token may be depends on all tokens before: no row of it continues one in flight."""

    @property
    def prefilling(self) -> bool:
        return self.next_row < self.prompt_rows


@attrs.frozen
class Parked:
    """A request that gave its slot and blocks back under pressure."""

    key: int
    blocks: int
    """Blocks that it takes on its return."""


@attrs.frozen
class LoopState:
    limits: Limits
    lanes: tuple[Lane, ...]
    waiting: tuple[Waiting, ...]
    """The head of the queue, at most as many as there are free slots."""
    free_slots: tuple[int, ...]
    available_blocks: int
    """Blocks that nobody holds or was promised; cached ones count, since they can be had at once."""
    returning_blocks: int = 0
    """Blocks that come free without anybody's doing: their owners are being saved or have ended."""
    parked: tuple[Parked, ...] = ()
    """The oldest parked requests that may return now, by arrival; never empty while any is parked."""
    staged_pass: StagedPass | None = None
    """The pass that is under way."""
    importing: bool = False
    """The next step copies staged prompts into their blocks."""
    admitting: bool = True
    """False when this plan may not grant slots."""
    early: bool = False
    """A step runs, or further arrivals are waited for: requests may be let in so that their pictures are encoded
    meanwhile, and nothing else may be decided."""
    run_ahead: bool = False
    """Made right after a launch, before its results: only decode rows that continue a row in flight."""
    rows_beside: int | None = None
    """Prompt rows at most in a step that has rows of answers; None: the prefill budget alone counts."""
    gather_rows: int | None = None
    """Prompt rows that prompts may wait for with their first tokens; None: none, as while an answer is under way."""
    cached_rows: Mapping[int, int] = attrs.field(factory=dict)
    """Of prompts that may wait, by slot, the rows that were there when they got it."""


@attrs.frozen
class Grant:
    key: int
    slot: int


@attrs.frozen
class Resume:
    """A parked request gets a slot and blocks again."""

    key: int
    slot: int


class ParkKind(enum.Enum):
    SAVE = "park.save"
    DROP = "park.drop"


@attrs.frozen
class Park:
    """A lane gives its slot and blocks back. The value of ``kind`` is the event in request.scxml."""

    slot: int
    kind: ParkKind


@attrs.frozen
class Decision:
    """What to do next. A decision that moves requests (grants, resumes, parks, failures) holds no segments: it is
    delivered, and the next one is made when the requests have taken it in."""

    grants: tuple[Grant, ...] = ()
    resumes: tuple[Resume, ...] = ()
    parks: tuple[Park, ...] = ()
    fails: tuple[int, ...] = ()
    """Slots whose request cannot go on although nothing else is in its way."""
    segments: tuple[Segment, ...] = ()

    @property
    def moves(self) -> bool:
        """Does it move requests rather than run a step?"""
        return bool(self.grants or self.resumes or self.parks or self.fails)


Policy = Callable[[LoopState], Decision]
"""What decides for the step loop. The server's is :func:`luce.scheduling.plan.plan`."""
