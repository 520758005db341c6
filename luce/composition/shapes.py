"""Requests of which scenarios are made: a row of a prompt, a block and a layer each stand for many."""

from __future__ import annotations

from typing import Any

import attrs

from luce.composition.options import Shape

TEXT = Shape(prompt_rows=1)
TWO_CHUNKS = Shape(prompt_rows=2)
IMAGE = Shape(prompt_rows=1, spans=((0, 1),))
TWO_IMAGES = Shape(prompt_rows=2, spans=((0, 1), (1, 1)))
TEXT_THEN_IMAGE = Shape(prompt_rows=2, spans=((1, 1),))
TEXTS_THEN_IMAGE = Shape(prompt_rows=4, spans=((3, 1),))
SHORT = Shape(prompt_rows=1, max_tokens=1)

P, Q = b"P", b"Q"
SHARED = attrs.evolve(IMAGE, pictures=(P,), max_tokens=1)
SHARED_LATER = attrs.evolve(TEXT_THEN_IMAGE, pictures=(P,), max_tokens=1)
SHARED_TWICE = attrs.evolve(TWO_IMAGES, pictures=(P, P), max_tokens=1)
SHARED_AB = attrs.evolve(TWO_IMAGES, pictures=(P, Q), max_tokens=1)
SHARED_BA = attrs.evolve(TWO_IMAGES, pictures=(Q, P), max_tokens=1)

LONG = Shape(prompt_rows=1, max_tokens=4)
LONG_IMAGE = Shape(prompt_rows=2, spans=((1, 1),), max_tokens=3)
SHARED_LONG = attrs.evolve(LONG_IMAGE, pictures=(P,))
IMAGE_THEN_TEXT = Shape(prompt_rows=2, spans=((0, 1),), max_tokens=3)
FIXED_IMAGE = attrs.evolve(LONG_IMAGE, recomputable=False)
# Two of the long ones are let in; both need more before either has ended.
TIGHT: dict[str, Any] = {"blocks": 5, "block_size": 1}

CAPTURED = Shape(prompt_rows=3, capture_points=(2,))
CAPTURED_LONG = attrs.evolve(CAPTURED, max_tokens=3)
CAPTURED_EDGE = Shape(prompt_rows=64, capture_points=(63,), max_tokens=3)
"""Whose answer begins with rows behind which the state is another one."""
CAPTURED_IMAGE = Shape(prompt_rows=3, spans=((0, 1),), capture_points=(1,))
FIXED = Shape(prompt_rows=2, recomputable=False)
# On an engine that takes pictures whole: two layers, one a slice.
WHOLE = Shape(prompt_rows=2, spans=((0, 1),), whole=True, recomputable=False)
WHOLE_SHORT = attrs.evolve(WHOLE, max_tokens=1)
WHOLE_TWO = Shape(prompt_rows=3, spans=((0, 1), (1, 1)), max_tokens=1, whole=True, recomputable=False)
WHOLE_AGAIN = attrs.evolve(WHOLE, recomputable=True)
PASSES: dict[str, Any] = {"layers": 2}

# A further choice for the prompt of request 0.
CHOICE = attrs.evolve(SHORT, leader=0)
# Constrained: from the first token, after a free thought, or with a forced close before the form begins.
FORM = attrs.evolve(LONG, max_tokens=3, masks="rcc")
THOUGHT = attrs.evolve(LONG, masks="ffrc")
CLOSED = attrs.evolve(LONG, masks="frfc")
LATE_FORM = attrs.evolve(LONG, masks="fccf")
