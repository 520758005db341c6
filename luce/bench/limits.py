"""What no implementation can beat: bytes and FLOPs of a step from the model's shape, and the time they take.

Counted is what has to move through memory and be multiplied whatever the program does: every weight once a step, each
sequence's keys, values and recurrent state once. Activations, the embedding's rows and norms are left out: they stay
in caches. Experts are taken to be asked alike. A time is the larger one of bytes over the copy bandwidth and FLOPs over
the FLOP rate, both as measured on the same device in the same run; so an implementation reaches less than 100 % of it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import attrs

from luce.engines.qwen35.config import Qwen35Config, TextConfig, VisionConfig
from luce.weights.formats import block_size, num_bytes
from luce.weights.tensor_file import TensorInfo

__all__ = [
    "HEAD_FORMATS",
    "Lane",
    "Parameters",
    "Speeds",
    "StateForm",
    "WeightBytes",
    "Work",
    "encode_work",
    "experts_asked",
    "file_weight_bytes",
    "parameters",
    "prefill_seconds",
    "step_work",
    "weight_bytes",
]

RING = 64
"""Rows of a chunk of the gated DeltaNet; its state stands at absolute multiples of it."""
HEAD_FORMATS = {"Q4_K": "Q6_K", "Q5_K": "Q6_K", "IQ4_XS": "Q6_K"}
"""Format of the output matrix where it is finer than that of the others, as quantisers of this family choose it."""


class StateForm(enum.Enum):
    """How a gated DeltaNet's state moves in decoding."""

    RECURRENT = "recurrent"
    """Read and written for each token, as other engines do."""
    CHUNK = "chunk"
    """luce's: read for each token together with the rows since the last multiple of 64, written there alone."""


@attrs.frozen
class Speeds:
    """Of a device, as measured."""

    bytes_per_second: float
    """Copying: bytes read and bytes written together."""
    flops_per_second: float
    """Of a large matrix product; a multiplication and an addition are two."""


@attrs.frozen
class Work:
    """What a step cannot do without."""

    bytes: float = 0.0
    flops: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.bytes + other.bytes, self.flops + other.flops)

    def seconds(self, speeds: Speeds) -> float:
        return max(self.bytes / speeds.bytes_per_second, self.flops / speeds.flops_per_second)

    def bound(self, speeds: Speeds) -> str:
        """Which of the two it is: "bytes" or "FLOPs"."""
        by_bytes = self.bytes / speeds.bytes_per_second
        return "bytes" if by_bytes >= self.flops / speeds.flops_per_second else "FLOPs"


@attrs.frozen
class Lane:
    """Rows of one sequence in a step."""

    start: int
    """Tokens before them."""
    rows: int = 1
    samples: bool = True


@attrs.frozen
class Parameters:
    """Values in the matrices of the text model."""

    dense: int
    """Read in every step whatever its rows are, the head apart."""
    head: int
    expert: int = 0
    """Of one expert in all layers together."""


@attrs.frozen
class WeightBytes:
    """The same in bytes, as the engine holds them."""

    dense: float
    head: float
    expert: float = 0.0

    def total(self, experts: int = 0) -> float:
        """With so many experts."""
        return self.dense + self.head + experts * self.expert


def parameters(text: TextConfig) -> Parameters:
    """The matrices of all layers, and the head. The embedding counts as the head where they are one."""
    full = sum(text.full_attention)
    linear = text.num_layers - full
    query, key = text.heads * text.head_dim, text.kv_heads * text.head_dim
    attention = text.hidden * (2 * query + 2 * key) + query * text.hidden
    deltanet = text.hidden * (text.conv_channels + text.value_size + 2 * text.value_heads)
    deltanet += text.value_size * text.hidden
    ffn, expert, moe = 3 * text.hidden * text.ffn, 0, text.moe
    if moe is not None:
        ffn = text.hidden * (3 * moe.shared_ffn + moe.experts + 1)
        expert = 3 * text.hidden * moe.ffn * text.num_layers
    return Parameters(
        dense=full * attention + linear * deltanet + text.num_layers * ffn,
        head=text.vocab_size * text.hidden,
        expert=expert,
    )


def experts_asked(text: TextConfig, rows: int) -> float:
    """Experts of a layer that so many rows ask, on average, if each asks any of them alike."""
    moe = text.moe
    return 0.0 if moe is None else moe.experts * (1 - (1 - moe.used / moe.experts) ** rows)


def weight_bytes(text: TextConfig, form: str) -> WeightBytes:
    """All matrices in one format.

    Args:
        form: a name of :mod:`luce.weights.formats`, as "BF16" or "Q4_K"; the head's is :data:`HEAD_FORMATS`' then.
    """
    values = parameters(text)
    return WeightBytes(
        dense=values.dense * _bytes_per_value(form),
        head=values.head * _bytes_per_value(HEAD_FORMATS.get(form, form)),
        expert=values.expert * _bytes_per_value(form),
    )


