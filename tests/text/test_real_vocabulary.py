"""The real Qwen3 and Qwen3.6 vocabularies against the `tokenizers` library (cases B36, B92, B123, B124).

The five tests of the data list: tokenizer.json, GGUF with qwen2, GGUF with qwen35, streaming, and the template (in
test_real_template.py).
"""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import attrs
import pytest
from tokenizers import Tokenizer as Library

from luce.text.detokenizer import Detokenizer
from luce.text.tokenizer import Tokenizer
from luce.weights.sources import TokenizerSource
from tests.text.strings import SCRIPTS, generated

HINDI, THAI = "नमस्ते दुनिया", "ภาษาไทย"
FAMILY = "👨‍👩‍👧 12345"


@pytest.fixture(scope="module")
def library(qwen3_source: TokenizerSource) -> Library:
    """The file as the library itself reads it, special tokens and all."""
    assert qwen3_source.json_text is not None
    return Library.from_str(qwen3_source.json_text)


@pytest.fixture(scope="module")
def plain_library(qwen3_source: TokenizerSource) -> Library:
    assert qwen3_source.json_text is not None
    return Library.from_str(json.dumps({**json.loads(qwen3_source.json_text), "added_tokens": []}))


@pytest.fixture(scope="module")
def qwen3_gguf(qwen3_source: TokenizerSource) -> TokenizerSource:
    """The Qwen3 vocabulary as a GGUF writer lays it out."""
    assert qwen3_source.json_text is not None
    spec = json.loads(qwen3_source.json_text)
    tokens: list[str] = [text for text, _ in sorted(spec["model"]["vocab"].items(), key=lambda item: item[1])]
    kinds = [1] * len(tokens)
    for token in spec["added_tokens"]:
        assert token["id"] == len(tokens)
        tokens.append(token["content"])
        kinds.append(3 if token["special"] else 4)
    padded = 151_936
    kinds += [5] * (padded - len(tokens))
    tokens += [f"[PAD{i}]" for i in range(len(tokens), padded)]
    return TokenizerSource(
        path=Path("qwen3.gguf"),
        model="gpt2",
        pre="qwen2",
        tokens=tokens,
        merges=[" ".join(pair) for pair in spec["model"]["merges"]],
        token_types=kinds,
    )


def test_tokenizer_json_equals_the_library(
    qwen3: Tokenizer, library: Library, plain_library: Library
) -> None:
    texts = generated(2000, seed=1, tokens=list(qwen3.special_ids))
    assert sum(any(token in text for token in qwen3.special_ids) for text in texts) > 500
    assert sum(text != unicodedata.normalize("NFC", text) for text in texts) > 300
    for text in texts:
        ids = qwen3.encode_text(text)
        assert ids == plain_library.encode(text, add_special_tokens=False).ids, text
        assert max(ids, default=0) < 151_643
        assert qwen3.decode(ids) == unicodedata.normalize("NFC", text)


def test_rendered_pieces_equal_the_library_with_special_tokens(qwen3: Tokenizer, library: Library) -> None:
    """What the template writes: text split at tokens, each part encoded by itself."""
    names = list(qwen3.special_ids)
    for number, text in enumerate(generated(500, seed=2)):
        token = names[number % len(names)]
        pieces = [text, qwen3.special_ids[token], text, qwen3.special_ids["<|im_end|>"]]
        expected = library.encode(f"{text}{token}{text}<|im_end|>", add_special_tokens=False).ids
        assert qwen3.encode_rendered(pieces) == expected


