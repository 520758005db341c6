"""The time limit of a request: how long its whole answer may take, from the request's arrival on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from luce.errors import DeadlineError

if TYPE_CHECKING:
    from luce.actors.request import Request

__all__ = ["TimeLimit", "time_limit", "too_late"]


@attrs.frozen
class TimeLimit:
    seconds: float
    due: float
    """On the server's clock."""
    set_by: str
    """Who wants it: the request's field, or the server's flag."""

    @property
    def passed(self) -> str:
        return f"the answer was not complete {self.seconds:g} s after its request arrived ({self.set_by})"


def time_limit(asked: float | None, most: float | None, arrived: float) -> TimeLimit | None:
    """The shorter of what a request asks for and what the server allows; None if neither says anything.

    Args:
        asked, most: seconds.
        arrived: on the server's clock.
    """
    if asked is not None and (most is None or asked <= most):
        return TimeLimit(asked, arrived + asked, "timeout")
    if most is not None:
        return TimeLimit(most, arrived + most, "--request-timeout")
    return None


def too_late(request: Request) -> DeadlineError:
    """What a request that still lives at its limit ends with: the limit, and how far it got."""
    limit = request.limit
    assert limit is not None
    return DeadlineError(f"{limit.passed}: {_reached(request)}")


def _reached(request: Request) -> str:
    active = request.machine.active
    if active("following"):
        return "it still waited for the prompt that it shares with the first choice"
    if active("queued"):
        return "it still waited for a free slot"
    if request.num_generated:
        most = request.submission.params.max_tokens or 1
        said = f"{request.num_generated} of at most {most} tokens were generated"
    else:
        said = f"{request.computed_rows} of {request.prompt_rows} prompt tokens were computed"
    if active("encoding") or active("staging_wait_rows"):
        said += ", the next ones waited for a picture to be encoded"
    if active("parked"):
        said += ", and it was parked because memory was short"
    if active("stalled"):
        said += ", and its client did not read them"
    return said
