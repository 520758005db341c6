"""Every array that a served model takes, listed from the configuration: what :mod:`luce.engines.qwen35.memory` adds up.

Mirrors what the engine allocates: packed weights (:mod:`.packed`), the state pool (:mod:`.state`) and the scratch of
:mod:`.text`, :mod:`.attention` and :mod:`.deltanet`; a test compares the two array by array sizes. What requests take
while they run (:func:`request_arrays`, :func:`encoding_arrays`, :func:`sampling_arrays`) are upper bounds; tests hold
them against what numpy really takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import attrs
import numpy as np
import numpy.typing as npt

from luce.compute.matrix import packed_floats, panel_width
from luce.compute.pieces import ROOM
from luce.compute.tiles import TILE, padded
from luce.engines.qwen35.attention import SCORE_BUDGET
from luce.engines.qwen35.batch import SPLIT
from luce.engines.qwen35.config import TextConfig, VisionConfig
from luce.engines.qwen35.state import CHUNK, CONV_ROWS, MAX_LANE_ROWS, RING
from luce.engines.qwen35.text import LOGIT_ROWS
from luce.engines.qwen35.vision import QUERY_ROWS, TABLE_BYTES

__all__ = [
    "ArraySpec",
    "encoding_arrays",
    "kv_arrays",
    "released_arrays",
    "request_arrays",
    "sampling_arrays",
    "scratch_arrays",
    "state_arrays",
    "text_arrays",
    "vision_arrays",
]


@attrs.frozen
class ArraySpec:
    """One array, or several of one shape; float32 unless ``dtype`` says otherwise."""

    part: str
    """Heading in the printed plan."""
    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def zeros(self) -> npt.NDArray[np.generic]:
        """The array itself."""
        return np.zeros(self.shape, dtype=self.dtype)


def _mixer(text: TextConfig, full: bool) -> list[tuple[int, int]]:
    """[out, in] of the two products of a mixer, as they are packed together."""
    if full:
        query, key = text.heads * text.head_dim, text.kv_heads * text.head_dim
        return [(2 * query + 2 * key, text.hidden), (text.hidden, query)]
    inputs = text.conv_channels + text.value_size + 2 * text.value_heads
    return [(inputs, text.hidden), (text.hidden, text.value_size)]


def _ffn(text: TextConfig) -> list[tuple[int, int]]:
    """The same of what every row goes through in a feed-forward: in a mixture of experts, router and shared expert."""
    moe = text.moe
    if moe is None:
        return [(2 * text.ffn, text.hidden), (text.hidden, text.ffn)]
    return [(2 * moe.shared_ffn + moe.experts + 1, text.hidden), (text.hidden, moe.shared_ffn)]


def _expert(text: TextConfig) -> list[tuple[int, int]]:
    """The same of one expert, if there are any."""
    moe = text.moe
    return [] if moe is None else [(2 * moe.ffn, text.hidden), (text.hidden, moe.ffn)]


def _num_experts(text: TextConfig) -> int:
    return 0 if text.moe is None else text.moe.experts


def text_arrays(text: TextConfig) -> Iterator[ArraySpec]:
    """The packed text model: embedding, panels of all products (norm scales are inside), and vectors."""
    part = "text weights"
    full = sum(text.full_attention)
    linear = text.num_layers - full
    panels = packed_floats(text.vocab_size, text.hidden)
    for kind in text.full_attention:
        panels += sum(packed_floats(*shape) for shape in (*_mixer(text, kind), *_ffn(text)))
        panels += _num_experts(text) * sum(packed_floats(*shape) for shape in _expert(text))
    yield ArraySpec(part, "embedding", (text.vocab_size, text.hidden))
    yield ArraySpec(part, "panels", (panels,))
    yield ArraySpec(part, "conv taps", (linear, text.conv_kernel, text.conv_channels))
    yield ArraySpec(part, "decay and dt bias", (linear, 2, text.value_heads))
    yield ArraySpec(part, "query and key norms", (full, text.heads + text.kv_heads, text.head_dim))


def released_arrays(text: TextConfig, vision: VisionConfig | None) -> Iterator[ArraySpec]:
    """Loaded arrays that are given back once they are packed: they count at the peak of loading only."""
    part = "loading"
    if vision is not None:
        yield ArraySpec(part, "vision matrices", (_vision_matrices(vision),))
    for index, full in enumerate((*text.full_attention, *[True] * text.num_mtp_layers)):
        for rows, columns in (*_mixer(text, full), *_ffn(text)):
            yield ArraySpec(part, f"layer {index}", (rows, columns))
        for rows, columns in _expert(text):
            yield ArraySpec(part, f"layer {index} experts", (_num_experts(text), rows, columns))
        yield ArraySpec(part, f"layer {index} vectors", (_loaded_vectors(text, full),))
    yield ArraySpec(part, "final norm", (text.hidden,))
    if text.num_mtp_layers:
        yield ArraySpec(part, "MTP input and norms", (2 * text.hidden + 3, text.hidden))
    if not text.tied:
        yield ArraySpec(part, "head", (text.vocab_size, text.hidden))


def _loaded_vectors(text: TextConfig, full: bool) -> int:
    """Values of a layer's small tensors that packing copies or folds into matrices."""
    mixer = 2 * text.head_dim if full else text.conv_channels * text.conv_kernel + text.value_dim
    return 2 * text.hidden + mixer


