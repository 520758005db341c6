"""Scoring: exact answers count, everything else is listed."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from luce.demo.case import Message
from luce.demo.drawing import Pixels
from luce.demo.evaluate import Answerer, ask, evaluate, score, visible, with_data_urls
from luce.demo.tasks import SCORED, make_case
from luce.demo.tasks import test_cases as fixed_cases


def knowing(task: str, count: int, *, spoil: int | None = None) -> Answerer:
    """Knows the right completions of a task, told apart by messages; spoils one of them."""
    cases = list(fixed_cases(task, count))
    known = {repr(case.messages) + repr(case.tools): case.completion for case in cases}
    if spoil is not None:
        known[repr(cases[spoil].messages) + repr(cases[spoil].tools)] += "."

    def answer(
        messages: list[Message],
        images: Sequence[Pixels],
        max_tokens: int,
        *,
        tools: list[dict[str, Any]] | None,
        enable_thinking: bool,
    ) -> str:
        return known[repr(messages) + repr(tools)]

    return answer


def test_right_answers_reach_every_goal() -> None:
    for task in ("count", "copy", "recall", "arithmetic_think", "tool_call", "tool_answer", "json_text"):
        (result,) = evaluate(knowing(task, 20), [task], 20, concurrency=3)
        assert (result.task, result.cases, result.exact, result.reached) == (task, 20, 1.0, True)


def test_one_wrong_answer_is_listed_and_fails_a_strict_goal() -> None:
    result = score("count", fixed_cases("count", 20), knowing("count", 20, spoil=7))
    assert [failure.index for failure in result.failures] == [7]
    assert result.failures[0].got == result.failures[0].wanted + "."
    assert result.exact == 0.95
    assert not result.reached


def test_the_think_block_is_not_part_of_the_answer() -> None:
    assert visible("1 + 1\n</think>\n\n2") == "2"
    assert visible("<think>\nx\n</think>\n\n2\n") == "2"
    assert visible("2") == "2"
    case = make_case("arithmetic_think", 0, test=True)
    assert case.enable_thinking
    assert ask(case, lambda *args, **kwargs: case.completion) == case.answer


def test_pictures_travel_unchanged_and_in_order() -> None:
    case = make_case("many_value", 1, test=True)
    sent = with_data_urls(case.messages, case.pictures())
    urls = [p["image_url"]["url"] for p in sent[-1]["content"] if p["type"] == "image_url"]
    assert len(urls) == len(case.charts) >= 2
    for url, pixels in zip(urls, case.pictures(), strict=True):
        head, _, data = url.partition(",")
        assert head == "data:image/png;base64"
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))), pixels)
    assert {part["type"] for part in case.messages[-1]["content"]} == {"image", "text"}


def test_every_scored_task_has_cases() -> None:
    assert all(len(list(fixed_cases(task, 2))) == 2 for task in SCORED)
