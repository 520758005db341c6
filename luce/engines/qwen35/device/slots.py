"""An open slot of a device engine: the numpy engine's, with tokens that may not have been read back yet."""

from __future__ import annotations

import attrs

from luce.engines.qwen35.device.samples import SampleTemplate
from luce.engines.qwen35.slots import Slot
from luce.engines.seam import SampledToken
from luce.sampling.sampler import Sampler

__all__ = ["UNREAD", "DeviceSlot"]

UNREAD = -1
"""Stands for a token that was sampled on the device and has not been read back."""


@attrs.define(eq=False)
class DeviceSlot(Slot):
    """Owned by the engine thread. A token drawn on the device counts as :data:`UNREAD` until :meth:`read_back`; only
    the device's own history has it."""

    device_table: tuple[int, ...] = ()
    """The block table as the device has it."""
    template: SampleTemplate | None = None
    """What the device draws by, once it was needed."""

    @classmethod
    def of(cls, slot: Slot) -> DeviceSlot:
        return cls(slot.index, slot.spec, slot.sampler, slot.ids)

    def advance(self, start: int, high: int, base: int, table: tuple[int, ...]) -> None:
        """Rows up to ``high`` are launched; those before ``start`` are committed and S stands at ``base``."""
        self.start, self.high, self.base, self.table = start, high, base, table

    def drawn(self, position: int) -> None:
        """A draw for ``position`` was launched."""
        self.sampled = (position, UNREAD)

    def read_back(self, position: int, token: SampledToken) -> None:
        """The draw for ``position`` gave ``token``. In the order of the draws."""
        if self.sampled == (position, UNREAD):
            self.sampled = (position, token.token)
        if position < len(self.ids) and self.ids[position] == UNREAD:
            self.ids[position] = token.token
        if isinstance(self.sampler, Sampler):
            self.sampler.record(token.token, position)
