"""What actors know of each other: mailboxes and shared services, no state of any request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs
import trio

from luce.actors.free_memory import FreeMemory
from luce.actors.mailbox import Mailbox, Turn
from luce.actors.masks import MaskWorkers
from luce.actors.messages import ToEncoder, ToLoop
from luce.actors.options import ServiceOptions
from luce.actors.timers import Timers
from luce.charts.model import Chart
from luce.engines.seam import Capabilities
from luce.trace.events import EventStream

if TYPE_CHECKING:
    from luce.actors.request import Request

__all__ = ["Wiring"]


@attrs.frozen(eq=False)
class Wiring:
    options: ServiceOptions
    capabilities: Capabilities
    turn: Turn
    timers: Timers
    events: EventStream
    free_memory: FreeMemory
    """Every look is a record of :attr:`events`."""
    loop: Mailbox[ToLoop]
    encoder: Mailbox[ToEncoder]
    masks: MaskWorkers
    request_chart: Chart
    forget: Callable[[Request], None]
    """Called by a request's task as the last thing it does."""

    def now(self) -> float:
        return trio.current_time()
