"""What weight products multiply on a device (kernels/operands.h): bf16 or f16, and how values are held in them."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import numpy.typing as npt

from luce.compute.bf16 import round_bf16, widen_bf16
from luce.compute.kernel_sources import Defines

__all__ = ["DEFAULT_OPERANDS", "Operands"]

F32 = npt.NDArray[np.float32]
U16 = npt.NDArray[np.uint16]


class Operands(enum.Enum):
    """f16 has three bits more than bf16 and ends at 65,504. So an activation is held as a sixteenth of itself and a
    weight as its sixteenfold; powers of two cancel exactly. There is a number for activations up to a million."""

    BF16 = "bf16"
    F16 = "f16"

    @property
    def defines(self) -> Defines:
        """Macros for every kernel; f16 is what they take without one."""
        return {} if self is Operands.F16 else {"OPERANDS": f"OPERANDS_{self.name}"}

    @property
    def of_fingerprint(self) -> str:
        """Behind a device's own."""
        return "" if self is Operands.BF16 else f", products of {self.value}"

    @property
    def unit(self) -> np.float32:
        """An activation is held divided by it, a weight multiplied."""
        return np.float32(16 if self is Operands.F16 else 1)

    @property
    def advice(self) -> str:
        """Behind what is said of rows that are not finite."""
        return "; f16 may have no numbers for them, try --operands bf16" if self is Operands.F16 else ""

    @classmethod
    def of_device(cls, fingerprint: str | None) -> Operands:
        """What a device with this fingerprint multiplied."""
        return cls.F16 if (fingerprint or "").endswith(cls.F16.of_fingerprint) else cls.BF16

    def round(self, x: F32) -> U16:
        """Bits of the operand next to each number: to nearest even; every NaN becomes 0x7fff, as in kernels."""
        if self is Operands.BF16:
            return round_bf16(x)
        with np.errstate(over="ignore"):
            bits: U16 = x.astype(np.float16).view(np.uint16)
        bits[np.isnan(x)] = 0x7FFF
        return bits

    def widen(self, bits: npt.NDArray[Any]) -> F32:
        """The numbers that these bits are."""
        if self is Operands.BF16:
            return widen_bf16(bits)
        return np.ascontiguousarray(bits, np.uint16).view(np.float16).astype(np.float32)

    def held_format(self, records: str) -> str:
        """What records called ``records`` (:mod:`luce.compute.packing`) hold: theirs, or these operands."""
        return self.name if records == "BF16" else records

    def hold_activations(self, x: F32) -> U16:
        return self.round(x / self.unit)

    def rounded(self, x: F32) -> F32:
        """Activations as they are once they are held."""
        return self.widen(self.hold_activations(x)) * self.unit

    def hold_weights(self, w: F32) -> U16:
        with np.errstate(over="ignore"):
            return self.round(w * self.unit)


DEFAULT_OPERANDS = Operands.F16
"""Of a device, where nobody says otherwise."""
