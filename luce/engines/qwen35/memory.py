"""The memory plan: every large array of a served model, known from the configuration before anything is allocated.

Pure functions; :mod:`luce.engines.qwen35.memory_parts` lists the arrays, here they are added up, printed, and held
against a budget (design §7). Some are there from the start on. Loading needs more for a while: matrices are loaded
whole, then packed. And so do requests: their prompts and pictures, and the scratch of encoding and sampling, which are
counted as if every slot ran a prompt that fills the context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from luce.engines.qwen35.config import Qwen35Config
from luce.engines.qwen35.engine import PASS_ROWS
from luce.engines.qwen35.memory_parts import (
    ArraySpec,
    encoding_arrays,
    kv_arrays,
    released_arrays,
    request_arrays,
    sampling_arrays,
    scratch_arrays,
    state_arrays,
    text_arrays,
    vision_arrays,
)
from luce.engines.qwen35.text import LOGIT_ROWS
from luce.errors import ConfigError

__all__ = [
    "ArraySpec",
    "MemoryOptions",
    "MemoryPlan",
    "check_budget",
    "format_bytes",
    "plan_memory",
    "size_lines",
]


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
    largest_picture: int | None = None
    """Most patches of one picture, by the preprocessor's limits; None: as many as fit the context."""
    decoding_bytes: int = 0
    """For the pixels of pictures while they are decoded, all at once."""

    @property
    def blocks(self) -> int:
        if self.num_blocks is not None:
            return self.num_blocks
        return self.slots * -(-self.context // self.block_size)


@attrs.frozen
class MemoryPlan:
    """Arrays that are taken at the start and stay, those that loading needs on top for a while, and those that requests
    do."""

    options: MemoryOptions
    arrays: tuple[ArraySpec, ...]
    released: tuple[ArraySpec, ...]
    requested: tuple[ArraySpec, ...]
    """At most."""

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by heading, in the order of ``arrays``."""
        return _by_part(self.arrays)

    @property
    def request_parts(self) -> dict[str, int]:
        """The same of ``requested``."""
        return _by_part(self.requested)

    @property
    def total(self) -> int:
        """Bytes from the start on."""
        return _sum(self.arrays)

    @property
    def peak(self) -> int:
        """Bytes at the end of loading, before the loaded matrices are given back."""
        return self.total + _sum(self.released)

    @property
    def serving(self) -> int:
        """Most bytes while requests run."""
        return self.total + _sum(self.requested)

    @property
    def needed(self) -> int:
        """Most bytes at any time."""
        return max(self.peak, self.serving)

    @property
    def bytes_per_slot(self) -> int:
        """Recurrent state that each further slot costs."""
        return self.parts.get("recurrent state", 0) // self.options.slots

    @property
    def bytes_per_token(self) -> int:
        """KV bytes of one token of one sequence."""
        return self.parts["KV blocks"] // (self.options.blocks * self.options.block_size)

    def lines(self) -> list[str]:
        """The plan as text: one line per part, the totals, and the peaks."""
        options = self.options
        most = f"at most, for {options.slots} prompts of {options.context} tokens"
        details = {
            "KV blocks": f"{options.blocks} blocks of {options.block_size} tokens",
            "recurrent state": f"{options.slots} slots",
            "logits": f"{LOGIT_ROWS} rows at once",
            "total": "from the start on",
            "prompts": most,
            "patches": most,
            "image rows": most,
            "decoding": "at most, for the pixels of pictures",
            "encoding": "at most, for one picture",
            "sampling": "at most, for one row",
            "copies of states, host": "that they pass through",
            "with requests": "at most",
        }
        rows = [
            *self.parts.items(),
            ("total", self.total),
            ("while loading", self.peak),
            *self.request_parts.items(),
            ("with requests", self.serving),
        ]
        return size_lines((name, size, details.get(name, "")) for name, size in rows)


def size_lines(rows: Iterable[tuple[str, int, str]]) -> list[str]:
    """(name, bytes, detail or nothing) as lines of a table."""
    rows = list(rows)
    width = max(len(name) for name, _, _ in rows)
    return [
        f"{name:<{width}}  {size:>16,} bytes  {format_bytes(size):>10}  {detail}".rstrip()
        for name, size, detail in rows
    ]


def _sum(arrays: Iterable[ArraySpec]) -> int:
    return sum(spec.nbytes for spec in arrays)


def _by_part(arrays: Iterable[ArraySpec]) -> dict[str, int]:
    found: dict[str, int] = {}
    for spec in arrays:
        found[spec.part] = found.get(spec.part, 0) + spec.nbytes
    return found


def plan_memory(config: Qwen35Config, options: MemoryOptions) -> MemoryPlan:
    """The plan for a model and options. Pure; allocates nothing."""
    text = config.text
    arrays = [*text_arrays(text)]
    if config.vision is not None:
        arrays += vision_arrays(config.vision)
    arrays += kv_arrays(text, options.blocks, options.block_size)
    arrays += state_arrays(text, options.slots)
    arrays += scratch_arrays(text, options.slots, options.context, PASS_ROWS)
    requested = [*request_arrays(text, config.vision, options.slots, options.context)]
    if config.vision is not None:
        patches = options.context * config.vision.merge_size**2
        if options.largest_picture is not None:
            patches = min(patches, options.largest_picture)
        requested += encoding_arrays(config.vision, patches)
        if options.decoding_bytes:
            requested.append(ArraySpec("decoding", "pixels", (options.decoding_bytes,), "uint8"))
    requested += sampling_arrays(text)
    return MemoryPlan(options, tuple(arrays), tuple(released_arrays(text, config.vision)), tuple(requested))


def check_budget(config: Qwen35Config, plan: MemoryPlan, budget: int, *, free: bool = False) -> None:
    """Refuse a plan that needs more than ``budget`` bytes at any time.

    Args:
        free: the budget is what the machine has free, and not an operator's ``--max-memory``.

    Raises:
        ConfigError: gives the exact shortfall and the largest ``--slots`` or ``--context`` that would fit, or the
            least that the model needs.
    """
    shortfall = plan.needed - budget
    if shortfall <= 0:
        return
    options = plan.options

    def fits(**changed: int) -> bool:
        return plan_memory(config, attrs.evolve(options, **changed)).needed <= budget

    slots = _largest(options.slots - 1, lambda count: fits(slots=count))
    context = _largest(options.context - 1, lambda count: fits(context=count))
    ways = [f"--slots {slots}"] if slots else []
    if context:
        ways.append(f"--context {context}")
    least = plan_memory(config, attrs.evolve(options, slots=1, context=1)).needed
    when = "while loading" if plan.peak == plan.needed else "with requests"
    advice = (
        f"{' or '.join(ways)} would fit" if ways else f"the model and one slot alone need {least:,} bytes"
    )
    bound = "free" if free else "allowed"
    raise ConfigError(
        f"{options.slots} slots of {options.context} tokens need {plan.needed:,} bytes {when} "
        f"({format_bytes(plan.needed)}), {shortfall:,} more than the {budget:,} {bound}; {advice}",
        flag=None if free else "--max-memory",
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
