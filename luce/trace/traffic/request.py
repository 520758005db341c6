"""One request of a recorded or generated load: when it comes and how much it asks for. No text is in it."""

from __future__ import annotations

import attrs

__all__ = ["MAX_TOKENS", "TrafficRequest"]

MAX_TOKENS = 1 << 24
"""No count of tokens in a trace is larger: a file that says more is damaged or hostile."""


@attrs.frozen
class TrafficRequest:
    """Arrival and lengths of one request."""

    arrival: float
    """Seconds after the trace's start."""
    prompt_tokens: int
    """Text and picture tokens together, at least 1."""
    output_tokens: int
    """At least 1."""
    prefix_blocks: tuple[int, ...] = ()
    """Names of the prompt's blocks of :attr:`block_size` tokens, the last one possibly shorter; prompts with equal
    leading names have these tokens in common. Empty when the trace does not say."""
    block_size: int = 512
    """Tokens that a name stands for."""
    images: tuple[int, ...] = ()
    """Tokens of each picture; they are part of ``prompt_tokens``. 0 where the trace only counts pictures."""

    def scaled(self, lengths: int = 1, time: float = 1.0) -> TrafficRequest:
        """The same with all lengths divided by ``lengths``, rounded up, and all times multiplied by ``time``.

        Raises:
            ValueError: ``lengths`` does not divide the block size, so that shared prefixes would not stay shared.
        """
        if self.prefix_blocks and self.block_size % lengths:
            raise ValueError(f"lengths cannot be divided by {lengths}: blocks have {self.block_size} tokens")
        images = tuple(-(-tokens // lengths) for tokens in self.images)
        text = self.prompt_tokens - sum(self.images)
        return attrs.evolve(
            self,
            arrival=self.arrival * time,
            prompt_tokens=-(-text // lengths) + sum(images),
            output_tokens=-(-self.output_tokens // lengths),
            block_size=self.block_size // lengths if self.prefix_blocks else self.block_size,
            images=images,
        )
