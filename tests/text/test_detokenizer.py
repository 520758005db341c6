"""Incremental text equals whole text, cut anywhere (B92)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.text.detokenizer import Detokenizer
from luce.text.tokenizer import Tokenizer
from tests.text.small import ADDED, ADDED_START, small_source

LINES = ["👩‍👩‍👧‍👦 family", "한국어 조선말", "नमस्ते दुनिया", "naïve é", "🇩🇪🏳️‍🌈"]


def byte_ids(text: bytes) -> list[int]:
    """One token per byte: the small vocabulary has the bytes as its first 256 ids."""
    return list(text)


@pytest.mark.parametrize("line", LINES)
def test_one_byte_per_token(small: Tokenizer, line: str) -> None:
    detokenizer = Detokenizer(small)
    pieces = [detokenizer.feed(index) for index in byte_ids(line.encode())]
    assert "".join(pieces) == line
    assert all("�" not in piece for piece in pieces)
    assert [len(piece) for piece in pieces].count(0) > len(line) // 4, "nothing was held back"
    assert detokenizer.flush() == "" and detokenizer.pending == b""


@pytest.mark.parametrize("line", LINES)
def test_cut_at_every_byte_flushes_once(small: Tokenizer, line: str) -> None:
    data = line.encode()
    for cut in range(len(data) + 1):
        detokenizer = Detokenizer(small)
        shown = "".join(detokenizer.feed(index) for index in byte_ids(data[:cut]))
        assert "�" not in shown and len(detokenizer.pending) <= 3
        tail = detokenizer.flush()
        assert tail in ("", "�")
        assert shown + tail == small.decode(byte_ids(data[:cut])) == data[:cut].decode("utf-8", "replace")
        assert detokenizer.flush() == "", "flushed twice"


def test_special_tokens_in_the_middle_of_a_character(small: Tokenizer) -> None:
    eye = byte_ids("é".encode())
    end, think = small.special_ids["<|im_end|>"], small.special_ids["<think>"]
    for ids in ([eye[0], end, eye[1]], [eye[0], think, eye[1]]):
        for skip in (True, False):
            detokenizer = Detokenizer(small, skip)
            text = "".join(map(detokenizer.feed, ids)) + detokenizer.flush()
            assert text == small.decode(ids, skip)
    assert small.decode([eye[0], end, eye[1]]) == "é"


@given(st.lists(st.integers(0, ADDED_START + len(ADDED) + 3), max_size=60), st.booleans())
def test_any_ids_give_the_whole_decode(ids: list[int], skip: bool) -> None:
    detokenizer = Detokenizer(SMALL, skip)
    pieces = [detokenizer.feed(index) for index in ids]
    assert "".join(pieces) + detokenizer.flush() == SMALL.decode(ids, skip)


SMALL = Tokenizer(small_source())
