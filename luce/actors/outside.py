"""What comes to actors from outside them and decides in which order they do things.

A server's own comes as it comes: messages at once, timers by the clock, masks when a worker has made them. Who drives
actors along a trace gives them its own, in which each comes when the trace says so.
"""

from __future__ import annotations

import attrs

from luce.actors.mailbox import Turn
from luce.actors.masks import MaskWorkers
from luce.actors.timers import Timers

__all__ = ["Outside"]


@attrs.frozen(eq=False)
class Outside:
    turn: Turn = attrs.field(factory=Turn)
    """Makes every actor's mailbox, and says when a turn is over."""
    timers: Timers = attrs.field(factory=Timers)
    masks: MaskWorkers = attrs.field(factory=MaskWorkers)
