"""A device that runs nothing and remembers which kernels it was asked for, to know what a GPU would have to compile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from luce.compute.host_device import HostDevice
from luce.compute.kernel_sources import Defines

__all__ = ["RecordingDevice"]


SHARED = {"sm_80": 166912, "sm_90a": 232448} | dict.fromkeys(("sm_89", "sm_120a"), 101376)
SHARED |= dict.fromkeys(("gfx1100", "gfx1151", "gfx1201"), 65536)
"""Bytes of shared memory that a block may have."""


@attrs.define(eq=False)
class _NoKernel:
    def __call__(self, grid: tuple[int, int, int], block: int, args: Sequence[Any], **_: Any) -> None:
        return None


class RecordingDevice(HostDevice):
    """Kernels that would tell their own shape leave ones."""

    def __init__(self, arch: str) -> None:
        super().__init__(poison=False)
        self.arch = arch
        self.shared_limit = SHARED[arch]
        self.asked: dict[tuple[str, tuple[tuple[str, int | str], ...]], set[str]] = {}
        """Names of kernels by their module, (source, sorted macros)."""

    def kernel(self, source: str, name: str, defines: Defines | None = None) -> Any:
        self.asked.setdefault((source, tuple(sorted((defines or {}).items()))), set()).add(name)
        return _NoKernel()

    def numpy(self, array: Any) -> Any:
        return np.ones_like(array)
