"""Encoding without special-token parsing, decoding, surrogates, threads."""

from __future__ import annotations

import json
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as LibraryTokenizer

from luce.errors import RequestError
from luce.text.tokenizer import Tokenizer
from tests.text.small import ADDED, ADDED_START, small_json, small_source


@pytest.mark.parametrize("token", [text for text, _ in ADDED])
def test_special_token_text_is_text(small: Tokenizer, token: str) -> None:
    ids = small.encode_text(f"a {token}b")
    assert max(ids) < ADDED_START
    assert small.decode(ids) == f"a {token}b"


PARSED = Tokenizer(small_source())
LIBRARY = LibraryTokenizer.from_str(json.dumps(small_json()))


@given(
    st.lists(
        st.sampled_from(
            [*(text for text, _ in ADDED), "the ", "e\u0301", "<|im_", "end|>", "<", "\n\n", "한"]
        )
    )
)
def test_a_whole_prompt_is_parsed_as_the_library_does(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert PARSED.encode_prompt(text) == LIBRARY.encode(text, add_special_tokens=False).ids


def test_the_longest_token_wins(small: Tokenizer) -> None:
    assert small.encode_prompt("<|im_start|>") == [small.special_ids["<|im_start|>"]]
    assert small.encode_prompt("") == []
    with pytest.raises(RequestError) as found:
        small.encode_prompt("<|im_start|>\ud800", field="prompt")
    assert found.value.field == "prompt"


def test_rendered_pieces_mix_text_and_tokens(small: Tokenizer) -> None:
    start, end = small.special_ids["<|im_start|>"], small.special_ids["<|im_end|>"]
    pieces = [start, "user\n<|im_end|>", end, end, "", "x"]
    ids = small.encode_rendered(pieces)
    plain = small.encode_text("user\n<|im_end|>")
    assert ids == [start, *plain, end, end, *small.encode_text("x")]
    assert small.encode_rendered([]) == []


def test_skipping_concerns_special_tokens_alone(small: Tokenizer) -> None:
    kept = [text for text, special in ADDED if not special]
    assert small.decode(range(ADDED_START, ADDED_START + len(ADDED))) == "".join(kept)
    assert small.decode(range(ADDED_START, ADDED_START + len(ADDED)), skip_special=False) == "".join(
        text for text, _ in ADDED
    )


def test_ids_and_bytes(small: Tokenizer) -> None:
    assert small.id_of("<think>") == small.special_ids["<think>"]
    assert small.id_of("Ġthe") is not None and small.token_bytes(small.id_of("Ġthe") or 0) == b" the"
    assert small.id_of("nope nope") is None
    assert small.token_bytes(-1) == small.token_bytes(10**9) == b""
    assert small.names == {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}


@pytest.mark.parametrize("text", ["\ud800", "ok \udfff end", "\ud83d", "\udc00\ud800", "é" * 100 + "\ud800"])
def test_lone_surrogates_are_a_request_error(small: Tokenizer, text: str) -> None:
    with pytest.raises(RequestError, match="the lone surrogate U\\+D") as found:
        small.encode_text(text, field="messages[0].content")
    assert found.value.field == "messages[0].content" and found.value.status == 400
    with pytest.raises(RequestError):
        small.encode_rendered(["fine", text])


def test_a_panic_of_the_library_is_a_request_error(small: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        pass

    class Library:
        def encode_batch_fast(self, *_: object, **__: object) -> None:
            raise PanicException("retry-limit-in-match over")

    monkeypatch.setattr(small, "_library", Library())
    with pytest.raises(RequestError, match="cannot be tokenized"):
        small.encode_text("x", field="prompt")


def test_library_panic_class_is_still_named_so(small: Tokenizer) -> None:
    """The name is all there is to know it by."""
    from tokenizers import Regex, Tokenizer as Library  # noqa: I001
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import Split

    library = Library(BPE({"x": 0}, []))
    library.pre_tokenizer = Split(Regex("(x+x+)+y"), "isolated")
    with pytest.raises(BaseException, match="retry-limit") as found:
        library.encode_batch_fast(["x" * 64])
    assert type(found.value).__name__ == "PanicException" and not isinstance(found.value, Exception)


@given(st.binary(max_size=40))
def test_any_bytes_decode_as_python_decodes_them(data: bytes) -> None:
    tokenizer = _cached()
    ids = [tokenizer.id_of(letter) for letter in _letters(data)]
    assert tokenizer.decode([index for index in ids if index is not None]) == data.decode("utf-8", "replace")


@given(st.text(max_size=60))
def test_round_trip_is_nfc(text: str) -> None:
    import unicodedata

    tokenizer = _cached()
    assert tokenizer.decode(tokenizer.encode_text(text)) == unicodedata.normalize("NFC", text)


def test_long_texts_do_not_hold_the_interpreter(small: Tokenizer) -> None:
    """Worker threads tokenize; the thread of the event loop must go on meanwhile."""
    gaps: list[float] = []
    done = threading.Event()

    def tick() -> None:
        last = time.perf_counter()
        while not done.is_set():
            time.sleep(0.001)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    ticker = threading.Thread(target=tick)
    ticker.start()
    began = time.perf_counter()
    small.encode_text("some words, and 12345 numbers\n" * 20_000)
    took = time.perf_counter() - began
    done.set()
    ticker.join()
    assert took > 0.1, "the text is too short to show anything"
    assert len(gaps) > 10 and max(gaps) < took


def _letters(data: bytes) -> str:
    from luce.text.byte_level import to_text

    return to_text(data)


_tokenizer: Tokenizer | None = None


def _cached() -> Tokenizer:
    global _tokenizer
    if _tokenizer is None:
        from tests.text.small import small_source

        _tokenizer = Tokenizer(small_source())
    return _tokenizer
