"""Thinking: free, bounded, closed cleanly; the form begins behind it."""

from __future__ import annotations

import json
import random

import pytest

from luce.constraints.answer import AnswerConstraint
from luce.constraints.constrainer import Constrainer
from luce.constraints.wish import CallForm, ConstraintWish, TextForm, TextKind
from luce.errors import RequestError
from tests.constraints.models import constrainer, feed, ids_of, opened, text_of, written

YES = TextForm(TextKind.CHOICE, ("yes", "no"), "form")
(CLOSE,) = ids_of("</think>")


def thinking(budget: int | None = None, text: TextForm | None = None) -> AnswerConstraint:
    found = constrainer().constraint(ConstraintWish(text=text, thinking_budget=budget), thinking=True)
    assert found is not None
    return found


def forced(constraint: AnswerConstraint) -> list[int]:
    """Tokens that come because no other may, none of them after a worker's work."""
    ids: list[int] = []
    while constraint.mask is not None and len(only := _allowed(constraint)) == 1:
        ids += only
        assert not constraint.take(only[0])
    return ids


def _allowed(constraint: AnswerConstraint) -> list[int]:
    assert constraint.mask is not None
    return [
        32 * word + bit
        for word, bits in enumerate(constraint.mask.tolist())
        for bit in range(32)
        if bits >> bit & 1
    ]


@pytest.mark.parametrize("budget", [0, 1, 5, 40])
def test_a_thought_is_closed_at_its_budget(budget: int) -> None:
    constraint = thinking(budget)
    for _ in range(budget):
        assert constraint.mask is None, "free so far"
        assert not constraint.take(ids_of("a")[0])
    assert text_of(forced(constraint)) == "\n</think>\n\n"
    assert constraint.mask is None and not constraint.complete, "the answer is free"
    assert not constraint.take(CLOSE) and constraint.mask is None


def test_a_thought_that_ends_with_a_line_end_gets_no_second_one() -> None:
    constraint = thinking(2)
    feed(constraint, [*ids_of("a")[:1], *ids_of("\n")])
    assert text_of(forced(constraint)) == "</think>\n\n"


def test_a_thought_that_ends_by_itself_is_left_alone() -> None:
    constraint = thinking(50)
    assert feed(constraint, [*ids_of("ab"), CLOSE, *ids_of("\n\n")]) and constraint.mask is None
    for _ in range(100):
        assert not constraint.take(ids_of("a")[0]) and constraint.mask is None


def test_no_character_is_cut_by_the_close() -> None:
    """Three more tokens at most, for the rest of a character of four bytes; then it is closed all the same."""
    tokenizer = opened().tokenizer
    assert tokenizer is not None
    single = {
        tokenizer.token_bytes(i): i
        for i in range(tokenizer.num_token_ids)
        if len(tokenizer.token_bytes(i)) == 1
    }
    smile = [single[bytes([b])] for b in "😀".encode()]
    for cut in range(1, 5):
        constraint = thinking(10)
        ids = [*ids_of("a") * (10 - cut), *smile]
        assert feed(constraint, ids) == len(ids)
        assert forced(constraint)[1] == CLOSE, cut
    broken = thinking(10)
    ids = [*ids_of("a") * 9, *[smile[0]] * 4]
    assert feed(broken, ids) == len(ids) and forced(broken)[1] == CLOSE


@pytest.mark.parametrize("budget", [None, 6])
def test_the_form_begins_behind_the_thought(budget: int | None) -> None:
    constraint = thinking(budget, YES)
    feed(constraint, ids_of("yes no maybe")[:6])
    if budget is None:
        assert constraint.mask is None
        feed(constraint, [CLOSE])
    else:
        assert CLOSE in forced(constraint)
    for seed in range(10):
        one = constraint.fork()
        text = text_of(written(one, random.Random(seed)))
        assert one.complete and text.lstrip("\n") in ("yes", "no") and len(text) - len(text.lstrip("\n")) <= 2


def test_forks_think_on_their_own() -> None:
    one = thinking(3, YES)
    feed(one, ids_of("a")[:1])
    other = one.fork()
    feed(one, ids_of("a")[:1] * 2)
    assert one.mask is not None and other.mask is None
    feed(other, ids_of("a")[:1] * 2)
    assert forced(one) == forced(other)


def test_a_call_in_an_open_thought_begins_the_calls() -> None:
    """As the parser of answers reads it (B100)."""
    tool = {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
    }
    wish = ConstraintWish(calls=CallForm((tool,), required=True))
    constraint = constrainer().constraint(wish, thinking=True)
    assert constraint is not None and constraint.mask is None
    call = ids_of(
        "<tool_call>",
        "\n<function=f>\n<parameter=a>\n5\n</parameter>\n</function>\n",
        "</tool_call>",
        "<|im_end|>",
    )
    assert feed(constraint, [*ids_of("so "), *call]) == len(ids_of("so ")) + len(call)
    assert constraint.complete


def test_without_thinking_a_budget_says_nothing() -> None:
    assert constrainer().constraint(ConstraintWish(thinking_budget=5), thinking=False) is None
    assert constrainer().constraint(ConstraintWish(), thinking=True) is None


def test_a_model_whose_close_is_no_token_is_refused() -> None:
    model = opened()
    assert model.tokenizer is not None

    class Plain:
        def __init__(self) -> None:
            assert model.tokenizer is not None
            self.special_ids = {t: i for t, i in model.tokenizer.special_ids.items() if t != "</think>"}

        def __getattr__(self, name: str) -> object:
            return getattr(model.tokenizer, name)

    plain = Constrainer(Plain(), model.config.eos_token_ids, "")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"</think> is no single token of this model.*turn thinking off"):
        plain.constraint(ConstraintWish(text=YES), thinking=True)
    assert plain.constraint(ConstraintWish(text=YES), thinking=False) is not None
    with pytest.raises(RequestError, match="know no tool calls") as caught:
        tool = {"type": "function", "function": {"name": "f"}}
        plain.constraint(ConstraintWish(calls=CallForm((tool,), required=True)), thinking=False)
    assert caught.value.field == "tool_choice"


def test_json_behind_a_thought() -> None:
    constraint = thinking(4, TextForm(TextKind.JSON_OBJECT))
    feed(constraint, ids_of("{{{{")[:1] * 4)
    forced(constraint)
    text = text_of(
        [
            t
            for t in written(constraint, random.Random(1), most=3000, steer=0.8)
            if t not in opened().config.eos_token_ids
        ]
    )
    assert isinstance(json.loads(text), dict)
