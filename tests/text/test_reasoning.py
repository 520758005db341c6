"""Reasoning told from content."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from luce.text.reasoning import Content, Reasoning, ReasoningSplitter, held_back
from tests.text.answers import MARKS, PLAIN, cut, joined

TABLE = [
    # (the prompt opened the block, answer, reasoning, content)
    (True, "hm\n</think>\n\nyes", "hm", "yes"),
    (True, "hm</think>yes", "hm", "yes"),
    (True, "\n  hm \n\n</think>\n\n  yes \n", "hm", "  yes \n"),
    (True, "hm\n\nhm\n</think>\n\nyes", "hm\n\nhm", "yes"),
    (True, "hm", "hm", ""),
    (True, "hm\n", "hm", ""),
    (True, "hm </thi", "hm </thi", ""),
    (True, "", "", ""),
    (True, "\n</think>\n\nyes", "", "yes"),
    (True, "</think>", "", ""),
    (True, "hm\n</think>\n\n", "hm", ""),
    (True, "<think>\nhm\n</think>\n\nyes", "hm", "yes"),
    (True, "the <think> tag\n</think>\n\nyes", "the <think> tag", "yes"),
    (True, "hm</think></think>\n\nyes", "hm", "yes"),
    (True, "hm</think>\n\nclose it by </think> or so", "hm", "close it by </think> or so"),
    (True, "a</think>\n<think>b</think>\n\nyes", "a\nb", "yes"),
    (True, "a</think>yes<think>b</think>", "a", "yes<think>b</think>"),
    (False, "yes", "", "yes"),
    (False, "\n yes \n", "", "\n yes \n"),
    (False, "<think>\nhm\n</think>\n\nyes", "hm", "yes"),
    (False, "\n<think>hm</think>yes", "hm", "yes"),
    (False, "<think>", "", ""),
    (False, "<thi", "", "<thi"),
    (False, "<thinking>", "", "<thinking>"),
    (False, "</think>\n\nyes", "", "yes"),
    (False, "no <think>hm</think> at all", "", "no <think>hm</think> at all"),
    (False, " \n", "", " \n"),
]


def run(pieces: list[str], inside: bool, split: bool = True) -> tuple[str, str]:
    splitter = ReasoningSplitter(inside=inside, split=split)
    parts = [part for piece in pieces for part in splitter.feed(piece)] + splitter.flush()
    assert all(part.text for part in parts)
    return tuple("".join(p.text for p in parts if isinstance(p, kind)) for kind in (Reasoning, Content))  # type: ignore[return-value]


@pytest.mark.parametrize(("inside", "text", "reasoning", "content"), TABLE)
def test_table_whole_and_in_every_two_pieces(inside: bool, text: str, reasoning: str, content: str) -> None:
    assert run([text], inside) == (reasoning, content)
    assert run(list(text), inside) == (reasoning, content)
    for place in range(len(text)):
        assert run([text[:place], text[place:]], inside) == (reasoning, content), place


@given(
    st.lists(st.sampled_from((*MARKS[:2], *PLAIN)), max_size=20).map("".join),
    st.booleans(),
    st.lists(st.integers(0)),
)
def test_pieces_do_not_matter(text: str, inside: bool, places: list[int]) -> None:
    assert run(cut(text, places), inside) == run([text], inside)


@given(st.lists(st.sampled_from((*MARKS[:2], "x", "é", "<", " ", "\n"))), st.booleans())
def test_nothing_but_tags_and_space_is_lost(tokens: list[str], inside: bool) -> None:
    def bare(shown: str) -> str:
        return "".join(shown.replace("<think>", "").replace("</think>", "").split())

    reasoning, content = run(["".join(tokens)], inside)
    assert bare(reasoning + content) == bare("".join(tokens))


@given(st.lists(st.sampled_from((*MARKS[:2], *PLAIN)), max_size=12).map("".join), st.lists(st.integers(0)))
def test_unsplit_is_the_text(text: str, places: list[int]) -> None:
    assert run(cut(text, places), True, split=False) == ("", text)


def test_text_comes_at_once() -> None:
    splitter = ReasoningSplitter(inside=True)
    assert splitter.feed("hm") == [Reasoning("hm")] and splitter.thinking
    assert splitter.feed(" <") == [] and splitter.feed("b") == [Reasoning(" <b")]
    assert splitter.feed("\n</think>") == [] and not splitter.thinking
    assert splitter.feed("\n\nyes ") == [Content("yes ")], "without calls no space is held back"


def test_a_call_ends_the_block() -> None:
    splitter = ReasoningSplitter(inside=True, calls=True)
    parts = [
        *splitter.feed("hm\n\n"),
        *splitter.call(),
        *splitter.feed("\n</think>\n\nyes"),
        *splitter.flush(),
    ]
    assert joined(parts) == [Reasoning("hm"), Content("yes")]


def test_a_close_that_comes_late_after_a_call_is_dropped_once() -> None:
    splitter = ReasoningSplitter(inside=True, calls=True)
    parts = [
        *splitter.feed("hm"),
        *splitter.call(),
        *splitter.feed("so </think> and </think>"),
        *splitter.flush(),
    ]
    assert joined(parts) == [Reasoning("hm"), Content("so  and </think>")]


def test_space_around_calls_is_the_templates() -> None:
    splitter = ReasoningSplitter(inside=False, calls=True)
    parts = [
        *splitter.feed("A \n\n"),
        *splitter.call(),
        *splitter.feed("\n"),
        *splitter.call(),
        *splitter.feed("\n\nB\n"),
        *splitter.flush(),
    ]
    assert joined(parts) == [Content("A\n\nB\n")]


@given(st.sampled_from(["</think>", "<tool_call>"]), st.text("<>/_toolcathink"))
@example("</think>", "x</thin")
def test_held_back_by_definition(tag: str, text: str) -> None:
    assert held_back(text, tag) == max(n for n in range(len(tag)) if text.endswith(tag[:n]))