def file_weight_bytes(tensors: Iterable[TensorInfo], *, tied: bool) -> WeightBytes:
    """The same of a model's files, whose formats may differ from matrix to matrix.

    Args:
        tensors: of the text model, by either kind of names.
        tied: the embedding is the head.
    """
    dense = head = experts = 0
    for info in tensors:
        if (
            len(info.shape) < 2
            or info.name.startswith(("v.", "mm.", "mtp.", "model.visual."))
            or "nextn" in info.name
        ):
            continue
        if info.name.endswith(("token_embd.weight", "embed_tokens.weight")):
            head += info.nbytes if tied else 0
        elif info.name in ("output.weight", "lm_head.weight"):
            head += info.nbytes
        elif "_exps" in info.name or ".experts." in info.name:
            experts += info.nbytes
        else:
            dense += info.nbytes
    return WeightBytes(dense, head, experts)


def _bytes_per_value(form: str) -> float:
    values = block_size(form)
    return num_bytes(form, (values,)) / values


def step_work(
    text: TextConfig,
    weights: WeightBytes,
    lanes: Iterable[Lane],
    *,
    kv_bytes: int = 2,
    state: StateForm = StateForm.CHUNK,
) -> Work:
    """One step over the rows of ``lanes``.

    Args:
        kv_bytes: of one value of a key or value (bf16: 2).
    """
    lanes = list(lanes)
    rows, samples = sum(lane.rows for lane in lanes), sum(lane.samples for lane in lanes)
    values = parameters(text)
    used = text.moe.used if text.moe is not None else 0
    total = Work(
        weights.dense + experts_asked(text, rows) * weights.expert,
        2.0 * (values.dense + used * values.expert) * rows,
    )
    if samples:
        total += Work(weights.head, 2.0 * values.head * samples)
    for lane in lanes:
        total += _attention(text, lane, kv_bytes) + _deltanet(text, lane, state)
    return total


def _attention(text: TextConfig, lane: Lane, kv_bytes: int) -> Work:
    """Keys and values before the rows are read, those of the rows written; each row looks at all up to its own."""
    layers = sum(text.full_attention)
    token = 2 * text.kv_heads * text.head_dim * kv_bytes
    pairs = lane.rows * lane.start + lane.rows * (lane.rows + 1) / 2
    return Work(
        layers * token * (lane.start + lane.rows),
        layers * 4.0 * text.heads * text.head_dim * pairs,
    )


def _deltanet(text: TextConfig, lane: Lane, state: StateForm) -> Work:
    layers = text.num_layers - sum(text.full_attention)
    matrix = 4 * text.value_heads * text.key_dim * text.value_dim
    window = 4 * (text.conv_kernel - 1) * text.conv_channels
    if state is StateForm.RECURRENT:
        moved = 2.0 * matrix
    else:
        row = 4 * (text.key_heads * text.key_dim + text.value_heads * (text.value_dim + 1))
        pending = (RING - 1) / 2 if lane.rows < RING else 0
        moved = matrix * (1 + min(1.0, lane.rows / RING)) + row * (pending + min(lane.rows, RING))
    per_row = 6.0 * text.key_dim * text.value_dim  # S k, S q and the update of S
    per_row += 2.0 * RING * (text.key_dim + text.value_dim)  # products of keys, queries and values of a chunk
    return Work(layers * (moved + 2 * window), layers * text.value_heads * per_row * lane.rows)


def prefill_seconds(
    text: TextConfig,
    weights: WeightBytes,
    tokens: int,
    speeds: Speeds,
    *,
    piece: int | None = None,
    kv_bytes: int = 2,
) -> float:
    """A prompt of ``tokens`` alone, ``piece`` rows a step; None: all in one."""
    piece = piece or tokens
    total = 0.0
    for start in range(0, tokens, piece):
        rows = min(piece, tokens - start)
        lane = Lane(start, rows, samples=start + rows == tokens)
        total += step_work(text, weights, [lane], kv_bytes=kv_bytes).seconds(speeds)
    return total


def encode_work(config: Qwen35Config, patches: int, *, value_bytes: int = 2) -> Work:
    """One picture of ``patches`` patches through the vision tower, whose weights have ``value_bytes`` bytes each.

    Raises:
        ValueError: the model has no vision tower.
    """
    vision = config.vision
    if vision is None:
        raise ValueError("the model has no vision tower")
    block, merger, patch = _vision_values(vision)
    merged = patches / vision.merge_size**2
    attention = vision.depth * 4.0 * vision.hidden * patches**2
    return Work(
        value_bytes * (vision.depth * block + merger + patch),
        2.0 * patches * (vision.depth * block + patch) + 2.0 * merged * merger + attention,
    )


def _vision_values(vision: VisionConfig) -> tuple[int, int, int]:
    """Values of a block's matrices, of the merger's and of the patch embedding."""
    merged = vision.hidden * vision.merge_size**2
    block = 4 * vision.hidden**2 + 2 * vision.hidden * vision.ffn
    patch = vision.hidden * vision.in_channels * vision.patch_size**2
    return block, merged * (merged + vision.out_hidden), patch
