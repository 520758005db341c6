"""Staged passes (spec/deepseek4 §22.9): the rule against the specification's reference, and what it promises."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luce.scheduling.staged_chunks import (
    Block,
    BlockEnds,
    LegalEnds,
    atomic_image_chunk,
    check_chunk,
    choose_rows,
    staged_chunk,
)
from tests.scheduling.staged_families import (
    Sets,
    all_sets,
    count_layouts,
    count_sets,
    difference,
    expected,
    layout_of,
    layouts,
    legal_ends,
    reference,
)

BUDGETS = range(1, 41)
MINIMUMS = range(1, 9)
ROWS = 18
"""Every layout of up to so many rows in each run of the tests; of up to 40 with LUCE_TEST_EXHAUSTIVE=1."""
Chunk = Callable[[Sequence[Block], int, int, int, int], int]


# The families that the big comparison rests on


@pytest.mark.parametrize("rows", range(1, 10))
def test_every_layout_has_its_set_and_every_set_a_layout(rows: int) -> None:
    """A layout with one row more than the prefix can be cut off in every way."""
    found = all_sets(rows).tolist()
    assert len(found) == len(set(found)) == count_sets(rows)
    assert len(list(layouts(rows))) == count_layouts(rows)
    assert set(found) == {legal_ends(blocks, rows) for blocks in layouts(rows + 1)}
    assert [legal_ends(layout_of(bits, rows), rows) for bits in found] == found


@pytest.mark.parametrize("rows", range(1, 10))
def test_the_reference_on_sets_is_the_reference(rows: int) -> None:
    sets = all_sets(rows)
    for budget, min_rows in product(range(1, rows + 3), (1, 2, 3, 5, 8)):
        bits = expected(sets, rows, min(rows, max(budget, min_rows)), min_rows)
        for ends, bit in zip(sets.tolist(), bits.tolist(), strict=True):
            n = reference(layout_of(ends, rows), 0, rows, budget, min_rows)
            assert bit == (1 << n if n else 0)


def test_ends_of_every_layout() -> None:
    """``BlockEnds`` only compares, and gives the place back or an end of a block. With three blocks these are seven
    numbers; eight rows hold them in every order and with every equality among them.
    """
    for blocks in layouts(8):
        for position, rows in product(range(9), range(-9, 12)):
            place = position + rows
            around = [block for block in blocks if block[0] < place < block[1]]
            ends = BlockEnds(blocks, position)
            assert ends.at_most(rows) == (around[0][0] - position if around else rows)
            assert ends.at_least(rows) == (around[0][1] - position if around else rows)


# Equality with the reference


@pytest.mark.parametrize("rows", range(1, ROWS + 1))
def test_the_rule_is_the_reference_on_every_layout(rows: int) -> None:
    assert difference(choose_rows, all_sets(rows), rows, BUDGETS, MINIMUMS) is None


@pytest.mark.parametrize("rows", [29, 40])
def test_the_rule_is_the_reference_on_a_part_of_the_longer_ones(rows: int) -> None:
    sets = np.random.default_rng(rows).choice(all_sets(rows), 10_000, replace=False)
    assert difference(choose_rows, sets, rows, BUDGETS, MINIMUMS) is None


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(
    os.environ.get("LUCE_TEST_EXHAUSTIVE") != "1",
    reason=f"layouts of {ROWS + 1} to 40 rows take minutes; LUCE_TEST_EXHAUSTIVE=1 runs them",
)
def test_the_rule_is_the_reference_on_every_layout_of_up_to_40_rows() -> None:
    sets = 0
    for rows in range(1, 41):
        every = all_sets(rows)
        sets += len(every)
        assert difference(choose_rows, every, rows, BUDGETS, MINIMUMS) is None
    assert sets == sum(count_sets(rows) for rows in range(1, 41))
    print(f"{sum(map(count_layouts, range(1, 41))):,} layouts, {sets:,} sets of legal ends, ", end="")
    print(f"{sets * len(BUDGETS) * len(MINIMUMS):,} comparisons, no difference")


def test_calls_are_the_reference_wherever_they_start_and_end() -> None:
    """The function itself, starts and ends inside blocks included."""
    for blocks in layouts(7):
        for position in range(8):
            for remaining, budget, min_rows in product(range(9 - position), range(1, 9, 2), (1, 2, 3)):
                arguments = (blocks, position, remaining, budget, min_rows)
                assert staged_chunk(*arguments) == reference(*arguments), arguments


@pytest.mark.parametrize(("budget", "min_rows"), [(0, 5), (-3, 2), (0, 0), (-1, -7), (4, 0), (4, -2)])
def test_a_budget_or_minimum_that_is_none_counts_as_the_least(budget: int, min_rows: int) -> None:
    for blocks, remaining in product(layouts(6), range(-1, 8)):
        arguments = (blocks, 0, remaining, budget, min_rows)
        assert staged_chunk(*arguments) == reference(*arguments), arguments


@st.composite
def prompts(draw: st.DrawFn) -> tuple[list[Block], int]:
    """Blocks and a prefix as of real prompts: pictures of up to 384 tokens, runs of text that may be empty."""
    blocks: list[Block] = []
    end = 0
    for length in draw(st.lists(st.one_of(st.integers(1, 9), st.integers(1, 384)), max_size=8)):
        begin = end + draw(st.one_of(st.integers(0, 6), st.integers(0, 700)))
        end = begin + length
        blocks.append((begin, end))
    return blocks, end + draw(st.one_of(st.integers(0, 6), st.integers(0, 700)))


@given(prompts(), st.data())
@settings(max_examples=150, deadline=None)
def test_calls_are_the_reference_on_long_prompts(
    prompt: tuple[list[Block], int], data: st.DataObject
) -> None:
    blocks, prefix = prompt
    position = data.draw(st.integers(0, prefix))
    remaining = data.draw(st.one_of(st.just(prefix - position), st.integers(0, prefix - position)))
    budget = data.draw(st.one_of(st.sampled_from([1, 4, 5, 6, 256, 1024]), st.integers(1, 1500)))
    min_rows = data.draw(st.one_of(st.just(5), st.integers(1, 12)))
    arguments = (blocks, position, remaining, budget, min_rows)
    assert staged_chunk(*arguments) == reference(*arguments)


# Rules that are wrong are found


def _shrinks(ends: LegalEnds, remaining: int, budget: int, min_rows: int) -> int:
    """Leaves a full pass for the rest instead of taking the stub along."""
    first = choose_rows(ends, remaining, budget, min_rows)
    if first != remaining or ends.at_most(budget) == remaining:
        return first
    shorter = ends.at_most(max(remaining - min_rows, 1))
    return shorter if shorter >= min_rows else first


def _everything(ends: LegalEnds, remaining: int, budget: int, min_rows: int) -> int:
    return remaining if ends.at_most(remaining) == remaining and remaining >= min_rows else 0


def _leaves_stubs(ends: LegalEnds, remaining: int, budget: int, min_rows: int) -> int:
    first = ends.at_most(min(remaining, max(budget, min_rows)))
    return first if first >= min_rows else choose_rows(ends, remaining, budget, min_rows)


def _takes_stubs(ends: LegalEnds, remaining: int, budget: int, min_rows: int) -> int:
    first = ends.at_most(min(remaining, max(budget, min_rows)))
    return first if 0 < first < min_rows else choose_rows(ends, remaining, budget, min_rows)


def _one_too_careful(ends: LegalEnds, remaining: int, budget: int, min_rows: int) -> int:
    n = choose_rows(ends, remaining, budget, min_rows)
    return remaining if remaining - n == min_rows and ends.at_most(remaining) == remaining else n


def _cuts_the_end(ends: LegalEnds, remaining: int, budget: int, min_rows: int) -> int:
    return choose_rows(ends, remaining, budget, min_rows) or (remaining if remaining >= min_rows else 0)


def _shortest(ends: LegalEnds, remaining: int, budget: int, min_rows: int) -> int:
    return choose_rows(ends, remaining, 1, min_rows)


def _runs_over_the_end(ends: LegalEnds, remaining: int, budget: int, min_rows: int) -> int:
    return choose_rows(ends, remaining, budget, min_rows) or ends.at_least(
        min_rows if min_rows < remaining else 0
    )


WRONG = [
    _shrinks,
    _everything,
    _leaves_stubs,
    _takes_stubs,
    _one_too_careful,
    _cuts_the_end,
    _shortest,
    _runs_over_the_end,
]


@pytest.mark.parametrize("rule", WRONG, ids=lambda rule: rule.__name__)
def test_a_wrong_rule_is_found(rule: Callable[[LegalEnds, int, int, int], int]) -> None:
    rows = 14
    found = difference(rule, all_sets(rows), rows, BUDGETS, MINIMUMS)
    assert found is not None
    ends = BlockEnds(found.blocks, 0)
    right = reference(found.blocks, 0, rows, found.budget, found.min_rows)
    assert rule(ends, rows, found.budget, found.min_rows) != right, "it is wrong where it is said to be"


# Properties P1 to P6 of the specification


def _broken(chunk: Chunk, arguments: tuple[Sequence[Block], int, int, int, int]) -> set[str]:
    """Which of P1 to P4 the chunk breaks."""
    blocks, position, remaining, budget, min_rows = arguments
    n = chunk(*arguments)

    def inside(place: int) -> bool:
        return any(begin < place < end for begin, end in blocks)

    legal = not inside(position) and not inside(position + remaining)
    if n == 0:
        return {"P1"} if legal and remaining >= min_rows else set()
    broken = set()
    if n < min_rows:
        broken.add("P1")
    if inside(position) or inside(position + n) or not 0 < n <= remaining:
        broken.add("P2")
    if 0 < remaining - n < min_rows:
        broken.add("P3")
    cap = min(remaining, max(budget, min_rows))
    longest = max((end - begin for begin, end in blocks), default=0)
    if n > max(cap + min_rows - 1, 2 * (min_rows - 1) + longest):
        broken.add("P4")
    if n > cap:  # only if no shorter end is legal, or none that is valid lies between
        low = [m for m in range(1, cap + 1) if not inside(position + m)]
        ends = [m for m in range(cap + 1, n) if not inside(position + m)]
        if low and max(low) >= min_rows and remaining - max(low) >= min_rows:
            broken.add("P4")
        if any(m >= min_rows and remaining - m >= min_rows for m in ends):
            broken.add("P4")
    return broken


def _small_arguments(rows: int) -> Iterator[tuple[Sequence[Block], int, int, int, int]]:
    for blocks in layouts(rows):
        for position in range(rows):
            for budget, min_rows in product((1, 3, 5, 8), (1, 2, 3)):
                yield blocks, position, rows - position, budget, min_rows


def test_progress_whole_blocks_no_stub_and_budget() -> None:
    for arguments in _small_arguments(9):
        assert not _broken(staged_chunk, arguments), arguments


@given(prompts(), st.integers(1, 1500), st.integers(1, 12))
@settings(max_examples=100, deadline=None)
def test_the_properties_hold_on_long_prompts(
    prompt: tuple[list[Block], int], budget: int, min_rows: int
) -> None:
    blocks, prefix = prompt
    _walk(blocks, prefix, budget, min_rows, lambda arguments: _broken(staged_chunk, arguments))


def test_only_the_budget_tells_a_rule_that_takes_everything() -> None:
    def everything(blocks: Sequence[Block], position: int, remaining: int, budget: int, min_rows: int) -> int:
        ends = BlockEnds(blocks, position)
        return _everything(ends, remaining, budget, min_rows) if ends.at_most(0) == 0 else 0

    assert set().union(*(_broken(everything, arguments) for arguments in _small_arguments(7))) == {"P4"}


def test_every_property_can_be_broken() -> None:
    seen: set[str] = set()
    for rule in WRONG:
        seen.update(
            *(_broken(lambda b, p, *rest: rule(BlockEnds(b, p), *rest), a) for a in _small_arguments(6))  # noqa: B023
        )
    assert seen == {"P1", "P2", "P3", "P4"}


def _walk(
    blocks: Sequence[Block],
    prefix: int,
    budget: int,
    min_rows: int,
    faults: Callable[[tuple[Sequence[Block], int, int, int, int]], set[str]],
) -> list[int]:
    """Passes from 0 to the end of the prefix; it has to get there."""
    chunks: list[int] = []
    while (done := sum(chunks)) < prefix:
        n = staged_chunk(blocks, done, prefix - done, budget, min_rows)
        if n == 0 and prefix < min_rows:
            return chunks
        check_chunk(blocks, done, n, prefix - done, budget, min_rows)
        assert not faults((blocks, done, prefix - done, budget, min_rows))
        chunks.append(n)
    return chunks


def test_a_walk_never_stalls() -> None:
    """Every layout of up to two blocks, as in the specification."""
    for prefix in range(5, 22):
        for blocks in layouts(prefix, most=2):
            for budget in (5, 8, 16, 256):
                done = 0
                while done < prefix:
                    n = staged_chunk(blocks, done, prefix - done, budget)
                    assert n >= 5, f"done {done}, n {n}, budget {budget}, prefix {prefix}, layout {blocks}"
                    done += n


LENGTHS = (*range(1, 10), 40)
GAPS = range(7)


@pytest.mark.parametrize("budget", [1, 4, 5, 6, 16])
def test_blocks_of_every_size_near_the_minimum(budget: int) -> None:
    """Runs of text from none (blocks that touch, at the start, at the end) to more than the minimum."""
    for lead, first, between, second, tail in product(GAPS, LENGTHS, GAPS, LENGTHS, (0, 1, 4, 5, 6)):
        begin = lead + first + between
        blocks = [(lead, lead + first), (begin, begin + second)]
        _walk(blocks, begin + second + tail, budget, 5, lambda _: set())


@given(prompts(), st.integers(1, 300), st.integers(1, 9), st.integers(0, 5000))
@settings(max_examples=100, deadline=None)
def test_what_lies_behind_and_where_it_lies_does_not_matter(
    prompt: tuple[list[Block], int], budget: int, min_rows: int, shift: int
) -> None:
    blocks, prefix = prompt
    position = 0
    while n := staged_chunk(blocks, position, prefix - position, budget, min_rows):
        ahead = [block for block in blocks if block[1] > position]
        moved = [(begin - position + shift, end - position + shift) for begin, end in ahead]
        assert staged_chunk(ahead, position, prefix - position, budget, min_rows) == n
        assert staged_chunk(moved, shift, prefix - position, budget, min_rows) == n
        position += n


def test_the_cases_of_the_specification() -> None:
    assert staged_chunk([(2, 364)], 0, 366, 256) == 366
    assert _walk([(2, 100), (300, 400)], 500, 256, 5, lambda _: set()) == [256, 244]
    assert [staged_chunk([], 0, rows, 256) for rows in range(255, 263)] == [
        255,
        256,
        257,
        258,
        259,
        260,
        256,
        256,
    ]
    longest = max(staged_chunk([(4, 388)], 0, 388 + rest, 256) for rest in range(9))
    assert longest == 392


def test_it_stalls_where_the_precondition_is_broken() -> None:
    """The text before the block, then nothing: callers have to refuse such a prefix."""
    assert staged_chunk([(20, 40)], 0, 30, 256) == 20
    assert staged_chunk([(20, 40)], 20, 10, 256) == 0
    with pytest.raises(AssertionError, match="prefix that ends inside a block"):
        check_chunk([(20, 40)], 0, 20, 30, 256)


# Parts


def test_atomic_chunks_are_what_the_specification_says() -> None:
    for blocks in layouts(5):
        for position, proposed, remaining, capacity in product(
            range(7), range(-1, 8), range(8), range(-1, 9)
        ):
            places = range(position, position + 8)
            cut = {place for place in places if any(begin < place < end for begin, end in blocks)}
            wanted = 0
            if proposed > 0 and capacity > 0 and proposed <= remaining and position not in cut:
                limit = min(proposed, capacity)
                wanted = max((n for n in range(1, limit + 1) if position + n not in cut), default=0)
                if wanted == 0:
                    (whole,) = (
                        end - begin for begin, end in blocks if begin == position and end - begin > limit
                    )
                    wanted = whole if whole <= capacity and whole <= remaining else 0
            arguments = (blocks, position, proposed, remaining, capacity)
            assert atomic_image_chunk(*arguments) == wanted, arguments


def test_passes_are_checked_as_the_contract_says() -> None:
    """Anything that cuts nothing, leaves no stub and is no longer than the rule's own."""
    for blocks in layouts(7):
        for position, budget, min_rows in product(range(7), (1, 3, 6), (1, 2, 3)):
            remaining = 7 - position
            cut = {place for begin, end in blocks for place in range(begin + 1, end)}
            most = reference(blocks, position, remaining, budget, min_rows)
            for n in range(-1, remaining + 2):
                fine = position not in cut and position + n not in cut and min_rows <= n <= most
                fine = fine and (n == remaining or remaining - n >= min_rows)
                try:
                    check_chunk(blocks, position, n, remaining, budget, min_rows)
                except AssertionError:
                    assert not fine, (blocks, position, n, budget, min_rows)
                else:
                    assert fine, (blocks, position, n, budget, min_rows)


