"""How many prompt rows go beside answers' rows, from the measured times of the steps before.

Theory of operation. A step that holds rows of answers keeps their streams waiting, so prompts get only as many rows
beside them as fit into a given time. What a step of so many answers' rows takes is remembered from steps without
prompts, by powers of two; what the rest of a mixed step took, by its prompt rows, is the rate at which prompts are
computed. Part of that time does not grow with the rows, so the rate holds for about as many rows as were measured: it
is taken from steps that had at least half of what they might have had, and each step brings it nearer to where time
and rows agree. A measurement far off, as of a step that had to load a kernel, counts for a factor of two at most.

Decided on measured seconds alone, so a trace that holds them leads to the same plans again.
"""

from __future__ import annotations

__all__ = ["LEAST_ROWS", "StepPace"]

LEAST_ROWS = 16
"""Prompt rows that any step may have, however long it takes: prompts have to come to an end."""
FIRST_ROWS = 64
"""Before anything was measured."""
WHOLE = 64
"""More rows than this are a multiple of it: such pieces end where the DeltaNet's chunks do."""
NEW = 0.5
"""Weight of a measurement against all before it."""


class StepPace:
    """Args:
    seconds: that a step with rows of answers may take.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._answers: dict[int, float] = {}
        """Seconds of a step of answers' rows alone, by the exponent of a power of two of rows."""
        self._rate: float | None = None
        """Prompt rows a second beside answers."""

    def rows_beside(self, answers: int) -> int:
        """Prompt rows for a step with so many rows of answers; their number is at least 1."""
        left = self.seconds - self._alone(answers)
        if self._rate is None:
            return FIRST_ROWS
        rows = max(int(self._rate * left), LEAST_ROWS)
        return rows // WHOLE * WHOLE if rows > WHOLE else rows

    def note(self, answers: int, prompts: int, seconds: float) -> None:
        """A step with so many rows of answers, at least one, and so many of prompts took so long on the device."""
        if seconds <= 0.0:
            return
        if not prompts:
            known = self._answers.setdefault(answers.bit_length(), seconds)
            self._answers[answers.bit_length()] = known + NEW * (seconds - known)
            return
        if 2 * prompts < self.rows_beside(answers) and seconds <= self.seconds:
            return  # the end of a prompt: its fixed part would pass for a low rate
        rate = prompts / max(seconds - self._alone(answers), seconds / 8)
        if self._rate is None:
            self._rate = rate
        else:
            self._rate += NEW * (min(max(rate, self._rate / 2), self._rate * 2) - self._rate)

    def _alone(self, answers: int) -> float:
        """Of as many rows, or of the nearest number that was measured, larger ones first."""
        wanted = answers.bit_length()
        known = self._answers.get(wanted)
        if known is None and self._answers:
            near = min(self._answers, key=lambda one: (one < wanted, abs(one - wanted)))
            known = self._answers[near]
        return known or 0.0
