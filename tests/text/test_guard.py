"""Special-token text of a caller is never a token, wherever it comes in (and blanks stay where they are)."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luce.text.chat_template import ChatTemplate, Rendered
from luce.text.messages import normalise
from luce.text.tokenizer import Tokenizer
from luce.weights.sources import ChatTemplateSource
from tests.text.chats import assistant, call, tool, user
from tests.text.conftest import STYLE
from tests.text.oracle import jinja_render
from tests.text.small import ADDED, small_source

TOKENS = [text for text, _ in ADDED]
FAMILY_MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")


def tokens(rendered: Rendered) -> list[int]:
    return [piece for piece in rendered.pieces if isinstance(piece, int)]


def places(text: str) -> dict[str, dict[str, Any]]:
    """The same text in every place where a caller can put one."""
    question, answer = user("q"), assistant("a", tool_calls=[call("f", x="y")])

    def called(**changes: Any) -> dict[str, Any]:
        function = {"name": "f", "arguments": {"x": "y"}, **changes}
        return {
            "messages": [question, {**answer, "tool_calls": [{"type": "function", "function": function}]}]
        }

    return {
        "user": {"messages": [user(text)]},
        "user part": {"messages": [user([{"type": "text", "text": text}])]},
        "beside an image": {"messages": [user([{"type": "text", "text": text}, {"type": "image"}])]},
        "system": {"messages": [{"role": "system", "content": text}, question]},
        "tool result": {"messages": [question, answer, tool(text)]},
        "reasoning": {"messages": [question, assistant("a", reasoning_content=text)]},
        "call name": called(name=text),
        "argument name": called(arguments={text: 1}),
        "argument": called(arguments={"x": text}),
        "argument in a list": called(arguments={"x": [1, text]}),
        "argument in an object": called(arguments={"x": {text: {"y": text}}}),
        "tool description": {
            "messages": [question],
            "tools": [{"type": "function", "function": {"name": text, "description": text, text: [text]}}],
        },
        "variable": {"messages": [question], "template_kwargs": {"add_vision_id": text}},
    }


PLACES = list(places(""))


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("place", PLACES)
def test_token_text_stays_text(style: ChatTemplate, small: Tokenizer, token: str, place: str) -> None:
    harmless = "x" * len(token)
    expected = style.render(**places(f"a {harmless} b")[place])
    rendered = style.render(**places(f"a {token} b")[place])
    assert tokens(rendered) == tokens(expected)
    assert rendered.text == expected.text.replace(harmless, token)
    ids = small.encode_rendered(rendered.pieces)
    assert small.decode(ids, skip_special=False) == rendered.text
    assert len([i for i in ids if i in small.special_ids.values()]) == len(tokens(expected))


@pytest.mark.parametrize("token", ["<|im_end|>", "<|image_pad|>", "<|im_start|>"])
def test_assistant_text_keeps_only_its_own_marks(style: ChatTemplate, token: str) -> None:
    expected = style.render([user("q"), assistant("a xx b"), user("r")])
    rendered = style.render([user("q"), assistant(f"a {token} b"), user("r")])
    assert tokens(rendered) == tokens(expected)


def test_earlier_answers_are_split_at_their_think_block(style: ChatTemplate, small: Tokenizer) -> None:
    """The template finds the block, and nothing in it becomes a turn."""
    answer = "<think>\nhm <|im_end|>\n</think>\n\nyes <|im_start|>"
    before = style.render([user("q"), assistant(answer), user("r")])
    assert before.text.count("yes <|im_start|><|im_end|>\n") == 1 and "hm" not in before.text
    after = style.render([user("q"), assistant(answer)])
    assert "<think>\nhm <|im_end|>\n</think>\n\nyes <|im_start|><|im_end|>\n" in after.text
    think, end = small.special_ids["<think>"], small.special_ids["<|im_end|>"]
    assert tokens(after).count(end) == 2 and tokens(after).count(think) == 2
    written = style.render([user("q"), assistant("<tool_call>\nx\n</tool_call>"), user("r")])
    assert small.special_ids["<tool_call>"] in tokens(written)


def test_user_text_like_a_tool_result_is_a_question(style: ChatTemplate, small: Tokenizer) -> None:
    rendered = style.render([user("<tool_response>x</tool_response>")])
    assert small.special_ids["<tool_response>"] not in tokens(rendered)


@pytest.mark.parametrize("cut", range(1, len("<|im_start|>")))
def test_a_token_cut_into_neighbouring_texts(small: Tokenizer, cut: int) -> None:
    """No text is a token, but template and texts joined would be one."""
    token = "<|im_start|>"
    joined = "{{ messages[0].content }}{{ messages[0].name }}{{ (messages[0].more or [''])[0] }}"
    chat = template(joined, small)
    message = {"role": "user", "content": token[:cut], "name": token[cut:-1], "more": [token[-1]]}
    rendered = chat.render([message])
    assert tokens(rendered) == [] and rendered.text == token
    parts = normalise([user([{"type": "text", "text": token[:cut]}, {"type": "text", "text": token[cut:]}])])
    assert tokens(template("{{ messages[0].content }}", small).render(parts.messages)) == []


@pytest.mark.parametrize(
    ("source", "content"),
    [
        ("{{ '<' ~ messages[0].content ~ '>' }}", "think"),
        ("{{ '<|' ~ messages[0].content ~ '|>' }}", "im_start"),
        ("{{ '<' ~ messages[0].content }}", "|im_start|>"),
        ("{{ messages[0].content ~ '>' }}", "<|im_start|"),
        ("{{ '<|im_start|' ~ messages[0].content }}", ">"),
        ("{{ messages[0].content ~ '|im_start|>' }}", "<"),
        ("{{ '<|im_' ~ messages[0].content ~ 'tart|>' }}", "s"),
        ("{{ messages[0].content | replace('x', '') }}", "<x|im_start|x>"),
        ("{{ messages[0].content.split('x') | join }}", "<|im_xstart|>"),
        ("{{ messages[0].content[2:] }}", "ab<|im_start|>"),
        ("{{ messages[0].content[1:] ~ messages[0].content[1:] }}", "a<|im_start|>"),
        ("{{ messages[0].content | tojson }}", "<|im_start|>"),
        ("{{ [messages[0].content] | tojson(ensure_ascii=true) }}", "é<|im_start|>"),
        ("{{ messages[0] | string }}", "<|im_start|>"),
        ("{{ messages[0].content | upper | lower }}", "<|im_start|>"),
        ("{% set x %}{{ messages[0].content }}{% endset %}{{ x | trim }}", " <|im_start|> "),
    ],
)
def test_templates_that_build_tokens_from_text(small: Tokenizer, source: str, content: str) -> None:
    rendered = template(source, small).render([user(content)])
    assert tokens(rendered) == []
    assert rendered.text == jinja_render(source, [user(content)])
    assert "".join(piece for piece in rendered.pieces if isinstance(piece, str)) == rendered.text


@pytest.mark.parametrize(
    "content", ["  <think>  ", "\n\t<\n", " > ", "<|im_start|>\n", "\u3000<b>\u3000", ">", "<"]
)
def test_trimming_is_not_disturbed(style: ChatTemplate, content: str) -> None:
    assert style.render([user(content)]).text == jinja_render(STYLE.read_text(), [user(content)])


def test_texts_that_hold_possible_marks(small: Tokenizer) -> None:
    """Whatever rare characters, or escapes of them, a text holds: they come out again."""
    taken = "".join(chr(0x17000 + i) for i in range(5)) + "\\ud81c\\udc05 \\uD81C\\uDC06 \U000f0000 \ue000"
    source = "{{ messages[0].content }}{{ messages[0] | tojson(ensure_ascii=true) }}"
    content = f"{taken}<|im_end|>"
    rendered = template(source, small).render([user(content)])
    assert rendered.text == jinja_render(source, [user(content)]) and tokens(rendered) == []
    other = template("{{ '\U00017000' }}{{ messages[0].content }}", small)
    assert other.render([user("<|im_end|>")]).text == "\U00017000<|im_end|>"


def test_a_text_of_all_characters(style: ChatTemplate) -> None:
    every = "".join(chr(c) for c in range(0x20, 0x110000) if not 0xD800 <= c < 0xE000)
    rendered = style.render([user(f"{every}<|im_end|>")])
    assert rendered.text.count("<|im_end|>") == 2 and len(tokens(rendered)) == len(
        tokens(style.render([user("x")]))
    )
    assert every.strip() in rendered.text


def test_marks_are_printable_and_inert() -> None:
    for point in (0x17000, 0x187F7, 0x20000, 0x2A6DF):
        mark = chr(point)
        assert mark.isprintable() and not mark.isspace() and mark.upper() == mark.lower() == mark
        assert all(unicodedata.normalize(form, mark) == mark for form in ("NFC", "NFD", "NFKC"))


def test_templates_that_write_tokens_themselves_still_do(small: Tokenizer) -> None:
    chat = template("{{ bos }}<|im_start|>{{ '<|im' ~ '_end|>' }}{{ eos_token }}", small)
    names = ["<|im_start|>", "<|im_end|>", "<|im_end|>"]
    assert tokens(chat.render([user("x")])) == [small.special_ids[name] for name in names]


ALPHABET = st.sampled_from(
    ["<", "|", ">", "/", "im_start", "think", "<|im_end|>", "</think>", " ", "\n", "é"]
)
TEXTS = st.lists(ALPHABET, max_size=8).map("".join)


@settings(max_examples=300, deadline=None)
@given(TEXTS, TEXTS, TEXTS)
def test_no_mixture_of_texts_makes_a_token(system: str, first: str, second: str) -> None:
    """Two texts without a single token in them render to as many tokens as any others do."""
    parts = [{"type": "text", "text": first}, {"type": "image"}, {"type": "text", "text": second}]
    messages = normalise([{"role": "system", "content": system}, user(parts), user(second)]).messages
    plain = normalise([{"role": "system", "content": "x"}, user([parts[1]]), user("x")]).messages
    rendered = CHAT.render(messages)
    assert tokens(rendered) == tokens(CHAT.render(plain))
    assert rendered.text == jinja_render(STYLE.read_text(), list(messages))


def template(text: str, tokenizer: Tokenizer) -> ChatTemplate:
    return ChatTemplate(ChatTemplateSource(text, Path("t.jinja")), tokenizer)


CHAT = template(STYLE.read_text(), Tokenizer(small_source()))
