"""An engine with no model in it, for tests, simulation and benchmarks: exact, fast, and strict about its plans.

Theory of operation. A launch is checked at once against the seam's contract and then executed in one of three ways:

- ``THREAD``: by an engine thread in launch order, as the real engines do; modelled times are slept there.
- ``INLINE``: within ``launch`` itself; the ticket is readable when ``launch`` returns. Costs next to nothing.
- ``MANUAL``: when the test says :meth:`FakeEngine.finish_next`, or by :meth:`FakeEngine.drive`, a trio task that
  sleeps the modelled times on trio's clock, so that under ``MockClock`` nothing really sleeps.

Every ticket has an eventfd that becomes readable when the step is done, in every mode; ``collect`` reads it empty.
"""

from __future__ import annotations

import enum
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import trio

from luce.engines.fake.audit import audit_blocks, audit_lane, audit_stored
from luce.engines.fake.checks import PlanChecker, PlanError, require
from luce.engines.fake.lanes import FakeModel
from luce.engines.fake.reference import Script, encoded_rows
from luce.engines.fake.staging import FakeStaging
from luce.engines.fake.stored_states import FakeStates
from luce.engines.fake.times import Times
from luce.engines.seam import (
    Capabilities,
    Mask,
    Outcome,
    PatchImage,
    Segment,
    SlotSpec,
    StepPlan,
    StepResult,
    Ticket,
    WorkKind,
)
from luce.errors import DeviceError

__all__ = ["FakeEngine", "FakeTicket", "Mode", "deepseek_capabilities", "fake_capabilities"]


class Mode(enum.Enum):
    """Who executes a launched step."""

    THREAD = "thread"
    INLINE = "inline"
    MANUAL = "manual"


def fake_capabilities(**changes: Any) -> Capabilities:
    """Small defaults that any field may replace: 4 slots, 256 blocks of 16 rows, 1,024 rows of context.

    ``images_recomputable=False`` makes it an engine on which sequences with pictures cannot be computed again.
    """
    small = Capabilities(
        num_slots=4,
        block_size=16,
        num_blocks=256,
        max_context=1024,
        vocab_size=256,
        images=True,
        recomputable=True,
        whole_image_blocks=False,
        num_layers=1,
        max_depth=2,
        bytes_per_token=8,
        bytes_per_slot=8,
        bytes_per_snapshot=8,
        parking=True,
        snapshots=True,
    )
    return attrs.evolve(small, **changes)


def deepseek_capabilities(**changes: Any) -> Capabilities:
    """The shape of DeepSeek V4: blocks of 128 rows, 43 layers in slices of 6, pictures taken whole in staged passes,
    slots with pictures that cannot be computed again. 6 slots, 384 blocks, 8,192 rows of context."""
    like = {
        "num_slots": 6,
        "block_size": 128,
        "num_blocks": 384,
        "max_context": 8192,
        "whole_image_blocks": True,
        "num_layers": 43,
        "slice_layers": 6,
        "min_staged_rows": 5,
        "bytes_per_staging": 8192 * 16,
        "images_recomputable": False,
    }
    return fake_capabilities(**(like | changes))


@attrs.define(eq=False)
class FakeTicket:
    """A launched step."""

    plan: StepPlan
    fd: int
    result: StepResult | Exception | None = None
    """None until it is done."""

    @property
    def number(self) -> int:
        return self.plan.number

    @property
    def done(self) -> bool:
        return self.result is not None