def test_decoding_equals_the_library(qwen3: Tokenizer, library: Library) -> None:
    for text in generated(300, seed=3):
        ids = [*qwen3.encode_text(text), 151_644, 151_667, *qwen3.encode_text(text[::-1])]
        for cut in (0, len(ids) // 3, len(ids) // 2):
            part = ids[cut : len(ids) - cut]
            assert qwen3.decode(part) == library.decode(part, skip_special_tokens=True)
            assert qwen3.decode(part, skip_special=False) == library.decode(part, skip_special_tokens=False)
    assert qwen3.num_token_ids == library.get_vocab_size() == 151_669


def test_gguf_with_qwen2_equals_the_tokenizer_json(qwen3: Tokenizer, qwen3_gguf: TokenizerSource) -> None:
    tokenizer = Tokenizer(qwen3_gguf)
    assert tokenizer.special_ids == qwen3.special_ids and tokenizer.num_token_ids == qwen3.num_token_ids
    for text in generated(500, seed=4, tokens=list(qwen3.special_ids)):
        assert tokenizer.encode_text(text) == qwen3.encode_text(text)
    every = range(tokenizer.num_token_ids)
    assert [tokenizer.token_bytes(i) for i in every] == [qwen3.token_bytes(i) for i in every]
    assert [tokenizer.is_special(i) for i in every] == [qwen3.is_special(i) for i in every]
    wrong = Tokenizer(attrs.evolve(qwen3_gguf, pre="qwen35"))
    assert len(tokenizer.encode_text(HINDI)) == 13
    for script in ("hebrew", "arabic", "thai"):
        text = SCRIPTS[script]
        assert wrong.encode_text(text) != tokenizer.encode_text(text), "the setting is not read"


def test_gguf_with_qwen35_equals_the_ranks(
    qwen36: Tokenizer, qwen36_source: TokenizerSource, qwen36_ranks: list[bytes]
) -> None:
    tokenizer = qwen36
    assert len(qwen36_source.merges) == 247_556, "as other people rebuild them"
    for text, index in (("<|endoftext|>", 248_044), ("<|im_end|>", 248_046), ("<|image_pad|>", 248_056)):
        assert tokenizer.id_of(text) == index
    assert (tokenizer.id_of("<think>"), tokenizer.id_of("</think>")) == (248_068, 248_069)
    assert tokenizer.num_token_ids == 248_070
    assert [len(tokenizer.encode_text(text)) for text in (HINDI, THAI)] == [6, 1]
    wrong = Tokenizer(attrs.evolve(qwen36_source, pre="qwen2"))
    assert [len(wrong.encode_text(text)) for text in (HINDI, THAI)] != [6, 1]
    ranks = {token: rank for rank, token in enumerate(qwen36_ranks)}
    texts = [*SCRIPTS.values(), *generated(300, seed=5)]
    for text in texts:
        pieces = _split(tokenizer, unicodedata.normalize("NFC", text))
        expected = [rank for piece in pieces for rank in _by_rank(piece.encode(), ranks)]
        found = tokenizer.encode_text(text)
        assert found == expected, text
        assert tokenizer.decode(found) == unicodedata.normalize("NFC", text)


def test_families_differ_on_marks_alone(qwen3: Tokenizer, qwen36: Tokenizer) -> None:
    """B123: one rule for both families would pass one of these and fail the other."""
    assert [len(qwen3.encode_text(text)) for text in (HINDI, THAI)] == [13, 2]
    assert (len(qwen36.encode_text(FAMILY)), len(qwen3.encode_text(FAMILY))) == (19, 13)
    plain = "plain ASCII text, don't split 123 differently\r\n\r\n  ok"
    assert _split(qwen36, plain) == _split(qwen3, plain)


def test_composed_and_decomposed_forms_are_one(qwen3: Tokenizer, plain_library: Library) -> None:
    """B124: NFC first, then merges by rank."""
    composed = [chr(c) for c in range(0xC0, 0x250) if unicodedata.decomposition(chr(c))][:200]
    assert len(composed) > 150
    runs = ["e" + "\u0301" * 30, "\u1112\u1161\u11ab\u1100\u116e\u11a8", "\u0915\u094d\u0937\u093f" * 5]
    for text in [*composed, *("x" + c + "y" for c in composed), *runs]:
        decomposed = unicodedata.normalize("NFD", text)
        assert qwen3.encode_text(decomposed) == qwen3.encode_text(text)
        assert qwen3.encode_text(text) == plain_library.encode(text).ids
        assert qwen3.decode(qwen3.encode_text(decomposed)) == unicodedata.normalize("NFC", text)


def test_streaming_never_shows_half_a_character(qwen3: Tokenizer, qwen36: Tokenizer) -> None:
    text = "".join(f"{line}\r\n" for line in SCRIPTS.values()) * 5
    for tokenizer in (qwen3, qwen36):
        ids = tokenizer.encode_text(text)
        assert any(b"\x80" <= tokenizer.token_bytes(i)[:1] < b"\xc0" for i in ids), "no character was cut"
        detokenizer = Detokenizer(tokenizer)
        pieces = [detokenizer.feed(i) for i in ids]
        assert "".join(pieces) == tokenizer.decode(ids) == unicodedata.normalize("NFC", text)
        assert not any("�" in piece for piece in pieces) and detokenizer.flush() == ""


def _split(tokenizer: Tokenizer, text: str) -> list[str]:
    library = tokenizer._library
    assert library.pre_tokenizer is not None
    return [text[begin:end] for _, (begin, end) in library.pre_tokenizer.pre_tokenize_str(text)]


def _by_rank(piece: bytes, ranks: dict[bytes, int]) -> list[int]:
    """The rank encoder: merge the pair with the lowest rank until none is left. An independent oracle."""
    parts = [piece[i : i + 1] for i in range(len(piece))]
    while len(parts) > 1:
        best = min(range(len(parts) - 1), key=lambda i: (ranks.get(parts[i] + parts[i + 1], 1 << 40), i))
        if parts[best] + parts[best + 1] not in ranks:
            break
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return [ranks[part] for part in parts]
