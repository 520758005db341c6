"""Explores the composed system: charts from the files, guard classes of the actors, the real `plan()`.

Every scenario is explored completely, at both depths. Checked on the way: no illegal event, no message to a
final request, no leak of slots, blocks, timers or encoder jobs (I1, I2), slot before encode and each image
once (I3), dead work never starts (I6), blocks of rows in flight stay (I7), first in first out (I8), no grant
after a drain (I15). Checked on the finished graph: no deadlock, and the end stays within reach (I5, I11).
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pytest

from luce.charts.explorer import Fault, explore, reachable
from luce.charts.interpreter import Configuration
from luce.charts.loader import chart_path, load_chart, parse_chart
from luce.composition.defects import DEFECTS
from luce.composition.options import Options
from luce.composition.scenarios import TWO_REQUESTS
from luce.composition.shapes import CHOICE, IMAGE, SHARED, SHARED_BA, SHORT, TEXT
from luce.composition.system import System
from luce.composition.world import quiet
from tests.model.verdict import check, run

# A client cannot stall before there is anything to read.
BEFORE_TOKENS = {"waiting", "encoding", "staging"}


@pytest.fixture(scope="module")
def visited() -> Iterator[dict[str, set[Configuration]]]:
    """Configurations seen, by scenario; filled in by the scenarios' tests."""
    return {}


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", TWO_REQUESTS)
def test_scenario(name: str, depth: int, visited: dict[str, set[Configuration]]) -> None:
    options = attrs.evolve(TWO_REQUESTS[name], depth=depth)
    system, found = check(options)
    if name.startswith("pressure"):
        assert any("parked" in here.active for here in system.seen), "nobody had to give way"
    visited[f"{name}, depth {depth}"] = system.seen
    # Checked both ways: deliveries that commute, in every order and in one.
    reduced, fewer = run(attrs.evolve(options, reduced=True))
    quiets = [state for state in found.numbers if quiet(state)]
    assert all(state in fewer.numbers for state in quiets)
    assert len(quiets) == sum(map(quiet, fewer.numbers))
    assert not fewer.stuck(reduced.done) and not fewer.cut_off(reduced.done)
    assert fewer.states < found.states
    print(
        f"\n{name}, depth {depth}: {found.states} states, {found.edges} edges; "
        f"{fewer.states} and {fewer.edges} with deliveries in one order"
    )


def test_every_configuration_was_visited(visited: dict[str, set[Configuration]]) -> None:
    """Runs after the scenarios."""
    if len(visited) < 2 * len(TWO_REQUESTS):
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
    for state in found.numbers:
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
