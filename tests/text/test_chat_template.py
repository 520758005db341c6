"""Rendering: the documented examples, equality with jinja2, special tokens by position."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from luce.errors import ModelFileError, RequestError
from luce.text.chat_template import MAX_TEMPLATE_CHARS, ChatTemplate
from luce.text.messages import normalise
from luce.text.tokenizer import Tokenizer
from luce.weights.sources import ChatTemplateSource
from tests.text.chats import CHATS, TOOLS, assistant, call, tool, user
from tests.text.conftest import STYLE
from tests.text.oracle import jinja_render

IMAGE = {"type": "image"}


def template(text: str, tokenizer: Tokenizer, **options: Any) -> ChatTemplate:
    return ChatTemplate(ChatTemplateSource(text, Path("model/chat_template.jinja")), tokenizer, **options)


def text_of(chat: ChatTemplate, messages: list[dict[str, Any]], **options: Any) -> str:
    return chat.render(normalise(messages).messages, **options).text


START = "<|im_start|>assistant\n<think>\n"


@pytest.mark.parametrize(
    ("messages", "options", "expected"),
    [
        ([user("Hi")], {}, f"<|im_start|>user\nHi<|im_end|>\n{START}"),
        (
            [user("Hi")],
            {"enable_thinking": False},
            f"<|im_start|>user\nHi<|im_end|>\n{START}\n</think>\n\n",
        ),
        (
            [
                {"role": "system", "content": " Be brief. "},
                user([IMAGE, {"type": "text", "text": "What is this?"}]),
            ],
            {},
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>"
            f"What is this?<|im_end|>\n{START}",
        ),
        (
            [user([{"type": "text", "text": "Compare "}, IMAGE, IMAGE])],
            {"add_vision_id": True},
            "<|im_start|>user\nCompare Picture 1: <|vision_start|><|image_pad|><|vision_end|>Picture 2: "
            f"<|vision_start|><|image_pad|><|vision_end|><|im_end|>\n{START}",
        ),
        (
            [user("A"), assistant("B", reasoning_content="hmm"), user("C")],
            {},
            "<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n<|im_start|>user\nC<|im_end|>\n"
            f"{START}",
        ),
        (
            [
                user("sum"),
                assistant(
                    "",
                    reasoning_content="r",
                    tool_calls=[call("add", a=1, b=True, l=[1, "é"]), call("add", a=2)],
                ),
                tool("3"),
                tool("4"),
            ],
            {},
            "<|im_start|>user\nsum<|im_end|>\n<|im_start|>assistant\n<think>\nr\n</think>\n\n<tool_call>\n"
            "<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nTrue\n</parameter>\n<parameter=l>\n"
            '[1, "é"]\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=add>\n<parameter=a>\n2\n'
            "</parameter>\n</function>\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n3\n"
            f"</tool_response>\n<tool_response>\n4\n</tool_response><|im_end|>\n{START}",
        ),
    ],
)
def test_documented_examples(
    style: ChatTemplate, messages: list[dict[str, Any]], options: dict[str, Any], expected: str
) -> None:
    """Spec qwen35 §3."""
    assert text_of(style, messages, template_kwargs=options) == expected


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("chat", CHATS)
def test_equal_to_jinja(style: ChatTemplate, chat: str, tools: list[Any] | None) -> None:
    for options in ({}, {"enable_thinking": False}, {"add_vision_id": True}):
        expected = jinja_render(STYLE.read_text(), CHATS[chat], tools=tools, **options)
        assert text_of(style, CHATS[chat], tools=tools, template_kwargs=options) == expected


def test_without_generation_prompt(style: ChatTemplate) -> None:
    assert text_of(style, [user("Hi")], add_generation_prompt=False) == "<|im_start|>user\nHi<|im_end|>\n"


def test_ids_are_those_of_the_rendered_text(style: ChatTemplate, small: Tokenizer) -> None:
    rendered = style.render([user("Hi")])
    assert [piece for piece in rendered.pieces if isinstance(piece, str)] == [
        "user\nHi",
        "\n",
        "assistant\n",
        "\n",
    ]
    special = small.special_ids
    ids = small.encode_rendered(rendered.pieces)
    assert ids[0] == special["<|im_start|>"] and ids[-2] == special["<think>"]
    assert small.decode(ids, skip_special=False) == rendered.text


def test_refusals_of_the_template_name_its_reason(style: ChatTemplate) -> None:
    system = {"role": "system", "content": "s"}
    for messages, reason in (
        ([user("a"), system, user("b")], "A system message must come first."),
        ([system, system, user("b")], "A system message must come first."),
        ([system], "There is no question of a user."),
        ([{"role": "system", "content": [IMAGE]}, user("b")], "A system message cannot hold images."),
    ):
        with pytest.raises(RequestError) as found:
            text_of(style, messages)
        assert found.value.message == reason
        assert found.value.field == "messages" and found.value.status == 400


def test_kwargs_reach_the_template_but_not_its_own_names(small: Tokenizer) -> None:
    chat = template(
        "{{ effort ~ (flags.a if flags else '') }}|{{ eos_token }}{{ messages[0].content }}", small
    )
    assert (
        text_of(chat, [user("x")], template_kwargs={"effort": "low", "flags": {"a": 1}}) == "low1|<|im_end|>x"
    )
    for name in ("messages", "tools", "add_generation_prompt", "eos_token", "_x"):
        with pytest.raises(RequestError, match=f"chat_template_kwargs.{name}"):
            text_of(chat, [user("x")], template_kwargs={name: []})
    with pytest.raises(RequestError, match="must be JSON"):
        text_of(chat, [user("x")], template_kwargs={"effort": object()})
    with pytest.raises(RequestError, match="lone surrogate"):
        text_of(chat, [user("x")], template_kwargs={"effort": "\ud800"})


def test_kwargs_that_the_template_does_not_read_are_refused_by_name(style: ChatTemplate) -> None:
    style.render([{"role": "user", "content": "Hi"}], template_kwargs={"enable_thinking": True})
    with pytest.raises(RequestError, match=r"enable_thinkin: .* it reads .*enable_thinking") as caught:
        style.render([{"role": "user", "content": "Hi"}], template_kwargs={"enable_thinkin": True})
    assert caught.value.field == "chat_template_kwargs.enable_thinkin"
    for name in ("a`\x1b[31m\n", "x" * 5000, ""):
        with pytest.raises(RequestError, match="reads no such option") as caught:
            style.render([{"role": "user", "content": "Hi"}], template_kwargs={name: True})
        for text in (caught.value.field or "", caught.value.message):
            assert text.isprintable() and len(text) < 500


def test_null_is_as_good_as_absent(style: ChatTemplate) -> None:
    """The family thinks where nothing is said, so a null that counted as "not true" would show."""
    chat = [{"role": "user", "content": "Hi"}]
    without = style.render(chat).text
    assert without != style.render(chat, template_kwargs={"enable_thinking": False}).text
    assert style.render(chat, template_kwargs={"enable_thinking": None}).text == without
    with pytest.raises(RequestError, match="reads no such option"):
        style.render(chat, template_kwargs={"enable_thinkin": None})


@pytest.mark.parametrize("value", ["true", "off", 1, {}])
def test_thinking_is_on_or_off(style: ChatTemplate, value: Any) -> None:
    """Templates ask whether it `is true`: anything else would silently be off."""
    with pytest.raises(RequestError, match=r"chat_template_kwargs.enable_thinking must be true or false"):
        style.render([{"role": "user", "content": "Hi"}], template_kwargs={"enable_thinking": value})


def test_what_a_template_sets_itself_is_no_option_unless_it_asks_first(small: Tokenizer) -> None:
    chat = template(
        "{% if deep is not defined %}{% set deep = 1 %}{% endif %}"
        "{% for m in messages %}{% set text = m.content %}{{ text }}{% endfor %}{{ deep }}",
        small,
    )
    assert text_of(chat, [user("x")], template_kwargs={"deep": 2}) == "x2"
    for name in ("text", "m"):
        with pytest.raises(RequestError, match=r"it reads deep$"):
            text_of(chat, [user("x")], template_kwargs={name: "y"})


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        # A parameter of a macro, asked about as Qwen's templates do, and a local of a loop of the same name.
        (
            "{% macro show(content) %}{% if content is defined %}{{ content }}{% endif %}{% endmacro %}"
            "{% for m in messages %}{% set content = m.content %}{{ show(content) }}{% endfor %}{{ deep }}",
            ["deep"],
        ),
        (
            "{% if deep %}{% set x = 1 %}{% elif y %}{% set x = 2 %}{% else %}{% set x = 3 %}{% endif %}{{ x }}",
            ["deep", "y"],
        ),
        ("{% if deep %}{% set x = 1 %}{% endif %}{{ x }}", ["deep", "x"]),
        ("{% for m in messages %}{% set x = deep %}{% endfor %}{{ x }}", ["deep", "x"]),
        (
            "{% macro f(a, b=deep) %}{{ a ~ b ~ c }}{{ varargs }}{% endmacro %}{% set c = 1 %}{{ f(1) }}",
            ["deep"],
        ),
        ("{% with a = deep %}{{ a }}{% set b = 1 %}{% endwith %}{{ b }}", ["b", "deep"]),
        ("{% set a %}{{ deep }}{% set b = 1 %}{{ b }}{% endset %}{{ a }}{{ b }}", ["b", "deep"]),
        (
            "{% macro f() %}{{ caller(1) }}{% endmacro %}{% call(n) f() %}{{ n }}{{ deep }}{% endcall %}",
            ["deep"],
        ),
        ("{% set ns = namespace(n=0) %}{% set ns.n = deep %}{{ ns.n }}{{ range(2) | length }}", ["deep"]),
        (
            "{% for deep in [deep] if deep %}{{ loop.index }}{{ deep }}{% else %}{{ none_left }}{% endfor %}",
            ["deep", "none_left"],
        ),
    ],
)
def test_options_are_what_is_read_before_it_has_a_value(
    small: Tokenizer, text: str, reads: list[str]
) -> None:
    chat = template(text + "{{ messages[0].content }}", small)
    said = ", ".join(reads)
    with pytest.raises(RequestError, match=f"it reads {said}$"):
        text_of(chat, [user("x")], template_kwargs={"nothing_of_it": 1})


def test_a_refusal_that_quotes_the_conversation_stays_one_short_line(small: Tokenizer) -> None:
    chat = template(
        "{% if messages[0].content != 'Hi' %}{{ raise_exception('No: ' ~ messages[0].content) }}{% endif %}",
        small,
    )
    for text in ("x" * 5000, "a\nb", "\x1b[31m"):
        with pytest.raises(RequestError, match="No: ") as caught:
            text_of(chat, [user(text)])
        assert caught.value.message.isprintable() and len(caught.value.message) <= 200


def test_bad_tools_are_named(style: ChatTemplate) -> None:
    for tools, field in (
        ("x", "tools"),
        ([1], "tools[0]"),
        ([{"a": "\ud800"}], "tools[0]"),
        ({"a": 1}, "tools"),
    ):
        with pytest.raises(RequestError) as found:
            text_of(style, [user("x")], tools=tools)
        assert found.value.field == field
    assert text_of(style, [user("x")], tools=[]) == text_of(style, [user("x")])


def test_features_of_the_dialect(small: Tokenizer) -> None:
    """Whitespace control, loop controls, the generation tag, tojson options, dates."""
    chat = template(
        "{% for i in range(5) %}\n    {% if i == 1 %}{% continue %}{% endif %}\n"
        "    {% if i == 3 %}{% break %}{% endif %}\n{{ i }}\n{% endfor %}\n"
        "{% generation %}{{ {'é': '<a>&'} | tojson(indent=1) }}{% endgeneration %}"
        "{{ strftime_now('%d %b %Y') }}{{ {'z': 1, 'a': 'é'} | tojson(sort_keys=true, ensure_ascii=true) }}",
        small,
        clock=lambda: datetime(2026, 1, 2),
    )
    assert text_of(chat, [user("x")]) == ('0\n2\n{\n "é": "<a>&"\n}02 Jan 2026{"a": "\\u00e9", "z": 1}')


def test_every_method_works_inside_loops(small: Tokenizer) -> None:
    """Compiled calls inside loops carry further arguments; none of them may reach a method."""
    source = (
        "{% set ns = namespace(x='') %}{% macro twice(a, b='') %}{{ a ~ a ~ b }}{% endmacro %}"
        "{% for m in messages %}{% set t = m.content %}{% set u = t.replace('a', 'b') %}"
        "{% set ns.x = ns.x ~ ', '.join([t.upper(), u.split('b')[0], '{}-{x}'.format(u, x=1)]) %}"
        "{% set v = m.get('content', 'none').removeprefix('a') %}{{ twice(v, b='!') }}"
        "{% for k, w in m.items() %}{% set z = k %}{{ loop.cycle('x', 'y') ~ z ~ '%s' % w.index(w) }}{% endfor %}"
        "{% endfor %}{{ ns.x }}{% block b %}{% set q = 'a b' %}{{ q.split() | join('-') }}{% endblock %}"
    )
    messages = [user("abc"), user("xa")]
    assert text_of(template(source, small), messages) == jinja_render(source, messages)


def test_undefined_names_and_wrong_types_are_request_errors(small: Tokenizer) -> None:
    chat = template("{% if messages | length > 1 %}{{ messages[1].nope.nope + 1 }}{% endif %}", small)
    with pytest.raises(RequestError, match="cannot render this conversation: UndefinedError") as found:
        text_of(chat, [user("a"), user("b")])
    assert found.value.status == 400 and found.value.field == "messages"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{% if %}", "line 1"),
        ("{{ messages | nope }}", "No filter named 'nope'"),
        ("{% include 'x' %}", "no loader"),
        ("{{ raise_exception('never') }}", "cannot render a plain conversation: never"),
        ("{{ messages.x.y }}", "UndefinedError"),
        ("x" * (MAX_TEMPLATE_CHARS + 1), "characters"),
        ("{{a}}" * 12_000, "more than 12000 parts"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "nested too deep"),
        ("{% if a %}" * 200 + "{% endif %}" * 200, "IndentationError"),
        ("{% for i in x %}" * 30 + "{% endfor %}" * 30, "SyntaxError"),
    ],
)
def test_bad_templates_are_one_line_at_load(small: Tokenizer, text: str, reason: str) -> None:
    with pytest.raises(ModelFileError, match=reason) as found:
        template(text, small)
    assert str(found.value).startswith("model/chat_template.jinja: chat template: ")
    assert "\n" not in str(found.value) and len(str(found.value)) < 500


def test_renders_from_several_threads_do_not_meet(style: ChatTemplate) -> None:
    from concurrent.futures import ThreadPoolExecutor

    chats = [[user(f"question {i} <|im_end|>")] * (1 + i % 5) for i in range(64)]
    alone = [style.render(chat).pieces for chat in chats]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda chat: style.render(chat).pieces, chats)) == alone
