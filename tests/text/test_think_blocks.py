"""Which text lies in think blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.text.reasoning import Content, Reasoning, ReasoningSplitter
from luce.text.think_blocks import ThinkBlocks
from tests.text.answers import MARKS, PLAIN, cut


def run(pieces: list[str], inside: bool) -> list[tuple[str, bool]]:
    """Neighbours of one kind joined."""
    blocks = ThinkBlocks(inside=inside)
    found: list[tuple[str, bool]] = []
    for text, thought in [part for piece in pieces for part in blocks.split(piece)] + blocks.flush():
        assert text
        if found and found[-1][1] == thought:
            found[-1] = (found[-1][0] + text, thought)
        else:
            found.append((text, thought))
    return found


@pytest.mark.parametrize(
    ("inside", "text", "thought", "answer"),
    [
        (True, "hm</think>yes", "hm</think>", "yes"),
        (True, "hm </thi", "hm </thi", ""),
        (
            True,
            "hm</think></think>\n<think>a</think>yes <think>",
            "hm</think></think>\n<think>a</think>",
            "yes <think>",
        ),
        (False, "yes", "", "yes"),
        (False, "\n<think>hm</think>\n\nyes", "\n<think>hm</think>", "\n\nyes"),
        (False, " <thi", "", " <thi"),
        (False, "<thinking>", "", "<thinking>"),
        (False, "\n", "", "\n"),
    ],
)
def test_table_in_any_pieces(inside: bool, text: str, thought: str, answer: str) -> None:
    expected = [part for part in ((thought, True), (answer, False)) if part[0]]
    assert run([text], inside) == run(list(text), inside) == expected


TEXTS = st.lists(st.sampled_from((*MARKS[:2], *PLAIN)), max_size=16).map("".join)


@given(TEXTS, st.booleans(), st.lists(st.integers(0)))
def test_the_blocks_are_those_of_the_splitter(text: str, inside: bool, places: list[int]) -> None:
    found = run(cut(text, places), inside)
    assert "".join(piece for piece, _ in found) == text
    splitter = ReasoningSplitter(inside=inside)
    parts = [*splitter.feed(text), *splitter.flush()]

    def bare(shown: str) -> str:
        return "".join(shown.replace("<think>", "").replace("</think>", "").split())

    for thought, kind in ((True, Reasoning), (False, Content)):
        mine = "".join(piece for piece, one in found if one is thought)
        assert bare(mine) == bare("".join(part.text for part in parts if isinstance(part, kind)))
