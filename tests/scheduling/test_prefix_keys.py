from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import luce.scheduling.prefix_keys as module
from luce.engines.seam import ImageSpan
from luce.scheduling.prefix_keys import Counts, PrefixKeys, prefix_namespace
from luce.vision.preprocess import Preprocessor
from luce.weights.sources import PreprocessorSource
from tests.scheduling.prompts import PAD, Part, keys, prompts, rows, text

A, B = (b"a" * 32, 6), (b"b" * 32, 6)


def disagreement(
    one: list[Part], other: list[Part], block_size: int, cls: type[PrefixKeys] = PrefixKeys
) -> tuple[int, int] | None:
    """Two positions at which the keys say equal and the content does not, or the reverse."""
    mine, theirs = keys(one, block_size, cls=cls), keys(other, block_size, cls=cls)
    content, others = rows(one), rows(other)
    for p in range(len(content) + 1):
        for q in range(len(others) + 1):
            if (mine.digest(p) == theirs.digest(q)) != (content[:p] == others[:q]):
                return p, q
    return None


@given(prompts, prompts, st.integers(1, 5))
def test_keys_are_equal_exactly_when_content_is(one: list[Part], other: list[Part], block_size: int) -> None:
    assert disagreement(one, other, block_size) is None
    assert disagreement(one, [*one, *other], block_size) is None, "a common prefix"


@given(prompts, prompts, st.integers(1, 5))
def test_common_prefix(one: list[Part], other: list[Part], block_size: int) -> None:
    for first, second in ((one, other), ([*one, *other], [*one, 1, *other])):
        content, others = rows(first), rows(second)
        common = next((i for i, (a, b) in enumerate(zip(content, others, strict=False)) if a != b), None)
        common = min(len(content), len(others)) if common is None else common
        mine, theirs = keys(first, block_size), keys(second, block_size)
        for start in range(common + 1):
            for stop in (start, common, max(len(content), len(others))):
                if stop >= start:
                    assert mine.common_prefix(theirs, start, stop) == min(common, stop)
        for position in range(min(len(content), len(others))):
            same = content[position] == others[position]
            assert (mine.element(position) == theirs.element(position)) == same


@given(prompts, st.lists(st.lists(st.integers(0, 9), max_size=7), max_size=5), st.integers(1, 5))
def test_growing_gives_the_keys_of_the_whole(
    prompt: list[Part], more: list[list[int]], block_size: int
) -> None:
    grown = keys(prompt, block_size)
    before = [grown.digest(position) for position in range(len(grown) + 1)]
    whole: list[Part] = list(prompt)
    for tokens in more:
        grown.extend(tokens)
        whole += tokens
    other = keys(whole, block_size)
    assert len(grown) == len(other) == len(rows(whole))
    assert [grown.digest(p) for p in range(len(grown) + 1)] == [
        other.digest(p) for p in range(len(other) + 1)
    ]
    assert [grown.digest(p) for p in range(len(before))] == before
    assert grown.block_digests() == [other.digest(p) for p in range(block_size, len(other) + 1, block_size)]
    assert [grown.boundary(n) for n in range(grown.num_blocks + 1)] == [
        grown.digest(0),
        *grown.block_digests(),
    ]


def test_growing_hashes_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    link = module._link
    monkeypatch.setattr(module, "_link", lambda *parts: calls.append(1) or link(*parts))
    sequence = keys(text(1000), 16)
    assert len(calls) == 62
    for token in range(40):
        sequence.extend([token])
    assert len(calls) == 62 + 3
    assert sequence.block_digests(60, 62) == sequence.block_digests()[60:62]
    assert len(calls) == 62 + 3


@given(
    st.lists(st.binary(max_size=4), min_size=3, max_size=3),
    st.lists(st.binary(max_size=4), min_size=3, max_size=3),
)
def test_namespaces_have_nothing_in_common(one: list[bytes], other: list[bytes]) -> None:
    first, second = (keys([1, 2, 3], 2, prefix_namespace(*parts)) for parts in (one, other))
    for position in range(4):
        assert (first.digest(position) == second.digest(position)) == (one == other)


