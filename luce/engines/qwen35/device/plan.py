"""The memory plan of a device: every array, known before anything is allocated, to the byte."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from luce.compute.device import Device
from luce.engines.qwen35.config import TextConfig
from luce.engines.qwen35.device import deltanet
from luce.engines.qwen35.device.buffers import MAX_LANES
from luce.engines.qwen35.device.descriptors import STEP_ROWS
from luce.engines.qwen35.device.layouts import kv_arrays, state_arrays
from luce.engines.qwen35.device.moe import MoeShape, moe_arrays
from luce.engines.qwen35.device.packed_state import LEAST_ON_DEVICE, copy_arrays
from luce.engines.qwen35.device.pool import pool_arrays
from luce.engines.qwen35.device.products import needs_gate_up, product_arrays
from luce.engines.qwen35.device.sampler import DeviceSampler
from luce.engines.qwen35.device.scratch import attention_arrays, pass_arrays, row_arrays
from luce.engines.qwen35.device.weights import Text
from luce.engines.qwen35.memory_parts import ArraySpec

__all__ = ["CHUNK_ROWS_DEFAULT", "DeviceSizes", "chunk_rows_for", "device_arrays", "scratch_of"]

CHUNK_ROWS_DEFAULT = 2048
"""Rows of a chunk pass: enough for products to be bound by arithmetic."""


def chunk_rows_for(max_context: int) -> int:
    """Rows of a chunk pass for sequences of up to ``max_context``."""
    return min(CHUNK_ROWS_DEFAULT, -(-max_context // STEP_ROWS) * STEP_ROWS)


@attrs.frozen
class DeviceSizes:
    """What the operator chooses."""

    num_slots: int
    num_blocks: int
    """KV blocks of 64 tokens."""
    max_context: int
    """Longest sequence in tokens, prompt and answer."""
    chunk_rows: int = CHUNK_ROWS_DEFAULT
    """Rows of one pass of prefill, a multiple of 64."""
    max_patches: int = 0
    """Of a picture that is encoded on the device; 0: pictures are encoded on the CPU."""
    packed: int = LEAST_ON_DEVICE
    """States of slots that may be on their way to and from the host."""


def scratch_of(
    device: Device, config: TextConfig, text: Text, sizes: DeviceSizes, num_token_ids: int
) -> Iterator[ArraySpec]:
    """Everything but weights, sequence state and the sampler's memory."""
    yield from product_arrays(device, text)
    rows = max(sizes.chunk_rows, STEP_ROWS)
    if config.moe is not None:
        yield from moe_arrays(MoeShape.of(config), rows)
    elif needs_gate_up(device, text):
        yield ArraySpec("working memory", "gate and up", (rows, 2 * config.ffn))
    yield from pass_arrays(sizes.chunk_rows, num_token_ids)
    yield from row_arrays(config, sizes.chunk_rows)
    if not all(config.full_attention):
        yield from deltanet.scratch_arrays(config, max(sizes.chunk_rows, MAX_LANES), MAX_LANES)
    if any(config.full_attention):
        yield from attention_arrays(config, sizes.chunk_rows, sizes.max_context)


def device_arrays(
    device: Device, config: TextConfig, text: Text, sizes: DeviceSizes, num_token_ids: int
) -> Iterator[ArraySpec]:
    """All of it. Nothing is allocated."""
    yield from text.arrays()
    yield from kv_arrays(config, sizes.num_blocks)
    yield from state_arrays(config, sizes.num_slots)
    yield from pool_arrays(sizes.num_slots, sizes.max_context)
    yield from copy_arrays(config, sizes.packed)
    yield from scratch_of(device, config, text, sizes, num_token_ids)
    size = DeviceSampler.num_bytes(num_token_ids, sizes.num_slots, STEP_ROWS)
    yield ArraySpec("sampling", "sampler", (size,), "uint8")
