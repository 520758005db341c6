"""Reasoning, content and calls of one answer."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from luce.text.answer_parts import Content, Reasoning, ToolCall
from luce.text.chat_template import ChatTemplate
from luce.text.messages import normalise
from luce.text.tokenizer import Tokenizer
from tests.text.answers import cut, parse, render, texts

CALL = render("f", {"a": "x"})
PARSED = ToolCall("f", '{"a": "x"}')
QUOTE = render("name_of_a_function", {"a": "x"})


def test_the_templates_own_form() -> None:
    text = f"hm\n</think>\n\nA\n\n{CALL}\n{CALL}"
    assert parse(text, inside=True) == [Reasoning("hm"), Content("A"), PARSED, PARSED]
    assert parse(list(text), inside=True) == [Reasoning("hm"), Content("A"), PARSED, PARSED]


def test_b100_a_call_in_an_open_block() -> None:
    for text, rest in (("", []), ("\n</think>", []), ("\n</think>\n\nyes", [Content("yes")])):
        for start, inside in (("<think>\n", False), ("", True)):
            for pieces in ([f"{start}hm\n{CALL}{text}"], list(f"{start}hm\n{CALL}{text}")):
                assert parse(pieces, inside=inside) == [Reasoning("hm"), PARSED, *rest]


def test_a_thought_may_quote_the_form() -> None:
    text = f"so I write {QUOTE}, or\n<tool_call> and so on\n</think>\n\n{CALL}"
    thought = f"so I write {QUOTE}, or\n<tool_call> and so on"
    assert parse(list(text), inside=True) == [Reasoning(thought), PARSED]
    assert parse(QUOTE) == [ToolCall("name_of_a_function", '{"a": "x"}')], "in content any name may be meant"


def test_a_call_cut_off_is_where_it_stood() -> None:
    assert parse("hm " + CALL[:30], inside=True, ended=False) == [Reasoning("hm " + CALL[:30])]
    assert parse("A\n\n" + CALL[:30], ended=False) == [Content("A\n\n" + CALL[:30])]


def test_without_tools_calls_are_text() -> None:
    assert parse(f"A\n\n{CALL}\n", tools=None) == [Content(f"A\n\n{CALL}\n")]


def test_unsplit_reasoning_is_content_and_calls_are_calls() -> None:
    text = f"hm\n</think>\n\nA\n\n{CALL}\n"
    assert parse(text, inside=True, split=False) == [Content("hm\n</think>\n\nA"), PARSED]


def test_thinking_again_after_a_call() -> None:
    text = f"hm\n</think>\n\n{CALL}\n<think>\nmore\n</think>\n\nA"
    assert parse(text, inside=True) == [Reasoning("hm"), PARSED, Reasoning("\nmore"), Content("A")]


def _kinds(parts: list[Any]) -> tuple[str, str, list[ToolCall]]:
    """Parts by kind, as a message holds them."""
    return (
        "".join(part.text for part in parts if isinstance(part, Reasoning)),
        "".join(part.text for part in parts if isinstance(part, Content)),
        [part for part in parts if isinstance(part, ToolCall)],
    )


@given(texts(), st.lists(st.integers(0)), st.booleans(), st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=400)
def test_pieces_do_not_matter(
    text: str, places: list[int], inside: bool, split: bool, tools: bool, ended: bool
) -> None:
    options: dict[str, Any] = {"inside": inside, "split": split, "ended": ended}
    if not tools:
        options["tools"] = None
    whole = parse(text, **options)
    assert parse(cut(text, places), **options) == whole
    assert parse(list(text), **options) == whole
    for call in _kinds(whole)[2]:
        assert isinstance(json.loads(call.arguments), dict)


def _words(*more: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(("x", "é ", "👩‍🚀", "\n", "\n\n", " ", "<", *more)), max_size=6).map(
        "".join
    )


@given(
    _words("<think>").map(lambda text: f"r{text}".strip()),
    _words("<tool_call>").map(str.strip),
    st.lists(st.dictionaries(st.sampled_from(("a", "unknown")), _words(QUOTE), max_size=2), max_size=2),
)
def test_an_answer_given_back_renders_to_its_own_ids(
    style: ChatTemplate, small: Tokenizer, reasoning: str, content: str, calls: list[dict[str, str]]
) -> None:
    """What the template would have written, as the model writes it, comes back to the same ids in a later turn."""
    called = [{"type": "function", "function": {"name": "f", "arguments": call}} for call in calls]
    turn = {"role": "assistant", "content": content, "reasoning_content": reasoning, "tool_calls": called}
    question = {"role": "user", "content": "q"}

    def ids(answer: dict[str, Any]) -> list[int]:
        messages = normalise([question, answer]).messages
        return small.encode_rendered(style.render(messages, add_generation_prompt=False).pieces)

    prompt = small.encode_rendered(style.render(normalise([question]).messages).pieces)
    written = ids(turn)
    assert written[: len(prompt)] == prompt, "the trap: the answer goes on where the prompt ends"
    end = len(written) - 1 - written[::-1].index(small.special_ids["<|im_end|>"])
    answer = [small.decode([token]) for token in written[len(prompt) : end]]
    if "\ufffd" in "".join(answer):  # a character over several tokens
        answer = [small.decode(written[len(prompt) : end])]
    reasoned, said, found = _kinds(parse(answer, inside=True))
    back = [{"type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in found]
    assert (
        ids({"role": "assistant", "content": said, "reasoning_content": reasoned, "tool_calls": back})
        == written
    )
    assert [json.loads(call.arguments) for call in found] == calls
