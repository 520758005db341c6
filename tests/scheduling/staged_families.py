"""The rule for staged passes on every layout at once: sets of legal ends as bits, and the policy's own code run on
whole families of them.

A rule that asks a layout only where passes may end cannot tell two layouts with the same legal ends apart. So a layout
is a uint64 whose bit n says that a pass may end after n rows, and the reference of spec/deepseek4 §22.9 is a dozen
operations on arrays of them.

The code under test is not rewritten for arrays. It runs as it is, on legal ends that belong to a whole family: at each
question the family is split by the answer, and the code runs once more for each part, until it has returned for all.
What it returned for a part then has to be the reference's result for every member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from math import comb

import attrs
import numpy as np
from numpy.typing import NDArray

from luce.scheduling.staged_chunks import Block, LegalEnds

Sets = NDArray[np.uint64]
"""Legal ends: bit n of a number says that n rows are legal. Bit 0 is set: passes start where they may."""
Rule = Callable[[LegalEnds, int, int, int], int]
"""(ends, remaining, budget, min_rows) -> rows."""

BEYOND = 63
"""Stands for an answer beyond the prefix. No set here has as many bits."""


def reference(blocks: Sequence[Block], position: int, remaining: int, budget: int, min_rows: int) -> int:
    """As the specification writes it."""

    def inside(place: int) -> bool:
        return any(begin < place < end for begin, end in blocks)

    if inside(position):
        return 0
    ends = [n for n in range(1, remaining + 1) if not inside(position + n)]
    cap = min(remaining, max(budget, min_rows))
    low = [n for n in ends if n <= cap]
    first = max(low) if low else min(ends, default=0)
    valid = [n for n in ends if n >= min_rows and (n == remaining or remaining - n >= min_rows)]
    return first if first in valid else min((n for n in valid if n > first), default=0)


def layouts(rows: int, most: int = 3) -> Iterator[tuple[Block, ...]]:
    """Every layout of up to ``most`` blocks in ``rows`` rows. Blocks may touch; the last may end with the rows."""
    for count in range(most + 1):
        for cuts in combinations(range(rows + count), 2 * count):
            yield tuple((cuts[2 * i] - i, cuts[2 * i + 1] - i) for i in range(count))


def count_layouts(rows: int, most: int = 3) -> int:
    return sum(comb(rows + count, 2 * count) for count in range(most + 1))


def legal_ends(blocks: Iterable[Block], remaining: int) -> int:
    """The set of one layout, from position 0 on."""
    bits = (1 << remaining + 1) - 1
    for begin, end in blocks:
        bits &= ~sum(1 << place for place in range(begin + 1, end))
    return bits


def layout_of(bits: int, remaining: int) -> list[Block]:
    """The shortest layout with this set; a block that goes on behind the prefix ends one row behind it."""
    blocks: list[Block] = []
    begin = 0
    for place in range(1, remaining + 2):
        if bits >> place & 1 or place > remaining:
            if place - begin > 1:
                blocks.append((begin, place))
            begin = place
    return blocks


def all_sets(remaining: int, most: int = 3) -> Sets:
    """The set of every layout of up to ``most`` blocks, cut off after ``remaining`` rows; each set once.

    Built up row by row: after ``row`` rows either a pass may end there, or a block goes on whose first row comes right
    after a legal end.
    """
    legal: list[list[Sets]] = [[np.ones(1, np.uint64)]]
    """By row and number of blocks: the sets up to a row that is legal."""
    inside: list[list[Sets]] = [[]]
    for row in range(1, remaining + 1):
        none = np.empty(0, np.uint64)
        inside.append([none])
        legal.append([])
        for count in range(most + 1):
            if count:
                inside[row].append(np.concatenate([none, *(_at(legal, r, count - 1) for r in range(row))]))
            before = np.concatenate([_at(legal, row - 1, count), _at(inside, row - 1, count)])
            legal[row].append(before | np.uint64(1 << row))
        if row > 1:  # only fewer blocks are asked for again, from rows before the last
            legal[row - 2][most:] = inside[row - 2][most:] = []
    return np.concatenate([part for parts in (legal[-1], inside[-1]) for part in parts])


def _at(parts: list[list[Sets]], row: int, count: int) -> Sets:
    return parts[row][count] if count < len(parts[row]) else np.empty(0, np.uint64)


def count_sets(remaining: int, most: int = 3) -> int:
    return sum(comb(remaining + 1, 2 * count) for count in range(most + 1))


def expected(sets: Sets, remaining: int, cap: int, min_rows: int) -> Sets:
    """The reference's result for each set, as a number with one bit; 0 for 0."""
    ends = sets & _bits(range(1, remaining + 1))
    low = ends & _bits(range(1, cap + 1))
    first = np.where(low != 0, np.uint64(1) << _highest(low), _lowest_bit(ends))
    valid = ends & _bits(
        n for n in range(1, remaining + 1) if n >= min_rows and (n == remaining or remaining - n >= min_rows)
    )
    above = valid & ~((first << np.uint64(1)) - np.uint64(1))
    return np.where(first & valid != 0, first, _lowest_bit(above))


