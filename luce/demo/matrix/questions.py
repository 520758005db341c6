"""What is asked: the request whose answer is compared everywhere, and what its neighbours ask."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from luce.actors.encoder import Encode
from luce.actors.submission import Submission
from luce.demo.submissions import submission
from luce.demo.tasks import make_case
from luce.engines.loaded import LoadedModel
from luce.engines.seam import PatchImage, SampledToken
from luce.errors import DeviceError

__all__ = ["LONG", "SHORT", "Bits", "Questions", "bits", "faulty", "named"]

LONG, SHORT = 160, 12
"""Tokens of a neighbour's answer: one that stays, and one that soon makes way for the next."""
DRAWN: dict[str, Any] = {
    "temperature": 8.0,
    "top_k": 100,
    "presence_penalty": 0.5,
    "repetition_penalty": 1.1,
    "seed": 11,
}
"""Hot enough for another token at every place, and with all that has to come back after parking."""

Bits = tuple[bytes, ...]


def bits(tokens: Sequence[SampledToken]) -> Bits:
    """Each token's id, log-probability and most likely others, to the bit."""
    packed = []
    for token in tokens:
        assert token.logprob is not None
        pairs = [(token.token, token.logprob), *token.top]
        packed.append(b"".join(struct.pack("<qd", *pair) for pair in pairs))
    return tuple(packed)


def named(asked: Submission, name: str, max_tokens: int | None = None) -> Submission:
    """The same request once more, perhaps for the beginning of its answer alone."""
    params = asked.params
    if max_tokens is not None:
        params = attrs.evolve(params, max_tokens=max_tokens, min_tokens=min(max_tokens, params.min_tokens))
    return attrs.evolve(asked, id=name, params=params)


@attrs.frozen(eq=False)
class Questions:
    """All requests, prepared once. Their ids say what they are."""

    probes: dict[tuple[bool, bool], Submission]
    """By (about pictures, drawn). Answers of 30 to 60 tokens; prompts of more than one KV block."""
    other_pictures: Submission
    """The probe about pictures with two of them exchanged."""
    neighbours: tuple[Submission, ...]
    pushers: tuple[Submission, ...]
    """Short ones, all different."""
    not_finite: Submission
    """About a picture whose rows are made not to be numbers."""
    not_encoded: Submission
    """About a picture that is made to fail in the encoder."""

    @classmethod
    def build(cls, model: LoadedModel) -> Questions:
        text = make_case("copy", 5, test=True)
        charts = make_case("many_which", 2, test=True)
        first, second, *rest = charts.charts
        swapped = attrs.evolve(charts, charts=(second, first, *rest))
        drawn = {**DRAWN, "min_tokens": 30, "max_tokens": 40}
        count = [make_case("count", index, test=True) for index in (0, 5, 1)]
        describe = [make_case("describe", index, test=True) for index in range(4)]
        return cls(
            probes={
                (False, False): submission(model, text, "text"),
                (False, True): submission(model, text, "text, drawn", **drawn),
                (True, False): submission(model, charts, "images"),
                (True, True): submission(model, charts, "images, drawn", **drawn),
            },
            other_pictures=submission(model, swapped, "other images"),
            neighbours=(
                submission(model, count[0], "count", max_tokens=LONG),
                submission(model, describe[0], "describe"),
                submission(
                    model, count[1], "count, drawn", **{**DRAWN, "min_tokens": LONG, "max_tokens": LONG}
                ),
                submission(model, describe[1], "describe another"),
                submission(model, count[2], "count others", max_tokens=LONG),
            ),
            pushers=tuple(
                submission(model, make_case("arithmetic", index, test=True), f"pusher {index}", max_tokens=2)
                for index in range(8)
            ),
            not_finite=submission(model, describe[2], "not finite"),
            not_encoded=submission(model, describe[3], "not encoded"),
        )


def faulty(encode: Encode, questions: Questions) -> Encode:
    """``encode`` with the faults of the two pictures that have one."""
    (not_finite,) = questions.not_finite.images
    (not_encoded,) = questions.not_encoded.images

    async def run(image: PatchImage) -> npt.NDArray[np.float32]:
        if image.digest == not_encoded.digest:
            raise DeviceError("this picture is made to fail")
        rows = await encode(image)
        return np.full_like(rows, np.nan) if image.digest == not_finite.digest else rows

    return run
