"""What the model's actors have in common: they feed their charts and post to requests."""

from __future__ import annotations

from typing import Any

import attrs

from luce.charts.explorer import Violation
from luce.charts.interpreter import Configuration, advance
from luce.charts.model import Chart, Send
from luce.composition.world import Request, World
from luce.errors import IllegalEvent

__all__ = ["Actor"]


@attrs.define(eq=False)
class Actor:
    """One action's worth of an actor. Subclasses mirror those of luce/actors on a thawed world, and check every rule
    on the way."""

    world: World
    charts: dict[str, Chart]
    seen: set[Configuration]
    """Configurations that some machine was in."""

    @property
    def planted(self) -> frozenset[str]:
        return self.world.options.planted

    def feed(
        self, machine: str, here: Configuration, event: str, guards: object
    ) -> tuple[Configuration, tuple[Send, ...]]:
        outcome = advance(here, event, lambda name: getattr(guards, name)())
        if outcome.then is None:
            raise IllegalEvent(machine, here.states, event)
        self.seen.add(outcome.then)
        return outcome.then, outcome.sends

    def post(self, request: Request, *message: Any) -> None:
        """A message of loop or encoder to a request."""
        if request.final:
            raise Violation(f"{message[0]} is delivered to request {request.number}, which is final")
        request.mailbox += (message,)
