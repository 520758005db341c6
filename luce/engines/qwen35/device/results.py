"""From what the device gives back to a step's outcomes: read on the waiter thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from luce.engines.qwen35.commands import StepTicket
from luce.engines.qwen35.device.buffers import ResultBuffer
from luce.engines.qwen35.device.descriptors import FAULT_LOGITS, FAULT_MASK
from luce.engines.qwen35.device.draws import Draw
from luce.engines.qwen35.device.passes import Piece, Work
from luce.engines.qwen35.device.slots import DeviceSlot
from luce.engines.seam import Outcome, SampledToken

__all__ = ["DeviceTicket", "PassResults"]


@attrs.frozen(eq=False)
class PassResults:
    """One pass on its way back."""

    pieces: Sequence[Piece]
    draws: Sequence[Draw]
    results: ResultBuffer
    advice: str = ""
    """What may help where rows are not finite."""


class DeviceTicket(StepTicket):
    """A launched step: what it was made of, until its results are read."""

    def __init__(self, plan: Any, fd: int) -> None:
        super().__init__(plan, fd)
        self.works: list[Work] = []
        self.refused: dict[int, Outcome] = {}
        """Outcomes of segments that were not run, by place in the plan."""
        self.passes: list[PassResults] = []
        self.drawn: list[tuple[DeviceSlot, int, SampledToken]] = []
        """(slot, position, token) read back, for the engine thread to note."""
        self.events: tuple[Any, Any] | None = None
        """Device events before and behind the step's work."""

    def read(self) -> None:
        """Read what the device has written. Slots whose rows are not finite fail, from here on."""
        errors: dict[int, str] = {}
        tokens: dict[int, SampledToken] = {}
        for part in self.passes:
            self._read_pass(part, errors, tokens)
        outcomes = dict(self.refused)
        for work in self.works:
            slot = work.slot
            if slot.failed is not None:
                outcomes[work.index] = Outcome(
                    slot.index, 0, error=f"the sequence failed before: {slot.failed}"
                )
            elif work.index in errors:
                slot.failed = errors[work.index]
                outcomes[work.index] = Outcome(slot.index, 0, error=slot.failed)
            else:
                kept = (tokens[work.index],) if work.index in tokens else ()
                outcomes[work.index] = Outcome(slot.index, work.segment.count, kept)
        self.outcomes = tuple(outcomes[index] for index in range(len(self.plan.segments)))

    def _read_pass(self, part: PassResults, errors: dict[int, str], tokens: dict[int, SampledToken]) -> None:
        faults = part.results.faults[: len(part.pieces)].tolist()
        for piece, fault in zip(part.pieces, faults, strict=True):
            if fault:
                errors.setdefault(
                    piece.work.index, f"rows up to position {piece.end} are not finite{part.advice}"
                )
        drawn = part.results.drawn[: len(part.draws)]
        for draw, token, fault in zip(
            part.draws, drawn["token"].tolist(), drawn["faults"].tolist(), strict=True
        ):
            index = draw.work.index
            if index in errors:
                continue
            if draw.error is not None:
                errors[index] = draw.error
            elif draw.token is not None:
                tokens[index] = draw.token
            elif fault:
                errors[index] = _fault(fault, draw.position, part.advice)
            else:
                tokens[index] = _token(draw, token, drawn[draw.number])
                self.drawn.append((draw.work.slot, draw.position, tokens[index]))


def _fault(fault: int, position: int, advice: str) -> str:
    if fault & FAULT_MASK and not fault & FAULT_LOGITS:
        return "the mask allows no token"
    return f"logits for position {position} are not finite{advice}"


def _token(draw: Draw, token: int, record: Any) -> SampledToken:
    if not draw.logprobs:
        return SampledToken(token)
    count = int(record["num_top"])
    top = zip(record["top_ids"][:count].tolist(), record["top_logprobs"][:count].tolist(), strict=True)
    return SampledToken(token, float(record["logprob"]), tuple(top))
