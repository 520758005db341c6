"""Requests of a trace with content, ready to run again."""

from __future__ import annotations

from typing import Any

import attrs
import msgspec
import numpy as np
import numpy.typing as npt

from luce.actors.submission import Submission
from luce.constraints.constraint import Constraint
from luce.constraints.wish import ConstraintWish
from luce.engines.loaded import LoadedModel
from luce.engines.seam import Capabilities, ImageSpan, PatchImage
from luce.errors import LuceError
from luce.sampling.parameters import SamplingParams
from luce.trace.schema import Arrival, Picture

__all__ = ["RecordedPrompt", "images_of", "prompt_of", "recorded_params", "submission_of"]


@attrs.frozen(eq=False)
class RecordedPrompt:
    """A :class:`luce.engines.loaded.PreparedPrompt`."""

    token_ids: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    rope_delta: int
    spans: tuple[ImageSpan, ...]
    answer_start: int
    turn_ends: tuple[int, ...]
    starts_in_thinking: bool


def prompt_of(arrival: Arrival, token_ids: bytes, positions: bytes) -> RecordedPrompt:
    """The prompt in rows.

    Raises:
        ValueError: lengths that do not fit each other.
    """
    count = arrival.prompt_tokens
    ids = np.frombuffer(token_ids, "<i4").astype(np.int32).reshape(count)
    return RecordedPrompt(
        ids,
        np.frombuffer(positions, "<i4").astype(np.int32).reshape(3, count),
        arrival.rope_delta,
        tuple(
            ImageSpan(picture.start, picture.tokens, index)
            for index, picture in enumerate(arrival.pictures)
            if picture.start >= 0
        ),
        arrival.answer_start,
        arrival.turn_ends,
        arrival.thinking,
    )


def images_of(arrival: Arrival, scale: npt.NDArray[np.float32] | None) -> tuple[PatchImage, ...]:
    """The pictures as they went to the encoder.

    Args:
        scale: of the model's preprocessor, for pictures that are shades.

    Raises:
        ValueError: lengths that do not fit each other, or shades without a scale.
    """
    return tuple(_image(picture, scale) for picture in arrival.pictures)


def _image(picture: Picture, scale: npt.NDArray[np.float32] | None) -> PatchImage:
    if picture.values is None:
        raise ValueError("a picture without content")
    if picture.shades and scale is None:
        raise ValueError("a picture in shades, for a model that takes none")
    rows = picture.grid[0] * picture.grid[1]
    values = np.frombuffer(picture.values, np.uint8 if picture.shades else "<f4").reshape(rows, -1)
    return PatchImage(values, picture.grid, picture.digest, picture.tokens, scale if picture.shades else None)


def recorded_params(arrival: Arrival, **changes: Any) -> SamplingParams:
    """The sampling parameters, which were checked when the request came.

    Raises:
        ValueError: a parameter that this luce does not know.
    """
    try:
        return SamplingParams(**{**arrival.sampling, **changes})
    except TypeError as error:
        raise ValueError(str(error)) from None


def submission_of(
    arrival: Arrival, model: LoadedModel, scale: npt.NDArray[np.float32] | None, tokens: int
) -> Submission:
    """The request, for exactly ``tokens`` of its answer, whatever ended it.

    Raises:
        ValueError: the trace does not say enough of it, or what no server lets in; says what.
        RequestError: the same of its sampling parameters.
    """
    if arrival.token_ids is None or arrival.positions is None:
        raise ValueError("no content")
    prompt = prompt_of(arrival, arrival.token_ids, arrival.positions)
    capabilities = model.engine.capabilities
    _check_rows(prompt, capabilities)
    params = recorded_params(arrival)
    params.validate(capabilities.vocab_size)
    if not all(
        isinstance(token, int) and 0 <= token < capabilities.vocab_size for token in params.eos_token_ids
    ):
        raise ValueError("an end-of-sequence token outside the vocabulary")
    if params.seed is None and not params.greedy:
        raise ValueError("its seed is not in the trace")
    params = attrs.evolve(params, max_tokens=tokens, min_tokens=min(params.min_tokens, tokens))
    return Submission(
        arrival.id,
        prompt,
        images_of(arrival, scale),
        params,
        constraint=_constraint(arrival, model),
    )


def _check_rows(prompt: RecordedPrompt, capabilities: Capabilities) -> None:
    """An engine takes rows as they are: what was never prepared would end the steps of all."""
    ids, positions = prompt.token_ids, prompt.positions
    if not len(ids):
        raise ValueError("an empty prompt")
    if ids.min() < 0 or ids.max() >= capabilities.vocab_size:
        raise ValueError("token ids outside the vocabulary")
    if positions.min() < 0 or positions.max() >= capabilities.max_context:
        raise ValueError("positions outside the context")
    if not -len(ids) <= prompt.rope_delta <= 0:
        raise ValueError("an answer whose positions are not behind its prompt's")


def _constraint(arrival: Arrival, model: LoadedModel) -> Constraint | None:
    if not arrival.constrained:
        return None
    if arrival.form is None:
        raise ValueError("its form is not in the trace")
    if model.constrainer is None:
        raise ValueError("the model cannot hold answers to a form")
    try:
        wish = msgspec.convert(arrival.form, ConstraintWish)
        return model.constrainer.constraint(wish, thinking=arrival.thinking)
    except (msgspec.ValidationError, LuceError) as error:
        raise ValueError(f"its form: {error}") from None
