"""One request that will be sent: when, how much, and what its client does while it is answered."""

from __future__ import annotations

import attrs

from luce.trace.traffic.request import TrafficRequest

__all__ = ["Leaving", "LoadRequest", "Stall"]


@attrs.frozen
class Leaving:
    """Where a client goes away: behind so many pieces of its answer or, where none had come, after a time."""

    pieces: int
    seconds: float
    """After the arrival; used where ``pieces`` is 0."""


@attrs.frozen
class Stall:
    """A client that does not read for a while."""

    pieces: int
    """Of the answer, that it has read before."""
    seconds: float


@attrs.frozen
class LoadRequest:
    traffic: TrafficRequest
    text: str | None = None
    """The prompt itself, where the trace has it; otherwise one is made of ``traffic``."""
    name: str | None = None
    """Requests of one name, without named blocks, have the same prompt. None: a prompt that nobody else has."""
    pictures: tuple[str, ...] = ()
    """Names, one for each of ``traffic.images``; equal names are the same picture. Empty: every picture is new."""
    choices: int = 1
    leaves: Leaving | None = None
    stalls: tuple[Stall, ...] = ()
    """In the order of their pieces."""

    def scaled(self, lengths: int, time: float, most: int | None) -> LoadRequest:
        """The same with lengths of prompts divided, times multiplied and answers of at most ``most`` tokens.

        Answers keep their lengths otherwise, and pictures their sizes.

        Raises:
            ValueError: as :meth:`TrafficRequest.scaled`.
        """
        before = self.traffic
        traffic = before if lengths == 1 else before.scaled(lengths)
        traffic = attrs.evolve(
            traffic,
            arrival=before.arrival * time,
            prompt_tokens=max(traffic.prompt_tokens - sum(traffic.images) + sum(before.images), 1),
            images=before.images,
            output_tokens=min(before.output_tokens, most or before.output_tokens),
        )
        leaves = self.leaves and attrs.evolve(self.leaves, seconds=self.leaves.seconds * time)
        stalls = tuple(attrs.evolve(one, seconds=one.seconds * time) for one in self.stalls)
        return attrs.evolve(self, traffic=traffic, leaves=leaves, stalls=stalls)
