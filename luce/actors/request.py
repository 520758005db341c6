"""One request: a trio task that runs `statecharts/request.scxml` and owns everything about its request.

Theory of operation. The task reads its mailbox. For each message it first takes in what the message carries (a
granted slot, encoded rows, a token), so that the chart's guards see it, then feeds the event to its machine, then
delivers the chart's sends. It awaits nothing else: text goes into the token buffer, which never blocks, and its
client's handler reads from there. The task lives until the loop has retired its slot and the encoder has dropped
its job, whatever happens to the client.

A fault in handling one message fails this request alone. An `IllegalEvent` is a bug in a chart or an actor and
escapes.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

from luce.actors.answer import AnswerText
from luce.actors.deadline import TimeLimit, too_late
from luce.actors.mailbox import Mailbox, Waker
from luce.actors.messages import (
    AdoptionFailed,
    ChunkDone,
    EncodeFailed,
    ImageReady,
    MaskFailed,
    Plain,
    QueueExpired,
    RequestMessage,
    RestoreFailed,
    SliceDone,
    SlotGranted,
    StepFailed,
    ToEncoder,
    Token,
    ToLoop,
)
from luce.actors.request_data import SavedState, count_ready_rows, first_text_row, missing_spans, staging_of
from luce.actors.request_guards import RequestGuards
from luce.actors.request_timers import RequestTimers
from luce.actors.submission import Handle, Submission, Timings, Usage, prefix_keys
from luce.actors.token_buffer import Delta, End, TokenBuffer
from luce.actors.tracing import tell_further_rows
from luce.charts.interpreter import Configuration, Machine, Send
from luce.engines.seam import Capabilities, SlotSpec
from luce.errors import IllegalEvent, LuceError
from luce.sampling.finish import FinishRule
from luce.scheduling.staged_passes import StagedPrompt
from luce.tuples import new_tuple

if TYPE_CHECKING:
    from luce.actors.wiring import Wiring
    from luce.scheduling.holds import Hold
    from luce.scheduling.prefix_keys import PrefixKeys

__all__ = ["DROPPABLE", "Request"]

log = logging.getLogger("luce.request")

DROPPABLE = ("decoding", "staging_chunk", "staging_wait_rows", "encoding")
"""States in which a slot may be taken away and computed again."""

_TAKE_ROWS = frozenset({"staging_chunk", "decoding_free", "decoding_masked"})


@functools.cache
def _takes_rows(here: Configuration) -> bool:
    """Asked for every slot before every step; there are few configurations, so every answer is kept."""
    return "flowing" in here.active and not here.active.isdisjoint(_TAKE_ROWS)


class Request:
    """All the state of one request.

    Args:
        submission: what was asked.
        order: arrival number.
        wiring: the mailboxes and services of the other actors.
        limit: when its answer has to be complete.
        waker: wakes its reader, who may read others besides.
        follows: another request computes the prompt for both, and tells this one when it has.
    """

    def __init__(
        self,
        submission: Submission,
        order: int,
        wiring: Wiring,
        answer: AnswerText,
        now: float,
        limit: TimeLimit | None = None,
        waker: Waker | None = None,
        follows: bool = False,
    ) -> None:
        self.submission = submission
        self.order = order
        self.limit = limit
        self.follows = follows
        self.followers: tuple[Request, ...] = ()
        """Who waits for its prompt to be computed."""
        self.capabilities: Capabilities = wiring.capabilities
        self.timings = Timings(now)
        self.mailbox: Mailbox[RequestMessage] = wiring.turn.mailbox()
        self.buffer = TokenBuffer(wiring.options.buffer_limit, self._drained, waker)
        self.machine = Machine(
            wiring.request_chart, RequestGuards(self), id=submission.id, observer=wiring.events.observe
        )
        prompt = submission.prompt
        self.spec = SlotSpec(
            token_ids=prompt.token_ids,
            positions=prompt.positions,
            rope_delta=prompt.rope_delta,
            sampling=submission.params,
            max_tokens=submission.params.max_tokens or 1,
            spans=prompt.spans,
            image_rows=[None] * len(submission.images),
        )
        self.prompt_rows = len(prompt.token_ids)
        self.row_limit = self.prompt_rows + self.spec.max_tokens
        """Rows that the request can ever occupy, the same however often it starts over. The last token is never fed
        back, but its row is counted so that speculation has room."""
        self.usage = Usage(self.prompt_rows)
        self.slot: int | None = None
        """Set by the loop, as are the next six."""
        self.hold: Hold | None = None
        """The blocks of its slot."""
        self.saved: SavedState | None = None
        """Its state in host memory while it is parked."""
        self.keys: PrefixKeys | None = None
        """Names of the prefixes of its prompt and answer; None when the engine keeps none."""
        if self.capabilities.snapshots:
            self.keys = submission.keys or prefix_keys(submission, self.capabilities)
        self.filled_blocks = 0
        """Leading blocks of its hold that carry their digest."""
        self.capture_points: tuple[int, ...] = ()
        """Rows after which its state is captured while its prompt is computed, ascending; empty after the last."""
        self.next_row = 0
        """Rows submitted to the engine: where the slot's next segment starts."""
        self.computed_rows = 0
        """Rows whose step has been handed out, or that came from a cache."""
        self.ready_rows = count_ready_rows(self.spec, self.computed_rows)
        self.rows_before_picture = wiring.options.rows_before_picture
        self.staged = self._needs_passes()
        """Its prompt goes through staged passes; settled when it starts in a slot."""
        self.layers_left = False
        """The pass that it is in has slices left."""
        self.imported = False
        """Its staged prompt is in its blocks. Set by the loop."""
        self.constraint = submission.constraint
        """What holds its answer to a form. While :attr:`masking`, the worker's."""
        self.mask = self.constraint.mask if self.constraint is not None else None
        """What its next token may be; None: anything, or it is not known yet."""
        self.masking = False
        """A worker computes it."""
        self.num_generated = 0
        self.parks = 0
        """How often it gave its slot back under pressure."""
        self.finish: str | None = None
        """'stop' or 'length' once the answer is complete."""
        self.error: LuceError | None = None
        self._finish_rule = FinishRule(submission.params)
        self._answer = answer
        self._wiring = wiring
        self._timers = RequestTimers(order, wiring, self.buffer, limit, self.mailbox.put)
        self._tokens: list[int] = []
        """Generated so far."""
        self._folded = 0
        """How many of them are part of `spec` as prompt."""

    # -- what the loop may ask ------------------------------------------------------------------------------------

    @property
    def missing_images(self) -> list[int]:
        """Pictures that are not encoded and that rows to come need."""
        return [span.image for span in missing_spans(self.spec, self.computed_rows)]

    def pictures(self, digest: bytes) -> list[int]:
        """The places among its pictures of the one with this digest."""
        return [place for place, image in enumerate(self.submission.images) if image.digest == digest]

    @property
    def recomputable(self) -> bool:
        return self.capabilities.recomputes(self.spec)

    @property
    def savable(self) -> bool:
        """May its slot be copied to host memory and taken away? Not where a copy that fails would lose it."""
        return self.capabilities.parking and self.recomputable and self.machine.active("decoding")

    @property
    def droppable(self) -> bool:
        """May its slot be taken away, to be computed again later?"""
        active = self.machine.active
        return self.recomputable and any(map(active, DROPPABLE))

    @property
    def runnable(self) -> bool:
        """May the next plan hold rows of this request?"""
        return _takes_rows(self.machine.current)

    @property
    def wants_pass(self) -> bool:
        """Does it wait to join a staged pass?"""
        return self.machine.active("staging_ready")

    @property
    def staged_prompt(self) -> StagedPrompt:
        """What goes through staged passes."""
        return staging_of(self.spec, self.prompt_rows, self.ready_rows, self.capabilities)

    # -- what the loop does to it ---------------------------------------------------------------------------------

    def start_at(self, row: int) -> None:
        """Its slot holds the state after ``row`` rows, and nothing of it is in flight."""
        self.next_row, self.computed_rows, self.ready_rows = row, row, count_ready_rows(self.spec, row)
        self.staged = self._needs_passes()
        self.imported = False

    def _needs_passes(self) -> bool:
        return self.first_text_row > self.computed_rows

    @property
    def first_text_row(self) -> int:
        """See :func:`luce.actors.request_data.first_text_row`."""
        return first_text_row(self.spec, self.capabilities)

    def extend_keys(self, rows: int) -> None:
        """Have keys for the first ``rows`` rows, generated ones included."""
        if (keys := self.keys) is not None and rows > len(keys):
            first = len(self.submission.prompt.token_ids)
            tokens = self._tokens[len(keys) - first : rows - first]
            tell_further_rows(self._wiring.events, self.order, len(keys), tokens)
            keys.extend(tokens)

    @property
    def handle(self) -> Handle:
        """For its client."""
        asked = self.submission
        return Handle(asked.id, self.usage, self.buffer, self.cancel, self.timings, asked.choice)

    # -- the task -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Enter the queue, before :meth:`run`. Synchronous, so that they queue in the order of their submission."""
        self.mailbox.await_reader()
        self._deliver(self.machine.start())

    async def run(self) -> None:
        """Handle messages until the chart is final."""
        machine, items, arrival = self.machine, self.mailbox.items, self.mailbox.arrival
        mailbox, handle, handled = self.mailbox, self._handle, self.mailbox.handled
        handled()
        while not machine.current.finished:
            while not items:
                await arrival()
            try:
                handle(items.popleft())
            except IllegalEvent:
                raise
            except Exception as error:
                log.exception("request %s failed in its own task", self.submission.id)
                self._fail(error)
            finally:
                handled()
        mailbox.close()
        self._wiring.forget(self)
        self._let_go_of_pictures()

    def _let_go_of_pictures(self) -> None:
        """They are large, and what this request refers to refers back: they would stay until a full collection."""
        self.spec.image_rows = []
        self.submission = self.submission.without_pictures()

    def cancel(self) -> None:
        """The client is gone."""
        self.mailbox.put(Plain("cancel"))

    def abort(self, error: LuceError) -> None:
        """The server gives up on this request."""
        self.mailbox.put(StepFailed(error))

    def _handle(self, message: RequestMessage) -> None:
        """Data first, so that guards see it; but an end stands, whatever comes after it."""
        if "ending" in self.machine.current.active:
            pass
        elif isinstance(message, Token):
            self._take_token(message)
        elif isinstance(message, ChunkDone):
            self.computed_rows += message.rows
        elif isinstance(message, SliceDone):
            self.computed_rows += message.rows
            self.layers_left = message.layers_left
        elif isinstance(message, SlotGranted):
            self.timings.granted = self._wiring.now()
            self.usage.cached_tokens = self.computed_rows
        elif isinstance(message, ImageReady):
            self.spec.image_rows[message.image] = message.rows
            self.ready_rows = count_ready_rows(self.spec, self.computed_rows)
        elif isinstance(message, StepFailed | EncodeFailed | QueueExpired | MaskFailed):
            self.error = message.error
            self.masking = self.masking and not isinstance(message, MaskFailed)
        elif isinstance(message, AdoptionFailed):
            self._start_over()  # nothing of it has been computed yet
        elif isinstance(message, RestoreFailed):
            if self.recomputable:
                self._start_over()
            else:
                self.error = message.error
        elif message.event == "mask.ready":
            self._take_mask()
        elif message.event == "park.drop":
            self._start_over()
        elif message.event == "deadline.expired":
            self.error = too_late(self)
        self._feed(message.event)

    def _start_over(self) -> None:
        """Nothing of the slot is left: the tokens so far become part of the prompt, to be computed again."""
        self.spec = self.spec.with_generated(self._tokens[self._folded :])
        self._folded = len(self._tokens)
        self.prompt_rows = len(self.spec.token_ids)
        self.start_at(0)

    def _take_token(self, message: Token) -> None:
        token, rows, _ = message
        answer, number = self._answer, token.token
        if self.num_generated == 0:
            self.timings.first_token = self._wiring.now()
        self.computed_rows += rows
        self.num_generated += 1
        self._tokens.append(number)
        finish = self._finish_rule.reason(number, self.num_generated)
        wants_mask = False
        if self.constraint is not None and finish is None:
            wants_mask = self.constraint.take(number)
            finish = "stop" if self.constraint.complete else None
        text = answer.push(number, ends=finish == "stop")
        if answer.stopped:
            finish = "stop"
        if finish is not None:
            self.finish = finish
            text += answer.flush()
        elif wants_mask:
            self.mask, self.masking = None, True
        elif self.constraint is not None:
            self._take_mask()
        if self.buffer.put(new_tuple(Delta, (text, (token,)))):
            self.mailbox.put(Plain("client.full"))

    def _take_mask(self) -> None:
        assert self.constraint is not None
        self.mask, self.masking = self.constraint.mask, False

    def _feed(self, event: str) -> None:
        machine = self.machine
        before = machine.current
        sends = machine.feed(event)
        if sends:
            self._deliver(sends)
        if machine.current is not before and machine.active("ending") and not self.buffer.ended:
            self._end_answer()

    def _end_answer(self) -> None:
        """The client learns the end at once; slot and encoder job may still be on their way back."""
        machine = self.machine
        self.timings.ended = self._wiring.now()
        if machine.active("ending_finished"):
            assert self.finish is not None
            stop = self._answer.stop if self.finish == "stop" else None
            self.buffer.end(End(self.finish, stop=stop))
        elif machine.active("ending_cancelled"):
            self.buffer.end(End("cancelled"))
        else:
            self.buffer.end(End("error", self.error or LuceError("the request failed")))

    def _fail(self, error: Exception) -> None:
        if self.machine.active("ending") or self.machine.finished:
            return
        self.error = LuceError(f"internal error: {type(error).__name__}")
        self._feed("step.failed")

    def _deliver(self, sends: tuple[Send, ...]) -> None:
        for send in sends:
            if send.target == "loop":
                self._wiring.loop.put(ToLoop(send.event, self))
            elif send.target == "encoder":
                self._wiring.encoder.put(ToEncoder(send.event, self))
            elif send.target == "followers":
                followers, self.followers = self.followers, ()
                for follower in followers:
                    follower.mailbox.put(Plain(send.event))
            elif send.target == "masks":
                self._wiring.masks.want(self)
            else:
                assert send.target == "timer", send
                self._timers.obey(send)

    def _drained(self) -> None:
        self.mailbox.put(Plain("client.drained"))
