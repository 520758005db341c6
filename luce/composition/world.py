"""The actors' data, as little of it as charts and policy read, in a form that can be frozen and thawed.

Names are those of the actors (`luce/actors`), so that the real guard classes and the real `plan()` run on it.
What the actors do around their charts is repeated here in a few lines each; where the two differ, the actors'
own tests (and the event log, which is judged by the same charts) are the second net.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

import attrs

from luce.actors.request import DROPPABLE as _DROPPABLE
from luce.charts.interpreter import Configuration
from luce.composition.options import Options, Shape
from luce.composition.pictures import EMPTY
from luce.engines.seam import WorkKind
from luce.scheduling.image_cache import ImageCache
from luce.scheduling.staged_passes import StagedPass, StagedPrompt

__all__ = ["Encoder", "Flight", "Loop", "Request", "Row", "Work", "World", "quiet"]

Message = tuple[Any, ...]
"""Event name first, then what it carries."""


@attrs.frozen(cache_hash=True)
class Row:
    """One segment of a step and whose it is."""

    request: int
    slot: int
    prefill: bool
    start: int
    count: int
    sample: bool
    layers: tuple[int, int] | None = None
    masked: bool = False
    """Its token is sampled under its request's mask."""

    def captured(self, points: Iterable[int]) -> list[int]:
        """After which of these rows its request's state is to be captured now."""
        return [point for point in points if self.start < point <= self.start + self.count]


class Work(NamedTuple):
    """A copy of a slot's state, or of a staged prompt into its blocks: `luce.engines.seam.SlotWork`."""

    kind: WorkKind
    slot: int
    request: int
    position: int
    """Rows in it."""


@attrs.frozen(cache_hash=True)
class Flight:
    """A step: `luce.actors.flight.Flight`."""

    rows: tuple[Row, ...]
    work: tuple[Work, ...] = ()

    @property
    def sampling(self) -> frozenset[int]:
        return frozenset(row.slot for row in self.rows if row.sample)

    @property
    def slots(self) -> frozenset[int]:
        return frozenset([row.slot for row in self.rows] + [work.slot for work in self.work])

    @property
    def plan(self) -> Any:
        return SimpleNamespace(segments=self.rows)


@attrs.define(eq=False)
class Request:
    """One request: `luce.actors.request.Request` without text and time."""

    number: int
    shape: Shape
    here: Configuration | None = None
    """None until it is submitted."""
    mailbox: tuple[Message, ...] = ()
    order: int = -1
    arrived: tuple[bool, ...] = ()
    """Which images have rows."""
    next_row: int = 0
    committed: int = 0
    """Rows before it are final: no state before it can be copied. Kept where states of the prompt are."""
    computed_rows: int = 0
    num_generated: int = 0
    finish: bool | None = None
    slot: int | None = None
    timers: frozenset[str] = frozenset()
    full: bool = False
    cancelled: bool = False
    folded: int = 0
    """Generated tokens that are part of the prompt, since the request was dropped."""
    saved_rows: int | None = None
    """Rows of its state in host memory."""
    staged: bool = False
    layers_left: bool = False
    imported: bool = False
    leads: bool = False
    """Others wait for its prompt to be computed."""
    mask: bool | None = None
    """There is one for its next token."""
    masking: bool = False
    computing: bool = False
    """The worker has not answered yet."""
    rows_before_picture: int = attrs.field(default=1, kw_only=True)
    """Of the system's options."""

    @property
    def follows(self) -> bool:
        return self.shape.leader is not None

    @property
    def capture_points(self) -> tuple[int, ...]:
        return self.shape.capture_points

    def start_at(self, row: int) -> None:
        self.next_row = self.computed_rows = row
        self.committed = row if self.capture_points else 0
        self.staged = self.shape.whole and any(first + rows > row for first, rows in self.shape.spans)
        self.imported = False

    @property
    def followers(self) -> tuple[bool, ...]:
        return (True,) * self.leads

    @property
    def wants_pass(self) -> bool:
        return self.active("staging_ready")

    @property
    def staged_prompt(self) -> StagedPrompt:
        blocks = tuple((first, first + rows) for first, rows in self.shape.spans)
        end = self.prompt_rows - 1
        return StagedPrompt(blocks, end, min(self.ready_rows, end), min_rows=1)

    @property
    def missing_images(self) -> list[int]:
        return [image for image in range(len(self.arrived)) if self._needs(image)]

    def _needs(self, image: int) -> bool:
        start, length = self.shape.spans[image]
        return not self.arrived[image] and start + length > self.computed_rows

    def digest(self, image: int) -> bytes:
        return self.shape.pictures[image] if self.shape.pictures else b"%d/%d" % (self.number, image)

    def pictures(self, digest: bytes) -> list[int]:
        return [image for image in range(len(self.shape.spans)) if self.digest(image) == digest]

    @property
    def recomputable(self) -> bool:
        return self.shape.recomputable

    @property
    def droppable(self) -> bool:
        return self.recomputable and any(map(self.active, _DROPPABLE))

    @property
    def savable(self) -> bool:
        return self.recomputable and self.active("decoding")

    @property
    def hold(self) -> int | None:
        """Blocks are counted by slot."""
        return self.slot

    @property
    def saved(self) -> Any:
        return None if self.saved_rows is None else SimpleNamespace(position=self.saved_rows)

    @property
    def prompt_rows(self) -> int:
        return self.shape.prompt_rows + self.folded

    @property
    def row_limit(self) -> int:
        return self.shape.prompt_rows + self.shape.max_tokens

    @property
    def ready_rows(self) -> int:
        missing = self.missing_images
        return self.shape.spans[missing[0]][0] if missing else self.prompt_rows

    def active(self, state: str) -> bool:
        return self.here is not None and state in self.here.active

    @property
    def final(self) -> bool:
        return self.here is not None and self.here.finished

    @property
    def runnable(self) -> bool:
        takes = ("staging_chunk", "decoding_free", "decoding_masked")
        return any(map(self.active, takes)) and self.active("flowing")

    def copy(self) -> Request:
        least = self.rows_before_picture
        return Request(self.number, self.shape, *self.freeze(), rows_before_picture=least)

    def freeze(self) -> tuple[Any, ...]:
        return (
            self.here,
            self.mailbox,
            self.order,
            self.arrived,
            self.next_row,
            self.committed,
            self.computed_rows,
            self.num_generated,
            self.finish,
            self.slot,
            self.timers,
            self.full,
            self.cancelled,
            self.folded,
            self.saved_rows,
            self.staged,
            self.layers_left,
            self.imported,
            self.leads,
            self.mask,
            self.masking,
            self.computing,
        )


