"""Stop strings, half characters and finish reasons, with scripted tokens (cases B88, B92)."""

from __future__ import annotations

import pytest

from luce.engines.fake.engine import FakeEngine, Mode
from luce.engines.seam import SlotSpec
from tests.actors.harness import Answer, ask, read, serving

pytestmark = pytest.mark.trio


async def answer_of(text: bytes, **asked: object) -> Answer:
    def script(spec: SlotSpec, index: int) -> int | None:
        return text[index] if index < len(text) else None

    engine = FakeEngine(mode=Mode.INLINE, script=script)
    async with serving(engine) as service:
        return await read(service.submit(ask(1, tokens=len(text), **asked)))  # type: ignore[arg-type]


TEXT = "one two 👩‍👩‍👧‍👦 three नमस्ते 한국어 four"


async def test_characters_cut_at_every_byte_come_out_whole() -> None:
    answer = await answer_of(TEXT.encode())
    assert answer.text == TEXT
    assert "�" not in "".join(answer.pieces)
    assert len(answer.tokens) == len(TEXT.encode())


async def test_half_a_character_at_the_end_comes_out_once() -> None:
    answer = await answer_of("ab👦".encode()[:-2])
    assert answer.text == "ab�"
    assert answer.pieces[-1].endswith("�") and "�" not in "".join(answer.pieces[:-1])


@pytest.mark.parametrize("stop", ["two", "t", "o 👩", "\u200d", "ree न", "four", " four", "o"])
@pytest.mark.parametrize("include", [False, True])
async def test_stop_strings_across_tokens_are_never_shown(stop: str, include: bool) -> None:
    answer = await answer_of(TEXT.encode(), stop=(stop,), include_stop=include)
    end = TEXT.index(stop) + (len(stop) if include else 0)
    assert answer.text == TEXT[:end]
    assert (answer.end.reason, answer.end.stop) == ("stop", stop)


async def test_a_stop_that_is_a_prefix_of_another_and_one_that_never_comes() -> None:
    assert (await answer_of(b"abcd abce", stop=("abce", "abcde"))).text == "abcd "
    answer = await answer_of(b"abcd abce", stop=("abcef",))
    assert answer.text == "abcd abce" and answer.end.reason == "length"


async def test_the_end_names_the_stop_string_and_only_that() -> None:
    assert (await answer_of(b"abcd abce", stop=("e", "bce", "ce"))).end.stop == "bce"
    assert (await answer_of(b"abc$", eos_token_ids=(ord("$"),), stop=("#",))).end.stop is None
    assert (await answer_of(b"abc", stop=("#",))).end.stop is None


async def test_stop_strings_wait_for_min_tokens() -> None:
    answer = await answer_of(b"a#b#c#d", stop=("#",), min_tokens=3)
    assert answer.text == "a#b" and len(answer.tokens) == 4


async def test_a_stop_token_ends_the_answer_without_its_text() -> None:
    answer = await answer_of(b"abc#def", stop_token_ids=(ord("#"),))
    assert (answer.text, answer.end.reason, len(answer.tokens)) == ("abc", "stop", 4)
    answer = await answer_of(b"ab$c", eos_token_ids=(ord("$"),), ignore_eos=True)
    assert (answer.text, answer.end.reason) == ("ab$c", "length")
    answer = await answer_of(b"ab$c", eos_token_ids=(ord("$"),))
    assert (answer.text, answer.end.reason) == ("ab", "stop")
