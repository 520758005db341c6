"""The server supervisor: runs `statecharts/server.scxml`, owns every actor and every request (design §4).

One nursery per layer: service ⊃ {step loop, encoder, timers, requests}. A request catches its own errors and ends
`failed`; only bugs escape, and they end the service with a clear report after every client has been told.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import trio

from luce.actors.answer import AnswerText
from luce.actors.budgets import image_budget
from luce.actors.choices import prompt_tokens
from luce.actors.deadline import time_limit
from luce.actors.encoder import Encode, Encoder, EncoderGuards, on_worker_thread
from luce.actors.free_memory import FreeMemory, machine_memory, recorded
from luce.actors.mailbox import Waker
from luce.actors.masks import Compute, MaskWorkers
from luce.actors.messages import ToEncoder, ToLoop
from luce.actors.options import ServiceOptions
from luce.actors.outside import Outside
from luce.actors.protocol import FED, check_protocol
from luce.actors.request import Request
from luce.actors.request_guards import RequestGuards
from luce.actors.step_loop import LoopGuards, StepLoop
from luce.actors.submission import Handle, Submission
from luce.actors.token_buffer import End
from luce.actors.tracing import (
    arrival,
    refused,
    snapshot,
    tell_illegal_events,
    tell_prompt_rows,
    trace_header,
)
from luce.actors.wiring import Wiring
from luce.charts.interpreter import Machine, Send
from luce.charts.loader import load_chart
from luce.engines.loaded import LoadedModel
from luce.errors import CapacityError, DeviceError, LuceError, RequestError
from luce.scheduling.block_pool import blocks_for
from luce.scheduling.plan import plan
from luce.scheduling.staged_passes import staged_fault
from luce.scheduling.state import Policy
from luce.trace.events import EventStream
from luce.trace.recorder import Recorder

__all__ = ["Service", "actor_guards"]


class ServerGuards:
    """`server.scxml` asks nothing."""


def actor_guards() -> dict[str, object]:
    """An instance of each actor's guard class, by the chart it answers to. They only have their names read."""
    nobody = cast(Any, None)
    return {
        "request": RequestGuards(nobody),
        "loop": LoopGuards(nobody),
        "encoder": EncoderGuards(nobody),
        "server": ServerGuards(),
    }


