"""Lengths of a trace to requests for the fake engine. Text is made from names, so that equal names are equal rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import shake_128

import attrs
import numpy as np
import numpy.typing as npt

from luce.actors.submission import Submission
from luce.engines.fake.pictures import make_picture
from luce.engines.seam import ImageSpan, PatchImage
from luce.sampling.parameters import SamplingParams
from luce.trace.traffic.request import TrafficRequest

__all__ = [
    "GAP",
    "PICTURE_PAD",
    "Prompt",
    "make_submission",
    "picture_of",
    "places_of",
    "prompt_of",
    "submission_of",
    "text_of",
]

PICTURE_PAD = 251
"""Token id inside a picture's span; text is below 250."""
GAP = 2
"""Rows of text before, between and after pictures."""


@attrs.frozen(eq=False)
class Prompt:
    token_ids: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    rope_delta: int
    spans: tuple[ImageSpan, ...]
    answer_start: int
    turn_ends: tuple[int, ...]
    starts_in_thinking: bool = False


def text_of(name: str, rows: int) -> npt.NDArray[np.int32]:
    """Ids [rows] of the text of that name; more rows of one name begin with fewer ones."""
    return (np.frombuffer(shake_128(name.encode()).digest(rows), np.uint8) % 250).astype(np.int32)


def picture_of(name: str, rows: int) -> PatchImage:
    """The picture of that name: ``rows`` rows of four patches each."""
    return make_picture(f"{name}/{rows}".encode(), grid=(2, 2 * rows))


def prompt_of(
    text: npt.NDArray[np.int32],
    images: Sequence[PatchImage],
    turn_ends: Iterable[int] = (),
    answer_start: int | None = None,
) -> Prompt:
    """Text with the pictures put in near its beginning. ``turn_ends``, ``answer_start``: places in the text, behind the
    pictures; the answer starts at the end if nobody says."""
    spans: list[ImageSpan] = []
    pieces: list[npt.NDArray[np.int32]] = []
    taken = at = 0
    for index, image in enumerate(images):
        words = text[taken : taken + GAP]
        taken += len(words)
        at += len(words)
        spans.append(ImageSpan(at, image.num_tokens, index))
        at += image.num_tokens
        pieces += [words, np.full(image.num_tokens, PICTURE_PAD, np.int32)]
    ids = np.concatenate([*pieces, text[taken:]])
    pad = len(ids) - len(text)
    positions = np.ascontiguousarray(np.broadcast_to(np.arange(len(ids), dtype=np.int32), (3, len(ids))))
    start = len(text) if answer_start is None else answer_start
    ends = tuple(end + pad for end in turn_ends if taken < end < start)
    return Prompt(ids, positions, -3 if images else 0, tuple(spans), start + pad, ends)


def make_submission(
    name: str, prompt: Prompt, images: Sequence[PatchImage], tokens: int, seed: int
) -> Submission:
    """Every other seed samples, the others are greedy."""
    params = SamplingParams(temperature=float(seed % 2), seed=seed, max_tokens=tokens)
    return Submission(name, prompt, tuple(images), params)


def submission_of(request: TrafficRequest, number: int, *, picture_rows: int = 4) -> Submission:
    """One row of a trace. A picture whose size the trace does not say takes ``picture_rows`` rows of the prompt, as far
    as there is room; all pictures are different ones."""
    sizes = [rows or picture_rows for rows in request.images]
    while sizes and sum(sizes) + GAP * (len(sizes) + 1) > request.prompt_tokens:
        sizes.pop()
    images = [picture_of(f"{number}:{index}", rows) for index, rows in enumerate(sizes)]
    text, turn_ends, answer_start = places_of(
        request, request.prompt_tokens - sum(sizes), f"request {number}", text_of
    )
    prompt = prompt_of(text, images, turn_ends, answer_start)
    return make_submission(f"r{number}", prompt, images, request.output_tokens, number)


def places_of(
    request: TrafficRequest, rows: int, name: str, text: Callable[[str, int], npt.NDArray[np.int32]]
) -> tuple[npt.NDArray[np.int32], tuple[int, ...], int]:
    """The text of a row of a trace, ids [rows], its turns' ends and where its answer starts.

    Shared prefix blocks are equal rows. A conversation's first block is its system prompt, and its last whole block is
    where it ends as far as the trace can tell: a next turn repeats all before that. Where the trace names no blocks,
    the text is of its own.

    Args:
        name: of a text that is shared with nobody.
        text: the text of a name and a length.
    """
    size = request.block_size
    if not request.prefix_blocks:
        return text(name, rows), (), rows
    blocks = [text(f"block {block}", size) for block in request.prefix_blocks]
    return np.concatenate(blocks)[:rows], (size,), (rows - 1) // size * size or rows
