"""The Qwen3.5 engine on the CPU: one thread that executes step plans in order (design §5).

The caller's side (``open``, ``close``, ``launch``, ``collect``) only puts commands into one queue and never waits for
arithmetic; commands take effect in the order they were given. ``encode`` runs the vision tower on its caller's
thread, beside the engine thread and without memory in common.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from luce.compute.blas import pin_blas
from luce.compute.selfcheck import check_operators
from luce.engines.qwen35.audit import audit_blocks, audit_slot, audit_stored
from luce.engines.qwen35.config import Qwen35Config
from luce.engines.qwen35.inspection import forward_all
from luce.engines.qwen35.packed import pack_text
from luce.engines.qwen35.rope import RopeTable
from luce.engines.qwen35.slots import Slot, new_slot
from luce.engines.qwen35.state import MAX_LANE_ROWS, StatePool
from luce.engines.qwen35.step import StepRunner
from luce.engines.qwen35.text import TextModel
from luce.engines.qwen35.vision import VisionTower
from luce.engines.qwen35.weights import Qwen35Weights
from luce.engines.seam import (
    Capabilities,
    Outcome,
    PatchImage,
    SlotSpec,
    StepPlan,
    StepResult,
    Ticket,
    WorkOutcome,
)
from luce.errors import DeviceError, RequestError

__all__ = ["Qwen35Engine", "StepTicket"]

F32 = npt.NDArray[np.float32]
T = TypeVar("T")

PASS_ROWS = 4 * MAX_LANE_ROWS
"""Rows that one pass over the layers takes at most; sizes the scratch memory."""


class StepTicket:
    """A launched step."""

    def __init__(self, plan: StepPlan, fd: int) -> None:
        self.plan = plan
        self._fd = fd
        self.finished = threading.Event()
        self.outcomes: tuple[Outcome, ...] = ()
        self.work: tuple[WorkOutcome, ...] = ()
        self.seconds = 0.0
        self.error: DeviceError | None = None

    @property
    def number(self) -> int:
        return self.plan.number

    @property
    def fd(self) -> int:
        """An eventfd of the engine that becomes readable when the step is done; :meth:`Qwen35Engine.collect`
        empties it."""
        return self._fd


class Qwen35Engine:
    """Implements :class:`luce.engines.seam.StoresStates` with numpy.

    Args:
        config, weights: the model. The text weights are packed into the engine's own copy.
        num_slots: sequences that may be open at once.
        num_blocks, block_size: the key/value pool; ``block_size`` tokens a block. Multiples of 64 are
            read in place; of other sizes, splits that do not stand in one piece are gathered.
        max_context: longest sequence in tokens, prompt and answer.
        num_token_ids: ids that may be sampled (the tokenizer's count); None: the whole vocabulary.
        poison: what belongs to nobody holds NaN, so that reading it shows (tests).

    Raises:
        DeviceError: BLAS cannot be pinned, or numpy's operators are not exact on this machine.
    """

    def __init__(
        self,
        config: Qwen35Config,
        weights: Qwen35Weights,
        *,
        num_slots: int = 4,
        num_blocks: int = 256,
        block_size: int = 64,
        max_context: int = 4096,
        num_token_ids: int | None = None,
        max_depth: int = 2,
        poison: bool = False,
    ) -> None:
        started = time.perf_counter()
        self.fingerprint = pin_blas()
        check_operators()
        text = config.text
        packed = pack_text(weights, text)
        self.config = config
        self.pool = StatePool(text, num_slots, num_blocks, block_size, poison=poison)
        model = TextModel(text, packed, max(PASS_ROWS, num_slots), max_context)
        self._runner = StepRunner(model, self.pool, RopeTable(text, max_context + 1))
        vision = None
        if config.vision is not None and weights.vision is not None:
            vision = VisionTower(config.vision, weights.vision)
        self._vision = vision
        self.tiles = packed.tiles
        """Row-tile heights found exact at start, by panel shape; (1,) means row by row (``luce doctor``)."""
        self._num_token_ids = num_token_ids or text.vocab_size
        self.capabilities = Capabilities(
            num_slots=num_slots,
            block_size=block_size,
            num_blocks=num_blocks,
            max_context=max_context,
            vocab_size=text.vocab_size,
            images=vision is not None,
            recomputable=True,
            whole_image_blocks=False,
            num_layers=text.num_layers,
            max_depth=max_depth,
            bytes_per_token=self.pool.bytes_per_token,
            bytes_per_slot=self.pool.bytes_per_slot,
            bytes_per_snapshot=self.pool.bytes_per_snapshot,
            parking=True,
            snapshots=True,
        )
        self._claimed: set[int] = set()
        self._uncollected: deque[StepTicket] = deque()
        self._launched = 0
        self._fds = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(max_depth)]
        self._slots: dict[int, Slot] = {}
        """Open slots; only the engine thread reads or changes it."""
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="luce-engine", daemon=True)
        self._thread.start()
        self.startup_seconds = time.perf_counter() - started

    # -- the caller's side ----------------------------------------------------------------------------------------

    def open(self, slot: int, spec: SlotSpec) -> None:
        """Claim ``slot`` for a sequence.

        Raises:
            RequestError: the prompt is empty, too long or holds ids outside the vocabulary.
            DeviceError: the slot is taken or does not exist.
        """
        if slot in self._claimed or not 0 <= slot < self.capabilities.num_slots:
            raise DeviceError(f"slot {slot} cannot be opened: it is taken or does not exist")
        opened = self._checked(slot, spec)
        self._claimed.add(slot)
        self._put(lambda: self._open(opened))

    def close(self, slot: int) -> None:
        """Free ``slot`` after the steps launched before.

        Raises:
            DeviceError: it is not open.
        """
        if slot not in self._claimed:
            raise DeviceError(f"slot {slot} is not open")
        self._claimed.discard(slot)
        self._put(lambda: self._close(slot))

    def encode(self, image: PatchImage) -> F32:
        """Rows [num_tokens, hidden] of one picture, on the caller's thread.

        Raises:
            RequestError: the model has no vision tower, or the picture does not fit it.
        """
        if self._vision is None:
            raise RequestError("this model takes no images", field="messages")
        return self._vision(image)

    def launch(self, plan: StepPlan) -> StepTicket:
        """Start a step and return at once.

        Raises:
            DeviceError: ``max_depth`` tickets are uncollected, or the engine was shut down.
        """
        if len(self._uncollected) >= self.capabilities.max_depth:
            raise DeviceError(f"step {plan.number}: {len(self._uncollected)} steps are uncollected already")
        ticket = StepTicket(plan, self._fds[self._launched % len(self._fds)])
        self._put(lambda: self._step(ticket))
        self._launched += 1
        self._uncollected.append(ticket)
        return ticket

    def collect(self, ticket: Ticket) -> StepResult:
        """The result of the oldest uncollected step; waits for it where need be.

        Raises:
            DeviceError: the step as a whole failed; all its slots have to be closed and its new handles discarded.
        """
        assert self._uncollected and self._uncollected[0] is ticket, "tickets are collected in launch order"
        done = self._uncollected.popleft()
        done.finished.wait()
        if self._fds:  # not shut down meanwhile
            with contextlib.suppress(BlockingIOError):  # a collector may have read it
                os.eventfd_read(done.fd)
        if done.error is not None:
            raise done.error
        return StepResult(done.number, done.outcomes, done.seconds, done.work)

    def discard(self, handle: int) -> None:
        """Give a stored state's memory back, after the steps launched before."""
        self._put(lambda: self._runner.stored.discard(handle))

    def shutdown(self) -> None:
        """Stop the engine thread after the commands given so far. Idempotent."""
        if not self._fds:
            return
        self._queue.put(None)
        self._thread.join()
        for fd in self._fds:
            os.close(fd)
        self._fds = []

    def call(self, function: Callable[[StepRunner, dict[int, Slot]], T]) -> T:
        """Run ``function`` on the engine thread between steps and return its result (tools and tests)."""
        done = threading.Event()
        box: list[T] = []
        failure: list[BaseException] = []

        def command() -> None:
            try:
                with np.errstate(all="ignore"):
                    box.append(function(self._runner, self._slots))
            except BaseException as error:
                failure.append(error)
            finally:
                done.set()

        self._put(command)
        done.wait()
        if failure:
            raise failure[0]
        return box[0]

    def forward_all(self, spec: SlotSpec) -> tuple[F32, list[F32]]:
        """Logits [T, V] of every prompt row and each layer's rows [T, hidden], by the arithmetic of serving."""
        self._checked(0, spec)  # the same checks as for an open slot
        return self.call(lambda runner, _: forward_all(runner, spec))

    def audit(self, slot: int) -> list[str]:
        """Recompute the state of an open slot and compare bit for bit; one line for each array that differs."""
        return self.call(lambda runner, slots: audit_slot(runner, slots[slot]))

    def audit_stored(self, handle: int, spec: SlotSpec) -> list[str]:
        """As :meth:`audit` for a saved slot or a snapshot, from its content: see :func:`.audit.audit_stored`."""
        ids = self._num_token_ids
        return self.call(lambda runner, _: audit_stored(runner, runner.stored.states[handle], spec, ids))

    def audit_blocks(self, spec: SlotSpec, blocks: Sequence[int], rows: int) -> list[str]:
        """As :meth:`audit` for keys and values of the first ``rows`` positions of ``spec`` in ``blocks``."""
        return self.call(lambda runner, _: audit_blocks(runner, spec, tuple(blocks), rows))

    def _put(self, command: Callable[[], None]) -> None:
        if not self._fds:
            raise DeviceError("the engine was shut down")
        self._queue.put(command)

    def _checked(self, index: int, spec: SlotSpec) -> Slot:
        limits = self.capabilities
        return new_slot(index, spec, limits.max_context, limits.vocab_size, self._num_token_ids)

    # -- the engine thread ----------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while (command := self._queue.get()) is not None:
            command()

    def _open(self, slot: Slot) -> None:
        self.pool.clear(slot.index)
        self._slots[slot.index] = slot

    def _close(self, index: int) -> None:
        del self._slots[index]
        self.pool.forget(index)

    def _step(self, ticket: StepTicket) -> None:
        started = time.perf_counter()
        try:
            ticket.outcomes, ticket.work = self._runner.run(ticket.plan, self._slots)
        except Exception as error:
            ticket.error = DeviceError(f"step {ticket.number} failed: {type(error).__name__}: {error}")
            ticket.error.__cause__ = error
            plan = ticket.plan
            for slot in [*(item.slot for item in plan.work), *(segment.slot for segment in plan.segments)]:
                if slot in self._slots:
                    self._slots[slot].failed = str(ticket.error)
        ticket.seconds = time.perf_counter() - started
        os.eventfd_write(ticket.fd, 1)
        ticket.finished.set()
