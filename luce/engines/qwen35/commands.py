"""The caller's side of an engine and its thread: what the engines of all devices have in common (design §5).

``open``, ``close``, ``launch`` and ``collect`` only put commands into one queue and never wait for arithmetic; commands
take effect in the order they were given, on the engine's one thread, which owns the device.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

import numpy as np

from luce.engines.qwen35.slots import Slot, new_slot
from luce.engines.seam import Capabilities, Outcome, SlotSpec, StepPlan, StepResult, Ticket, WorkOutcome
from luce.errors import DeviceError

__all__ = ["CommandEngine", "StepTicket"]

T = TypeVar("T")

log = logging.getLogger(__name__)


class StepTicket:
    """A launched step."""

    def __init__(self, plan: StepPlan, fd: int) -> None:
        self.plan = plan
        self._fd = fd
        self.started = time.perf_counter()
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
        """An eventfd of the engine that becomes readable when the step is done; :meth:`CommandEngine.collect`
        empties it."""
        return self._fd

    def finish(self) -> None:
        """Say that outcomes, or the error, are there."""
        os.eventfd_write(self._fd, 1)
        self.finished.set()


class CommandEngine(abc.ABC):
    """Slots, tickets and the command queue. Subclasses give the thread its work.

    Args:
        num_token_ids: ids that may be sampled (the tokenizer's count).
    """

    def __init__(self, capabilities: Capabilities, num_token_ids: int) -> None:
        self.capabilities = capabilities
        self._num_token_ids = num_token_ids
        self._claimed: set[int] = set()
        self._uncollected: deque[StepTicket] = deque()
        self._launched = 0
        self._broken: str | None = None
        self._fds = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(capabilities.max_depth)]
        self._slots: dict[int, Slot] = {}
        """Open slots; only the engine thread reads or changes it."""
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="luce-engine", daemon=True)

    def _start(self) -> None:
        """Start the thread, once everything that commands need is there."""
        self._thread.start()

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

    def launch(self, plan: StepPlan) -> StepTicket:
        """Start a step and return at once.

        Raises:
            DeviceError: ``max_depth`` tickets are uncollected, or the engine was shut down.
        """
        if len(self._uncollected) >= self.capabilities.max_depth:
            raise DeviceError(f"step {plan.number}: {len(self._uncollected)} steps are uncollected already")
        if not self._fds:
            raise DeviceError("the engine was shut down")
        ticket = self._ticket(plan, self._fds[self._launched % len(self._fds)])
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
        self._put(lambda: self._discard(handle))

    def shutdown(self) -> None:
        """Stop the engine thread after the commands given so far. Idempotent."""
        if not self._fds:
            return
        self._queue.put(None)
        self._thread.join()
        for fd in self._fds:
            os.close(fd)
        self._fds = []

    def _on_thread(self, function: Callable[[], T]) -> T:
        """Run ``function`` on the engine thread between steps and return its result."""
        done = threading.Event()
        box: list[T] = []
        failure: list[BaseException] = []

        def command() -> None:
            try:
                with np.errstate(all="ignore"):
                    box.append(function())
            except BaseException as error:
                failure.append(error)
            finally:
                done.set()

        self._put(command)
        done.wait()
        if failure:
            raise failure[0]
        return box[0]

    def _put(self, command: Callable[[], None]) -> None:
        if not self._fds:
            raise DeviceError("the engine was shut down")
        if self._broken is not None:
            raise DeviceError(self._broken)
        self._queue.put(command)

    def _ticket(self, plan: StepPlan, fd: int) -> StepTicket:
        return StepTicket(plan, fd)

    def _checked(self, index: int, spec: SlotSpec) -> Slot:
        limits = self.capabilities
        return new_slot(index, spec, limits.max_context, limits.vocab_size, self._num_token_ids)

    # -- the engine thread ----------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while (command := self._queue.get()) is not None:
            try:
                command()
            except (
                Exception
            ) as error:  # a bug: nothing is known of the state any more, but nobody waits for ever
                log.exception("the engine thread failed")
                self._broken = f"the engine failed: {type(error).__name__}: {error}"

    def _failed(self, ticket: StepTicket, error: Exception) -> None:
        """The step as a whole failed: its slots go no further."""
        ticket.error = DeviceError(f"step {ticket.number} failed: {type(error).__name__}: {error}")
        ticket.error.__cause__ = error
        plan = ticket.plan
        for slot in [*(item.slot for item in plan.work), *(segment.slot for segment in plan.segments)]:
            if slot in self._slots:
                self._slots[slot].failed = str(ticket.error)

    @abc.abstractmethod
    def _open(self, slot: Slot) -> None: ...

    @abc.abstractmethod
    def _close(self, index: int) -> None: ...

    @abc.abstractmethod
    def _discard(self, handle: int) -> None: ...

    @abc.abstractmethod
    def _step(self, ticket: StepTicket) -> None:
        """Run a step; :meth:`StepTicket.finish` has to follow, here or on a thread that waits for the device."""
