"""The invariants I1 to I15 (design-notes §3): which tests check each of them, by the means given there, and a planted
defect for each that those tests catch.

M is exploration (`test_system.py`, `test_three_requests.py`: what is checked in every state is in `system.py` and the
actors beside it, what is checked on the finished graph in `verdict.py`), S a hypothesis state machine, T virtual time,
X exhaustive enumeration.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from luce.composition.options import Options
from luce.composition.shapes import FIXED_IMAGE, IMAGE, LONG, SHORT, TEXT, TIGHT
from tests.model.test_system import altered
from tests.model.verdict import check

ROOT = Path(__file__).parents[2]

EXPLORED = "tests/model/test_system.py::test_scenario"
WALKED = "tests/model/test_random_walks.py::Walk"
SOAKED = "tests/sim/test_soak.py::test_soak"
PARKED = "tests/actors/test_parking.py"
DEFECT_HERE = "tests/model/test_invariants.py::test_the_exploration_catches_a_defect_of"
DEFECT_IN_WALK = "tests/model/test_random_walks.py::test_planted_defects_are_found"
DEFECT_IN_TIME = "tests/sim/test_planted_defects.py::test_a_planted_defect_is_noticed"


@attrs.frozen
class Invariant:
    rule: str
    tests: dict[str, tuple[str, ...]]
    """By means."""
    defects: tuple[str, ...]
    """Tests that plant one."""


INVARIANTS = {
    "I1": Invariant(
        "slots in use <= N; a final request holds no slot, block, staging cache, encoder job or timer",
        {"M": (EXPLORED,), "S": (WALKED,), "T": (SOAKED,)},
        (DEFECT_HERE, DEFECT_IN_WALK, DEFECT_IN_TIME),
    ),
    "I2": Invariant(
        "free + held + cached + saving = total; references add up",
        {"M": (EXPLORED,), "S": (WALKED, "tests/scheduling/test_block_pool_model.py::PoolAgainstModel")},
        (
            DEFECT_HERE,
            DEFECT_IN_WALK,
            "tests/scheduling/test_pool_integrity.py::test_integrity_finds_a_planted_defect",
        ),
    ),
    "I3": Invariant(
        "a slot is claimed before encode; each picture of a request is encoded at most once",
        {
            "M": (
                EXPLORED,
                "tests/model/test_system.py::test_a_drop_that_takes_a_shared_picture_along_is_found",
            ),
            "S": (WALKED, "tests/scheduling/test_image_cache.py::CacheAndModel"),
        },
        (DEFECT_HERE,),
    ),
    "I4": Invariant(
        "no park.drop of what cannot be computed again; no park at all in in_pass or importing",
        {
            "M": (EXPLORED, "tests/charts/test_shipped_charts.py::test_a_pass_is_never_parked"),
            "S": (WALKED,),
            "T": ("tests/sim/test_soak.py::test_pictures_that_cannot_be_computed_again",),
        },
        (DEFECT_HERE,),
    ),
    "I5": Invariant(
        "from every state cancel reaches a final one; exactly one terminal event per client",
        {
            "M": (
                "tests/model/test_system.py::test_cancel_ends_requests_from_everywhere",
                "tests/charts/test_shipped_charts.py::test_cancel_ends_a_request_from_everywhere",
            ),
            "S": (WALKED,),
            "T": (SOAKED,),
        },
        (DEFECT_HERE, DEFECT_IN_WALK),
    ),
    "I6": Invariant(
        "no picture of an ending request starts; rows of a running one reach no later plan",
        {"M": (EXPLORED,), "S": (WALKED,)},
        (DEFECT_HERE,),
    ),
    "I7": Invariant(
        "blocks of a row in flight are freed only after its step",
        {"M": (EXPLORED,), "S": (WALKED,)},
        (DEFECT_HERE, DEFECT_IN_TIME),
    ),
    "I8": Invariant(
        "grants in order of arrival, parked before new",
        {
            "M": (EXPLORED,),
            "S": (WALKED,),
            "T": ("tests/actors/test_clients.py::test_first_in_first_out", SOAKED),
        },
        (DEFECT_HERE, DEFECT_IN_TIME),
    ),
    "I9": Invariant(
        "between two tokens of a flowing stream lie at most a layer slice, a decode step and a turn",
        {"T": ("tests/sim/test_mixed_traffic.py::test_no_stream_pauses_longer_than_a_slice_and_a_step",)},
        ("tests/sim/test_mixed_traffic.py::test_the_trap_is_set",),
    ),
    "I10": Invariant(
        "a staged chunk takes whole picture blocks, at least the minimum, and leaves no stub",
        {
            "X": (
                "tests/scheduling/test_staged_chunks.py::test_the_rule_is_the_reference_on_every_layout",
                "tests/scheduling/test_staged_chunks.py::test_progress_whole_blocks_no_stub_and_budget",
            ),
            "S": ("tests/scheduling/test_staged_chunks.py::test_the_properties_hold_on_long_prompts",),
        },
        ("tests/scheduling/test_staged_chunks.py::test_a_wrong_rule_is_found",),
    ),
    "I11": Invariant(
        "with no client going away every state can still reach the end",
        {"M": (EXPLORED, "tests/model/test_three_requests.py::test_three_requests")},
        (DEFECT_HERE, "tests/model/test_system.py::test_a_lost_wake_up_is_found"),
    ),
    "I12": Invariant(
        "growth of what cannot be computed again is promised at admission",
        {
            "M": (EXPLORED, "tests/model/test_three_requests.py::test_three_requests"),
            "T": (f"{PARKED}::test_a_request_that_cannot_be_built_again_is_saved_but_never_dropped",),
        },
        (DEFECT_HERE,),
    ),
    "I13": Invariant(
        "mailboxes <= 2 + pictures, and what ends a request early; nothing is delivered to a final machine",
        {"M": (EXPLORED,), "S": (WALKED,), "T": (SOAKED,)},
        (DEFECT_HERE, "tests/model/test_system.py::test_not_waiting_for_dropped_is_found"),
    ),
    "I14": Invariant(
        "same trace, seed and device model: same event log; a sliced pass is the whole pass byte for byte",
        {
            "T": (
                "tests/sim/test_determinism.py::test_two_processes_give_the_same_log",
                "tests/engines/fake/test_staged.py::test_a_sliced_pass_is_the_whole_pass",
            )
        },
        (
            "tests/sim/test_determinism.py::test_a_policy_that_throws_dice_gives_another_log",
            "tests/engines/fake/test_staged.py::test_wrong_layers_would_show",
        ),
    ),
    "I15": Invariant(
        "no grant after drain; stopped is reached even with a client that never reads",
        {
            "M": (EXPLORED, "tests/charts/test_server_chart.py::test_the_end_needs_nobody"),
            "T": (
                "tests/actors/test_clients.py::test_draining_has_a_limit_and_a_second_signal_needs_no_patience",
                "tests/http/test_server_end.py::test_second_signal_ends_answers_with_an_error_and_waits_for_no_reader",
            ),
        },
        (DEFECT_HERE, "tests/charts/test_server_chart.py::test_an_end_that_waits_for_its_clients_is_found"),
    ),
}

MEANS = {
    "I1": "MS", "I2": "MS", "I3": "MS", "I4": "MS", "I5": "MS", "I6": "M", "I7": "M", "I8": "MS", "I9": "T",
    "I10": "XS", "I11": "M", "I12": "M", "I13": "MS", "I14": "T", "I15": "MT",
}  # fmt: skip
"""Those of the notes. What only a GPU can show (I14 there) is not here."""


def names_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }


def test_every_invariant_is_tested_by_the_means_of_the_notes() -> None:
    assert list(INVARIANTS) == list(MEANS) == [f"I{number}" for number in range(1, 16)]
    for name, invariant in INVARIANTS.items():
        assert set(MEANS[name]) <= set(invariant.tests), name
        assert invariant.defects, name


def test_the_tests_of_the_table_exist() -> None:
    named = {
        test
        for invariant in INVARIANTS.values()
        for test in (*invariant.defects, *(test for tests in invariant.tests.values() for test in tests))
    }
    missing = []
    for test in sorted(named):
        file, _, name = test.partition("::")
        if name not in names_in(file):
            missing.append(test)
    assert not missing
    here = {name for name, invariant in INVARIANTS.items() if DEFECT_HERE in invariant.defects}
    assert here == set(DEFECTS)


def with_chart(options: Options, name: str, old: str, new: str) -> Callable[[], Options]:
    return lambda: attrs.evolve(options, charts=altered(name, old, new))


def planted(options: Options, *defects: str) -> Callable[[], Options]:
    return lambda: attrs.evolve(options, planted=frozenset(defects))


FIXED_LONG = attrs.evolve(LONG, recomputable=False)
CANCELLED_IMAGE = Options((TEXT, IMAGE), cancels=1)

DRAIN = """<transition event="drain" target="closed">
          <send target="#_waiting" event="queue.expired"/>
        </transition>"""

DEFECTS: dict[str, tuple[Callable[[], Options], str]] = {
    "I1": (
        planted(Options((TEXT, TEXT), queue_timeouts=True), "keeps-timers"),
        "is final with .*queue.expired.* left",
    ),
    "I2": (planted(Options((TEXT, TEXT)), "block-leak"), r"blocks are held by \[0\], slots in use are \[\]"),
    "I3": (
        with_chart(
            CANCELLED_IMAGE,
            "request",
            '<send target="#_loop" event="admit"/>',
            '<send target="#_loop" event="admit"/><send target="#_encoder" event="encode"/>',
        ),
        "which holds no slot",
    ),
    "I4": (
        planted(Options((LONG, FIXED_IMAGE), blocks=7, block_size=1, prefill_budget=None), "drop-images"),
        "is dropped, and cannot be computed again",
    ),
    "I5": (planted(CANCELLED_IMAGE, "deaf-encoder"), "(?s)deadlock, after.*client 1 cancels"),
    "I6": (planted(CANCELLED_IMAGE, "dead-encode"), "starts a picture of request 1, which has ended"),
    "I7": (planted(Options((TEXT, TEXT), cancels=1), "early-free"), "freed meanwhile"),
    "I8": (
        planted(Options((LONG, LONG, SHORT), saves=9, **TIGHT), "overtake-parked"),
        "request 2 overtakes the parked request 1",
    ),
    "I11": (
        with_chart(
            Options((TEXT, IMAGE)),
            "loop",
            'event="retire rows.ready pass.wanted drain abort" target="planning_alone"',
            'event="retire pass.wanted drain abort" target="planning_alone"',
        ),
        "(?s)deadlock, after.*loop handles rows.ready",
    ),
    "I12": (
        planted(Options((FIXED_LONG, FIXED_LONG), **TIGHT), "short-promise"),
        "request 1 is given up",
    ),
    "I13": (planted(Options((TEXT, TEXT)), "echoes"), "3 messages in a mailbox"),
    "I15": (
        with_chart(
            Options((TEXT, IMAGE), slots=1, drains=1, planted=frozenset(["grants-closed"])),
            "loop",
            DRAIN,
            '<transition event="drain" target="closed"/>',
        ),
        "granted a slot after the drain",
    ),
}


@pytest.mark.parametrize("invariant", DEFECTS)
def test_the_exploration_catches_a_defect_of(invariant: str) -> None:
    options, says = DEFECTS[invariant]
    with pytest.raises(AssertionError, match=says):
        check(options())
