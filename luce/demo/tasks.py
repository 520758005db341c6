"""Every task of the demo model, by name, with its fixed test cases.

A case is drawn from (task, split, index) alone, so any case can be made anywhere at any time.  Training and
test draws never meet: of all cases of a task one in eight is for tests only, and so is one title pair in eight.
"""

from collections.abc import Callable, Iterator
from random import Random

import attrs

from luce.demo import chart_tasks, text_tasks, tool_tasks
from luce.demo.case import Case
from luce.demo.drawing import pick
from luce.demo.words import SYSTEM_PROMPTS

TEST_CASES = 1000

Maker = Callable[[Random, bool], Case]


def _chart_makers() -> dict[str, Maker]:
    makers: dict[str, Maker] = {}
    for name, ask in chart_tasks.QUESTIONS.items():
        makers[name] = chart_tasks.one_picture(name, ask)
    for name, ask in chart_tasks.QUESTIONS.items():
        makers[f"many_{name}"] = chart_tasks.several_pictures(f"many_{name}", ask)
    return makers


TASKS: dict[str, Maker] = {
    **_chart_makers(),
    "many_which": chart_tasks.many_which,
    "follow_up": chart_tasks.follow_up,
    "later_picture": chart_tasks.later_picture,
    "json_chart": chart_tasks.one_picture("json_chart", chart_tasks.ask_json),
    "count": text_tasks.count,
    "copy": text_tasks.copy,
    "recall": text_tasks.recall,
    "arithmetic": text_tasks.arithmetic,
    "arithmetic_think": text_tasks.arithmetic_think,
    "tool_call": tool_tasks.tool_call,
    "tool_answer": tool_tasks.tool_answer,
    "json_text": tool_tasks.json_text,
    "small_talk": text_tasks.small_talk,
}
SCORED = tuple(name for name in TASKS if name != "small_talk")
# The share of answers that must be exactly right.
STRICT = frozenset(
    list(chart_tasks.QUESTIONS)
    + [f"many_{name}" for name in chart_tasks.QUESTIONS]
    + ["many_which", "count", "copy"]
)
GOALS = {name: 0.99 if name in STRICT else 0.95 for name in SCORED}


def make_case(task: str, index: int, *, test: bool) -> Case:
    """Case number `index` of a task.  Raises KeyError for a task that does not exist."""
    rng = Random(f"{task}/{'test' if test else 'train'}/{index}")
    case = TASKS[task](rng, test)
    # Small talk has too few cases to set any apart, and is not scored.
    while task != "small_talk" and case.for_tests_only != test:
        case = TASKS[task](rng, test)
    if rng.random() < 0.12:
        system = {"role": "system", "content": pick(rng, SYSTEM_PROMPTS)}
        case = attrs.evolve(case, messages=[system, *case.messages])
    return case


def test_cases(task: str, count: int = TEST_CASES) -> Iterator[Case]:
    """The first `count` fixed test cases of a task."""
    return (make_case(task, index, test=True) for index in range(count))