class FakeEngine:
    """Args:
    capabilities: what to declare; :func:`fake_capabilities` makes small ones.
    mode: who executes steps.
    times: modelled seconds.
    script: forced tokens, for tests of text, stops and streams; None anywhere leaves the model's own token.
    hidden: width of encoded image rows.
    """

    def __init__(
        self,
        capabilities: Capabilities | None = None,
        *,
        mode: Mode = Mode.THREAD,
        times: Times | None = None,
        script: Script | None = None,
        hidden: int = 8,
    ) -> None:
        self._capabilities = capabilities or fake_capabilities()
        self._mode = mode
        self._times = times or Times()
        self._hidden = hidden
        self._checker = PlanChecker(self._capabilities)
        self._model = FakeModel(
            self._capabilities.num_blocks,
            self._capabilities.block_size,
            self._capabilities.vocab_size,
            script,
        )
        self._staging = FakeStaging(self._model, self._capabilities)
        self._states = FakeStates(self._model, self._capabilities, self._staging)
        self._uncollected: deque[FakeTicket] = deque()
        self._pending: deque[FakeTicket] = deque()
        """Launched and not executed; MANUAL only."""
        self._launched = trio.lowlevel.ParkingLot()
        self._failing_steps: dict[int, str] = {}
        self._failing_images: dict[bytes, str] = {}
        self._down = False
        self._fds = [
            os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(self._capabilities.max_depth)
        ]
        """Used in turn: a ticket's is free again before the ticket ``max_depth`` later is launched."""
        self._launches = 0
        self._queue: queue.SimpleQueue[FakeTicket | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        if mode is Mode.THREAD:
            self._thread = threading.Thread(target=self._serve, name="fake-engine", daemon=True)
            self._thread.start()

    # -- the seam -------------------------------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def open(self, slot: int, spec: SlotSpec) -> None:
        self._checker.open(slot, spec)
        self._model.open(slot, spec)

    def close(self, slot: int) -> None:
        for ticket in self._uncollected:
            plan = ticket.plan
            in_flight = any(segment.slot == slot for segment in plan.segments)
            require(not in_flight, f"slot {slot} is closed with a row in step {ticket.number}")
            in_flight = any(item.slot == slot for item in plan.work)
            require(not in_flight, f"slot {slot} is closed with work in step {ticket.number}")
        self._checker.close(slot)
        self._model.close(slot)

    def encode(self, image: PatchImage) -> npt.NDArray[np.float32]:
        """Rows float32 [num_tokens, hidden], a function of the digest alone.

        Raises:
            DeviceError: :meth:`fail_encode` asked for it.
        """
        seconds = self._times.of_image(image)
        if seconds and self._mode is Mode.MANUAL:
            trio.from_thread.run(trio.sleep, seconds)
        elif seconds and self._mode is Mode.THREAD:
            time.sleep(seconds)
        return self._encode(image)

    async def encode_async(self, image: PatchImage) -> npt.NDArray[np.float32]:
        """:meth:`encode` on trio's clock and without a thread, for simulations: a ``MockClock`` that jumps whenever
        every task waits cannot see that a worker thread is busy."""
        await trio.sleep(self._times.of_image(image))
        return self._encode(image)

    def _encode(self, image: PatchImage) -> npt.NDArray[np.float32]:
        require(len(image.values) == image.grid[0] * image.grid[1], f"{image.grid} is not the patches' grid")
        failure = self._failing_images.get(image.digest)
        if failure is not None:
            raise DeviceError(failure)
        return encoded_rows(image, self._hidden)

    def launch(self, plan: StepPlan) -> FakeTicket:
        require(not self._down, "the engine is shut down")
        require(len(self._uncollected) < len(self._fds), "too many steps are in flight already")
        self._checker.plan(plan)
        ticket = FakeTicket(plan, self._fds[self._launches % len(self._fds)])
        self._launches += 1
        self._uncollected.append(ticket)
        if self._mode is Mode.INLINE:
            self._execute(ticket)
        elif self._mode is Mode.THREAD:
            self._queue.put(ticket)
        else:
            self._pending.append(ticket)
            self._launched.unpark_all()
        return ticket

    def collect(self, ticket: Ticket) -> StepResult:
        """Raises:
        DeviceError: :meth:`fail_step` asked for it; the slots of its rows must be closed.
        """
        require(
            bool(self._uncollected) and self._uncollected[0] is ticket,
            "tickets are collected in launch order",
        )
        ticket = self._uncollected[0]
        result = ticket.result
        if result is None:
            raise PlanError(f"step {ticket.number} is not done")
        self._uncollected.popleft()
        try:
            os.eventfd_read(ticket.fd)
        except BlockingIOError:
            pass  # the collector has read it already
        if isinstance(result, Exception):
            for item in ticket.plan.work:
                self._checker.failed(item)
            raise result
        for item, outcome in zip(ticket.plan.work, result.work, strict=True):
            if outcome.error is not None:
                self._checker.failed(item)
        return result

    def discard(self, handle: int) -> None:
        for ticket in self._uncollected:
            in_flight = any(item.handle == handle for item in ticket.plan.work)
            require(not in_flight, f"handle {handle} is discarded with work in step {ticket.number}")
        self._checker.discard(handle)
        self._states.states.pop(handle, None)

    def shutdown(self) -> None:
        if self._down:
            return
        self._down = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
        for fd in self._fds:
            os.close(fd)

    # -- tests' side ----------------------------------------------------------------------------------------------

    def fail_row(self, slot: int, reason: str = "injected: the row is not finite") -> None:
        """The open ``slot``'s next executed segment fails, and all after it until it is closed."""
        require(slot in self._model.lanes, f"slot {slot} is not open")
        self._model.failing[slot] = reason

    def fail_work(self, kind: WorkKind, reason: str = "injected: no memory") -> None:
        """The next executed item of this kind fails."""
        self._states.failing[kind].append(reason)

    def fail_step(self, number: int, reason: str = "injected: the step failed") -> None:
        """Collecting step ``number`` raises :class:`DeviceError`, and every row of its slots fails from then on."""
        self._failing_steps[number] = reason

    def fail_encode(self, digest: bytes, reason: str = "injected: the picture cannot be encoded") -> None:
        """Encoding this picture raises :class:`DeviceError`, every time."""
        self._failing_images[digest] = reason

    @property
    def open_slots(self) -> frozenset[int]:
        return frozenset(self._model.lanes)

    @property
    def stored_handles(self) -> frozenset[int]:
        """Handles under which something is stored."""
        return frozenset(self._states.states)

    @property
    def stored_bytes(self) -> int:
        """Host bytes that all stored states take."""
        return self._states.nbytes

    def audit(self, slot: int) -> list[str]:
        """Recompute an open slot's state and blocks from its content; one line per difference. No step may be in
        flight, as for the other audits."""
        return audit_lane(self._model, self._model.lanes[slot])

    def audit_stored(self, handle: int, spec: SlotSpec) -> list[str]:
        """The same for a saved slot or a snapshot. ``spec``: its content; for a saved slot what it was opened with and
        all tokens since (:meth:`SlotSpec.with_generated`)."""
        return audit_stored(self._states.states[handle], spec, self._model.block_size)

    def audit_blocks(self, spec: SlotSpec, blocks: Sequence[int], rows: int) -> list[str]:
        """The same for the first ``rows`` rows of ``spec`` in ``blocks``."""
        return audit_blocks(self._model, spec, blocks, rows)

    @property
    def in_flight(self) -> int:
        """Launched and not collected."""
        return len(self._uncollected)

    def finish_next(self) -> bool:
        """MANUAL: execute the oldest launched step; False if there is none."""
        if not self._pending:
            return False
        self._execute(self._pending.popleft())
        return True

    async def drive(self) -> None:
        """MANUAL: execute steps as they are launched, each after its modelled time on trio's clock, for ever."""
        while True:
            while not self._pending:
                await self._launched.park()
            await trio.sleep(self._times.of_step(self._pending[0].plan))
            self.finish_next()

    # -- execution ------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while (ticket := self._queue.get()) is not None:
            seconds = self._times.of_step(ticket.plan)
            if seconds:
                time.sleep(seconds)
            self._execute(ticket)

    def _run(self, segment: Segment, table: tuple[int, ...], mask: Mask | None = None) -> Outcome:
        if segment.layers is not None:
            return self._staging.run(segment)
        return self._model.run(segment, table, mask)

    def _execute(self, ticket: FakeTicket) -> None:
        plan = ticket.plan
        failure = self._failing_steps.pop(plan.number, None) if self._failing_steps else None
        try:
            if plan.freed_blocks:
                self._model.take_back(plan.freed_blocks)
            work = tuple(map(self._states.run, plan.work))
            if failure is not None:  # behind the work: a device may have done any part of a step
                for slot in [*(s.slot for s in plan.segments), *(item.slot for item in plan.work)]:
                    self._model.lanes[slot].failure = failure
                ticket.result = DeviceError(failure)
            else:
                masks = (plan.masks,) if plan.masks else ()
                outcomes = tuple(map(self._run, plan.segments, plan.block_tables, *masks))
                ticket.result = StepResult(plan.number, outcomes, self._times.of_step(plan), work)
        except Exception as error:  # a bug; raised where the step is collected
            ticket.result = error
        os.eventfd_write(ticket.fd, 1)
