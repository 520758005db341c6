"""Explores the composed system: charts from the files, guard classes of the actors, the real `plan()`.

Every scenario is explored completely, at both depths. Checked on the way: no illegal event, no message to a
final request, no leak of slots, blocks, timers or encoder jobs (I1, I2), slot before encode and each image
once (I3), dead work never starts (I6), blocks of rows in flight stay (I7), first in first out (I8), no grant
after a drain (I15). Checked on the finished graph: no deadlock, and the end stays within reach (I5, I11).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from luce.charts.explorer import Fault, explore, reachable
from luce.charts.interpreter import Configuration
from luce.charts.loader import chart_path, load_chart, parse_chart
from tests.model.options import Options, Shape
from tests.model.system import System
from tests.model.verdict import check, run
from tests.model.world import quiet

TEXT = Shape(prompt_rows=1)
TWO_CHUNKS = Shape(prompt_rows=2)
IMAGE = Shape(prompt_rows=1, spans=((0, 1),))
TWO_IMAGES = Shape(prompt_rows=2, spans=((0, 1), (1, 1)))
TEXT_THEN_IMAGE = Shape(prompt_rows=2, spans=((1, 1),))
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

SCENARIOS = {
    "nothing goes wrong": Options((TWO_CHUNKS, TWO_IMAGES)),
    "three requests, two slots": Options((SHORT, SHORT, IMAGE)),
    "the image client goes away": Options((TEXT, TWO_IMAGES), cancels=1),
    "the text client goes away": Options((IMAGE, TEXT), cancels=1),
    "text before an image, and the client goes away": Options((TEXT, TEXT_THEN_IMAGE), cancels=1),
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

# A client cannot stall before there is anything to read.
BEFORE_TOKENS = {"waiting", "encoding", "staging"}


@pytest.fixture(scope="module")
def visited() -> Iterator[dict[str, set[Configuration]]]:
    """Configurations seen, by scenario; filled in by the scenarios' tests."""
    return {}


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str, depth: int, visited: dict[str, set[Configuration]]) -> None:
    options = attrs.evolve(SCENARIOS[name], depth=depth)
    system, found = check(options)
    if name.startswith("pressure"):
        assert any("parked" in here.active for here in system.seen), "nobody had to give way"
    visited[f"{name}, depth {depth}"] = system.seen
    # Checked both ways: deliveries that commute, in every order and in one.
    reduced, fewer = run(attrs.evolve(options, reduced=True))
    assert set(filter(quiet, found.parents)) == set(filter(quiet, fewer.parents))
    assert not fewer.stuck(reduced.done) and not fewer.cut_off(reduced.done)
    assert fewer.states < found.states
    print(
        f"\n{name}, depth {depth}: {found.states} states, {found.edges} edges; "
        f"{fewer.states} and {fewer.edges} with deliveries in one order"
    )


def test_every_configuration_was_visited(visited: dict[str, set[Configuration]]) -> None:
    """Runs after the scenarios."""
    if len(visited) < 2 * len(SCENARIOS):
        pytest.skip("not all scenarios ran")
    seen = set[Configuration]().union(*visited.values())
    left_out = []
    for name in ("request", "loop", "encoder"):
        for here in reachable(load_chart(name)):
            if here in seen:
                continue
            stalled_early = "stalled" in here.active and here.active & BEFORE_TOKENS
            # An answer ends with a token, and none comes while its mask is being computed.
            finished_early = {"ending_finished", "mask_held"} <= here.active
            assert name == "request", here
            assert stalled_early or finished_early, here
            left_out.append(here)
    assert len(left_out) == 7 + 4, left_out
    print("\nleft out:", *(" ".join(here.states) for here in left_out), sep="\n  ")


@pytest.mark.parametrize("depth", [1, 2])
def test_cancel_ends_requests_from_everywhere(depth: int) -> None:
    """Not only can the end be reached: whatever the state, after the clients' cancels the actors get there
    alone.
    """
    system, found = run(Options((TEXT, IMAGE), depth=depth))
    longest = 0
    for state in found.parents:
        rest, steps = system.settle(system.cancel_all(state))
        assert system.done(rest), found.path(state)
        longest = max(longest, steps)
    print(f"\n{found.states} states, at most {longest} actions from cancel to rest")


def planted(options: Options) -> Fault:
    found = explore(System(options), limit=1_000_000)
    assert found.faults, f"not found in {found.states} states"
    return found.faults[0]


def altered(name: str, old: str, new: str) -> tuple[tuple[str, object], ...]:
    text = chart_path(name).read_text()
    assert text.count(old) == 1
    return ((name, parse_chart(text.replace(old, new).encode(), name)),)


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
        Options((LONG, CAPTURED), depth=2, blocks=9),
        "request 1: row 2 is copied after 1 more rows",
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


@pytest.mark.parametrize("defect", DEFECTS)
def test_planted_defects_are_found(defect: str) -> None:
    options, message = DEFECTS[defect]
    fault = planted(attrs.evolve(options, planted=frozenset([defect])))
    assert message in fault.message
    print(f"\n{defect}: {fault}")


def test_not_waiting_for_dropped_is_found() -> None:
    held = (
        '<state id="job_held">\n        <transition event="dropped" target="job_released"/>\n      </state>\n'
    )
    charts = altered("request", held, "")
    fault = planted(Options((TEXT, IMAGE), cancels=1, charts=charts))
    assert "no transition for event 'dropped'" in fault.message


def test_a_choice_that_nobody_tells_to_go_on_is_found() -> None:
    system = System(Options((TEXT, CHOICE), planted=frozenset(["no-lead"])))
    found = explore(system)
    assert found.complete and not found.faults
    assert found.stuck(system.done)


def test_a_lost_wake_up_is_found() -> None:
    """A loop that sleeps through rows that became ready is no broken rule in any state, but a deadlock."""
    charts = altered("loop", 'event="retire rows.ready pass.wanted', 'event="retire pass.wanted')
    system = System(Options((TEXT, IMAGE), charts=charts))
    found = explore(system)
    assert found.complete
    stuck = found.stuck(system.done)
    assert stuck
    assert found.path(stuck[0])[-1] == "loop handles rows.ready"


def test_a_request_that_joined_and_is_forgotten_is_found() -> None:
    """Rows for the first who asked alone leave the others waiting for ever."""
    system = System(Options((SHARED, SHARED), planted=frozenset(["first-only"])))
    found = explore(system)
    assert found.complete and not found.faults
    assert found.stuck(system.done)


def test_a_drop_that_takes_a_shared_picture_along_is_found() -> None:
    """The picture is nobody's in particular: whoever leaves must not take it out of the queue of the others."""
    options = Options((SHARED_BA, SHARED), cancels=1)
    for planted, lost in (frozenset[str](), False), (frozenset(["take-along"]), True):
        system = System(attrs.evolve(options, planted=planted))
        found = explore(system, limit=1_000_000)
        assert found.complete and not found.faults
        assert bool(found.cut_off(system.done)) == lost


def test_a_deadlock_is_masked_by_cancels_but_not_from_the_graph_without_them() -> None:
    """With cancels on, the same loop can always be helped: that is why progress is checked without them."""
    charts = altered("loop", 'event="retire rows.ready pass.wanted', 'event="retire pass.wanted')
    system = System(Options((SHORT, IMAGE), charts=charts, cancels=1))
    found = explore(system)
    assert found.complete
    assert not found.cut_off(system.done)