def _bits(places: Iterable[int]) -> np.uint64:
    return np.uint64(sum(1 << place for place in places))


def _highest(sets: Sets) -> Sets:
    """Number of the highest bit, read off the exponent; of 0 it is 0."""
    exponents = sets.astype(np.float64).view(np.uint64) >> np.uint64(52)
    return np.maximum(exponents, np.uint64(1023)) - np.uint64(1023)


def _lowest_bit(sets: Sets) -> Sets:
    return sets & (~sets + np.uint64(1))


Question = tuple[str, int]


@attrs.define(eq=False)
class Family:
    """Sets that have given the same answers so far."""

    sets: Sets = attrs.field(repr=False)
    parts: dict[Question, list[tuple[int, Family]]] = attrs.field(factory=dict, repr=False)
    results: set[int] = attrs.field(factory=set)
    """What has been compared with the reference, and was right."""

    def split(self, question: Question, remaining: int) -> list[tuple[int, Family]]:
        """By the answer. Behind the prefix an answer may be any number: one close by and one far off stand for it."""
        found = self.parts.get(question)
        if found is None:
            kind, rows = question
            assert 0 <= rows <= remaining, f"asked beyond the prefix: {question}"
            if kind == "at_most":
                answers = _highest(self.sets & _bits(range(rows + 1)))
            else:
                above = self.sets & _bits(range(rows, BEYOND))
                answers = np.where(above != 0, _highest(_lowest_bit(above)), np.uint64(BEYOND))
            narrow = answers.astype(np.uint8)
            order = np.argsort(narrow, kind="stable")
            counts = np.bincount(narrow, minlength=BEYOND + 1)
            stops = np.cumsum(counts)
            ordered = self.sets[order]
            found = []
            for answer in np.flatnonzero(counts).tolist():
                part = Family(ordered[stops[answer] - counts[answer] : stops[answer]])
                meant = (answer,) if answer != BEYOND else (remaining + 1, remaining + 1000)
                found += [(one, part) for one in meant]
            self.parts[question] = found
        return found


class _NeedAnswerError(Exception):
    def __init__(self, question: Question) -> None:
        self.question = question


@attrs.define
class _Answers:
    """Legal ends that answer from a list; the first question behind it is raised."""

    answers: tuple[int, ...]
    asked: int = 0

    def at_most(self, rows: int) -> int:
        return self._answer(("at_most", rows))

    def at_least(self, rows: int) -> int:
        return self._answer(("at_least", rows))

    def _answer(self, question: Question) -> int:
        if self.asked == len(self.answers):
            raise _NeedAnswerError(question)
        self.asked += 1
        return self.answers[self.asked - 1]


@attrs.frozen
class Difference:
    """The first layout on which a rule is not the reference."""

    blocks: list[Block]
    remaining: int
    budget: int
    min_rows: int
    n: int
    """What the rule gave."""


def difference(
    rule: Rule, sets: Sets, remaining: int, budgets: Sequence[int], minimums: Sequence[int]
) -> Difference | None:
    """Run ``rule`` on every one of ``sets`` with every budget and minimum."""
    for cap in range(1, remaining + 1):
        common: dict[Question, list[tuple[int, Family]]] = {}
        for min_rows in minimums:
            alike = [budget for budget in budgets if min(remaining, max(budget, min_rows)) == cap]
            if not alike:
                continue
            whole = Family(sets)
            opening = ("at_most", cap)
            if alike and opening not in common:
                common[opening] = whole.split(opening, remaining)
            # every rule worth the name begins with this question, so its answer is shared by the minimums
            whole.parts[opening] = [(answer, Family(part.sets)) for answer, part in common[opening]]
            for budget in alike:
                for n, family in _outcomes(rule, whole, remaining, budget, min_rows):
                    if (wrong := _wrong(family, n, remaining, cap, min_rows)) is not None:
                        return Difference(layout_of(wrong, remaining), remaining, budget, min_rows, n)
    return None


def _outcomes(
    rule: Rule, whole: Family, remaining: int, budget: int, min_rows: int
) -> Iterator[tuple[int, Family]]:
    work: list[tuple[tuple[int, ...], Family]] = [((), whole)]
    while work:
        answers, family = work.pop()
        try:
            n = rule(_Answers(answers), remaining, budget, min_rows)
        except _NeedAnswerError as need:
            if need.question == ("at_most", 0):
                work.append(((*answers, 0), family))
            else:
                parts = family.split(need.question, remaining)
                work += [((*answers, answer), part) for answer, part in parts]
        else:
            yield n, family


def _wrong(family: Family, n: int, remaining: int, cap: int, min_rows: int) -> int | None:
    if n in family.results:
        return None
    right = expected(family.sets, remaining, cap, min_rows)
    told = np.uint64(1 << n if 1 <= n <= remaining else 0)
    if not 0 <= n <= remaining:
        return int(family.sets[0])
    wrong = np.flatnonzero(right != told)
    if len(wrong):
        return int(family.sets[wrong[0]])
    family.results.add(n)
    return None