class Service:
    """Args:
    model: loaded and ready.
    options: what the operator set.
    encode: how pictures are encoded without holding up trio; None is the engine's `encode` on a worker thread.
        Simulations pass one that takes its time on trio's clock.
    policy: what decides for the step loop.
    free_memory: what budgets that the operator left open depend on. Every look is a record of the event stream.
    compute: where masks of constrained answers are computed; None is on worker threads.
    recorder: writes the event stream to files from the first event on, until :meth:`run` ends.
    outside: when messages, timers and masks come; None is as they are there.
    """

    def __init__(
        self,
        model: LoadedModel,
        options: ServiceOptions | None = None,
        encode: Encode | None = None,
        policy: Policy = plan,
        free_memory: FreeMemory = machine_memory,
        compute: Compute | None = None,
        recorder: Recorder | None = None,
        outside: Outside | None = None,
    ) -> None:
        check_protocol({name: load_chart(name) for name in FED}, actor_guards())
        self.model = model
        self.options = options or ServiceOptions()
        self.events = EventStream(trio.lowlevel.current_clock().current_time)
        self.machine = Machine(load_chart("server"), ServerGuards(), observer=self.events.observe)
        self.requests: dict[int, Request] = {}
        """Every request whose task lives, by arrival number."""
        self.arrivals: dict[int, float] = {}
        """When they were asked for, by arrival number: their preparation came later."""
        outside = outside or Outside(masks=MaskWorkers(compute))
        turn = outside.turn
        self.timers = outside.timers
        self._masks = outside.masks
        self._wiring = Wiring(
            options=self.options,
            capabilities=model.engine.capabilities,
            turn=turn,
            timers=self.timers,
            events=self.events,
            free_memory=recorded(free_memory, self.events),
            loop=turn.mailbox(turn.waker),
            encoder=turn.mailbox(),
            masks=self._masks,
            request_chart=load_chart("request"),
            forget=self._forget,
        )
        self.loop = StepLoop(model.engine, self._wiring, policy)
        self.encoder = Encoder(
            encode or on_worker_thread(model.engine.encode),
            self._wiring.encoder,
            self.events,
            image_budget(self.options.image_bytes, model.engine.capabilities, self._wiring.free_memory),
        )
        self._recorder = recorder
        if recorder is not None:
            recorder.attach(self.events, trace_header(self, recorder.content), partial(snapshot, self))
        self._orders = itertools.count()
        self._requests_nursery: trio.Nursery | None = None
        self._everything: trio.CancelScope | None = None
        self._forgotten = trio.lowlevel.ParkingLot()
        self._stopped = trio.Event()

    # -- life cycle -----------------------------------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until drained. Raises what a bug raised, after every client has got an error."""
        try:
            async with trio.open_nursery() as nursery:
                self._everything = nursery.cancel_scope
                nursery.start_soon(self.timers.run)
                nursery.start_soon(self._masks.run)
                nursery.start_soon(self.encoder.run)
                nursery.start_soon(self._run_loop)
                if self._recorder is not None:
                    nursery.start_soon(self._recorder.run)
                self._requests_nursery = nursery
                self._deliver(self.machine.start())
                self._feed("weights.loaded")
                self._feed("warm")
                task_status.started()
        except BaseException as error:
            tell_illegal_events(self.events, error)
            if not self.machine.finished:
                self._feed("fault")
            raise
        finally:
            self._requests_nursery = None
            self._end_answers()
            self.model.engine.shutdown()
            if self._recorder is not None:
                self._recorder.close()
            self._stopped.set()

    async def _run_loop(self) -> None:
        await self.loop.run()
        self._wiring.encoder.put(ToEncoder("stop"))
        await self.encoder.stopped.wait()
        while self.requests:
            await self._forgotten.park()
        await self._wiring.turn.last()
        self._feed("drained")

    def drain(self) -> None:
        """Send away who waits, let who runs finish within ``drain_timeout``, then stop.

        A second call cancels everything at once. Safe in any state.
        """
        if not self.machine.finished:
            self._feed("drain")

    async def stopped(self) -> None:
        """Return when :meth:`run` has ended."""
        await self._stopped.wait()

    @property
    def state(self) -> str:
        """'starting', 'ready', 'draining', 'stopped' or 'failed': the top state of server.scxml."""
        return self.machine.configuration[0] if self.machine.configuration else "starting"

    @property
    def ready(self) -> bool:
        return self.state == "ready"

    # -- requests -------------------------------------------------------------------------------------------------

    def submit(self, submission: Submission, arrived: float | None = None) -> Handle:
        """Start a request.

        Args:
            arrived: when it was asked for and its time limit began to run, on trio's clock; None is now.

        Raises:
            RequestError: it can never fit, with the numbers.
            CapacityError: the queue is full, or the server is not serving.
        """
        return self.submit_all([submission], arrived)[0]

    def submit_all(
        self, submissions: Sequence[Submission], arrived: float | None = None
    ) -> tuple[Handle, ...]:
        """Start requests that have one client, all or none. Of those with one prompt (the same object) the first one
        computes it for all.

        Args:
            arrived: as for :meth:`submit`.

        Returns:
            the handles, in the same order, all to be read by one task: whichever has something wakes it.

        Raises:
            RequestError: one of them, or all together, can never fit, with the numbers.
            CapacityError: the queue has no room for all, or the server is not serving.
        """
        nursery = self._requests_nursery
        if not self.ready or nursery is None:
            raise CapacityError(f"the server is {self.state}", retry_after=self.options.drain_timeout)
        try:
            for submission in submissions:
                self._check_fits(submission)
            self._check_queue(submissions)
        except LuceError as error:
            for submission in submissions:
                self.events.detail(refused, submission, error)
            raise
        answers = [AnswerText(self.model.tokenizer, submission) for submission in submissions]
        now = trio.current_time()
        arrived = now if arrived is None else arrived
        waker, leaders = Waker(), dict[int, Request]()
        requests: list[Request] = []
        for submission, answer in zip(submissions, answers, strict=True):
            limit = time_limit(submission.timeout, self.options.request_timeout, arrived)
            leader = leaders.get(id(submission.prompt))
            follows = leader is not None and self.loop.memory.cache.shares(leader)
            order = next(self._orders)
            request = Request(submission, order, self._wiring, answer, now, limit, waker, follows)
            if leader is None:
                leaders[id(submission.prompt)] = request
            elif follows:
                leader.followers += (request,)
            requests.append(request)
        for request in requests:
            self.requests[request.order] = request
            self.arrivals[request.order] = arrived
            self.events.detail(
                arrival,
                request.submission,
                request.order,
                arrived,
                request.follows,
                request.mask is not None,
                self.events.content,
            )
            if request.keys is not None:
                tell_prompt_rows(self.events, request.order, request.submission)
            request.start()
            nursery.start_soon(request.run)
        return tuple(request.handle for request in requests)

    @property
    def max_queued_tokens(self) -> int:
        """The limit in force on prompt tokens of all that wait together."""
        most = self.options.max_queued_tokens
        return 16 * self.model.engine.capabilities.max_context if most is None else most

    def _check_queue(self, submissions: Sequence[Submission]) -> None:
        """Is there room for all of them? Prompts that wait take memory, pictures above all: they are bounded by what
        they hold, not by their number alone. What several choices share they hold once."""
        slots, most = self.model.engine.capabilities.num_slots, self.options.max_queued
        if len(submissions) > slots + most:
            raise RequestError(
                f"{len(submissions)} answers are asked for: this server runs {slots} requests and lets {most} wait "
                "(--queue)",
                field="n" if any(submission.choice for submission in submissions) else "prompt",
            )
        if len(self.requests) + len(submissions) > slots + most:
            raise CapacityError(f"the queue is full: {slots} requests run and {most} wait (--queue)")
        queued = [r.submission for r in self.requests.values() if r.machine.active("waiting")]
        later = queued[len(self.loop.memory.free_slots) :]  # the first ones are about to have a slot
        waiting, tokens, limit = prompt_tokens(later), prompt_tokens(submissions), self.max_queued_tokens
        if waiting and waiting + tokens > limit:
            raise CapacityError(
                f"the queue is full: prompts of {waiting} tokens wait, {tokens} more would exceed {limit} "
                "(--queue-tokens)"
            )

    def _check_fits(self, submission: Submission) -> None:
        capabilities = self.model.engine.capabilities
        prompt = len(submission.prompt.token_ids)
        rows = prompt + (submission.params.max_tokens or 1)
        if rows > capabilities.max_context:
            raise RequestError(
                f"the prompt has {prompt} tokens and max_tokens is {submission.params.max_tokens}; together they "
                f"exceed the context of {capabilities.max_context}",
                field="messages",
                code="context_length_exceeded",
            )
        if blocks_for(rows, capabilities.block_size) > capabilities.num_blocks:
            raise RequestError(
                f"the request needs {rows} rows of key/value memory and the whole pool has "
                f"{capabilities.num_blocks * capabilities.block_size}",
                field="max_tokens",
                code="context_length_exceeded",
            )

        fault = staged_fault(submission.prompt.spans, prompt, capabilities)
        if fault is not None:
            raise RequestError(fault, field="messages")

    def _forget(self, request: Request) -> None:
        del self.requests[request.order]
        del self.arrivals[request.order]
        self._forgotten.unpark_all()

    # -- chart ----------------------------------------------------------------------------------------------------

    def _feed(self, event: str) -> None:
        self._deliver(self.machine.feed(event))
        if self.machine.finished and self._everything is not None:
            self._everything.cancel()

    def _deliver(self, sends: tuple[Send, ...]) -> None:
        for send in sends:
            if send.target == "loop":
                self._wiring.loop.put(ToLoop(send.event))
            else:
                assert send.target == "timer", send
                self.timers.obey("server", send, self.options.delays, self._feed)

    def _end_answers(self) -> None:
        """After a fault no task runs any more, but every client still learns the end of its answer."""
        for request in self.requests.values():
            if not request.buffer.ended:
                request.buffer.end(End("error", DeviceError("the server failed; see its log")))
