"""Reading tokenizer files: both forms, added tokens of two files (B36), corrupt and hostile input."""

from __future__ import annotations

import json
from typing import Any

import pytest

from luce.errors import ModelFileError
from luce.text.byte_level import alphabet, to_bytes, to_text
from luce.text.tokenizer import Tokenizer
from tests.text.small import ADDED, ADDED_START, VOCAB, small_json, small_lists, small_source

PAD = "<|image_pad|>"
PAD_ID = ADDED_START + [text for text, _ in ADDED].index(PAD)


def entry(text: str, index: int, **flags: Any) -> dict[str, Any]:
    return {"id": index, "content": text, "special": True, **flags}


def test_alphabet_is_a_bijection_over_all_bytes() -> None:
    assert sorted(alphabet().values()) == list(range(256))
    assert to_text(b" \n\x00\xff") == "ĠĊĀÿ"
    assert all(to_bytes(to_text(bytes([byte]))) == bytes([byte]) for byte in range(256))
    assert to_bytes("a b") == b"a b", "a text with characters outside the alphabet stands for itself"


def test_both_forms_give_the_same_ids() -> None:
    a, b = Tokenizer(small_source()), Tokenizer(small_lists())
    text = "the user's naïve नमस्ते 한국 👩‍👩 \r\n\r\n  x"
    assert a.encode_text(text) == b.encode_text(text)
    assert a.special_ids == b.special_ids
    assert a.num_token_ids == b.num_token_ids == ADDED_START + len(ADDED), "the GGUF's padding is not counted"
    assert [a.token_bytes(i) for i in range(a.num_token_ids)] == [
        b.token_bytes(i) for i in range(b.num_token_ids)
    ]
    assert a.decode(range(a.num_token_ids)) == b.decode(range(b.num_token_ids))


def test_pad_token_only_in_the_config_is_one_id() -> None:
    """B36."""
    kept = [token for token in small_json()["added_tokens"] if token["content"] != PAD]
    config = {"added_tokens_decoder": {str(PAD_ID): {"content": PAD, "special": True}}}
    tokenizer = Tokenizer(small_source(config, added_tokens=kept))
    assert PAD not in {token["content"] for token in kept}
    assert tokenizer.special_ids[PAD] == tokenizer.id_of(PAD) == PAD_ID
    assert tokenizer.decode([PAD_ID], skip_special=False) == PAD
    assert tokenizer.decode([PAD_ID]) == ""


@pytest.mark.parametrize(
    ("decoder", "reason"),
    [
        ({str(PAD_ID + 1): {"content": PAD}}, "elsewhere"),
        ({str(PAD_ID): {"content": "<|other|>"}}, "elsewhere"),
        ({"5": {"content": "<|new|>"}}, "in the vocabulary"),
        ({"900": {"content": "a"}}, "in the vocabulary"),
        ({"x": {"content": "<|new|>"}}, "has the id 'x'"),
        ({"99999999999": {"content": "<|new|>"}}, "has the id"),
        ({"900": {"content": ""}}, "has no text"),
        ({"900": {"content": "<|new|>", "lstrip": True}}, "not supported"),
        ({"900": {"content": "\ud800x"}}, "no valid Unicode"),
        ({"900": "text"}, "has no text"),
    ],
)
def test_contradictions_between_files_are_errors(decoder: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelFileError, match=reason) as found:
        Tokenizer(small_source({"added_tokens_decoder": decoder}))
    assert "tokenizer_config.json" in str(found.value) and "\n" not in str(found.value)


def test_added_tokens_json_is_merged_and_checked() -> None:
    source = small_source()
    extra = {"added_tokens": {"<extra>": 900}}
    tokenizer = Tokenizer(type(source)(source.path, source.json_text, source.config, **extra))
    assert tokenizer.id_of("<extra>") == 900 and tokenizer.num_token_ids == 901
    assert tokenizer.token_bytes(899) == b"", "a hole in the ids is no token"


def test_thinking_tokens_survive_whatever_the_file_says() -> None:
    flagged = [{**token, "special": True} for token in small_json()["added_tokens"]]
    tokenizer = Tokenizer(small_source(added_tokens=flagged))
    ids = [tokenizer.special_ids[text] for text in ("<think>", "</think>", "<tool_call>", "<|im_end|>")]
    assert tokenizer.decode(ids) == "<think></think><tool_call>"


