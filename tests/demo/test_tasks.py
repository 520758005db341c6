"""Tasks: fixed, answerable from what is shown, and apart from training."""

from __future__ import annotations

import hashlib
import json
import re
from random import Random

import attrs
import pytest

from luce.demo.case import Case
from luce.demo.tasks import GOALS, SCORED, STRICT, TASKS, make_case
from luce.demo.tasks import test_cases as fixed_cases
from luce.demo.text_tasks import worked


def facts(case: Case) -> bytes:
    text = json.dumps([case.messages, case.answer, case.reasoning, case.tools])
    return text.encode() + b"".join(picture.tobytes() for picture in case.pictures())


def test_the_test_cases_are_fixed() -> None:
    """A change here means that the accuracies of the model card have to be measured again."""
    digest = hashlib.sha256()
    for task in SCORED:
        for case in fixed_cases(task, 10):
            digest.update(facts(case))
    assert digest.hexdigest()[:16] == "9b064de39de268a3"


@pytest.mark.parametrize("task", TASKS)
def test_a_case_depends_on_its_number_alone(task: str) -> None:
    once = [facts(make_case(task, index, test=True)) for index in range(5)]
    again = [facts(make_case(task, index, test=True)) for index in reversed(range(5))]
    assert once == again[::-1]
    if task != "small_talk":
        assert len(set(once)) == 5


@pytest.mark.parametrize("task", TASKS)
def test_one_picture_for_each_image_part(task: str) -> None:
    for index in range(20):
        case = make_case(task, index, test=True)
        assert case.task == task
        parts = [p for m in case.messages if isinstance(m["content"], list) for p in m["content"]]
        assert sum(part["type"] == "image" for part in parts) == len(case.pictures()) == len(case.charts)
        assert case.max_tokens > len(case.completion)


@pytest.mark.parametrize("task", SCORED)
def test_no_test_case_is_a_training_case(task: str) -> None:
    """Not even in another wording; the rule is what keeps them apart, and it keeps about one in eight."""
    assert all(case.for_tests_only for case in fixed_cases(task, 100))
    assert not any(make_case(task, index, test=False).for_tests_only for index in range(300))
    drawn = [TASKS[task](Random(index), False).for_tests_only for index in range(400)]
    assert 15 < sum(drawn) < 110


def test_another_wording_does_not_make_another_case() -> None:
    case = make_case("count", 0, test=True)
    again = attrs.evolve(case, messages=[{"role": "user", "content": "Another wording."}])
    assert again.for_tests_only == case.for_tests_only
    others = [attrs.evolve(case, answer=str(number)).for_tests_only for number in range(64)]
    assert True in others and False in others


def question(case: Case) -> str:
    content = case.messages[-1]["content"]
    return content if isinstance(content, str) else next(p["text"] for p in content if p["type"] == "text")


@pytest.mark.parametrize("task", ["arithmetic", "arithmetic_think"])
def test_sums_are_right_and_held_out(task: str) -> None:
    def asked(test: bool, count: int) -> dict[str, str]:
        cases = [make_case(task, index, test=test) for index in range(count)]
        return {"".join(re.findall(r"\d+ [+-] \d+", question(c))): c.answer for c in cases}

    tested, trained = asked(True, 300), asked(False, 3000)
    assert not tested.keys() & trained.keys(), "a sum was trained in another wording"
    for terms, answer in tested.items():
        a, sign, b = terms.split()
        assert int(answer) == (int(a) + int(b) if sign == "+" else int(a) - int(b)) >= 0


@pytest.mark.parametrize(
    ("a", "sign", "b"), [(999, "+", 1), (347, "+", 285), (1000, "-", 1), (52, "-", 7), (0, "+", 0)]
)
def test_the_working_writes_the_digits_of_the_result(a: int, sign: str, b: int) -> None:
    digits = re.findall(r"write (\d)", worked(a, b, sign))
    assert int("".join(reversed(digits))) == (a + b if sign == "+" else a - b)


def test_counting_and_recall_answers() -> None:
    for case in fixed_cases("count", 50):
        first, last = map(int, re.findall(r"\d+", question(case)))
        assert case.answer == ", ".join(map(str, range(first, last + 1)))
    for case in fixed_cases("recall", 50):
        text = " ".join(m["content"] for m in case.messages)
        (key,) = re.findall(r"code of the (\w+ \w+)\?|code does the (\w+ \w+) have\?", question(case))
        assert f"The code of the {''.join(key)} is {case.answer}." in text


def test_goals_name_every_scored_task() -> None:
    assert set(GOALS) == set(SCORED) == set(TASKS) - {"small_talk"}
    assert {name for name, goal in GOALS.items() if goal == 0.99} == STRICT
