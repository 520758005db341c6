"""Where a model runs: the CPU, or a GPU through CuPy."""

from __future__ import annotations

import logging
import re
from typing import cast

from luce.compute.device import Device
from luce.compute.operands import DEFAULT_OPERANDS, Operands
from luce.errors import ConfigError

__all__ = ["AUTO", "CPU", "choose_device", "gpu_number"]

CPU, AUTO = "cpu", "auto"
_GPU = re.compile(r"(cuda|hip)(?::(\d+))?")

log = logging.getLogger(__name__)


def gpu_number(wanted: str) -> int | None:
    """Of a device that :func:`choose_device` takes; None: it names no GPU."""
    match = _GPU.fullmatch("cuda" if wanted == AUTO else wanted)
    return None if match is None else int(match[2] or 0)


def choose_device(wanted: str, flag: str = "--device", operands: Operands | None = None) -> Device | None:
    """The device that ``wanted`` names; None: the CPU.

    Args:
        wanted: ``cpu``; ``cuda``, ``cuda:N`` or ``hip:N``, the GPU of that number; ``auto``, the first GPU where CuPy
            finds one, else the CPU.
        flag: that it comes from.
        operands: that its weight products take; None: DEFAULT_OPERANDS.

    Raises:
        ConfigError: it is none of these, CuPy is not installed (says what to install), there is no such GPU, or it is
            the CPU and ``operands`` are given.
    """
    if wanted == CPU:
        _check_cpu(operands)
        return None
    from luce.compute.cupy_device import open_device

    if wanted == AUTO:
        try:
            found = open_device(0, operands=operands or DEFAULT_OPERANDS)
        except ConfigError as error:
            log.debug("no GPU: %s", error)
            _check_cpu(operands)
            return None
        log.info("running on %s", found.fingerprint)
        return cast(Device, found)
    match = _GPU.fullmatch(wanted)
    if match is None:
        raise ConfigError(f"{wanted!r} is no device; use cpu, cuda:N, hip:N or auto", flag=flag)
    device = open_device(int(match[2] or 0), flag, operands or DEFAULT_OPERANDS)
    if device.hip != (match[1] == "hip"):
        have = "ROCm" if device.hip else "CUDA"
        raise ConfigError(f"CuPy is installed for {have}, and {wanted} was asked for", flag=flag)
    return cast(Device, device)


def _check_cpu(operands: Operands | None) -> None:
    if operands is not None:
        raise ConfigError("is for a GPU; the CPU multiplies float32, leave it away", flag="--operands")
