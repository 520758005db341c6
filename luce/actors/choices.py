"""Several answers to one prompt: the requests that they are.

Each choice is a request of its own, with a slot, a seed and a buffer of its own, and gives what it would give alone.
Only the prompt is computed once, by the first one: the others follow it, see `request.scxml`.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from luce.actors.submission import Submission

__all__ = ["choices_of", "prompt_tokens"]


def choices_of(submission: Submission, n: int) -> tuple[Submission, ...]:
    """``n`` requests for the same prompt, of which the first is ``submission``: the others differ from it, and from
    each other, by their seeds. Copies no picture and hashes nothing."""
    first = attrs.evolve(submission, n=n)
    return (first, *(_choice(first, index) for index in range(1, n)))


def prompt_tokens(submissions: Iterable[Submission]) -> int:
    """Of all of them, a prompt that several choices share counted once."""
    prompts = {id(submission.prompt): submission.prompt for submission in submissions}
    return sum(len(prompt.token_ids) for prompt in prompts.values())


def _choice(first: Submission, index: int) -> Submission:
    return attrs.evolve(
        first,
        id=f"{first.id}/{index}",
        choice=index,
        params=first.params.for_choice(index),
        keys=None if first.keys is None else first.keys.copy(),
        constraint=None if first.constraint is None else first.constraint.fork(),
    )
