"""Three requests: a text, two pictures in one prompt, and one that cannot be computed again. Deliveries that commute
are taken in one order (`reduction.py`); `test_system.py` checks on all its scenarios that nothing is lost by that.
"""

from __future__ import annotations

import attrs
import pytest

from luce.charts.explorer import explore
from luce.composition.defects import DEFECTS
from luce.composition.scenarios import THREE_REQUESTS
from luce.composition.system import System
from tests.model.verdict import check


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", THREE_REQUESTS)
def test_three_requests(name: str, depth: int) -> None:
    # I11 where nobody may go away: a deadlock that a cancel would resolve is one.
    system, found = check(attrs.evolve(THREE_REQUESTS[name], depth=depth))
    assert any("parked" in here.active for here in system.seen), "nobody had to give way"
    print(f"\n{name}, depth {depth}: {found.states} states, {found.edges} edges")


def test_the_reduction_hides_no_planted_defect() -> None:
    """But the one that it presumes not to be there: a loop that plans with mail under way."""
    hidden = []
    for defect, (options, message) in DEFECTS.items():
        found = explore(System(attrs.evolve(options, planted=frozenset([defect]), reduced=True)))
        if not found.faults:
            hidden.append(defect)
        else:
            assert message in found.faults[0].message
    assert hidden == ["no-turns"]
