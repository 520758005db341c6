"""What a request asks for, whatever API it came through: the endpoints fill it in, `prepare.py` makes it ready to run.

Its fields are typed, and checked for what can be said about each alone. Names of fields in errors are those of the API
that the request came through, so a wish carries them where they differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from luce.constraints.wish import ConstraintWish
from luce.errors import RequestError, quoted
from luce.http.request_log import GIVEN_ID
from luce.sampling.parameters import SamplingParams
from luce.text.messages import Conversation

__all__ = [
    "Limit",
    "WholePrompt",
    "Wish",
    "checked_choices",
    "checked_request_id",
    "checked_stops",
    "checked_timeout",
]

MAX_STOPS = 16
MAX_STOP_LENGTH = 1024
MAX_TIMEOUT = 86_400.0
"""Seconds."""


@attrs.frozen
class Limit:
    """How many tokens the answer may have at most; None: what the context leaves."""

    field: str
    tokens: int | None = attrs.field()
    bounded_by_context: bool = False
    """More than the context leaves is taken to mean all of that; otherwise it is refused."""
    default: int | None = None
    """How many it has at most, and no more than the context leaves, where ``tokens`` are not given."""

    @tokens.validator
    def _at_least_one(self, _: object, value: int | None) -> None:
        if value is not None and value < 1:
            raise RequestError(f"{self.field} must be at least 1, not {quoted(value)}", field=self.field)


@attrs.frozen(eq=False)
class WholePrompt:
    """A prompt that goes through no template."""

    ids: Sequence[int]
    field: str
    """For errors."""


@attrs.frozen(eq=False)
class Wish:
    """Immutable."""

    conversation: Conversation | WholePrompt
    params: SamplingParams
    """As asked for, the model's defaults in the gaps; no seed drawn, no room measured."""
    limit: Limit
    n: int = 1
    """Answers to the same prompt."""
    continuation: str = ""
    """What the answer begins with: the model goes on from there. Only where the prompt opens no think block."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """To be offered to the model, as chat templates take them: ``{"type": "function", "function": {...}}``."""
    one_call: bool = False
    """The answer ends with its first tool call."""
    form: ConstraintWish = attrs.field(factory=ConstraintWish)
    """What the answer is held to."""
    template_kwargs: Mapping[str, Any] | None = None
    """More variables for the chat template."""
    split_reasoning: bool = True
    """Reasoning is told from content."""
    show_reasoning: bool = True
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    timeout: float | None = None
    """Seconds from the request's arrival until its answer is complete."""
    cache_salt: str = ""
    request_id: str | None = None
    """The caller's name for the request, of visible ASCII characters."""


def checked_stops(stop: str | list[str] | None, field: str = "stop") -> tuple[str, ...]:
    """Stop strings. Raises RequestError for too many, empty and over-long ones."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOPS:
        raise RequestError(f"{field} holds {len(stops)} strings; at most {MAX_STOPS} are taken", field=field)
    for index, text in enumerate(stops):
        if not text:
            raise RequestError(f"{field} must not hold an empty string", field=field)
        if len(text) > MAX_STOP_LENGTH:
            place = field if isinstance(stop, str) else f"{field}[{index}]"
            raise RequestError(
                f"{place} has {len(text)} characters; at most {MAX_STOP_LENGTH} are taken", field=place
            )
    return stops


def checked_choices(n: int | None, most: int) -> int:
    """Raises RequestError for no choice at all and for more than ``most``."""
    if n is None:
        return 1
    if not 1 <= n <= most:
        raise RequestError(
            f"n must be from 1 to {most} (--max-choices), not {quoted(n)}: send several requests for more choices",
            field="n",
        )
    return n


def checked_request_id(name: str | None) -> str | None:
    """Raises RequestError for a name that could not stand in a header, or is empty or over-long."""
    if name is not None and not GIVEN_ID.fullmatch(name):
        raise RequestError(
            f"request_id must be 1 to 128 visible ASCII characters, not {quoted(name)}", field="request_id"
        )
    return name


def checked_timeout(seconds: float | None) -> float | None:
    """Raises RequestError for no time at all and for more than a day."""
    if seconds is not None and not 0 < seconds <= MAX_TIMEOUT:
        raise RequestError(
            f"timeout must be a number of seconds above 0 and at most {MAX_TIMEOUT:,.0f}, not {quoted(seconds)}",
            field="timeout",
        )
    return seconds