def test_block_sizes_have_nothing_in_common() -> None:
    assert keys([1, 2, 3, 4], 2).digest(4) != keys([1, 2, 3, 4], 4).digest(4)


def test_the_callers_array_stays_its_own() -> None:
    ids = np.array([5, PAD, PAD, 5], np.int32)
    sequence = PrefixKeys(ids, 2, b"", [ImageSpan(1, 2, 0)], [b"x"])
    before = sequence.digest(3)
    assert ids.tolist() == [5, PAD, PAD, 5]
    ids[:] = 0
    assert sequence.digest(3) == before


# -- reported faults, as far as keys go -------------------------------------------------------------------------------


def test_b02_another_picture_is_another_prompt_from_its_first_row_on() -> None:
    """All pictures stand in the prompt as the same pad ids."""
    before, after = text(5), text(7, start=200)
    one, other = keys([*before, A, *after]), keys([*before, B, *after])
    assert [one.digest(p) == other.digest(p) for p in range(len(one) + 1)] == [True] * 6 + [False] * 13
    again = keys([*before, A, *after])
    assert [one.digest(p) == again.digest(p) for p in range(len(one) + 1)] == [True] * 19


def test_b04_a_difference_in_the_last_row_of_pixels_counts() -> None:
    options = PreprocessorSource(
        path=Path("options.json"), patch_size=4, temporal_patch_size=2, merge_size=2, min_pixels=64, max_pixels=4096,
        image_mean=(0.5, 0.5, 0.5), image_std=(0.5, 0.5, 0.5),
    )  # fmt: skip
    preprocess = Preprocessor(options)
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3)).astype(np.uint8)
    changed = pixels.copy()
    changed[-1, -1, -1] ^= 1
    images = [preprocess(one) for one in (pixels, changed, pixels)]
    assert (images[0].patches == images[2].patches).all(), "the trap: equal pictures are equal"
    one, other, again = (keys([1, (image.digest, image.num_tokens), 2]) for image in images)
    assert one.digest(1) == other.digest(1)
    assert all(one.digest(p) != other.digest(p) for p in range(2, len(one) + 1))
    assert one.digest(len(one)) == again.digest(len(one))


def test_b07_whatever_else_a_client_calls_it_a_picture_is_its_digest_and_size() -> None:
    """Two pictures of different sizes with, by any fault, one digest would still not be one prompt."""
    small, large = (b"same", 4), (b"same", 6)
    one, other = keys([1, small, 2, 3]), keys([1, large])
    assert one.digest(1) == other.digest(1)
    assert all(one.digest(p) != other.digest(p) for p in range(2, 8))


def test_b09_a_picture_more_leaves_the_common_part_as_it_was() -> None:
    first = [*text(3), A, *text(4, start=200)]
    one, both = keys(first), keys([*first, B, *text(3, start=300)])
    end_of_a, end = 3 + 6, len(one)
    assert one.digest(end_of_a) == both.digest(end_of_a)
    assert one.digest(end) == both.digest(end)
    assert one.counts(end) == both.counts(end) == Counts(13, 1)
    assert both.counts(len(both)) == Counts(22, 2)
    swapped = keys([*text(3), B, *text(4, start=200), A])
    assert swapped.digest(3) == both.digest(3) and swapped.digest(4) != both.digest(4)


@pytest.mark.parametrize("after", [0, 1, 5])
def test_b10_hits_end_between_pictures_and_leave_a_token(after: int) -> None:
    prompt = keys([*text(3), A, *text(after, start=200)])
    allowed = [position for position in range(-1, len(prompt) + 2) if prompt.may_end_hit(position)]
    assert allowed == [1, 2, 3, *range(9, 9 + after)]


@pytest.mark.parametrize("length", [1, 16, 31, 32, 33, 48])
def test_b53_whole_blocks_are_nothing_special(length: int) -> None:
    prompt = keys(text(length), 16)
    assert [p for p in range(length + 1) if prompt.may_end_hit(p)] == list(range(1, length))
    assert prompt.num_blocks == length // 16


