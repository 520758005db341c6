"""Normalising messages: every shape a client may send ends in a rendering or in a named 400 (B109, B110, B12)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.errors import RequestError
from luce.text.chat_template import ChatTemplate
from luce.text.messages import normalise

URL = "data:image/png;base64,AA=="


def user(content: Any = "x") -> dict[str, Any]:
    return {"role": "user", "content": content}


def with_arguments(arguments: Any) -> list[dict[str, Any]]:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [
        user(),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "r"},
    ]


@pytest.mark.parametrize(
    ("text", "mapping"),
    [
        ('{"a": 1, "b": [true, null], "c": {"d": "é"}}', {"a": 1, "b": [True, None], "c": {"d": "é"}}),
        ("{}", {}),
        ("", {}),
        ('{"a": "\\u00e9\\ud83d\\ude00"}', {"a": "é😀"}),
        (' { "a" : 12345678901234567890 } ', {"a": 12345678901234567890}),
    ],
)
def test_arguments_as_text_and_as_object_render_alike(
    style: ChatTemplate, text: str, mapping: dict[str, Any]
) -> None:
    """B109."""
    as_text, as_object = normalise(with_arguments(text)), normalise(with_arguments(mapping))
    assert as_text.messages == as_object.messages
    assert style.render(as_text.messages) == style.render(as_object.messages)
    assert as_text.messages[1]["tool_calls"][0]["function"]["arguments"] == mapping


@pytest.mark.parametrize(
    "arguments",
    [
        "{",
        "[1]",
        "1",
        "null",
        '"x"',
        "{'a': 1}",
        '{"a": NaN}',
        '{"a": Infinity}',
        '{"a": 1e999}',
        '{"a": ' + "9" * 310 + "}",
        '{"a": -' + "9" * 5000 + "}",
        "[" * 100_000,
        5,
        [1],
        True,
    ],
)
def test_bad_arguments_are_named(arguments: Any) -> None:
    with pytest.raises(RequestError) as found:
        normalise([user(), *with_arguments(arguments)[1:]])
    assert found.value.field == "messages[1].tool_calls[0].function.arguments"
    assert found.value.status == 400 and len(found.value.message) < 300
    assert "sys." not in found.value.message


def test_surrogates_in_arguments_are_named() -> None:
    with pytest.raises(RequestError, match="lone surrogate") as found:
        normalise(with_arguments('{"a": "\\ud800"}'))
    assert found.value.field == "messages[1].tool_calls[0].function.arguments"


def test_developer_is_rendered_as_system(style: ChatTemplate) -> None:
    developer = normalise([{"role": "developer", "content": "s"}, user()])
    assert developer.messages == normalise([{"role": "system", "content": "s"}, user()]).messages
    assert style.render(developer.messages).text.startswith("<|im_start|>system\ns<|im_end|>")


SYSTEM = {"role": "system", "content": "s"}


@pytest.mark.parametrize(
    "messages",
    [
        [user(), SYSTEM, user()],
        [SYSTEM, SYSTEM, user()],
        [{"role": "developer", "content": "d"}, user()],
        [SYSTEM, {"role": "developer", "content": "d"}, user()],
        [SYSTEM],
        [],
        [{"role": "wizard", "content": "x"}],
        [user(None)],
        [user(), {"role": "assistant", "content": None}],
        [user(), {"role": "assistant"}],
        [user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])],
        [user([])],
        [{"role": "tool", "content": "r"}],
        [user(), {"role": "tool", "content": "r"}],
    ],
)
def test_order_and_roles_end_in_a_rendering_or_a_400(style: ChatTemplate, messages: list[Any]) -> None:
    """B110: never anything but a rendering or a RequestError."""
    try:
        style.render(normalise(messages).messages)
    except RequestError as error:
        assert error.status == 400 and error.field is not None and error.field.startswith("messages")


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        ("x", "messages"),
        ({"role": "user"}, "messages"),
        ([5], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": 5, "content": "x"}], "messages[0].role"),
        ([{"role": "function", "content": "x"}], "messages[0].role"),
        ([user(None)], "messages[0].content"),
        ([user(5)], "messages[0].content"),
        ([user({"type": "text"})], "messages[0].content"),
        ([user(), user([5])], "messages[1].content[0]"),
        ([user([{"type": "text"}])], "messages[0].content[0].text"),
        ([user([{"type": "text", "text": "a"}, {"type": "video"}])], "messages[0].content[1].type"),
        ([user([{"text": "a"}])], "messages[0].content[0].type"),
        ([user([{"type": "image_url"}])], "messages[0].content[0].image_url"),
        ([user([{"type": "image_url", "image_url": {}}])], "messages[0].content[0].image_url.url"),
        ([user([{"type": "image_url", "image_url": {"url": 5}}])], "messages[0].content[0].image_url.url"),
        ([user("\ud800")], "messages[0].content"),
        ([user([{"type": "text", "text": "\ud800"}])], "messages[0].content[0].text"),
        ([{**user(), "name": "\ud800"}], "messages[0].name"),
        ([{**user(), "tool_calls": [{}]}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": "x"}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [5]}], "messages[0].tool_calls[0]"),
        ([{"role": "assistant", "tool_calls": [{"type": "x"}]}], "messages[0].tool_calls[0].type"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {}}]}],
            "messages[0].tool_calls[0].function.name",
        ),
        ([{"role": "assistant", "reasoning_content": 5}], "messages[0].reasoning_content"),
        ([{"role": "assistant", "reasoning": ["x"]}], "messages[0].reasoning"),
    ],
)
def test_faults_are_named(messages: Any, field: str) -> None:
    with pytest.raises(RequestError) as found:
        normalise(messages)
    assert found.value.field == field and found.value.message.startswith(field)


def test_texts_join_and_images_keep_their_place() -> None:
    found = normalise(
        [
            user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
            user(
                [
                    {"type": "text", "text": "c"},
                    {"type": "input_text", "text": "d"},
                    {"type": "image_url", "image_url": {"url": URL, "detail": "high"}},
                    {"type": "image"},
                    {"type": "text", "text": "e"},
                ]
            ),
            {"role": "assistant", "content": None},
            user([{"type": "image_url", "image_url": URL}]),
        ]
    )
    text, image = "text", {"type": "image"}
    assert found.messages[0]["content"] == "ab"
    assert found.messages[1]["content"] == [
        {"type": text, "text": "cd"},
        image,
        image,
        {"type": text, "text": "e"},
    ]
    assert found.messages[2]["content"] == ""
    assert [(i.field, i.url, i.detail) for i in found.images] == [
        ("messages[1].content[2].image_url.url", URL, "high"),
        ("messages[1].content[3].image_url", None, None),
        ("messages[3].content[0].image_url", URL, None),
    ]


def test_reasoning_under_either_name() -> None:
    old = normalise([user(), {"role": "assistant", "content": "a", "reasoning_content": "r"}])
    new = normalise(
        [user(), {"role": "assistant", "content": "a", "reasoning": "r", "reasoning_content": None}]
    )
    assert old.messages == new.messages and old.messages[1]["reasoning_content"] == "r"


def test_normalising_twice_changes_nothing() -> None:
    messages = [SYSTEM, user([{"type": "image"}, {"type": "text", "text": "x"}]), *with_arguments('{"a": 1}')]
    once = normalise(messages).messages
    assert normalise(once).messages == once


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["role", "content", "tool_calls", "type", "text", "function", "name", "arguments", "image_url"]
)
MESSAGE = st.dictionaries(
    KEYS, JSON | st.sampled_from(["user", "system", "tool", "assistant", "image_url", "text"]), max_size=5
)


@given(st.lists(MESSAGE | JSON, max_size=4) | JSON)
def test_anything_is_normalised_or_refused(messages: Any) -> None:
    try:
        normalise(messages)
    except RequestError as error:
        assert error.field is not None and error.field.startswith("messages")
