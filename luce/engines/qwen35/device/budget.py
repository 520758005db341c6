"""How large a device engine may be: KV blocks by what is left of the device's memory, and refusal in advance."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from luce.compute.device import Device
from luce.engines.qwen35.config import Qwen35Config, TextConfig
from luce.engines.qwen35.device.copies import pinned_arrays
from luce.engines.qwen35.device.descriptors import BLOCK_ROWS
from luce.engines.qwen35.device.plan import DeviceSizes, device_arrays
from luce.engines.qwen35.device.vision import vision_arrays as device_vision_arrays
from luce.engines.qwen35.device.vision import vision_weight_arrays
from luce.engines.qwen35.device.weights import Text
from luce.engines.qwen35.memory import MemoryPlan, format_bytes
from luce.engines.qwen35.memory_parts import ArraySpec, vision_arrays
from luce.errors import ConfigError

__all__ = ["RESERVED", "DevicePlan", "RoomError", "device_memory_plan", "fit_device"]

RESERVED = 768 << 20
"""Left to the driver, and to graphs of later passes and of pictures."""
KERNELS_BYTES, KERNELS_LAYER_BYTES = 16 << 20, 1 << 20
"""Of compiled kernels, and of each layer in the passes that are recorded at the start: measured on an H200."""
MOST_SHARES = 4
"""Blocks are at most so many times those of all slots at full context: what is past that caches nothing more of use."""


@attrs.frozen
class DevicePlan:
    sizes: DeviceSizes
    arrays: tuple[ArraySpec, ...]
    """And what stands for kernels and graphs among them."""
    encoder: str | None = None
    """Name of another device, on which the vision tower is."""

    @property
    def total(self) -> int:
        """Bytes on the device."""
        return sum(spec.nbytes for spec in self.arrays)

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by heading."""
        found: dict[str, int] = {}
        for spec in self.arrays:
            found[spec.part] = found.get(spec.part, 0) + spec.nbytes
        return found


def device_memory_plan(config: Qwen35Config, host: MemoryPlan, found: DevicePlan) -> MemoryPlan:
    """What serving takes where the text model is on a device: its arrays there, the vision tower there, on another
    device or on the host, and on the host requests' memory, as in ``host``, and what copies of states pass through."""
    requested = (*host.requested, *pinned_arrays(config.text, found.sizes.packed))
    vision: tuple[ArraySpec, ...] = ()
    if config.vision is not None and (patches := found.sizes.max_patches):
        working = device_vision_arrays(config.vision, patches, beside=found.encoder is None)
        vision = (*vision_weight_arrays(config.vision), *working)
        if found.encoder is not None:
            vision = tuple(attrs.evolve(spec, part=f"{spec.part} on {found.encoder}") for spec in vision)
        requested = tuple(spec for spec in requested if spec.part != "encoding")
    elif config.vision is not None:
        vision = tuple(vision_arrays(config.vision))
    return attrs.evolve(host, arrays=(*found.arrays, *vision), released=(), requested=requested)


def kernels_and_graphs(layers: int) -> ArraySpec:
    """What a model of so many layers takes beside its arrays, about."""
    part, size = "kernels and graphs", KERNELS_BYTES + KERNELS_LAYER_BYTES * layers
    return ArraySpec(part, part, (size,), "uint8")


class RoomError(ConfigError):
    """Too little room on a device."""

    def __init__(self, shortage: str, advice: str, *, flag: str | None = None) -> None:
        super().__init__(f"{shortage}; {advice}", flag=flag)
        self.shortage = shortage
        """By how much, without what would help: that has other flags elsewhere."""


def fit_device(
    device: Device,
    config: TextConfig,
    text: Text,
    sizes: DeviceSizes,
    num_token_ids: int,
    budget: int,
    *,
    blocks: int | None = None,
    flag: str | None = None,
) -> DevicePlan:
    """The plan for ``sizes``, with as many blocks as ``budget`` bytes hold.

    Args:
        sizes: their ``num_blocks`` does not count.
        blocks: KV blocks that the operator chose; None: what memory is left for.
        flag: that the budget comes from; None: it is what the device has free.

    Raises:
        RoomError: it does not fit; says by how much, and which smaller ``--slots`` or ``--context`` would.
    """

    def plan(slots: int, context: int, count: int) -> DevicePlan:
        made = attrs.evolve(sizes, num_slots=slots, max_context=context, num_blocks=count)
        arrays = device_arrays(device, config, text, made, num_token_ids)
        return DevicePlan(made, (*arrays, kernels_and_graphs(config.num_layers)))

    def least(slots: int, context: int) -> int:
        """Bytes with blocks for one sequence, or those asked for."""
        return plan(slots, context, blocks or _needed(context)).total

    slots, context = sizes.num_slots, sizes.max_context
    shortfall = least(slots, context) - budget
    if shortfall > 0:
        ways = []
        if found := _largest(slots - 1, lambda count: least(count, context) <= budget):
            ways.append(f"--slots {found}")
        if found := _largest(context - 1, lambda length: least(slots, length) <= budget):
            ways.append(f"--context {found}")
        alone = least(1, 1)
        advice = (
            f"{' or '.join(ways)} would fit" if ways else f"the model and one slot alone need {alone:,} bytes"
        )
        bound, size = "allowed" if flag else "free on the device", budget + shortfall
        raise RoomError(
            f"{slots} slots of {context} tokens need {size:,} bytes ({format_bytes(size)}), {shortfall:,} more "
            f"than the {budget:,} {bound}",
            advice,
            flag=flag,
        )
    if blocks is not None:
        return plan(slots, context, blocks)
    one = plan(slots, context, 2).total - plan(slots, context, 1).total
    room = (budget - plan(slots, context, 0).total) // max(one, 1)
    return plan(slots, context, int(min(room, MOST_SHARES * slots * _needed(context))))


def _needed(context: int) -> int:
    return -(-(context + 1) // BLOCK_ROWS)


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