@pytest.mark.parametrize(
    ("blocks", "position", "n", "said"),
    [
        ([(10, 60)], 0, 12, "that ends inside a block"),
        ([(10, 60)], 12, 48, "that starts inside a block"),
        ([(10, 60)], 0, 70, "over its budget, which allows 10 rows here"),
        ([(10, 60)], 60, 4, "of too few rows"),
        ([(10, 60)], 60, 37, "that leaves a stub of 3 rows"),
        ([(10, 60)], 60, 41, "that is none of the 1 to 40 rows that remain"),
        ([(10, 60)], 60, 0, "that is none of the 1 to 40 rows that remain"),
        ([(10, 120)], 0, 10, "of a prefix that ends inside a block"),
        ([(10, 60), (59, 70)], 0, 10, "of a layout whose block [59, 70) is empty or begins before"),
        ([(10, 10)], 0, 10, "of a layout whose block [10, 10) is empty"),
    ],
)
def test_what_is_wrong_is_said_with_everything_needed_to_see_it(
    blocks: list[Block], position: int, n: int, said: str
) -> None:
    with pytest.raises(AssertionError) as found:
        check_chunk(blocks, position, n, 100 - position, 16)
    assert str(found.value).startswith(f"staged pass {said}")
    assert f"position {position}, n {n}, budget 16, prefix 100, min_rows 5, layout {blocks}" in str(
        found.value
    )


def test_the_layout_of_a_set_is_readable() -> None:
    sets: Sets = all_sets(5)
    assert layout_of(int(sets[0]), 5) == []
    assert layout_of(0b110001, 5) == [(0, 4)]
    assert layout_of(0b001011, 5) == [(1, 3), (3, 6)]
