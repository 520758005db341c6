"""The Qwen3.5 engine on the CPU: one thread that executes step plans in order (design §5).

The caller's side is :class:`.commands.CommandEngine`'s. ``encode`` runs the vision tower on its caller's
thread, beside the engine thread and without memory in common.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from luce.compute.blas import pin_blas
from luce.compute.selfcheck import check_operators
from luce.engines.qwen35.audit import audit_blocks, audit_slot, audit_stored
from luce.engines.qwen35.commands import CommandEngine, StepTicket
from luce.engines.qwen35.config import Qwen35Config
from luce.engines.qwen35.inspection import forward_all
from luce.engines.qwen35.packed import pack_text
from luce.engines.qwen35.rope import RopeTable
from luce.engines.qwen35.slots import Slot
from luce.engines.qwen35.state import MAX_LANE_ROWS, StatePool
from luce.engines.qwen35.step import StepRunner
from luce.engines.qwen35.text import TextModel
from luce.engines.qwen35.vision import VisionTower
from luce.engines.qwen35.weights import Qwen35Weights
from luce.engines.seam import Capabilities, PatchImage, SlotSpec
from luce.errors import RequestError

__all__ = ["PASS_ROWS", "Qwen35Engine"]

F32 = npt.NDArray[np.float32]
T = TypeVar("T")

PASS_ROWS = 4 * MAX_LANE_ROWS
"""Rows that one pass over the layers takes at most; sizes the scratch memory."""


class Qwen35Engine(CommandEngine):
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
        capabilities = Capabilities(
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
        super().__init__(capabilities, num_token_ids or text.vocab_size)
        self._start()
        self.startup_seconds = time.perf_counter() - started

    # -- the caller's side ----------------------------------------------------------------------------------------

    def encode(self, image: PatchImage) -> F32:
        """Rows [num_tokens, hidden] of one picture, on the caller's thread.

        Raises:
            RequestError: the model has no vision tower, or the picture does not fit it.
        """
        if self._vision is None:
            raise RequestError("this model takes no images", field="messages")
        return self._vision(image)

    def call(self, function: Callable[[StepRunner, dict[int, Slot]], T]) -> T:
        """Run ``function`` on the engine thread between steps and return its result (tools and tests)."""
        return self._on_thread(lambda: function(self._runner, self._slots))

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

    # -- the engine thread ----------------------------------------------------------------------------------------

    def _open(self, slot: Slot) -> None:
        self.pool.clear(slot.index)
        self._slots[slot.index] = slot

    def _close(self, index: int) -> None:
        del self._slots[index]
        self.pool.forget(index)

    def _discard(self, handle: int) -> None:
        self._runner.stored.discard(handle)

    def _step(self, ticket: StepTicket) -> None:
        started = time.perf_counter()
        try:
            ticket.outcomes, ticket.work = self._runner.run(ticket.plan, self._slots)
        except Exception as error:
            self._failed(ticket, error)
        ticket.seconds = time.perf_counter() - started
        ticket.finish()
