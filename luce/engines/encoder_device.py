"""Where pictures are encoded, if not beside the text model: on another GPU, or on the CPU."""

from __future__ import annotations

import attrs

from luce.compute.device import Device
from luce.compute.operands import Operands
from luce.compute.room import room_bytes
from luce.engines.choose_device import AUTO, CPU, choose_device, gpu_number
from luce.engines.qwen35.config import VisionConfig
from luce.engines.qwen35.device.budget import RESERVED
from luce.engines.qwen35.device.products import few_rows, many_rows
from luce.engines.qwen35.device.vision import vision_arrays, vision_weight_arrays
from luce.engines.qwen35.memory import format_bytes
from luce.errors import ConfigError

__all__ = ["FLAG", "Encoder", "check_encoder_room", "choose_encoder", "encodes_pictures", "vision_bytes"]

FLAG = "--encoder-device"


@attrs.frozen(eq=False)
class Encoder:
    """Encodes pictures apart from the text model."""

    name: str
    """As the operator gave it."""
    device: Device | None
    """None: the CPU."""


def encodes_pictures(device: Device) -> bool:
    """Has it the instructions of the vision tower's kernels?"""
    return few_rows(device.arch) and many_rows(device.arch)


def vision_bytes(config: VisionConfig, patches: int, *, beside: bool = False) -> int:
    """What the vision tower takes of a device's memory for pictures of up to so many patches. ``beside``: the text
    model's memory."""
    specs = (*vision_weight_arrays(config), *vision_arrays(config, patches, beside=beside))
    return room_bytes(spec.nbytes for spec in specs)


def choose_encoder(
    wanted: str | None, text: str, vision: VisionConfig | None, operands: Operands | None = None
) -> Encoder | None:
    """The encoder that ``wanted`` names; None: pictures are encoded beside the text model.

    Args:
        wanted: ``cpu``; ``cuda:N`` or ``hip:N``; None, or the GPU of the text model: beside that.
        text: where the text model runs, as :func:`choose_device` takes it.
        operands: of weight products.

    Raises:
        ConfigError: it is none of these, it cannot encode, the text model is on the CPU, or takes no pictures.
    """
    if wanted is None:
        return None
    if vision is None:
        raise ConfigError("this model takes no pictures; leave it out", flag=FLAG)
    if wanted == CPU:
        return Encoder(wanted, None)
    number = None if wanted == AUTO else gpu_number(wanted)
    if number is None:
        raise ConfigError(f"{wanted!r} encodes no pictures; use cpu, cuda:N or hip:N", flag=FLAG)
    if text == CPU:
        raise ConfigError(
            "beside a text model on the CPU pictures are encoded on the CPU; give --device a GPU, or leave it out",
            flag=FLAG,
        )
    if number == gpu_number(text):
        return None
    device = choose_device(wanted, FLAG, operands)
    assert device is not None
    if not encodes_pictures(device):
        raise ConfigError(
            f"{wanted} ({device.arch}) has no warpgroup products, which encoding takes; use cpu, or leave it out",
            flag=FLAG,
        )
    return Encoder(wanted, device)


def check_encoder_room(encoder: Encoder, config: VisionConfig, patches: int) -> None:
    """Refuse a vision tower that is larger than what its device has free.

    Raises:
        ConfigError: says by how much.
    """
    assert encoder.device is not None
    needed, free = vision_bytes(config, patches), max(encoder.device.free_bytes() - RESERVED, 0)
    if needed > free:
        raise ConfigError(
            f"encoding pictures of {patches} patches takes {needed:,} bytes ({format_bytes(needed)}), "
            f"{needed - free:,} more than the {free:,} free on {encoder.name}; a smaller --context takes smaller ones",
            flag=FLAG,
        )
