"""A device whose kernels show NVIDIA's racecheck their orders (SHOW_ORDERS in kernels/device.h), with barriers beside
what it does not follow. Launches have room for them at the end of their shared memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from luce.compute.device import Device, Kernel
from luce.compute.kernel_sources import Defines

__all__ = ["ROOM", "ShowingDevice"]

ROOM = 64 * 8
"""Bytes of SHOWN_BARS barriers."""
ALIGNED = 16


@attrs.frozen(eq=False)
class _Launcher:
    kernel: Kernel

    def __call__(
        self,
        grid: tuple[int, int, int],
        block: int,
        args: Sequence[Any],
        *,
        shared: int = 0,
        early: bool = False,
    ) -> None:
        self.kernel(grid, block, args, shared=-(-shared // ALIGNED) * ALIGNED + ROOM, early=early)


class ShowingDevice:
    """What it does not have itself is the device's."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.shared_limit = device.shared_limit - ROOM

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def kernel(self, source: str, name: str, defines: Defines | None = None) -> Callable[..., None]:
        return _Launcher(self._device.kernel(source, name, {**(defines or {}), "SHOW_ORDERS": 1}))
