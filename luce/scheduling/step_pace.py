"""How many prompt rows go beside answers' rows, and how many wait for one another, from the measured times of the steps
before.

Theory of operation. A step that holds rows of answers keeps their streams waiting, so prompts get only as many rows
beside them as fit into a given time. What a step of so many answers' rows takes is remembered from steps without
prompts, by powers of two. What the rest of a mixed step took is remembered as two means, of few prompt rows and of
many: the line through both tells what any number of rows takes, and so how many fit. A part of that time does not grow
with the rows, and a rate from many rows alone would count it for each. At most about twice as many rows are tried as
were measured, and a measurement far off, as of a step that had to load a kernel, counts for a factor of two at most.

Copies of states for the prefix cache are made at the beginning of a step. Several may fall into one, and then each
takes longer: they wait for one another's way to the host. What each takes is remembered, by powers of two, from steps
that hold some, beside what their rows were to take; a step with copies gets fewer rows.

Steps of prompts alone tell the rate of prompts that nobody's answer waits for.

Decided on measured seconds alone, so a trace that holds them leads to the same plans again.
"""

from __future__ import annotations

import attrs

__all__ = ["GATHER_SECONDS", "LEAST_ROWS", "StepPace"]

LEAST_ROWS = 16
"""Prompt rows that any step may have, however long it takes: prompts have to come to an end."""
FIRST_ROWS = 64
"""Before anything was measured."""
FEW_ROWS = 32
"""At most so many are few: ends of prompts, mostly."""
WHOLE = 64
"""More rows than this are a multiple of it: such pieces end where the DeltaNet's chunks do."""
FLATTEST = 0.25
"""Of the time of many prompt rows at least this part grows with them, whatever was measured."""
LEAST_CAPTURE = 0.0005
"""Seconds that a copy of a state counts for at least: one that seemed to take nothing is measured on."""
NEW = 0.5
"""Weight of a measurement against all before it."""
GATHER_SECONDS = 1.0
"""From a prompt's first rows to its first token at most, where it waits for other prompts: see :mod:`.gathering`."""


@attrs.define
class _Mean:
    """Of steps' prompt rows, and of their seconds without the answers' rows."""

    rows: float
    seconds: float

    def note(self, rows: int, seconds: float) -> None:
        self.rows += NEW * (rows - self.rows)
        self.seconds += NEW * (seconds - self.seconds)


class StepPace:
    """Args:
    seconds: that a step with rows of answers may take.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._answers: dict[int, float] = {}
        """Seconds of a step of answers' rows alone, by the exponent of a power of two of rows."""
        self._few: _Mean | None = None
        self._many: _Mean | None = None
        self._captures: dict[int, float] = {}
        """Seconds of one of so many copies of states in a step, likewise."""
        self._rate: float | None = None
        """Prompt rows a second in steps without answers."""
        self._since_token = 0.0
        """Seconds of steps of prompts alone since one that gave somebody a token."""

    def rows_beside(self, answers: int, captures: int = 0) -> int:
        """Prompt rows for a step with so many rows of answers, at least 1, and so many copies of states."""
        many = self._many
        if many is None:
            return FIRST_ROWS
        fixed, slope = self._line(many)
        left = self.seconds - self._alone(answers) - fixed - captures * _nearest(self._captures, captures)
        tried = -(-2 * many.rows // WHOLE) * WHOLE
        rows = max(int(min(left / slope, tried)), LEAST_ROWS)
        return rows // WHOLE * WHOLE if rows > WHOLE else rows

    @property
    def gather_rows(self) -> int | None:
        """Prompt rows that may be computed before the next first token; None: nobody knows how long they take."""
        if self._rate is None:
            return None
        return max(0, int(self._rate * (GATHER_SECONDS - self._since_token)))

    def note(self, answers: int, prompts: int, seconds: float, captures: int = 0) -> None:
        """A step with so many rows of answers, at least one, so many of prompts, and so many copies of states took so
        long on the device."""
        self._since_token = 0.0
        if seconds <= 0.0:
            return
        if captures:
            seconds = self._without_captures(answers, prompts, seconds, captures)
        if not prompts:
            if captures:
                return
            known = self._answers.setdefault(answers.bit_length(), seconds)
            self._answers[answers.bit_length()] = known + NEW * (seconds - known)
            return
        seconds = max(seconds - self._alone(answers), seconds / 8)
        if (many := self._many) is None:
            if prompts > FEW_ROWS:
                self._many = _Mean(prompts, seconds)
            return
        fixed, slope = self._line(many)
        expected = fixed + slope * prompts
        seconds = min(max(seconds, expected / 2), 2 * expected)
        if prompts > FEW_ROWS:
            many.note(prompts, seconds)
            return
        few = self._few = self._few or _Mean(prompts, seconds)
        few.note(prompts, seconds)
        # Many rows take as long for a row as few at most: a device that was slow for a while is found out.
        many.seconds = min(many.seconds, few.seconds * many.rows / few.rows)

    def _without_captures(self, answers: int, prompts: int, seconds: float, captures: int) -> float:
        """What is left of a step's seconds for its rows, when its copies' share has been taken note of."""
        rows, each = self._alone(answers), _nearest(self._captures, captures)
        if prompts and self._many is not None:
            fixed, slope = self._line(self._many)
            rows += fixed + slope * prompts
        elif prompts or not rows:
            return max(seconds - captures * each, seconds / 8)  # nobody knows what the rows took
        spent = max(seconds - rows, 0.0)
        if prompts and each:
            # Rows and copies may be at odds with what was expected of them: each gets as much as it was to take.
            spent = seconds * captures * each / (rows + captures * each)
        found = min(max(spent / captures, LEAST_CAPTURE), self.seconds)
        known = self._captures.setdefault(captures.bit_length(), each or found)
        self._captures[captures.bit_length()] = known + NEW * (min(max(found, known / 2), 2 * known) - known)
        return seconds - spent

    def note_prompts(self, rows: int, seconds: float, *, first_tokens: bool) -> None:
        """A step of prompts alone; ``first_tokens``: it gave somebody one."""
        self._since_token = 0.0 if first_tokens else self._since_token + seconds
        if seconds > 0.0 and rows >= WHOLE:
            rate = rows / seconds
            known = self._rate or rate
            self._rate = known + NEW * (min(max(rate, known / 2), known * 2) - known)

    def _line(self, many: _Mean) -> tuple[float, float]:
        """Seconds whatever the rows, and seconds a row."""
        slope = many.seconds / many.rows
        if self._few is not None:
            found = (many.seconds - self._few.seconds) / (many.rows - self._few.rows)
            slope = min(max(found, FLATTEST * slope), slope)
        return many.seconds - slope * many.rows, slope

    def _alone(self, answers: int) -> float:
        return _nearest(self._answers, answers)


def _nearest(table: dict[int, float], count: int) -> float:
    """Of as many, or of the nearest number that was measured, larger ones first; 0 if none was."""
    wanted = count.bit_length()
    known = table.get(wanted)
    if known is None and table:
        known = table[min(table, key=lambda one: (one < wanted, abs(one - wanted)))]
    return known or 0.0
