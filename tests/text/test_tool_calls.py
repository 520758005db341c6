"""Tool calls found in text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from luce.text.argument_types import ToolSchemas
from luce.text.tool_calls import MAX_WASTED, Text, ToolCall, ToolCallFinder, _Scan
from tests.text.answers import TOOLS, cut, render, texts

Found = list[Any]


def find(pieces: str | list[str], *, ended: bool = True, declared_only: bool = False) -> Found:
    """Texts and calls in order, neighbouring texts joined; a call as (name, its arguments)."""
    finder = ToolCallFinder(ToolSchemas(TOOLS), lambda: declared_only)
    found: Found = []
    for piece in [pieces] if isinstance(pieces, str) else pieces:
        _add(found, list(finder.feed(piece)))
    _add(found, list(finder.flush(ended=ended)))
    return found


def _add(found: Found, parts: list[Text | ToolCall]) -> None:
    for part in parts:
        if isinstance(part, ToolCall):
            found.append((part.name, json.loads(part.arguments)))
        elif found and isinstance(found[-1], str):
            found[-1] += part.text
        else:
            assert part.text
            found.append(part.text)


def xml(**arguments: str) -> str:
    return render("f", arguments)


QUOTED = xml(a="x", b="2")
HERMES = '<tool_call>\n{"name": "f", "arguments": {"a": "1", "b": 2}}\n</tool_call>'

CALLS = [
    (xml(), [("f", {})]),
    (xml(a="1", b="2"), [("f", {"a": "1", "b": 2})]),
    (xml(a="1", b="two", c="3"), [("f", {"a": "1", "b": "two", "c": "3"})]),
    (render("other", {"b": "2"}), [("other", {"b": "2"})]),
    (xml(a="one\n two \n"), [("f", {"a": "one\n two \n"})]),
    (xml(a=""), [("f", {"a": ""})]),
    (xml(a='👩‍🚀 世界 \\ " é'), [("f", {"a": '👩‍🚀 世界 \\ " é'})]),
    ("<tool_call><function=f><parameter=a>x</parameter></function></tool_call>", [("f", {"a": "x"})]),
    (
        "<tool_call><function=f><parameter=a>\n\nx\n\n</parameter></function></tool_call>",
        [("f", {"a": "\nx\n"})],
    ),
    (
        "<tool_call><function=f><parameter=a>x</parameter><parameter=a>y</parameter></function></tool_call>",
        [("f", {"a": "y"})],
    ),
    (f"A\n\n{xml(a='1')}\n{xml(a='2')}\n\nB", ["A\n\n", ("f", {"a": "1"}), "\n", ("f", {"a": "2"}), "\n\nB"]),
    (HERMES, [("f", {"a": "1", "b": 2})]),
    (HERMES + xml(b="3") + HERMES, [("f", {"a": "1", "b": 2}), ("f", {"b": 3}), ("f", {"a": "1", "b": 2})]),
    ('<tool_call>{"name": "f"}</tool_call>', [("f", {})]),
    ('<tool_call>{"arguments": "{\\"a\\": 1}", "name": "f"}</tool_call>', [("f", {"a": 1})]),
    # values that look like marks
    (xml(a=QUOTED), [("f", {"a": QUOTED})]),
    (xml(a=HERMES, b="1"), [("f", {"a": HERMES, "b": 1})]),
    (xml(a="</tool_call> </function> <tool_call>"), [("f", {"a": "</tool_call> </function> <tool_call>"})]),
    (xml(a="a </parameter> b"), [("f", {"a": "a </parameter> b"})]),
    (xml(a="if a < b </p"), [("f", {"a": "if a < b </p"})]),
    (
        '<tool_call>{"name": "f", "arguments": {"a": "}</tool_call>\\"{"}}</tool_call>',
        [("f", {"a": '}</tool_call>"{'})],
    ),
    # a mark without its other half, known when the answer has ended
    (
        xml(a="the <parameter=x> mark", b="1") + xml(b="2"),
        [("f", {"a": "the <parameter=x> mark", "b": 1}), ("f", {"b": 2})],
    ),
]

BROKEN = [
    "<tool_call>",
    "</tool_call>",
    "<tool_call> is the mark",
    "<tool_call></tool_call>",
    "<tool_call>\n<function=f>",
    "<tool_call><function=></function></tool_call>",
    "<tool_call><function=f\n></function></tool_call>",
    f"<tool_call><function={'f' * 300}></function></tool_call>",
    "<tool_call><function=f> then </function></tool_call>",
    "<tool_call><function=f></function>",
    "<tool_call><function=f></function> </function></tool_call>",
    "<tool_call><function=f><parameter=a>x</function></tool_call>",
    "<tool_call><function=f><parameter=a>x</tool_call>",
    "<function=f></function>",
    '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>',
    '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
    '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
    '<tool_call>{"name": "", "arguments": {}}</tool_call>',
    '<tool_call>{"arguments": {}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": "no"}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {}} and </tool_call>',
    "<tool_call>{'name': 'f'}</tool_call>",
    '<tool_call>{"name": "f", "arguments": {}}',
    '<tool_call>{"name": "f\\',
]


@pytest.mark.parametrize(("text", "found"), CALLS)
def test_calls_whole_and_in_every_two_pieces(text: str, found: Found) -> None:
    assert find(text) == found
    assert find(list(text)) == found
    for place in range(len(text)):
        assert find([text[:place], text[place:]]) == found, place


@pytest.mark.parametrize("text", BROKEN)
@pytest.mark.parametrize("ended", [True, False])
def test_what_is_no_call_is_text_and_hides_no_later_call(text: str, ended: bool) -> None:
    assert find(text, ended=ended) == [text]
    assert find(list(text), ended=ended) == [text]
    assert find(f"a {text} b {xml(a='1')}") == [f"a {text} b ", ("f", {"a": "1"})]


@pytest.mark.parametrize("text", [QUOTED, HERMES, xml(a=QUOTED), xml(a=HERMES, b="7")])
def test_a_call_that_was_cut_off_anywhere_is_text(text: str) -> None:
    for end in range(1, len(text)):
        assert find(text[:end], ended=False) == [text[:end]], end
        assert find(QUOTED + text[:end], ended=False) == [("f", {"a": "x", "b": 2}), text[:end]], end


def test_a_call_comes_with_its_last_mark_and_text_before_it_at_once() -> None:
    finder = ToolCallFinder(ToolSchemas(TOOLS))
    assert list(finder.feed("A <")) == [Text("A ")]
    assert list(finder.feed("b")) == [Text("<b")]
    assert list(finder.feed(QUOTED[:-1])) == []
    assert list(finder.feed(">B")) == [ToolCall("f", '{"a": "x", "b": 2}'), Text("B")]


def test_declared_names_only() -> None:
    other = render("other", {"a": xml(a="1")})
    assert find(other, declared_only=True) == [
        "<tool_call>\n<function=other>\n<parameter=a>\n",
        ("f", {"a": "1"}),
        "\n</parameter>\n</function>\n</tool_call>",
    ]
    assert find(other) == [("other", {"a": xml(a="1")})]


@given(texts(), st.lists(st.integers(0)), st.booleans(), st.booleans())
@settings(max_examples=400)
@example(
    "<tool_call>\n<function=f>\n<parameter=a>\n</parameter></parameter>\n</function>\n</tool_call>",
    [40],
    True,
    False,
)
def test_pieces_do_not_matter(text: str, places: list[int], ended: bool, declared_only: bool) -> None:
    whole = find(text, ended=ended, declared_only=declared_only)
    assert find(cut(text, places), ended=ended, declared_only=declared_only) == whole


@given(texts())
def test_text_without_calls_is_unchanged(text: str) -> None:
    found = find(text)
    if all(isinstance(part, str) for part in found):
        assert "".join(found) == text


@given(st.dictionaries(st.sampled_from("acd"), st.text(), max_size=3), st.lists(st.integers(0)))
def test_any_text_as_a_value(arguments: dict[str, str], places: list[int]) -> None:
    text = "A" + render("f", arguments) + render("f", {}) + "B"
    marks = any("parameter" in value for value in arguments.values())
    assert marks or find(cut(text, places)) == ["A", ("f", arguments), ("f", {}), "B"]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n<function=f>\n<parameter=a>\n" * 4000 + "</tool_call>",
        "<tool_call>{" * 4000 + "}" * 4000 + "</tool_call>",
        "".join(render("g", {"a": "<tool_call>{"}) for _ in range(4000)),
    ],
)
def test_marks_that_begin_no_call_cost_a_bounded_time(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0
    run = _Scan.run

    def counting(scan: _Scan, held: str) -> Any:
        nonlocal read
        before = scan.place
        try:
            return run(scan, held)
        finally:
            read += scan.place - before

    monkeypatch.setattr(_Scan, "run", counting)
    assert find([text], declared_only=True) == [text]
    assert read < 4 * MAX_WASTED + 16 * len(text)
    assert find(cut(text, [1000, 100_000]), declared_only=True) == [text]


def test_few_long_failures_hide_no_later_call() -> None:
    text = render("f", {"a": "x" * 2 * MAX_WASTED}).replace("</tool_call>", " no ")
    assert find(text + QUOTED + text + QUOTED) == [text, ("f", {"a": "x", "b": 2})] * 2