def test_a_pad_that_is_no_picture_is_a_token() -> None:
    assert keys([1, PAD, 2]).digest(2) != keys([1, (b"x", 1), 2]).digest(2)
    grown = keys([1, (b"x", 2)])
    grown.extend([PAD, PAD])
    assert grown.digest(5) == keys([1, (b"x", 2), PAD, PAD]).digest(5)
    assert not grown.splits_image(4) and grown.counts(5) == Counts(5, 1)


def test_positions_around_pictures() -> None:
    prompt = keys([1, 2, (b"x", 3), (b"y", 2), 3])
    assert [prompt.splits_image(p) for p in range(9)] == [False] * 3 + [True] * 2 + [
        False,
        True,
        False,
        False,
    ]
    assert [prompt.before_image(p) for p in range(9)] == [0, 1, 2, 2, 2, 5, 5, 7, 8]
    assert [prompt.counts(p).images for p in range(9)] == [0] * 5 + [1] * 2 + [2] * 2
    assert list(prompt.image_ends) == [5, 7]
    assert all(a != b for a, b in pairwise(prompt.element(p) for p in range(8)))


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "spans", "digests", "message"),
    [
        ([1, -1], [], [], "token id -1 is negative"),
        ([[1, 2]], [], [], "shape"),
        ([1, 2, 3], [ImageSpan(0, 2, 0), ImageSpan(1, 2, 0)], [b"x"], "do not overlap"),
        ([1, 2, 3], [ImageSpan(2, 2, 0)], [b"x"], "of 3 tokens"),
        ([1, 2, 3], [ImageSpan(-1, 2, 0)], [b"x"], "in order"),
        ([1, 2, 3], [ImageSpan(0, 0, 0)], [b"x"], "not empty"),
        ([1, 2, 3], [ImageSpan(0, 1, 1)], [b"x"], "no digest among 1"),
        ([1, 2, 3], [ImageSpan(0, 1, 0)], [b""], "no digest"),
    ],
)
def test_what_cannot_be_a_prompt(
    ids: list[int], spans: Sequence[ImageSpan], digests: Sequence[bytes], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        PrefixKeys(np.array(ids, np.int32), 4, b"", spans, digests)


def test_a_block_has_a_token_and_an_id_is_not_negative() -> None:
    with pytest.raises(ValueError, match="block"):
        keys([1], 0)
    sequence = keys([1, 2, 3])
    with pytest.raises(ValueError, match="-4"):
        sequence.extend([5, -4])
    assert len(sequence) == 3
    sequence.extend([])
    assert sequence.digest(3) == keys([1, 2, 3]).digest(3)


# -- planted defects --------------------------------------------------------------------------------------------------


class PadsOnly(PrefixKeys):
    """B02: pictures are their pads."""

    def __init__(self, ids, block_size, namespace, spans, digests) -> None:  # type: ignore[no-untyped-def]
        super().__init__(ids, block_size, namespace)


class CutDigest(PrefixKeys):
    """B04: only the beginning of what names a picture is looked at."""

    def __init__(self, ids, block_size, namespace, spans, digests) -> None:  # type: ignore[no-untyped-def]
        super().__init__(ids, block_size, namespace, spans, [digest[:16] for digest in digests])


class OneForAll(PrefixKeys):
    """B09: one digest for all pictures of a prompt."""

    def __init__(self, ids, block_size, namespace, spans, digests) -> None:  # type: ignore[no-untyped-def]
        super().__init__(ids, block_size, namespace, spans, [b"".join(digests) or b"-"] * len(digests))


@pytest.mark.parametrize(
    ("cls", "other"),
    [(PadsOnly, [1, B]), (CutDigest, [1, (b"a" * 31 + b"b", 6)]), (OneForAll, [1, A, 2, B])],
)
def test_planted_defects_are_found(cls: type[PrefixKeys], other: list[Part]) -> None:
    assert disagreement([1, A, 2], other, 4) is None
    assert disagreement([1, A, 2], other, 4, cls) is not None
