"""Defects to plant, each with a system in which it breaks a rule, and what is said of that."""

from __future__ import annotations

from luce.composition.options import Options, Shape
from luce.composition.shapes import (
    CAPTURED_EDGE,
    CHOICE,
    CLOSED,
    FIXED_IMAGE,
    FORM,
    IMAGE,
    LATE_FORM,
    LONG,
    PASSES,
    SHORT,
    TEXT,
    TIGHT,
    TWO_CHUNKS,
    WHOLE,
)

__all__ = ["DEFECTS"]

DEFECTS = {
    "no-turns": (Options((TEXT, IMAGE), cancels=1), "no transition for event 'slot.granted'"),
    "dead-encode": (
        Options((TEXT, IMAGE), cancels=1),
        "the encoder starts a picture of request 1, which has ended",
    ),
    "early-free": (
        Options((TEXT, TEXT), cancels=1),
        "a step held rows of request 1 in slot 0, freed meanwhile",
    ),
    "block-leak": (Options((TEXT, TEXT)), "blocks are held by [0], slots in use are []"),
    "no-growth": (
        Options((Shape(3, max_tokens=2),) * 2, blocks=5, block_size=1, prefill_budget=None),
        "no block is left for slot",
    ),
    "eager-park": (
        Options((LONG, LONG), saves=9, depth=2, **TIGHT),
        "is parked while a step holds rows of it",
    ),
    "drop-images": (
        Options((LONG, FIXED_IMAGE), blocks=7, block_size=1, prefill_budget=None),
        "cannot be computed again",
    ),
    "early-adopted": (Options((TEXT, TWO_CHUNKS), hits=1), "a row is planned before its prefix is there"),
    "no-capture-wait": (
        Options((LONG, CAPTURED_EDGE), depth=2, blocks=9, block_size=64, prefill_budget=None),
        "request 1: row 63 is copied after 2 more rows",
    ),
    "stay-in-pass": (
        Options((WHOLE, WHOLE), cancels=1, prefill_budget=2, **PASSES),
        "a plan holds a row of slot 1, which nobody holds",
    ),
    "overtake-parked": (Options((LONG, LONG, SHORT), saves=9, **TIGHT), "overtakes the parked request"),
    "late-place": (Options((TEXT, CHOICE, SHORT), slots=1), "request 2 overtakes request 1"),
    "no-void": (Options((TEXT, CLOSED), depth=2), "request 1: a token is sampled without a mask"),
    "masked-ahead": (Options((TEXT, FORM), depth=2), "request 1: a second worker computes on its form"),
    "parks-masking": (Options((LONG, LATE_FORM), saves=9, **TIGHT), "no transition for event 'park.save'"),
}
