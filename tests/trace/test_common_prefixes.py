"""What requests have in common, found while they grow, and made again of what was found."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from luce.replay.redrive.sequences import Sequences
from luce.trace.common_prefixes import CommonPrefixes, Rows
from luce.trace.schema import Alike

Pieces = list[tuple[int, list[int]]]
"""(request, what its sequence goes on with)."""
pieces = st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(-2, 1), max_size=5)), max_size=40)


def rows(order: int, elements: list[int], start: int = 0) -> Rows:
    return Rows(order, start, np.array(elements, np.int32))


def common(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@settings(max_examples=300)
@given(pieces)
def test_sequences_made_of_it_are_alike_where_those_were(given: Pieces) -> None:
    finder, made, real = CommonPrefixes(1 << 20), Sequences(), dict[int, list[int]]()
    for order, elements in given:
        before = len(real.setdefault(order, []))
        real[order] += elements
        said = finder.add(rows(order, elements, before))
        most = max((common(real[order], theirs) for who, theirs in real.items() if who != order), default=0)
        assert (said is None) == (most <= before)
        if said is not None:
            assert said.order == order and said.common == most == common(real[order], real[said.other])
            made.learn(said)
    again = {order: made.tokens(order, len(elements)).tolist() for order, elements in real.items()}
    for one, other in combinations(real, 2):
        assert common(again[one], again[other]) == common(real[one], real[other])


@settings(max_examples=100)
@given(pieces, st.integers(1, 40))
def test_what_is_forgotten_is_the_oldest(given: Pieces, room: int) -> None:
    """Of the last ``room`` elements nothing is, and never anything is said that is not so."""
    finder, real = CommonPrefixes(room), dict[int, list[int]]()
    history: list[int] = []
    for number, (_, elements) in enumerate(given):  # each a request of its own
        real[number] = elements
        said = finder.add(rows(number, elements))
        recent, held = list[int](), 0
        for order in reversed(history):
            held += len(real[order])
            if held + len(elements) > room:
                break
            recent.append(order)
        most = max((common(elements, real[order]) for order in recent), default=0)
        assert (0 if said is None else said.common) >= most
        if said is not None:
            assert common(elements, real[said.other]) == said.common
        history.append(number)


def test_who_goes_on_after_it_was_forgotten() -> None:
    finder = CommonPrefixes(4)
    assert finder.add(rows(0, [1, 2, 3])) is None
    assert finder.add(rows(1, [1, 2, 4, 5])) == Alike(1, 0, 2)
    assert finder.add(rows(2, [7, 8])) is None  # nine are more than eight: 0 is forgotten, and then 1
    assert finder.add(rows(0, [7, 8], 3)) is None  # of a sequence whose beginning is not known any more
    assert finder.add(rows(3, [1, 2, 3])) is None
    assert finder.add(rows(4, [7, 8, 1])) == Alike(4, 2, 2)
