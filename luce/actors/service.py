"""The server supervisor: owns every actor and every request (design §4).

One nursery per layer: service ⊃ {step loop, encoder, timers, requests}. A request catches its own errors and ends
``failed``; only bugs escape, and they end the service with a clear report.
"""

from __future__ import annotations

import attrs

__all__ = ["ServiceOptions"]


@attrs.frozen
class ServiceOptions:
    """What an operator may set."""

    prefill_budget: int | None = 64
    """Prompt rows per step over all lanes; None is whole prompts."""
    max_queued: int = 256
    """Requests that may wait for a slot; one more is refused with 503."""
    queue_timeout: float = 300.0
    """Seconds that a request may wait for a slot."""
    client_timeout: float = 60.0
    """Seconds that a client may leave its buffer full before it counts as gone."""
    buffer_limit: int = 1024
    """Deltas that wait for a slow client before it counts as stalled."""
    coalesce: float = 0.020
    """Seconds that an idle loop waits for more arrivals before its first step (read from loop.scxml)."""
    depth: int = 1
    """Steps in flight at once: 1 or 2 (design §3)."""
    drain_timeout: float = 30.0
    """Seconds that running requests get to finish after the first stop signal."""
