"""What is explored in tests and by `luce charts explore`, each at both depths: every state of it."""

from __future__ import annotations

import attrs

from luce.composition.options import Options, Shape
from luce.composition.shapes import (
    CAPTURED,
    CAPTURED_EDGE,
    CAPTURED_IMAGE,
    CAPTURED_LONG,
    CHOICE,
    CLOSED,
    FIXED,
    FIXED_IMAGE,
    FORM,
    IMAGE,
    IMAGE_THEN_TEXT,
    LATE_FORM,
    LONG,
    LONG_IMAGE,
    PASSES,
    SHARED,
    SHARED_AB,
    SHARED_BA,
    SHARED_LATER,
    SHARED_LONG,
    SHARED_TWICE,
    SHORT,
    TEXT,
    TEXT_THEN_IMAGE,
    TEXTS_THEN_IMAGE,
    THOUGHT,
    TIGHT,
    TWO_CHUNKS,
    TWO_IMAGES,
    WHOLE,
    WHOLE_AGAIN,
    WHOLE_SHORT,
    WHOLE_TWO,
)

__all__ = ["THREE_REQUESTS", "TWO_REQUESTS"]

TWO_REQUESTS = {
    "nothing goes wrong": Options((TWO_CHUNKS, TWO_IMAGES)),
    "three requests, two slots": Options((SHORT, SHORT, IMAGE)),
    "the image client goes away": Options((TEXT, TWO_IMAGES), cancels=1),
    "the text client goes away": Options((IMAGE, TEXT), cancels=1),
    "text before an image, and the client goes away": Options((TEXT, TEXT_THEN_IMAGE), cancels=1),
    "text waits for the image behind it, which fails": Options(
        (TEXT, TEXT_THEN_IMAGE), rows_before_picture=2, cancels=1, image_failures=1
    ),
    "what is left of a text waits for the image behind it": Options(
        (SHORT, TEXTS_THEN_IMAGE), rows_before_picture=2, prefill_budget=2, hits=1
    ),
    "pressure, text waits for the image behind it": Options(
        (LONG, LONG_IMAGE), rows_before_picture=2, cancels=1, **TIGHT
    ),
    "both clients go away": Options((SHORT, IMAGE), cancels=2),
    "a client stalls": Options((TEXT, IMAGE), stalls=1, client_timeouts=True),
    "one slot, the queue times out": Options((IMAGE, TEXT), slots=1, queue_timeouts=True),
    "blocks for one, both get their turn": Options((TEXT, TEXT), blocks=2, cancels=1),
    "a step and an image fail": Options((IMAGE, TWO_IMAGES), step_failures=1, image_failures=1),
    "drain, then abort": Options((IMAGE, TEXT), slots=1, drains=2),
    "requests come after the drain": Options((TEXT, IMAGE), drains=1, late_submits=True),
    "pressure, dropped": Options((LONG, LONG), **TIGHT),
    "pressure, saved": Options((LONG, LONG), saves=9, **TIGHT),
    "pressure, copies fail": Options((LONG, LONG), saves=9, copy_failures=2, **TIGHT),
    "pressure, both clients go away": Options((LONG, LONG), saves=9, cancels=2, **TIGHT),
    "pressure, one is dropped and goes away": Options((LONG, LONG), cancels=1, **TIGHT),
    "pressure, the newest is an image that cannot be built again": Options(
        (LONG, FIXED_IMAGE), blocks=7, block_size=1
    ),
    "pressure, an image that can be built again": Options((LONG, LONG_IMAGE), cancels=1, **TIGHT),
    "pressure, a client stalls": Options((LONG, LONG), saves=9, stalls=1, client_timeouts=True, **TIGHT),
    "pressure, a client whose request was dropped stalls": Options((LONG, LONG), stalls=1, **TIGHT),
    "pressure, then drain": Options((LONG, LONG), saves=9, drains=2, **TIGHT),
    "pressure, a step fails": Options((LONG, LONG), saves=9, step_failures=1, **TIGHT),
    "pressure, a prefix is found when an image is still on its way": Options(
        (LONG, IMAGE_THEN_TEXT), hits=1, cancels=1, image_failures=1, **TIGHT
    ),
    "a limit runs out, text before an image": Options((TEXT, TEXT_THEN_IMAGE), deadlines=1),
    "a limit runs out, one slot, the queue times out": Options(
        (SHORT, IMAGE), slots=1, deadlines=1, queue_timeouts=True
    ),
    "a limit runs out, the client stalls and goes away": Options((TEXT,), deadlines=1, stalls=1, cancels=1),
    "a limit runs out, the image and a step fail": Options(
        (IMAGE,), deadlines=1, image_failures=1, step_failures=1
    ),
    "a limit runs out, then drain": Options((IMAGE,), deadlines=1, drains=2),
    "pressure, a limit runs out": Options((LONG, LONG), saves=9, deadlines=1, copy_failures=1, **TIGHT),
    "pressure, a limit runs out for one that was dropped": Options((LONG, LONG), deadlines=1, **TIGHT),
    "two show one picture, and a limit runs out": Options((SHARED, SHARED), deadlines=1),
    "two show one picture, and both clients go away": Options((SHARED, SHARED), cancels=2),
    "two show one picture, it stays, and the first client goes away": Options(
        (SHARED, SHARED_LATER), slots=1, cancels=2, kept_images=1
    ),
    "one picture twice and once more, encoding fails": Options(
        (SHARED_TWICE, SHARED), cancels=1, image_failures=2
    ),
    "two show two pictures in opposite order": Options((SHARED_AB, SHARED_BA), image_failures=1),
    "one of two that show a picture is dropped": Options((LONG, SHARED_LONG), kept_images=1, **TIGHT),
    "two show one picture, then drain": Options((SHARED, SHARED), drains=2),
    "staged, beside text": Options((TEXT, WHOLE), **PASSES),
    "staged, two passes": Options((SHORT, WHOLE_TWO), **PASSES),
    "staged, two share a pass, and both clients go away": Options(
        (WHOLE_SHORT, WHOLE_SHORT), cancels=2, prefill_budget=2, **PASSES
    ),
    "staged, the text client goes away": Options((WHOLE, TEXT), cancels=1, **PASSES),
    "staged, steps and images fail": Options(
        (WHOLE, WHOLE_TWO), step_failures=1, image_failures=1, prefill_budget=2, **PASSES
    ),
    "staged, copies fail": Options((TEXT, WHOLE), copy_failures=1, cancels=1, **PASSES),
    "staged, a client stalls": Options((SHORT, WHOLE), stalls=1, client_timeouts=True, **PASSES),
    "staged, then drain": Options((SHORT, WHOLE), drains=2, **PASSES),
    "pressure, staged ones are never parked": Options(
        (LONG, WHOLE), saves=9, blocks=6, block_size=1, **PASSES
    ),
    "pressure, staged ones that can be built again": Options(
        (LONG, WHOLE_AGAIN), saves=2, blocks=5, block_size=1, cancels=1, **PASSES
    ),
    "pressure, a third one waits": Options((LONG, LONG, SHORT), saves=9, **TIGHT),
    "a prefix is found and captured, and the client goes away": Options(
        (SHORT, CAPTURED), hits=1, cancels=1, keeps_answers=True
    ),
    "a prefix is no good, and the client goes away": Options(
        (SHORT, TWO_CHUNKS), hits=1, copy_failures=1, cancels=1
    ),
    "a prefix of one that cannot be computed again is no good": Options(
        (SHORT, FIXED), hits=1, copy_failures=1, cancels=1
    ),
    "prefixes of two are captured, one after a picture": Options(
        (CAPTURED, CAPTURED_IMAGE), hits=1, copy_failures=1, keeps_answers=True
    ),
    "a prompt's state is captured behind its first token": Options(
        (SHORT, CAPTURED_LONG), hits=1, cancels=1, copy_failures=1, keeps_answers=True, prefill_budget=None
    ),
    "an answer begins with rows behind which a captured state is another one": Options(
        (SHORT, CAPTURED_EDGE), hits=1, cancels=1, block_size=64, keeps_answers=True, prefill_budget=None
    ),
    "two choices, both are cancelled, each alone": Options((TWO_CHUNKS, CHOICE), hits=1, cancels=2),
    "two choices, one slot, another request behind them": Options(
        (SHORT, CHOICE, SHORT), slots=1, hits=1, cancels=2
    ),
    "two choices, the queue and a limit run out": Options(
        (SHORT, CHOICE), slots=1, hits=1, queue_timeouts=True, deadlines=2
    ),
    "two choices, a step fails, a prefix is no good": Options(
        (TWO_CHUNKS, attrs.evolve(TWO_CHUNKS, leader=0)), hits=1, step_failures=1, copy_failures=1
    ),
    "two choices that show a picture, which fails": Options(
        (SHARED, attrs.evolve(SHARED, leader=0)), cancels=2, image_failures=1
    ),
    "two choices, then drain": Options((SHORT, CHOICE), hits=1, drains=2),
    "three choices, two slots": Options((TEXT, CHOICE, CHOICE), hits=1, cancels=1),
    "pressure, two choices are dropped": Options(
        (LONG, attrs.evolve(LONG, leader=0)), hits=1, cancels=2, **TIGHT
    ),
    "staged, two choices": Options(
        (WHOLE_SHORT, attrs.evolve(WHOLE_SHORT, leader=0)), hits=1, cancels=2, copy_failures=1, **PASSES
    ),
    "an answer is held to a form": Options((TEXT, FORM), cancels=1),
    "an answer is held to a form, and its mask fails": Options((TEXT, LATE_FORM), mask_failures=1),
    "two answers are held to forms after a thought": Options((FORM, THOUGHT)),
    "a thought is closed, and the client goes away": Options((TEXT, CLOSED), cancels=1),
    "an answer with a form, a step fails": Options((TEXT, LATE_FORM), step_failures=1, mask_failures=1),
    "an answer with a form, its client stalls": Options((SHORT, CLOSED), stalls=1, client_timeouts=True),
    "an answer with a form, a limit runs out": Options((FORM,), deadlines=1, stalls=1, cancels=1),
    "two choices whose answers have forms": Options(
        (LATE_FORM, attrs.evolve(LATE_FORM, leader=0)), hits=1, cancels=1, mask_failures=1
    ),
    "an answer with a form, then drain": Options((SHORT, LATE_FORM), drains=2),
    "a staged prompt, and its answer has a form": Options(
        (TEXT, attrs.evolve(WHOLE, masks="rc")), cancels=1, **PASSES
    ),
    "pressure, answers with forms are dropped": Options((LATE_FORM, CLOSED), **TIGHT),
    "pressure, answers with forms are saved": Options(
        (LATE_FORM, CLOSED), saves=9, copy_failures=1, mask_failures=1, **TIGHT
    ),
    "pressure, an answer with a form, both clients go away": Options(
        (LONG, LATE_FORM), saves=9, cancels=2, **TIGHT
    ),
    "pressure, prefixes are captured and found": Options(
        (LONG, attrs.evolve(LONG, prompt_rows=2, capture_points=(1,))),
        hits=1,
        copy_failures=1,
        saves=9,
        keeps_answers=True,
        **TIGHT,
    ),
}
"""Of two or three small requests, with deliveries in every order."""

_GROWS = Shape(prompt_rows=1, max_tokens=3)
_STAYS = Shape(prompt_rows=1, recomputable=False)
# All three hold slots, and whoever can be parked is when the text grows.
_ABREAST = Options(
    (attrs.evolve(_GROWS, max_tokens=4), attrs.evolve(TWO_IMAGES, max_tokens=3), _STAYS),
    slots=3,
    blocks=9,
    block_size=1,
    prefill_budget=None,
    reduced=True,
)
# Two slots: one waits, one is parked.
_IN_TURN = attrs.evolve(_ABREAST, shapes=(_GROWS, TWO_IMAGES, _STAYS), slots=2, blocks=5)

THREE_REQUESTS = {
    "three slots, everyone stays": _ABREAST,
    "three slots, the last client may go away": attrs.evolve(_ABREAST, cancels=1),
    "two slots, everyone stays": _IN_TURN,
    "two slots, any client may go away": attrs.evolve(_IN_TURN, cancels=3),
}
"""A text, two pictures in one prompt, and one that cannot be computed again. Deliveries that commute are taken in one
order (`reduction.py`)."""
