"""The Qwen3.5 engine on a device: one thread that launches step plans in order, and one that waits for the device.

Depth 2: a step is launched before the one before it has been read back. Tokens drawn in between never leave the device:
the next step's rows read them from the slots' histories there.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from luce.compute.device import Device, Stream
from luce.engines.qwen35.commands import CommandEngine, StepTicket
from luce.engines.qwen35.config import Qwen35Config, VisionConfig
from luce.engines.qwen35.device.audit import audit_blocks, audit_slot, audit_stored
from luce.engines.qwen35.device.behind_rows import FILLS, behind_rows
from luce.engines.qwen35.device.inspection import forward_all
from luce.engines.qwen35.device.plan import DeviceSizes
from luce.engines.qwen35.device.results import DeviceTicket
from luce.engines.qwen35.device.runner import Runner
from luce.engines.qwen35.device.setting_up import set_up
from luce.engines.qwen35.device.slices import Slices
from luce.engines.qwen35.device.slots import DeviceSlot
from luce.engines.qwen35.device.vision import DeviceVision
from luce.engines.qwen35.device.waiter import Waiter
from luce.engines.qwen35.slots import Slot
from luce.engines.qwen35.vision import VisionTower
from luce.engines.qwen35.weights import Qwen35Weights, VisionWeights
from luce.engines.seam import (
    Capabilities,
    PatchImage,
    SegmentKind,
    SlotSpec,
    SlotWork,
    StepPlan,
    WorkKind,
    WorkOutcome,
)
from luce.errors import RequestError

__all__ = ["DeviceEngine"]

F32 = npt.NDArray[np.float32]
T = TypeVar("T")


class DeviceEngine(CommandEngine):
    """Implements :class:`luce.engines.seam.StoresStates` on a device.

    Args:
        device: where the text model runs.
        config, weights: the model; matrices may be deferred tensors (:mod:`.deferred`), which are read one by one.
        sizes: see there.
        tiled: DeltaNet output matrices take value heads in a GGUF's order (:func:`.loading.tiled_output`).
        encoder: another device, on which pictures are encoded while steps run; None: ``device``, among steps.

    Raises:
        DeviceError: a kernel does not compile, or there is not enough memory.
    """

    def __init__(
        self,
        device: Device,
        config: Qwen35Config,
        weights: Qwen35Weights,
        sizes: DeviceSizes,
        *,
        num_token_ids: int | None = None,
        max_depth: int = 2,
        eager: bool = False,
        tiled: bool = False,
        poison: bool = False,
        encoder: Device | None = None,
    ) -> None:
        started = time.perf_counter()
        self.device, self.config = device, config
        self.fingerprint = device.fingerprint
        text = config.text
        ids = num_token_ids or text.vocab_size
        self._stream = device.stream()
        with device.using(self._stream):
            self._runner, self.plan = set_up(
                device, text, weights, sizes, ids, max_depth, eager=eager, tiled=tiled, poison=poison
            )
            if device.arch != "host" and not eager:  # where tests ask for few of them
                self._runner.warm()
            device.synchronize()
        pool = self._runner.pool
        self.pool = pool
        self._encoding: Stream
        """Of pictures that are encoded on the device."""
        self._vision: Callable[[PatchImage], F32] | None = None
        if config.vision is not None and weights.vision is not None:
            self._vision = self._tower(config.vision, weights.vision, sizes.max_patches, encoder)
        capabilities = Capabilities(
            num_slots=pool.num_slots,
            block_size=pool.block_size,
            num_blocks=pool.num_blocks,
            max_context=sizes.max_context,
            vocab_size=text.vocab_size,
            images=self._vision is not None,
            recomputable=True,
            whole_image_blocks=False,
            num_layers=text.num_layers,
            max_depth=max_depth,
            bytes_per_token=pool.bytes_per_token,
            bytes_per_slot=pool.bytes_per_slot,
            bytes_per_snapshot=pool.bytes_per_snapshot,
            parking=True,
            snapshots=True,
        )
        super().__init__(capabilities, ids)
        self._answering = True
        """Does the step that was launched last hold rows of answers?"""
        self._in_flight: deque[DeviceTicket] = deque()
        """Launched steps whose results the engine thread has not noted."""
        self._waiter = Waiter(self._runner.results)
        self._start()
        self.startup_seconds = time.perf_counter() - started

    # -- the caller's side ----------------------------------------------------------------------------------------

    def encode(self, image: PatchImage) -> F32:
        """Rows [num_tokens, hidden] of one picture; returns when they are there. One call at a time.

        Raises:
            RequestError: the model has no vision tower, or the picture does not fit it.
        """
        if self._vision is None:
            raise RequestError("this model takes no images", field="messages")
        return self._vision(image)

    def launch(self, plan: StepPlan) -> StepTicket:
        ticket = super().launch(plan)
        self._answering = any(segment.kind is SegmentKind.DECODE for segment in plan.segments)
        return ticket

    def shutdown(self) -> None:
        if not self._fds:
            return
        self._queue.put(self._waiter.stop)
        super().shutdown()
        if isinstance(self._vision, DeviceVision):
            self._vision.close()
        self._runner.close()

    def call(self, function: Callable[[Runner, dict[int, Slot]], T]) -> T:
        """Run ``function`` on the engine thread between steps, with all results read, and return its result."""

        def command() -> T:
            self._settle()
            return function(self._runner, self._slots)

        return self._on_thread(command)

    def forward_all(self, spec: SlotSpec) -> tuple[F32, list[F32]]:
        """Logits [T, V] of every prompt row and each layer's rows [T, hidden], by the arithmetic of serving."""
        self._checked(0, spec)  # the same checks as for an open slot
        return self.call(lambda runner, _: forward_all(runner, spec))

    def audit(self, slot: int) -> list[str]:
        """Recompute the state of an open slot and compare bit for bit; one line for each array that differs."""

        def run(runner: Runner, slots: dict[int, Slot]) -> list[str]:
            found = slots[slot]
            assert isinstance(found, DeviceSlot)
            return audit_slot(runner, found)

        return self.call(run)

    def audit_stored(self, handle: int, spec: SlotSpec) -> list[str]:
        """As :meth:`audit` for a saved slot or a snapshot, from its content."""
        ids = self._num_token_ids
        return self.call(lambda runner, _: audit_stored(runner, runner.stored.states[handle], spec, ids))

    def audit_blocks(self, spec: SlotSpec, blocks: Sequence[int], rows: int) -> list[str]:
        """As :meth:`audit` for keys and values of the first ``rows`` positions of ``spec`` in ``blocks``."""
        return self.call(lambda runner, _: audit_blocks(runner, spec, tuple(blocks), rows))

    def _checked(self, index: int, spec: SlotSpec) -> DeviceSlot:
        return DeviceSlot.of(super()._checked(index, spec))

    def _ticket(self, plan: StepPlan, fd: int) -> StepTicket:
        return DeviceTicket(plan, fd)

    def _tower(
        self, config: VisionConfig, weights: VisionWeights, max_patches: int, encoder: Device | None
    ) -> Callable[[PatchImage], F32]:
        """Encodes a picture: in slices among the steps, on another device, or on the CPU."""
        if not max_patches:
            return VisionTower(config, weights)
        if encoder is not None and encoder is not self.device:
            return DeviceVision(encoder, config, weights, max_patches)
        tower = DeviceVision(
            self.device, config, weights, max_patches, Slices(self.device, self._among_steps).run, beside=True
        )
        self._runner.kept = tower.kept
        self._encoding = tower.stream
        return tower

    def _among_steps(self, launch: Callable[[], None]) -> bool:
        """Launch on the encoder's stream, behind the steps before and ahead of those that come, so that each of these
        takes as long as alone; beside them where they hold prompts alone."""
        if not self._answering:
            with self.device.using(self._encoding):
                launch()
            return False

        def command() -> None:
            before, behind = self.device.event(), self.device.event()
            before.record()
            with self.device.using(self._encoding):
                before.wait()
                launch()
                behind.record()
            behind.wait()

        self._on_thread(command)
        return True

    # -- the engine thread ----------------------------------------------------------------------------------------

    def _serve(self) -> None:
        with self.device.using(self._stream):
            super()._serve()

    def _open(self, slot: Slot) -> None:
        self._upload_history(slot, slot.prompt_length)
        self._slots[slot.index] = slot

    def _upload_history(self, slot: Slot, count: int) -> None:
        """The ids at the first ``count`` positions."""
        self.device.upload(self.pool.histories[slot.index, :count], slot.ids[:count].astype(np.int32))

    def _close(self, index: int) -> None:
        del self._slots[index]
        self.pool.forget(index)

    def _discard(self, handle: int) -> None:
        self._runner.stored.discard(handle)

    def _step(self, ticket: StepTicket) -> None:
        assert isinstance(ticket, DeviceTicket)
        with self._runner.copies.holding():
            try:
                self._note_finished()
                before, behind = self.device.event(), self.device.event()
                before.record()
                self.pool.take_back(ticket.plan.freed_blocks)
                self.pool.give_out(ticket.plan.fresh_blocks)
                ticket.work = self._launch(ticket)
                behind.record()
                ticket.events = before, behind
            except Exception as error:
                self._failed(ticket, error)
            self._in_flight.append(ticket)
            self._waiter.put(ticket)

    def _launch(self, ticket: DeviceTicket) -> tuple[WorkOutcome, ...]:
        """Work and rows of a step; what became of the work."""
        plan = ticket.plan
        later = behind_rows(plan, self._slots)
        done = {at: self._move(item, self._slots) for at, item in enumerate(plan.work) if at not in later}
        running = {segment.slot for segment in plan.segments}
        views = {at: self._view(plan.work[at]) for at in sorted(later) if plan.work[at].slot in running}
        self._runner.segments(ticket, self._slots)
        # The host's part of these is done while the device computes the rows.
        done |= {at: self._move(plan.work[at], views.get(at, self._slots)) for at in sorted(later)}
        return tuple(done[at] for at in range(len(plan.work)))

    def _view(self, item: SlotWork) -> Mapping[int, Slot]:
        """A slot with rows in the step, as an item finds it that is done behind them."""
        slot = self._slots[item.slot]
        assert isinstance(slot, DeviceSlot)
        if item.position > slot.start:
            self._runner.commit(slot, item.position)  # launches nothing: S stands there
        return {item.slot: copy(slot)}

    def _move(self, item: SlotWork, slots: Mapping[int, Slot]) -> WorkOutcome:
        """Copy a state out of a slot or into one."""
        self._note_finished()
        if item.kind not in FILLS and self._is_in_flight(item):
            self._settle()  # what is stored holds the tokens so far, and is that of a slot that has not failed
        outcome = self._runner.stored.run(item, slots)
        if item.kind is WorkKind.RESTORE and outcome.error is None:
            self._upload_history(self._slots[item.slot], item.position)
        return outcome

    def _is_in_flight(self, item: SlotWork) -> bool:
        """Has a step rows that the item stores and that have not been read back? A snapshot knows nothing of rows past
        its position: those of an answer that has ended, launched ahead."""
        return any(
            work.slot.index == item.slot
            and (item.kind is WorkKind.SAVE or work.segment.start < item.position)
            for ticket in self._in_flight
            for work in ticket.works
        )

    def _note_finished(self) -> None:
        """Note the tokens of the steps that have been read back."""
        while self._in_flight and self._in_flight[0].finished.is_set():
            for slot, position, token in self._in_flight.popleft().drawn:
                slot.read_back(position, token)

    def _settle(self) -> None:
        """Wait until every launched step has been read back, and note its tokens."""
        for ticket in self._in_flight:
            ticket.finished.wait()
        self._note_finished()
