"""From a model's weights and sizes to a runner on a device: everything is allocated here, once."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from luce.compute.activations import BUCKETS
from luce.compute.device import Device
from luce.compute.room import room_bytes
from luce.engines.qwen35.config import TextConfig
from luce.engines.qwen35.device.attention import rope_table
from luce.engines.qwen35.device.buffers import DescriptorRing, ResultRing
from luce.engines.qwen35.device.compiling import Recorder, compile_all
from luce.engines.qwen35.device.descriptors import CHUNK_ROWS, STEP_ROWS
from luce.engines.qwen35.device.draws import DrawFiller
from luce.engines.qwen35.device.packed_state import copy_arrays
from luce.engines.qwen35.device.plan import DeviceSizes, device_arrays, scratch_of
from luce.engines.qwen35.device.pool import DevicePool, allocate
from luce.engines.qwen35.device.products import decode_rows, few_rows, many_rows
from luce.engines.qwen35.device.program import QwenProgram
from luce.engines.qwen35.device.runner import Runner, graph_rows
from luce.engines.qwen35.device.sampler import DeviceSampler
from luce.engines.qwen35.device.scratch import chunk_layout, step_layout
from luce.engines.qwen35.device.weights import Text, conversions, list_weights, upload
from luce.engines.qwen35.memory_parts import ArraySpec
from luce.engines.qwen35.weights import Qwen35Weights

__all__ = ["launch_all", "set_up"]

log = logging.getLogger(__name__)


def set_up(
    device: Device,
    config: TextConfig,
    weights: Qwen35Weights,
    sizes: DeviceSizes,
    num_token_ids: int,
    max_depth: int,
    *,
    eager: bool = False,
    tiled: bool = False,
    poison: bool = False,
) -> tuple[Runner, tuple[ArraySpec, ...]]:
    """Upload the weights, allocate the rest, compile the kernels. Also what was taken on the device.

    Args:
        num_token_ids: ids that may be sampled.
        eager: launch kernel by kernel instead of replaying graphs.
        tiled: DeltaNet output matrices take value heads in a GGUF's order.
        poison: what belongs to nobody holds NaN patterns (tests).

    Raises:
        DeviceError: a kernel does not compile, or the device's memory is used up.
        ModelFileError: a tensor cannot be read.
    """
    text = list_weights(weights)
    for (file, held), count in conversions(text, device.operands).items():
        log.info("%d matrices of format %s are held as %s on the device", count, file, held)
    if not few_rows(device.arch):
        log.info("%s has no bulk copies: products of up to 64 rows run on the plain kernel", device.arch)
    elif (most := decode_rows(device, text)) < STEP_ROWS:
        log.info(
            "%s has %d bytes of shared memory for a block: steps of more than %d rows run on the plain kernel",
            *(device.arch, device.shared_limit, most),
        )
    if not many_rows(device.arch):
        log.info("%s has no warpgroup products: prompts run on the plain kernel", device.arch)
    plan = tuple(device_arrays(device, config, text, sizes, num_token_ids))
    with device.room(room_bytes(spec.nbytes for spec in plan)):
        upload(device, text)
        if device.arch != "host":  # where compiling takes longest, a test asks for few of them
            compile_all(device, _kernels(device, config, text, sizes, num_token_ids, tiled))
        scratch = allocate(device, scratch_of(device, config, text, sizes, num_token_ids))
        if "rotations" in scratch:
            device.upload(scratch["rotations"], rope_table(config, sizes.max_context + 1))
        pool = DevicePool(device, config, sizes.num_slots, sizes.num_blocks, sizes.max_context, poison=poison)
        copies = allocate(device, copy_arrays(config, sizes.packed))
        sampler = DeviceSampler(device, num_token_ids, sizes.num_slots, STEP_ROWS)
        program = QwenProgram(device, config, text, scratch, sizes.chunk_rows, sampler, tiled=tiled)
    rings = (
        DescriptorRing(device, step_layout(), scratch["step descriptors"], max_depth + 1),
        DescriptorRing(device, chunk_layout(sizes.chunk_rows), scratch["chunk descriptors"], max_depth + 1),
    )
    results = ResultRing(device, scratch["results"])
    draws = DrawFiller(device, num_token_ids, scratch["masks"], sampler.open)
    return Runner(program, pool, *rings, results, draws, copies, eager=eager), plan


def _kernels(
    device: Device, config: TextConfig, text: Text, sizes: DeviceSizes, num_token_ids: int, tiled: bool
) -> list[tuple[str, str, tuple[tuple[str, int | str], ...]]]:
    """What the model's passes ask for."""
    recorder = Recorder(device)
    launch_all(recorder, config, text, sizes, num_token_ids, tiled)
    return list(recorder.wanted)


def launch_all(
    recorder: Any, config: TextConfig, text: Text, sizes: DeviceSizes, num_token_ids: int, tiled: bool
) -> None:
    """Launch every kind of pass on a stand-in of a device, a :class:`Recorder`."""
    few = DeviceSizes(1, 1, CHUNK_ROWS, max(sizes.chunk_rows, STEP_ROWS))
    scratch: dict[str, Any] = {
        spec.name: np.empty(spec.shape, spec.dtype)
        for spec in scratch_of(recorder, config, text, few, num_token_ids)
    }
    pool = DevicePool(recorder, config, 1, 1, CHUNK_ROWS)
    sampler = DeviceSampler(recorder, num_token_ids, 1, STEP_ROWS)
    program = QwenProgram(recorder, config, text, scratch, few.chunk_rows, sampler, tiled=tiled)
    parts = dict.fromkeys(name for name, _, _ in step_layout().parts)
    for rows in BUCKETS:
        program.step(pool, parts, rows, 0)
    for rows in sorted({*graph_rows(few.chunk_rows), few.chunk_rows}):
        program.chunk(pool, parts, (rows, 1, 1, 1), rows)