def _vision_matrices(vision: VisionConfig) -> int:
    """Values of all matrices of the vision tower."""
    dim, ffn, merged = vision.hidden, vision.ffn, vision.hidden * vision.merge_size**2
    patch = dim * vision.in_channels * vision.patch_size**2
    return (
        patch + vision.depth * (4 * dim * dim + 2 * ffn * dim) + merged * merged + vision.out_hidden * merged
    )


def vision_arrays(vision: VisionConfig) -> Iterator[ArraySpec]:
    """The vision tower, its matrices as its products read them."""
    part, dim, merged = "vision weights", vision.hidden, vision.hidden * vision.merge_size**2
    vectors = dim + vision.depth * (9 * dim + vision.ffn) + 2 * dim + merged + vision.out_hidden
    yield ArraySpec(part, "positions", (vision.grid_side**2, dim))
    yield ArraySpec(part, "vectors", (vectors,))
    yield ArraySpec(part, "matrices", (_vision_matrices(vision),))


def kv_arrays(text: TextConfig, blocks: int, block_size: int) -> Iterator[ArraySpec]:
    """Keys and values: full-attention layers only, by ``head_dim``."""
    shape = (sum(text.full_attention), blocks * block_size, text.kv_heads, text.head_dim)
    yield ArraySpec("KV blocks", "keys", shape)
    yield ArraySpec("KV blocks", "values", shape)


def state_arrays(text: TextConfig, slots: int) -> Iterator[ArraySpec]:
    """DeltaNet state of all slots: S, the ring after it and the rows before convolution."""
    part, lead = "recurrent state", (text.num_layers - sum(text.full_attention), slots)
    yield ArraySpec(part, "s", (*lead, text.value_heads, text.key_dim, text.value_dim))
    yield ArraySpec(part, "k", (*lead, text.key_heads, RING, text.key_dim))
    yield ArraySpec(part, "u", (*lead, text.value_heads, RING, text.value_dim))
    yield ArraySpec(part, "g", (*lead, text.value_heads, RING), "float64")
    yield ArraySpec(part, "conv", (*lead, CONV_ROWS, text.conv_channels))