def model(**changes: Any) -> dict[str, Any]:
    return {"model": {**small_json()["model"], **changes}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 100_000,
        '{"model": 5}',
        '{"model": {"type": "WordPiece", "vocab": {}}}',
        '{"model": {"type": "BPE", "vocab": {}}}',
        json.dumps(small_json(**model(vocab={"a": -1}))),
        json.dumps(small_json(**model(vocab={"a": 0, "b": 0}))),
        json.dumps(small_json(**model(vocab={"a": 1 << 40}))),
        json.dumps(small_json(**model(vocab={"a": 0.5}))),
        json.dumps(small_json(**model(merges=[["q", "nope"]]))),
        json.dumps(small_json(**model(merges=["a"]))),
        json.dumps(small_json(**model(byte_fallback=True))),
        json.dumps(small_json(**model(dropout=0.5))),
        json.dumps(small_json(decoder=None)),
        json.dumps(small_json(added_tokens={"a": 1})),
        json.dumps(small_json(added_tokens=["x"])),
        json.dumps(small_json(pre_tokenizer={"type": "Nonsense"})),
        json.dumps(
            small_json(pre_tokenizer={"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"})
        ),
        json.dumps(small_json(normalizer={"type": "Nonsense"})),
    ],
)
def test_corrupt_tokenizer_json_is_one_clear_line(text: str) -> None:
    source = small_source()
    with pytest.raises(ModelFileError) as found:
        Tokenizer(type(source)(source.path, text))
    assert str(found.value).startswith("model/tokenizer.json: ") and "\n" not in str(found.value)
    assert len(str(found.value)) < 500


def test_endless_pattern_is_refused_at_load() -> None:
    """The library's panic is no Exception; it must not get out."""
    pattern = {"type": "Split", "pattern": {"Regex": "(a+a+)+y"}, "behavior": "Isolated", "invert": False}
    with pytest.raises(ModelFileError, match="no usable tokenizer"):
        Tokenizer(small_source(pre_tokenizer=pattern))


def test_truncation_and_padding_of_the_file_do_nothing() -> None:
    cut = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    tokenizer = Tokenizer(small_source(truncation=cut))
    assert len(tokenizer.encode_text("abcdefgh")) == 8


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "llama"}, "tokenizer.ggml.model is 'llama'"),
        ({"pre": "gpt-2"}, "tokenizer.ggml.pre is 'gpt-2'; known are qwen2, qwen35"),
        ({"pre": ""}, "tokenizer.ggml.pre is ''"),
        ({"merges": []}, "tokenizer.ggml.merges is missing"),
        ({"merges": ["ab"]}, r"merges\[0\] is 'ab'"),
        ({"merges": ["a b c"]}, r"merges\[0\]"),
        ({"merges": ["a nope"]}, "no usable tokenizer"),
        ({"token_types": []}, "0 tokenizer.ggml.token_type entries"),
        ({"add_bos": True}, "add_bos_token"),
        ({"tokens": ["a", "a"], "token_types": [1, 1]}, "tokens 0 and 1 are both 'a'"),
        ({"tokens": ["a", ""], "token_types": [1, 3]}, "has no text"),
    ],
)
def test_bad_gguf_lists_are_named(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelFileError, match=reason) as found:
        Tokenizer(small_lists(**changes))
    assert str(found.value).startswith("model.gguf: ") and "\n" not in str(found.value)


def test_the_pre_name_is_read() -> None:
    """A vowel mark belongs to the word for qwen35, not for qwen2 (B123)."""
    texts = {name: Tokenizer(small_lists(pre=name)) for name in ("qwen2", "qwen35")}
    merged = "नम" + "\u093f"
    vocab = dict(VOCAB)
    assert texts["qwen2"].decode(texts["qwen2"].encode_text(merged)) == merged
    pattern = {name: _pieces(tokenizer, merged) for name, tokenizer in texts.items()}
    assert vocab and pattern["qwen35"] == [merged] and pattern["qwen2"] == ["नम", "\u093f"]


def _pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    library = tokenizer._library
    assert library.pre_tokenizer is not None
    return [text[begin:end] for _, (begin, end) in library.pre_tokenizer.pre_tokenize_str(text)]
