"""A model on a device: which one, and how much of it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import attrs

from luce.compute.device import Device
from luce.compute.operands import Operands
from luce.engines.choose_device import choose_device
from luce.engines.encoder_device import (
    FLAG,
    Encoder,
    check_encoder_room,
    choose_encoder,
    encodes_pictures,
    vision_bytes,
)
from luce.engines.qwen35.config import Qwen35Config
from luce.engines.qwen35.device.budget import RESERVED, DevicePlan, fit_device
from luce.engines.qwen35.device.descriptors import BLOCK_ROWS
from luce.engines.qwen35.device.loading import deferred_headers, load_deferred, tiled_output
from luce.engines.qwen35.device.packed_state import packed_on_device
from luce.engines.qwen35.device.plan import DeviceSizes, chunk_rows_for
from luce.engines.qwen35.device.weights import list_weights
from luce.engines.qwen35.loading import LoadProgress
from luce.engines.qwen35.memory import MemoryOptions
from luce.engines.qwen35.weights import Qwen35Weights
from luce.errors import ConfigError
from luce.weights.model_files import ModelFiles

__all__ = ["OnDevice", "place", "plan_on_device"]

log = logging.getLogger(__name__)


@attrs.frozen(eq=False)
class OnDevice:
    """A device, and what a model takes of its memory."""

    device: Device
    plan: DevicePlan
    weights: Callable[[Callable[[LoadProgress], None] | None], Qwen35Weights]
    """Loads them, telling of its progress."""
    tiled: bool
    """As :class:`~luce.engines.qwen35.device.engine.DeviceEngine` takes it."""
    encoder: Device | None = None
    """Another one, which encodes pictures."""


def place(
    files: ModelFiles,
    config: Qwen35Config,
    memory: MemoryOptions,
    wanted: str,
    max_memory: int | None,
    encoder: str | None = None,
    operands: Operands | None = None,
) -> OnDevice | None:
    """Where the text model of ``files`` runs, and what fits there; None: the CPU.

    Args:
        wanted: as :func:`luce.engines.choose_device.choose_device` takes it.
        encoder: as :func:`luce.engines.encoder_device.choose_encoder` takes it.
        operands: of weight products.

    Raises:
        ConfigError: there is no such device, or too little room on it.
    """
    apart = choose_encoder(
        encoder, wanted, config.vision, operands
    )  # first: this thread works on the one opened last
    device = choose_device(wanted, operands=operands)
    if device is None:
        if apart is not None and apart.device is not None:
            raise ConfigError(f"there is no GPU for the text model beside {apart.name}", flag=FLAG)
        return None
    plan = plan_on_device(device, config, deferred_headers(files, config), memory, max_memory, apart)
    return OnDevice(
        device,
        plan,
        lambda progress: load_deferred(files, config, progress),
        tiled_output(files),
        None if apart is None else apart.device,
    )


def plan_on_device(
    device: Device,
    config: Qwen35Config,
    weights: Qwen35Weights,
    memory: MemoryOptions,
    max_memory: int | None,
    encoder: Encoder | None = None,
) -> DevicePlan:
    """What fits on ``device``, in ``max_memory`` bytes or in what it has free.

    Args:
        weights: matrices may be stand-ins; nothing is read.
        encoder: encodes pictures; None: ``device``, if it can, else the CPU.

    Raises:
        ConfigError: too little does, or a flag does not go with a device.
    """
    if memory.block_size != BLOCK_ROWS:
        raise ConfigError(
            f"blocks on a GPU hold {BLOCK_ROWS} tokens, not {memory.block_size}", flag="--block-size"
        )
    budget = max_memory
    if budget is None:
        budget = max(device.free_bytes() - RESERVED, 0)
    patches = 0
    encoding = device if encoder is None else encoder.device
    if config.vision is not None and encoding is not None and encodes_pictures(encoding):
        patches = memory.context * config.vision.merge_size**2
        patches = min(patches, memory.largest_picture or patches)
        if encoder is None:
            budget -= vision_bytes(config.vision, patches, beside=True)
        else:
            check_encoder_room(encoder, config.vision, patches)
    packed = packed_on_device(config.text, memory.slots, budget)
    sizes = DeviceSizes(memory.slots, 1, memory.context, chunk_rows_for(memory.context), patches, packed)
    found = fit_device(
        device,
        config.text,
        list_weights(weights),
        sizes,
        config.num_token_ids or config.text.vocab_size,
        budget,
        blocks=memory.num_blocks,
        flag=None if max_memory is None else "--max-memory",
    )
    return attrs.evolve(found, encoder=None if encoder is None or not patches else encoder.name)
