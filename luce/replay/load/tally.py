"""What came of the requests, counted as they end, in memory that does not grow with their number."""

from __future__ import annotations

import re
from collections import Counter
from typing import Literal

import attrs

from luce.replay.load.spread import Spread

__all__ = ["KEPT_LATE", "Ending", "Outcome", "Tally", "Tick"]

Ending = Literal["finished", "left", "refused", "failed", "late", "unsent"]
"""'left': cancelled as in the trace. 'refused': another status than 200. 'failed': an answer that broke off, or no
connection. 'late': not over within the time limit. 'unsent': the client did not ask."""
MOST_ERRORS = 50
MOST_TICKS = 600
AT_ONCE = 0.001
"""Seconds between the first and the last arrival, below which they have no rate."""
KEPT_LATE = 0.005
"""Seconds that an arrival may be late."""

_NUMBER = re.compile(r"(?<!HTTP )(?<!\d)\d[\d.,]*")
"""But a status is a name."""


@attrs.define
class Outcome:
    """One request while it is under way."""

    due: float
    ending: Ending = "failed"
    error: str = ""
    sent: float | None = None
    pieces: int = 0
    first: float | None = None
    last: float | None = None
    """When the first and the last piece came."""
    finished: float | None = None
    """When the reason of its finish came: with its last token, which may have no text."""
    finishes: set[int] = attrs.field(factory=set)
    """Choices whose reason came."""
    ended: float | None = None
    choices: int = 1
    prompt_tokens: int = 0
    """These three as the server says."""
    output_tokens: int = 0
    cached_tokens: int = 0
    wanted_prompt: int = 0
    wanted_output: int = 0


@attrs.define
class Tick:
    """Some seconds of the run."""

    arrivals: int = 0
    pieces: int = 0
    firsts: int = 0
    first_seconds: float = 0.0
    """Sum of the times to the first piece, by when it came."""
    ended: int = 0
    errors: int = 0


@attrs.define
class Tally:
    """All of a run.

    Args:
        start: on the clock of the outcomes.
    """

    start: float
    open: int = 0
    most_open: int = 0
    stalls: int = 0
    endings: Counter[str] = attrs.field(factory=Counter)
    answers: int = 0
    """Whole ones; a request for several choices has several."""
    cut: str = ""
    """Why nothing was sent of what stands further on in the trace: it could not be read. Empty: all of it was."""
    errors: Counter[str] = attrs.field(factory=Counter)
    """By message; those that differ in numbers alone are counted as the first of them."""
    late: Spread = attrs.field(factory=Spread)
    """Seconds by which requests were sent too late."""
    too_late: int = 0
    """Of these more than :data:`KEPT_LATE`."""
    lag: Spread = attrs.field(factory=Spread)
    """Seconds for which pieces had been there before they were looked at: in none of the times below."""
    first: Spread = attrs.field(factory=Spread)
    gaps: Spread = attrs.field(factory=Spread)
    latency: Spread = attrs.field(factory=Spread)
    """Of whole answers."""
    per_token: Spread = attrs.field(factory=Spread)
    """The mean wait for a token after the first, of each whole answer."""
    decode_seconds: float = 0.0
    decode_tokens: int = 0
    """From the first token to the last, and the tokens after the first, of whole answers."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    wanted_prompt: int = 0
    wanted_output: int = 0
    """Of whole answers, these five."""
    ended: float = 0.0
    """Seconds from the start to the last end."""
    first_due: float | None = None
    last_due: float = 0.0
    """Of the arrivals so far, these two."""
    next_due: float | None = None
    """Of the arrival that is waited for; None once nothing more comes."""
    tick_seconds: float = 1.0
    ticks: list[Tick] = attrs.field(factory=list)
    _kinds: dict[str, str] = attrs.field(factory=dict, init=False, repr=False)
    """First messages by what they are without their numbers."""

    def due(self, when: float) -> None:
        """Somebody arrives now, or is waited for no longer."""
        self.first_due = when if self.first_due is None else min(self.first_due, when)
        self.last_due = max(self.last_due, when)

    @property
    def rate(self) -> float | None:
        """Arrivals a second, from the first to the last; None where that is no time."""
        span = self.last_due - (self.first_due or 0.0)
        total = sum(self.endings.values())
        return (total - 1) / span if total > 1 and span >= AT_ONCE else None

    def tick(self, when: float) -> Tick:
        """Where something that happens now is counted."""
        index = int(max(when - self.start, 0.0) / self.tick_seconds)
        while index >= MOST_TICKS:
            self._halve()
            index = int(max(when - self.start, 0.0) / self.tick_seconds)
        while len(self.ticks) <= index:
            self.ticks.append(Tick())
        return self.ticks[index]

    def _halve(self) -> None:
        fields = [field.name for field in attrs.fields(Tick)]
        pairs = [self.ticks[at : at + 2] for at in range(0, len(self.ticks), 2)]
        self.ticks = [Tick(*(sum(getattr(one, name) for one in pair) for name in fields)) for pair in pairs]
        self.tick_seconds *= 2

    def sent(self, outcome: Outcome, when: float) -> None:
        outcome.sent = when
        late = when - self.start - outcome.due
        self.late.add(late)
        self.too_late += late > KEPT_LATE
        self.tick(when).arrivals += 1

    def piece(self, outcome: Outcome, when: float, seen: float) -> None:
        """A piece of an answer came, and was looked at later."""
        self.lag.add(seen - when)
        tick = self.tick(when)
        if outcome.last is None:
            outcome.first = when
            waited = when - (outcome.sent or when)
            self.first.add(waited)
            tick.firsts += 1
            tick.first_seconds += waited
        else:
            self.gaps.add(when - outcome.last)
        outcome.last = when
        outcome.pieces += 1
        tick.pieces += 1

    def end(self, outcome: Outcome, when: float) -> None:
        """It is over."""
        outcome.ended = when
        self.endings[outcome.ending] += 1
        self.ended = max(self.ended, when - self.start)
        tick = self.tick(when)
        if outcome.ending == "finished":
            tick.ended += 1
            self._whole(outcome, when)
        elif outcome.ending != "left":
            tick.errors += 1
            kind = _NUMBER.sub("0", outcome.error)
            if kind not in self._kinds and len(self._kinds) < MOST_ERRORS:
                self._kinds[kind] = outcome.error
            self.errors[self._kinds.get(kind, "others")] += 1

    def _whole(self, outcome: Outcome, when: float) -> None:
        self.answers += outcome.choices
        self.latency.add(when - (outcome.sent or when))
        for name in ("prompt_tokens", "output_tokens", "cached_tokens", "wanted_prompt", "wanted_output"):
            setattr(self, name, getattr(self, name) + getattr(outcome, name))
        if outcome.first is not None and outcome.last is not None and outcome.choices == 1:
            tokens = outcome.output_tokens - 1
            seconds = max(outcome.last, outcome.finished or 0.0) - outcome.first
            if tokens > 0:
                self.decode_seconds += seconds
                self.decode_tokens += tokens
                self.per_token.add(seconds / tokens)
