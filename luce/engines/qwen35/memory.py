"""The memory plan: every large array of a served model, known from the configuration before anything is allocated.

Pure functions; :mod:`luce.engines.qwen35.memory_parts` lists the arrays, here they are added up, printed, and held
against a budget (design §7). Loading needs more for a while: matrices are loaded whole, then packed.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from luce.engines.qwen35.config import Qwen35Config
from luce.engines.qwen35.engine import PASS_ROWS
from luce.engines.qwen35.memory_parts import (
    ArraySpec,
    kv_arrays,
    released_arrays,
    scratch_arrays,
    state_arrays,
    text_arrays,
    vision_arrays,
)
from luce.errors import ConfigError

__all__ = ["ArraySpec", "MemoryOptions", "MemoryPlan", "check_budget", "format_bytes", "plan_memory"]


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

    @property
    def blocks(self) -> int:
        if self.num_blocks is not None:
            return self.num_blocks
        return self.slots * -(-self.context // self.block_size)


@attrs.frozen
class MemoryPlan:
    """Arrays that stay while serving, and those that loading needs on top for a while."""

    options: MemoryOptions
    arrays: tuple[ArraySpec, ...]
    released: tuple[ArraySpec, ...]

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by heading, in the order of ``arrays``."""
        found: dict[str, int] = {}
        for spec in self.arrays:
            found[spec.part] = found.get(spec.part, 0) + spec.nbytes
        return found

    @property
    def total(self) -> int:
        """Bytes while serving."""
        return sum(spec.nbytes for spec in self.arrays)

    @property
    def peak(self) -> int:
        """Bytes at the end of loading, before the loaded matrices are given back."""
        return self.total + sum(spec.nbytes for spec in self.released)

    @property
    def bytes_per_slot(self) -> int:
        """Recurrent state that each further slot costs."""
        return self.parts.get("recurrent state", 0) // self.options.slots

    @property
    def bytes_per_token(self) -> int:
        """KV bytes of one token of one sequence."""
        return self.parts["KV blocks"] // (self.options.blocks * self.options.block_size)

    def lines(self) -> list[str]:
        """The plan as text: one line per part, the total, and the peak."""
        options = self.options
        details = {
            "KV blocks": f"{options.blocks} blocks of {options.block_size} tokens",
            "recurrent state": f"{options.slots} slots",
        }
        rows = [*self.parts.items(), ("total", self.total), ("while loading", self.peak)]
        width = max(len(name) for name, _ in rows)
        return [
            f"{name:<{width}}  {size:>16,} bytes  {format_bytes(size):>10}"
            + (f"  {details[name]}" if name in details else "")
            for name, size in rows
        ]


def plan_memory(config: Qwen35Config, options: MemoryOptions) -> MemoryPlan:
    """The plan for a model and options. Pure; allocates nothing."""
    text = config.text
    arrays = [*text_arrays(text)]
    if config.vision is not None:
        arrays += vision_arrays(config.vision)
    arrays += kv_arrays(text, options.blocks, options.block_size)
    arrays += state_arrays(text, options.slots)
    arrays += scratch_arrays(text, options.slots, options.context, PASS_ROWS)
    return MemoryPlan(options, tuple(arrays), tuple(released_arrays(text, config.vision)))


def check_budget(config: Qwen35Config, plan: MemoryPlan, budget: int) -> None:
    """Refuse a plan whose peak is over ``budget`` bytes.

    Raises:
        ConfigError: gives the exact shortfall and the largest ``--slots`` or ``--context`` that would fit, or the
            least that the model needs.
    """
    shortfall = plan.peak - budget
    if shortfall <= 0:
        return
    options = plan.options

    def fits(**changed: int) -> bool:
        return plan_memory(config, attrs.evolve(options, **changed)).peak <= budget

    slots = _largest(options.slots - 1, lambda count: fits(slots=count))
    context = _largest(options.context - 1, lambda count: fits(context=count))
    ways = [f"--slots {slots}"] if slots else []
    if context:
        ways.append(f"--context {context}")
    least = plan_memory(config, attrs.evolve(options, slots=1, context=1)).peak
    advice = (
        f"{' or '.join(ways)} would fit"
        if ways
        else f"loading the model and one slot alone need {least:,} bytes"
    )
    raise ConfigError(
        f"{options.slots} slots of {options.context} tokens need {plan.peak:,} bytes while loading "
        f"({format_bytes(plan.peak)}), {shortfall:,} more than the {budget:,} allowed; {advice}",
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
