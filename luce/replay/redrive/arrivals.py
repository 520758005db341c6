"""Recorded requests as the actors take them in: what their chart, policy and caches depend on, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np

from luce.actors.submission import Submission
from luce.engines.seam import PatchImage
from luce.replay.redrive.script import AnswerScript, Script
from luce.replay.redrive.sequences import Sequences
from luce.replay.redrive.world import STOP, RecordedConstraint
from luce.replay.submissions import prompt_of, recorded_params
from luce.trace.schema import Arrival

__all__ = ["submissions_of"]

_NO_PATCHES = np.zeros((0, 0), np.uint8)


def submissions_of(arrivals: list[Arrival], script: Script) -> list[Submission]:
    """Of requests that have one prompt.

    Raises:
        ValueError: the trace contradicts itself, or says what this luce does not know.
    """
    prompt = prompt_of(arrivals[0], *_rows(arrivals[0], script.sequences))
    return [_submission(arrival, prompt, script.answers[arrival.order]) for arrival in arrivals]


def _submission(arrival: Arrival, prompt: Any, script: AnswerScript) -> Submission:
    params = recorded_params(
        arrival, stop_token_ids=(STOP,), eos_token_ids=(), ignore_eos=False, min_tokens=0, logit_bias=()
    )
    images = tuple(
        PatchImage(_NO_PATCHES, picture.grid, picture.digest, picture.tokens) for picture in arrival.pictures
    )
    return Submission(
        arrival.id,
        prompt,
        images,
        params,
        timeout=arrival.timeout,
        cache_salt=arrival.salt,
        constraint=RecordedConstraint(script) if arrival.constrained else None,
        n=arrival.n,
        choice=arrival.choice,
    )


def _rows(arrival: Arrival, sequences: Sequences) -> tuple[bytes, bytes]:
    """Token ids and positions; where the trace has none, others that are alike where those were."""
    if arrival.token_ids is not None and arrival.positions is not None:
        return arrival.token_ids, arrival.positions
    ids = sequences.tokens(arrival.order, arrival.prompt_tokens)
    return ids.astype("<i4").tobytes(), np.zeros((3, arrival.prompt_tokens), "<i4").tobytes()
