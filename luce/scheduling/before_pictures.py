"""Prompt rows in front of a picture that is still being encoded: few of them wait for it.

Theory of operation. A step that holds a piece of a prompt takes a while whatever its rows, as it reads the whole model:
on a large GPU as long as some hundred rows. A few rows of text in front of a picture, computed by themselves, therefore
cost a step that gains nothing: the picture's rows cannot begin before its encoding ends, which runs on the same device
and takes as much longer. Taken along with the picture's own rows they cost next to nothing. From so many rows on that a
step is filled with them they do not wait: the encoder may be busy with others' pictures for long.

Nobody starves by it: the picture comes, or it fails and its request with it; and rows that wait are so few that they
delay whoever comes after them by less than the step that they save.
"""

from __future__ import annotations

__all__ = ["rows_to_go"]


def rows_to_go(at: int, ready: int, prompt: int, least: int) -> int:
    """Prompt rows from 0 on that may be computed now.

    Args:
        at: rows that are computed, or on their way.
        ready: rows from 0 on whose inputs are there: up to the first picture that is not encoded.
        prompt: all of them.
        least: rows that go by themselves, in front of a picture.
    """
    return ready if ready >= prompt or ready - at >= least else at