@attrs.define(eq=False)
class Loop:
    """`luce.actors.step_loop.StepLoop` with block counts instead of block ids."""

    depth: int
    here: Configuration
    mailbox: tuple[Message, ...] = ()
    waiting: tuple[int, ...] = ()
    running: dict[int, int] = attrs.field(factory=dict)
    """Slot to request."""
    parked: frozenset[int] = frozenset()
    """Requests without a slot that come back."""
    retiring: frozenset[int] = frozenset()
    saving: frozenset[int] = frozenset()
    work: tuple[Work, ...] = ()
    """For the next step."""
    flights: tuple[Flight, ...] = ()
    held: dict[int, int] = attrs.field(factory=dict)
    """Slot to blocks held."""
    reserved: dict[int, int] = attrs.field(factory=dict)
    window: bool = False
    """The coalescing timer is armed."""
    staged_pass: StagedPass | None = None

    def adopting(self, slot: int) -> bool:
        """Is the copy of a prefix into this slot still to be made?"""
        work = (*self.work, *(work for flight in self.flights for work in flight.work))
        return any(one.slot == slot and one.kind is WorkKind.ADOPT for one in work)

    @property
    def between(self) -> bool:
        """`StepLoop._between`: is no plan due, and may somebody be let in?"""
        work = (*self.work, *(work for flight in self.flights for work in flight.work))
        between = not self.here.active.isdisjoint(("coalescing", "in_flight"))
        return between and not any(one.kind is WorkKind.CAPTURE for one in work)

    def freeze(self) -> tuple[Any, ...]:
        return (
            self.here,
            self.mailbox,
            self.waiting,
            tuple(sorted(self.running.items())),
            self.parked,
            self.retiring,
            self.saving,
            self.work,
            self.flights,
            tuple(sorted(self.held.items())),
            tuple(sorted(self.reserved.items())),
            self.window,
            self.staged_pass,
        )


@attrs.define(eq=False)
class Encoder:
    """`luce.actors.encoder.Encoder`."""

    here: Configuration
    mailbox: tuple[Message, ...] = ()
    pictures: tuple[Any, ...] = EMPTY
    """Its cache, frozen; holders are request numbers."""
    encoding: bytes | None = None
    """What the worker has, until its answer is handled."""
    answered: bool = False
    """The worker's answer is in the mailbox."""
    thawed: ImageCache | None = None
    """While a message is being handled."""

    @property
    def cache(self) -> ImageCache:
        assert self.thawed is not None
        return self.thawed

    def freeze(self) -> tuple[Any, ...]:
        return (self.here, self.mailbox, self.pictures, self.encoding, self.answered)


@attrs.define(eq=False)
class World:
    """Everything, thawed."""

    options: Options
    requests: list[Request]
    loop: Loop
    encoder: Encoder
    stalls: int
    step_failures: int
    image_failures: int
    mask_failures: int
    hits: int
    copy_failures: int
    drains: int
    submitted: int = 0

    def freeze(self) -> tuple[Any, ...]:
        return (
            tuple(request.freeze() for request in self.requests),
            self.loop.freeze(),
            self.encoder.freeze(),
            (
                self.stalls,
                self.step_failures,
                self.image_failures,
                self.mask_failures,
                self.hits,
                self.copy_failures,
                self.drains,
                self.submitted,
            ),
        )

    @classmethod
    def thaw(cls, options: Options, state: tuple[Any, ...]) -> World:
        requests, loop, encoder, counters = state
        here, mailbox, waiting, running, parked, retiring, saving, work, flights, held, reserved, *rest = loop
        least = options.rows_before_picture
        return cls(
            options,
            [
                Request(n, options.shapes[n], *fields, rows_before_picture=least)
                for n, fields in enumerate(requests)
            ],
            Loop(
                options.depth,
                here,
                mailbox,
                waiting,
                dict(running),
                parked,
                retiring,
                saving,
                work,
                flights,
                dict(held),
                dict(reserved),
                *rest,
            ),
            Encoder(*encoder),
            *counters,
        )

    def next_for_encoder(self) -> int:
        """Place in its mailbox: questions first, in the order in which their requests arrived."""
        mailbox = self.encoder.mailbox
        asks = [
            (self.requests[who].order, place)
            for place, (event, who) in enumerate(mailbox)
            if event == "encode"
        ]
        return min(asks)[1] if asks else 0

    @property
    def quiet(self) -> bool:
        """Every mailbox is empty: the turn rule's condition."""
        return not (
            self.loop.mailbox or self.encoder.mailbox or any(request.mailbox for request in self.requests)
        )


def quiet(state: tuple[Any, ...]) -> bool:
    """`World.quiet` of a frozen one."""
    requests, loop, encoder, _ = state
    return not (loop[1] or encoder[1] or any(request[1] for request in requests))
