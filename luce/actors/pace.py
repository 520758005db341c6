"""What a step's seconds tell the step loop's pace."""

from __future__ import annotations

from luce.actors.flight import Flight, StepMetrics
from luce.engines.seam import SegmentKind, WorkKind
from luce.scheduling.step_pace import StepPace

__all__ = ["note_pace"]


def note_pace(pace: StepPace, metrics: StepMetrics, flight: Flight, seconds: float) -> None:
    """Take note of how long a step took on the device."""
    if any(work.kind is not WorkKind.CAPTURE for work in flight.plan.work):
        return  # copies into slots and of parked ones are no part of what a step may take
    answers = prompts = lone = 0
    for segment in flight.plan.segments:
        if segment.kind is SegmentKind.DECODE:
            answers += 1
        else:
            prompts += segment.count
            lone += segment.count == 1
    if not answers:
        pace.note_prompts(prompts, seconds, first_tokens=any(s.sample for s in flight.plan.segments))
        return
    # A prompt's lone row goes the way of an answer's.
    pace.note(answers + lone, prompts - lone, seconds, captures=len(flight.plan.work))
    if prompts:
        metrics.longest_mixed = max(metrics.longest_mixed, seconds)
