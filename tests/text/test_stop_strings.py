"""Stop strings over pieces: never visible, the same whatever the pieces (B88)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.text.stop_strings import StopMatcher


def run(pieces: list[str], stops: list[str], include: bool = False) -> tuple[str, str | None, int | None]:
    """(text, stop, piece that completed it)."""
    matcher = StopMatcher(stops, include=include)
    text = "".join(matcher.feed(piece) for piece in pieces)
    if matcher.match is None:
        return text + matcher.flush(), None, None
    assert matcher.flush() == ""
    return text, matcher.match.text, matcher.match.piece


def plain(text: str, stops: list[str], include: bool = False) -> tuple[str, str | None]:
    """By definition: the match that ends first, of those the longest."""
    found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    end, size, stop = min(found)
    return text[: end if include else end + size], stop


def test_a_stop_over_three_pieces() -> None:
    assert run(["one ST", "O", "P two"], ["STOP"]) == ("one ", "STOP", 2)
    assert run(["one ST", "O", "P two"], ["STOP"], include=True) == ("one STOP", "STOP", 2)


def test_held_back_text_comes_out_when_it_is_no_stop() -> None:
    matcher = StopMatcher(["abcd"])
    assert [matcher.feed(piece) for piece in ("xab", "c", "x", "ab")] == ["x", "", "abcx", ""]
    assert matcher.held == "ab" and matcher.flush() == "ab" and matcher.match is None


def test_prefixes_of_one_another_and_of_themselves() -> None:
    assert run(["xabc"], ["abc", "ab"]) == ("x", "ab", 0)
    assert run(["xabcd"], ["abcd", "bc"]) == ("xa", "bc", 0), "the match that ends first"
    assert run(["xabc"], ["bc", "abc", "c"]) == ("x", "abc", 0), "of those that end together the longest"
    assert run(list("aaaab"), ["aab"]) == ("aa", "aab", 4)
    assert run(list("ababac"), ["abac"]) == ("ab", "abac", 5)


def test_only_what_may_be_a_stop_is_held_back() -> None:
    matcher = StopMatcher(["\n\nQuestion:", "<end>"])
    assert matcher.feed("a\n\nQuest") == "a" and matcher.held == "\n\nQuest"
    assert matcher.feed("!") == "\n\nQuest!" and matcher.held == ""
    assert matcher.feed("<") == "" and matcher.feed("<") == "<"


def test_text_after_the_stop_is_dropped() -> None:
    matcher = StopMatcher(["."])
    assert matcher.feed("a.b") == "a" and matcher.feed("more") == "" and matcher.flush() == ""


def test_without_stops_nothing_is_held() -> None:
    matcher = StopMatcher([])
    assert matcher.feed("abc") == "abc" and matcher.held == ""


def test_empty_stops_are_an_error() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])


def test_disarmed_text_is_not_searched() -> None:
    """Stop strings do not apply to reasoning, and no match may reach from it into the answer."""
    matcher = StopMatcher(["Question:"])
    assert matcher.feed("Question: think Quest", armed=False) == "Question: think Quest"
    assert matcher.feed("ion: ") == "ion: "
    assert matcher.feed("Quest") == "" and matcher.feed("x", armed=False) == "Questx"
    assert matcher.feed("Question:") == "" and matcher.match is not None and matcher.match.piece == 4


@pytest.mark.parametrize("length", range(1, 16))
def test_every_stop_in_a_text_cut_into_tokens(length: int) -> None:
    """Stops of 1 to 15 characters that start and end inside tokens."""
    pieces = ["The qu", "ick ", "brow", "n 👩‍", "👧 fo", "x\n", "jum", "ps ov", "er the", " lazy", " dog"]
    text = "".join(pieces)
    for begin in range(len(text) - length):
        stop = text[begin : begin + length]
        for include in (False, True):
            shown, matched, piece = run(pieces, [stop], include)
            assert (shown, matched) == plain(text, [stop], include) and matched == stop
            assert piece is not None
            end = text.find(stop) + length
            assert len("".join(pieces[:piece])) < end <= len("".join(pieces[: piece + 1]))


STOPS = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4)


@given(st.lists(st.text("abc", max_size=4), max_size=12), STOPS, st.booleans())
def test_pieces_do_not_matter(pieces: list[str], stops: list[str], include: bool) -> None:
    text = "".join(pieces)
    assert run(pieces, stops, include)[:2] == plain(text, stops, include)
    assert run(list(text), stops, include)[:2] == plain(text, stops, include)


@given(st.lists(st.text("abc", max_size=4), max_size=12), STOPS)
def test_what_is_shown_is_final_and_no_longer_than_needed(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = seen = ""
    for piece in pieces:
        shown += matcher.feed(piece)
        seen += piece
        if matcher.match is not None:
            break
        assert seen == shown + matcher.held
        longest = max((n for stop in stops for n in range(len(stop)) if seen.endswith(stop[:n])), default=0)
        assert len(matcher.held) == longest
    assert not any(stop in shown for stop in stops)
