"""block.scxml alone: every configuration, event and guard answer, against the rules of the pool."""

from __future__ import annotations

import pytest

from luce.charts.explorer import reachable
from luce.charts.interpreter import Configuration, outcomes
from luce.charts.loader import load_chart

BLOCK = load_chart("block")
FOUND = {here.states[-1]: here for here in reachable(BLOCK)}

LEADS = {
    ("free", "alloc"): {"held_open"},
    ("held_open", "fill"): {"held_hashed"},
    ("held_open", "release"): {"free"},
    ("held_open", "save"): {"saving"},
    ("held_hashed", "share"): {"held_hashed"},
    ("held_hashed", "save"): {"held_hashed"},
    ("held_hashed", "release"): {"held_hashed", "free", "cached"},
    ("held_hashed", "saved"): {"held_hashed", "free", "cached"},
    ("cached", "share"): {"held_hashed"},
    ("cached", "evict"): {"free"},
    ("saving", "saved"): {"free"},
}
"""Everything that is legal, and where it leads over all guard answers."""


def leads(here: Configuration, event: str) -> set[str]:
    return {outcome.then.states[-1] for _, outcome in outcomes(here, event) if outcome.then is not None}


def test_it_has_five_configurations_and_nothing_else_is_legal() -> None:
    assert set(FOUND) == {"free", "held_open", "held_hashed", "cached", "saving"}
    assert BLOCK.guards == {"shared", "duplicate"}
    legal = {
        (name, event): to
        for name, here in FOUND.items()
        for event in BLOCK.events
        if (to := leads(here, event))
    }
    assert legal == LEADS


@pytest.mark.parametrize("event", ["release", "saved"])
def test_what_remains_of_a_hashed_block(event: str) -> None:
    """Shared goes before duplicate: a block that somebody still reads is never freed."""
    ways = {}
    for known, outcome in outcomes(FOUND["held_hashed"], event):
        assert outcome.then is not None
        ways[known["shared"], known.get("duplicate")] = outcome.then.states[-1]
    assert ways == {(True, None): "held_hashed", (False, True): "free", (False, False): "cached"}


def test_a_block_that_is_written_is_never_shared_or_kept() -> None:
    open_or_saving = {
        event for name in ("held_open", "saving") for event in BLOCK.events if leads(FOUND[name], event)
    }
    assert "share" not in open_or_saving
    assert "cached" not in {
        to for name in ("held_open", "saving") for e in BLOCK.events for to in leads(FOUND[name], e)
    }


def test_every_block_can_become_free_again() -> None:
    can = {"free"}
    while more := {n for n, here in FOUND.items() if any(leads(here, e) & can for e in BLOCK.events)} - can:
        can |= more
    assert can == set(FOUND)
