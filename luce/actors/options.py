"""What an operator may set about the actors."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

__all__ = ["ServiceOptions"]


@attrs.frozen
class ServiceOptions:
    """Options of one server. Immutable; validated where the flags are read."""

    prefill_budget: int | None = 64
    """Prompt rows per step over all lanes; None is whole prompts."""
    step_seconds: float | None = None
    """Seconds that a step with rows of answers is to take at most: prompts get as many rows beside them as measured
    times allow, within the prefill budget; None leaves it at the budget."""
    rows_before_picture: int = 1
    """Prompt rows at least that are computed while the picture behind them is being encoded; fewer wait for it."""
    staged_rows: int = 256
    """Prompt rows of one staged pass over all its requests, while others decode or prefill; engines that take pictures
    whole."""
    staged_rows_alone: int = 1024
    """The same while nobody does."""
    max_queued: int = 256
    """Requests that may wait for a slot; one more is refused with 503."""
    max_queued_tokens: int | None = None
    """Prompt tokens, picture rows included, of all requests that wait together; None is 16 contexts. One alone always
    may."""
    queue_timeout: float = 300.0
    """Seconds that a request may wait for a slot."""
    request_timeout: float | None = None
    """Seconds that any request may take from its arrival until its answer is complete; None is no limit. Requests may
    ask for a shorter one."""
    client_timeout: float = 60.0
    """Seconds that a client may take nothing from a full buffer before it counts as gone."""
    buffer_limit: int = 16_384
    """Tokens that wait for a slow client before its request pauses, slot in hand. Answers that are shorter never do.
    Takes some 300 bytes a token, ten times that with 20 alternatives each."""
    park_bytes: int | None = None
    """Host memory that slots saved under pressure may take; None is a quarter of what is free at the time."""
    prefix_bytes: int | None = None
    """Host memory for snapshots of the prefix cache, 0 for no cache; None is room for a few dozen of them."""
    image_bytes: int | None = None
    """Host memory for rows of encoded pictures that no running request needs, 0 to keep none; None is 64 MiB, or a
    quarter of what is free if that is less."""
    coalesce: float = 0.020
    """Seconds that an idle loop waits for more arrivals before its first step."""
    depth: int = 1
    """Steps in flight at once: 1 or 2 (design §3)."""
    drain_timeout: float = 30.0
    """Seconds that running requests get to finish after the first stop signal."""
    abort_timeout: float = 5.0
    """Seconds after which the server ends even if something still holds on to a cancelled request."""

    @property
    def delays(self) -> Mapping[str, float]:
        """Seconds per timer event of the charts."""
        return {
            "window.elapsed": self.coalesce,
            "queue.expired": self.queue_timeout,
            "client.timeout": self.client_timeout,
            "draining.timeout": self.drain_timeout,
            "abort.timeout": self.abort_timeout,
        }