def _width(out: int, depth: int) -> int:
    """Columns of a product's output buffer."""
    panel = panel_width(depth)
    return -(-out // panel) * panel


def scratch_arrays(text: TextConfig, slots: int, context: int, pass_rows: int) -> Iterator[ArraySpec]:
    """Working memory of a pass over the layers, rotary tables, and the rows to sample from."""
    part, rows = "working memory", padded(max(pass_rows, slots))
    outs = [_width(*_mixer(text, kind)[1]) for kind in set(text.full_attention)]
    yield ArraySpec(part, "activations", (rows, 2 * text.hidden + max(*outs, _width(*_ffn(text)[1]))))
    yield from _ffn_scratch(text, part, rows)
    yield ArraySpec("logits", "logits", (LOGIT_ROWS, _width(text.vocab_size, text.hidden)))
    yield ArraySpec(part, "rotary tables", (3, context + 1, text.rotary_dim // 2))
    yield ArraySpec(part, "rows to sample", (slots, text.hidden))
    if not all(text.full_attention):
        yield from _deltanet_scratch(text, part, rows)
    if any(text.full_attention):
        yield from _attention_scratch(text, part, rows, context)


def _ffn_scratch(text: TextConfig, part: str, rows: int) -> Iterator[ArraySpec]:
    moe, inputs = text.moe, _width(*_ffn(text)[0])
    if moe is None:
        yield ArraySpec(part, "feed-forward", (rows, inputs + text.ffn))
        return
    gate_up, down = (_width(*shape) for shape in _expert(text))
    yield ArraySpec(part, "mixture of experts", (rows, inputs + moe.shared_ffn + text.hidden + down))
    yield ArraySpec(part, "rows by expert", (rows * moe.used + TILE, gate_up + moe.ffn + down))


def _deltanet_scratch(text: TextConfig, part: str, rows: int) -> Iterator[ArraySpec]:
    hk, hv, dk, dv = text.key_heads, text.value_heads, text.key_dim, text.value_dim
    columns = (
        _width(*_mixer(text, False)[0])
        + 5 * text.conv_channels
        + 2 * hk * dk
        + (hv + 2 * hk + 2 * hv) * CHUNK
        + (2 + 2 + 1 + 2) * hv * dv
    )
    yield ArraySpec(part, "DeltaNet", (rows, columns))
    yield ArraySpec(part, "DeltaNet decays", (rows, hv, CHUNK), "float64")
    yield ArraySpec(part, "DeltaNet state", (hv, dk, dv))


def _attention_scratch(text: TextConfig, part: str, rows: int, context: int) -> Iterator[ArraySpec]:
    heads, kv, dim, group = text.heads, text.kv_heads, text.head_dim, text.heads // text.kv_heads
    columns = _width(*_mixer(text, True)[0]) + (heads + kv) * (dim + text.rotary_dim) + 2 * heads * dim
    scores = max(SCORE_BUDGET, kv * padded(group) * (-(-context // SPLIT) * SPLIT))
    yield ArraySpec(part, "attention", (rows, columns))
    yield ArraySpec(part, "queries", (kv, padded(MAX_LANE_ROWS * group), dim))
    yield ArraySpec(part, "scores", (scores,))
    yield ArraySpec(part, "split parts", (scores // SPLIT * dim,))
    yield ArraySpec(part, "gathered keys", (SPLIT, kv, dim))


def request_arrays(
    text: TextConfig, vision: VisionConfig | None, slots: int, context: int
) -> Iterator[ArraySpec]:
    """What ``slots`` running requests hold whose prompts fill the context, with pictures where the model takes them."""
    yield ArraySpec("prompts", "ids and positions", (slots, context, 6), "int32")
    if vision is not None:
        patch = vision.in_channels * vision.patch_size**2
        yield ArraySpec("patches", "shades", (slots, context * vision.merge_size**2, patch), "uint8")
        yield ArraySpec("image rows", "image rows", (slots, context, text.hidden))


def encoding_arrays(vision: VisionConfig, patches: int) -> Iterator[ArraySpec]:
    """Scratch of one picture of ``patches`` patches on its way through the tower, and tables kept between pictures.

    At its widest it is the patches while they are made of shades; or rows and norm in a block, and beside them queries,
    keys, values, mixed rows and the scores of one group of queries; or, before those, the fused product and its rotated
    part; or two times the hidden values of the feed-forward layer.
    """
    part, dim, heads = "encoding", vision.hidden, vision.heads
    head_dim = dim // heads
    scores = 6 * dim + heads * min(QUERY_ROWS, patches)
    patch = vision.in_channels * vision.patch_size**2
    widest = max(scores, 9 * dim, 2 * dim + 2 * vision.ffn, 2 * patch + dim)
    tables = dim + head_dim + head_dim // 2
    yield ArraySpec(part, "one picture", (patches, widest + tables))
    yield ArraySpec(part, "a group of queries", (min(QUERY_ROWS, patches), 2 * dim + 2 * heads))
    yield ArraySpec(part, "pieces of products", (ROOM,))
    yield ArraySpec(part, "tables of recent grids", (TABLE_BYTES,), "uint8")


def sampling_arrays(text: TextConfig) -> Iterator[ArraySpec]:
    """Scratch of sampling one row without any cut-off: weights and noise of the whole vocabulary."""
    yield ArraySpec("sampling", "one row", (9, text.vocab_size), "float64")
