"""Three requests: a text, two pictures in one prompt, and one that cannot be computed again. Deliveries that commute
are taken in one order (`reduction.py`); `test_system.py` checks on all its scenarios that nothing is lost by that.
"""

from __future__ import annotations

import attrs
import pytest

from luce.charts.explorer import explore
from tests.model.options import Options, Shape
from tests.model.system import System
from tests.model.test_system import DEFECTS, TWO_IMAGES
from tests.model.verdict import check

TEXT = Shape(prompt_rows=1, max_tokens=3)
FIXED = Shape(prompt_rows=1, recomputable=False)
# All three hold slots, and whoever can be parked is when the text grows.
ABREAST = Options(
    (attrs.evolve(TEXT, max_tokens=4), attrs.evolve(TWO_IMAGES, max_tokens=3), FIXED),
    slots=3,
    blocks=9,
    block_size=1,
    prefill_budget=None,
    reduced=True,
)
# Two slots: one waits, one is parked.
IN_TURN = attrs.evolve(ABREAST, shapes=(TEXT, TWO_IMAGES, FIXED), slots=2, blocks=5)

SCENARIOS = {
    "three slots, everyone stays": ABREAST,
    "three slots, the last client may go away": attrs.evolve(ABREAST, cancels=1),
    "two slots, everyone stays": IN_TURN,
    "two slots, any client may go away": attrs.evolve(IN_TURN, cancels=3),
}


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", SCENARIOS)
def test_three_requests(name: str, depth: int) -> None:
    # I11 where nobody may go away: a deadlock that a cancel would resolve is one.
    system, found = check(attrs.evolve(SCENARIOS[name], depth=depth))
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
