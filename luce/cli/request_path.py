"""A request's way through its states, read from the event stream."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from luce.trace.events import EventRecord

__all__ = ["Stay", "request_path"]

PHASES = (
    "following", "queued", "encoding", "staging", "decoding", "parked", "finished", "failed", "cancelled",
)  # fmt: skip
"""Of `request.scxml`, by the names of their outermost states."""
ENDS = PHASES[-3:]


@attrs.frozen
class Stay:
    """How long a request was in one phase."""

    phase: str
    seconds: float

    def __str__(self) -> str:
        return self.phase if self.phase in ENDS else f"{self.phase} {self.seconds * 1000:.0f} ms"


def request_path(events: Iterable[EventRecord], request: str) -> list[Stay]:
    """The phases of a request in order, each with its time; staying in a phase over several events is one stay."""
    entered: list[tuple[str, float]] = []
    for record in events:
        if record.machine != "request" or record.id != request:
            continue
        phase = _phase(record.configuration)
        if phase is not None and (not entered or entered[-1][0] != phase):
            entered.append((phase, record.t))
    ends = [t for _, t in entered[1:]] + [entered[-1][1]] if entered else []
    return [Stay(phase, end - start) for (phase, start), end in zip(entered, ends, strict=True)]


def _phase(configuration: tuple[str, ...]) -> str | None:
    """The first active state that is a phase, an inner one (`staging_chunk`) or the outcome (`ending_finished`)."""
    for state in configuration:
        name = state.removeprefix("ending_")
        for phase in PHASES:
            if name == phase or name.startswith(f"{phase}_"):
                return phase
    return None
