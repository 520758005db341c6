"""The memory plan: every large array of a served model, known from the configuration before anything is allocated.

Pure functions. Engines allocate from :attr:`MemoryPlan.arrays`, so the plan and the arrays are equal to the byte.
Attention keeps keys and values in blocks, for full-attention layers only and by ``head_dim``; DeltaNet layers keep a
state per slot: S at the last multiple of 64 rows, the rows after it (the ring), and the convolution window
(design §6; spec qwen35 §5, §19).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import attrs
import numpy as np
import numpy.typing as npt

from luce.engines.qwen35.config import Qwen35Config, TextConfig, VisionConfig
from luce.errors import ConfigError

__all__ = ["CHUNK", "ArraySpec", "MemoryOptions", "MemoryPlan", "check_budget", "format_bytes", "plan_memory"]

CHUNK = 64
"""Rows between two folds into S."""
_ITEM = 4
"""All weights are float32 in memory."""


@attrs.frozen
class MemoryOptions:
    """What the operator chooses. Validated where the flags are read."""

    slots: int
    """Sequences that run at once (``--slots``)."""
    context: int
    """Longest sequence in tokens, prompt and answer (``--context``)."""
    block_size: int = 64
    """Tokens per KV block."""
    num_blocks: int | None = None
    """KV blocks in the pool; None is enough for every slot at full context."""
    open_rows: int = 1
    """Most rows of a segment that may still be dropped (1 without speculation)."""

    @property
    def blocks(self) -> int:
        if self.num_blocks is not None:
            return self.num_blocks
        return self.slots * -(-self.context // self.block_size)


@attrs.frozen
class ArraySpec:
    """One array to allocate."""

    part: str
    """Heading in the printed plan."""
    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def zeros(self) -> npt.NDArray[np.generic]:
        return np.zeros(self.shape, dtype=self.dtype)


@attrs.frozen
class MemoryPlan:
    """Bytes by part. ``weights`` come from the loader; ``arrays`` are the engine's to allocate."""

    options: MemoryOptions
    weights: Mapping[str, int]
    arrays: tuple[ArraySpec, ...]

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by heading, weights first."""
        found = dict(self.weights)
        for spec in self.arrays:
            found[spec.part] = found.get(spec.part, 0) + spec.nbytes
        return found

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def bytes_per_slot(self) -> int:
        """State that each further slot costs, KV blocks apart."""
        return sum(spec.nbytes for spec in self.arrays if spec.part != "KV blocks") // self.options.slots

    @property
    def bytes_per_token(self) -> int:
        """KV bytes of one token of one sequence."""
        blocks = sum(spec.nbytes for spec in self.arrays if spec.part == "KV blocks")
        return blocks // (self.options.blocks * self.options.block_size)

    def lines(self) -> list[str]:
        """The plan as text, one line per part and the total."""
        options = self.options
        details = {
            "KV blocks": f"{options.blocks} blocks of {options.block_size} tokens",
            "recurrent state": f"{options.slots} slots",
        }
        rows = [*self.parts.items(), ("total", self.total)]
        width = max(len(name) for name, _ in rows)
        return [
            f"{name:<{width}}  {size:>16,} bytes  {format_bytes(size):>10}"
            + (f"  {details[name]}" if name in details else "")
            for name, size in rows
        ]


def plan_memory(config: Qwen35Config, options: MemoryOptions) -> MemoryPlan:
    """The plan for a model and options. Pure; allocates nothing."""
    text = config.text
    weights = {"text weights": _ITEM * _text_values(text)}
    if text.num_mtp_layers:
        weights["MTP weights"] = _ITEM * _mtp_values(text)
    if config.vision is not None:
        weights["vision weights"] = _ITEM * _vision_values(config.vision)
    return MemoryPlan(options, weights, (*_kv_arrays(text, options), *_state_arrays(text, options)))


def _kv_arrays(text: TextConfig, options: MemoryOptions) -> tuple[ArraySpec, ...]:
    shape = (sum(text.full_attention), options.blocks, options.block_size, text.kv_heads, text.head_dim)
    return ArraySpec("KV blocks", "keys", shape), ArraySpec("KV blocks", "values", shape)


def _state_arrays(text: TextConfig, options: MemoryOptions) -> tuple[ArraySpec, ...]:
    lead = (options.slots, text.num_layers - sum(text.full_attention))
    ring = CHUNK + options.open_rows
    window = text.conv_kernel - 1 + options.open_rows
    part = "recurrent state"
    return (
        ArraySpec(part, "state", (*lead, text.value_heads, text.key_dim, text.value_dim)),
        ArraySpec(part, "ring_keys", (*lead, ring, text.key_heads, text.key_dim)),
        ArraySpec(part, "ring_updates", (*lead, ring, text.value_heads, text.value_dim)),
        ArraySpec(part, "ring_gates", (*lead, ring, text.value_heads)),
        ArraySpec(part, "conv_window", (*lead, window, text.conv_channels)),
    )


def _text_values(text: TextConfig) -> int:
    full = sum(text.full_attention)
    embeddings = (1 if text.tied else 2) * text.vocab_size * text.hidden
    return (
        embeddings
        + text.hidden
        + text.num_layers * _shared_values(text)
        + full * _full_values(text)
        + (text.num_layers - full) * _linear_values(text)
    )


def _shared_values(text: TextConfig) -> int:
    """Norms and feed-forward of a layer."""
    return 2 * text.hidden + 3 * text.ffn * text.hidden


def _full_values(text: TextConfig) -> int:
    rows = (3 * text.heads + 2 * text.kv_heads) * text.head_dim  # q and gate, o; k, v
    return rows * text.hidden + 2 * text.head_dim


def _linear_values(text: TextConfig) -> int:
    conv, heads = text.conv_channels, text.value_heads
    matrices = (conv + 2 * text.value_size + 2 * heads) * text.hidden
    return matrices + conv * text.conv_kernel + 2 * heads + text.value_dim


def _mtp_values(text: TextConfig) -> int:
    layer = _shared_values(text) + _full_values(text)
    return 2 * text.hidden**2 + 3 * text.hidden + text.num_mtp_layers * layer


def _vision_values(vision: VisionConfig) -> int:
    dim, ffn, merged = vision.hidden, vision.ffn, vision.hidden * vision.merge_size**2
    patch = dim * vision.in_channels * vision.patch_size**2 + dim
    block = 4 * dim * dim + 4 * dim + 2 * ffn * dim + ffn + dim + 4 * dim
    merger = 2 * dim + merged * merged + merged + vision.out_hidden * (merged + 1)
    return patch + vision.grid_side**2 * dim + vision.depth * block + merger


def check_budget(config: Qwen35Config, plan: MemoryPlan, budget: int) -> None:
    """Refuse a plan over ``budget`` bytes.

    Raises:
        ConfigError: gives the exact shortfall, and the largest ``--slots`` or ``--context`` that would fit; if none
            does, the smallest ``--max-memory``.
    """
    shortfall = plan.total - budget
    if shortfall <= 0:
        return
    options = plan.options

    def fits(**changed: int) -> bool:
        return plan_memory(config, attrs.evolve(options, **changed)).total <= budget

    slots = _largest(options.slots - 1, lambda count: fits(slots=count))
    context = _largest(options.context - 1, lambda count: fits(context=count))
    ways = [f"--slots {slots}"] if slots else []
    if context:
        ways.append(f"--context {context}")
    least = plan_memory(config, attrs.evolve(options, slots=1, context=1)).total
    advice = (
        f"{' or '.join(ways)} would fit" if ways else f"the weights and one slot alone need {least:,} bytes"
    )
    raise ConfigError(
        f"{options.slots} slots of {options.context} tokens need {plan.total:,} bytes "
        f"({format_bytes(plan.total)}), {shortfall:,} more than the {budget:,} allowed; {advice}",
        flag="--max-memory",
    )


def _largest(limit: int, fits: Callable[[int], bool]) -> int:
    """Largest count in 1 … limit that fits (monotone), or 0."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def format_bytes(size: int) -> str:
    """Binary units with three digits: "1.25 GiB"."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
