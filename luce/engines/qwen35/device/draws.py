"""Draws of a pass: SAMPLE records, their lists and masks; and the tokens that only the host can draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import numpy as np
import numpy.typing as npt

from luce.compute.device import Array, Device
from luce.engines.qwen35.device.descriptors import SAMPLE_PENALTIES, Descriptors
from luce.engines.qwen35.device.passes import Piece, Work
from luce.engines.qwen35.device.samples import SampleTemplate
from luce.engines.qwen35.device.slots import DeviceSlot
from luce.engines.qwen35.slots import Greedy
from luce.engines.seam import Mask, SampledToken
from luce.errors import DeviceError, LuceError
from luce.sampling.sampler import NonFiniteLogitsError, Sampler

__all__ = ["LISTS_PER_SLOT", "Draw", "DrawFiller", "draw_on_host"]

LISTS_PER_SLOT = 512
"""Entries of biases and held-back ids that a slot may have on the device; tokens of others are drawn on the host."""


@attrs.define(eq=False)
class Draw:
    """A draw of a pass."""

    work: Work
    number: int
    """Its place among the pass's samples."""
    lane: int
    position: int
    """Of the token to come."""
    logprobs: bool
    on_host: bool
    """Its sampler is not one that the device knows."""
    token: SampledToken | None = None
    """Drawn on the host."""
    error: str | None = None
    """Why the host could not."""


_GREEDY = SampleTemplate.of(None, 0, 1)


class DrawFiller:
    """Fills in what the sampler kernels read."""

    def __init__(
        self, device: Device, num_token_ids: int, masks: Array, forget: Callable[[int], None]
    ) -> None:
        """``masks`` u32 [64, ceil(ids / 32)] on the device; ``forget(slot)`` zeroes what penalties count of it."""
        self._device, self._num_ids, self.masks, self._forget = device, num_token_ids, masks, forget

    def recount(self, slot: int) -> None:
        """The next draw of a slot counts the tokens of its history anew."""
        self._forget(slot)

    def check(self, mask: Mask | None) -> None:
        """Refuse a mask of another size.

        Raises:
            DeviceError: says what fits.
        """
        if mask is not None and len(mask) != self.masks.shape[1]:
            raise DeviceError(f"a mask of {len(mask)} words does not fit {self._num_ids} token ids")

    def fill(self, descriptors: Descriptors, pieces: Sequence[Piece]) -> tuple[list[Draw], int]:
        """SAMPLE records of the pieces that end segments which sample. Returns them and the lists' entries in use."""
        draws: list[Draw] = []
        used, row = 0, 0
        for lane, piece in enumerate(pieces):
            row += piece.count
            work = piece.work
            if not (piece.last and work.segment.sample):
                continue
            number, slot = len(draws), work.slot
            template = self._template(slot)
            on_host = template is None
            if template is None:
                template = _GREEDY
            mask = None
            if work.mask is not None and not on_host:
                mask = number
                self._device.upload(self.masks[number], np.ascontiguousarray(work.mask, np.uint32))
            used = template.fill(
                descriptors.samples[number : number + 1].reshape(()),
                descriptors.lists,
                used,
                row=row - 1,
                slot=slot.index,
                position=piece.end,
                mask=mask,
            )
            draws.append(Draw(work, number, lane, piece.end, template.reports, on_host))
            slot.drawn(piece.end)
        descriptors.header["samples"] = len(draws)
        return draws, used

    def fill_rows(self, descriptors: Descriptors) -> None:
        """A greedy draw from every row of a pass of up to 64, for the sake of its logits."""
        count = int(descriptors.header["rows"][0])
        for row in range(count):
            record = descriptors.rows[row]
            _GREEDY.fill(
                descriptors.samples[row : row + 1].reshape(()),
                descriptors.lists,
                0,
                row=row,
                slot=int(record["slot"]),
                position=int(record["position"]) + 1,
            )
        descriptors.header["samples"] = count

    def _template(self, slot: DeviceSlot) -> SampleTemplate | None:
        """What the device draws by; None: it cannot."""
        if not isinstance(slot.sampler, Greedy | Sampler):
            return None
        found = slot.template
        if found is None:
            found = SampleTemplate.of(slot.spec.sampling, slot.first_generated, self._num_ids)
            slot.template = found
            if int(found.record["flags"]) & SAMPLE_PENALTIES:
                self._forget(slot.index)
        return found if len(found.bias) + len(found.ends) <= LISTS_PER_SLOT else None


def draw_on_host(
    draws: Sequence[Draw], faults: npt.NDArray[np.int32], logits: npt.NDArray[np.float32], advice: str = ""
) -> None:
    """Draw what the device cannot; what fails keeps its error.

    Args:
        faults: [lanes], as the device found them; such lanes fail without a draw.
        logits: [draws, ≥ vocabulary].
        advice: what may help where logits are not finite.
    """
    for draw in draws:
        slot = draw.work.slot
        if not draw.on_host or faults[draw.lane] or slot.failed is not None:
            continue
        try:
            draw.token = slot.sampler.sample(logits[draw.number], draw.position, draw.work.mask)
        except NonFiniteLogitsError as error:
            draw.error = f"{error}{advice}"
            continue
        except LuceError as error:
            draw.error = str(error)
            continue
        slot.sampled = (draw.position, draw.token.token)
