"""Working memory of passes over the layers: arrays that all layers and both kinds of pass take turns with."""

from __future__ import annotations

from collections.abc import Iterator

from luce.compute.activations import num_values
from luce.compute.gemm_prefill import prefill_rows
from luce.engines.qwen35.config import TextConfig
from luce.engines.qwen35.device.buffers import MAX_LANES, ResultBuffer
from luce.engines.qwen35.device.descriptors import STEP_ROWS, DescriptorLayout
from luce.engines.qwen35.device.draws import LISTS_PER_SLOT
from luce.engines.qwen35.memory_parts import ArraySpec

__all__ = ["attention_arrays", "chunk_layout", "pass_arrays", "row_arrays", "step_layout", "values_of"]

PART = "working memory"
SPLIT_KEYS = 256
"""Keys of an attention split (``kernels/attention.h``)."""
QUERY_TILE_LEAST = 8
"""Rows of a tile of queries, at least, for the room that tiles take."""


def step_layout() -> DescriptorLayout:
    """Descriptors of a step pass."""
    return DescriptorLayout(STEP_ROWS, STEP_ROWS, STEP_ROWS, 1, STEP_ROWS * LISTS_PER_SLOT)


def chunk_layout(chunk_rows: int) -> DescriptorLayout:
    """Descriptors of a chunk pass of up to ``chunk_rows`` rows."""
    tiles = chunk_rows // QUERY_TILE_LEAST + MAX_LANES
    return DescriptorLayout(chunk_rows, MAX_LANES, STEP_ROWS, tiles, STEP_ROWS * LISTS_PER_SLOT)


def values_of(rows: int, depth: int) -> int:
    """Operands of a product's input that either kind of pass may need."""
    tile = prefill_rows(rows)
    return max(num_values(STEP_ROWS, depth, 0), num_values(rows, depth, tile))


def pass_arrays(chunk_rows: int, num_token_ids: int) -> Iterator[ArraySpec]:
    """Descriptors, results and masks."""
    part = "descriptors"
    yield ArraySpec(part, "step descriptors", (step_layout().nbytes,), "uint8")
    yield ArraySpec(part, "chunk descriptors", (chunk_layout(chunk_rows).nbytes,), "uint8")
    yield ArraySpec(part, "results", (ResultBuffer.NBYTES,), "uint8")
    yield ArraySpec(part, "masks", (STEP_ROWS, -(-num_token_ids // 32)), "uint32")


def row_arrays(text: TextConfig, chunk_rows: int) -> Iterator[ArraySpec]:
    """Rows on their way through the layers."""
    rows = max(chunk_rows, STEP_ROWS)
    queries = text.heads * text.head_dim
    deltanet = text.conv_channels + text.value_size + 2 * text.value_heads
    attention = 2 * queries + 2 * text.kv_heads * text.head_dim
    widths = [attention if full else deltanet for full in set(text.full_attention)]
    mixers = [queries if full else text.value_size for full in set(text.full_attention)]
    yield ArraySpec(PART, "x", (rows, text.hidden))
    yield ArraySpec(PART, "normed", (values_of(rows, text.hidden),), "uint16")
    yield ArraySpec(PART, "mixer inputs", (rows, -(-max(widths) // 16) * 16))
    yield ArraySpec(PART, "gates", (rows, -(-2 * text.value_heads // 16) * 16))
    yield ArraySpec(PART, "mixed", (max(values_of(rows, depth) for depth in mixers),), "uint16")
    if text.moe is None:
        yield ArraySpec(PART, "middle", (values_of(rows, text.ffn),), "uint16")
    yield ArraySpec(PART, "rows to draw from", (num_values(STEP_ROWS, text.hidden, 0),), "uint16")
    yield ArraySpec("logits", "logits", (STEP_ROWS, -(-text.vocab_size // 16) * 16))


def attention_arrays(text: TextConfig, chunk_rows: int, max_context: int) -> Iterator[ArraySpec]:
    """Queries, what the splits of a step's rows give, and the table of rotations."""
    rows, splits = max(chunk_rows, STEP_ROWS), -(-(max_context + 1) // SPLIT_KEYS)
    yield ArraySpec(PART, "queries", (rows, text.heads, text.head_dim), "uint16")
    yield ArraySpec(PART, "split parts", (STEP_ROWS, text.heads, splits, text.head_dim))
    yield ArraySpec(PART, "split marks", (STEP_ROWS, text.heads, splits, 4))
    yield ArraySpec(PART, "rotations", (max_context + 1, text.rotary_dim // 2, 2))
