"""Added tokens and the number of real ids from both tokenizer forms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from luce.errors import ModelFileError
from luce.weights.gguf_sources import gguf_tokenizer
from luce.weights.model_files import resolve_model
from luce.weights.sources import TokenizerSource
from luce.weights.special_tokens import token_table
from tests.weights.tiny_tokenizer import NUM_TOKENS, TOKEN_IDS, tokenizer_json
from tests.weights.writers import TinyShape, random_model, write_gguf, write_hf


def test_both_forms_agree(tmp_path: Path) -> None:
    model = random_model(TinyShape(vision=False))
    for path in (write_hf(tmp_path / "hf", model), write_gguf(tmp_path / "gguf", model)):
        table = token_table(resolve_model(path).require_tokenizer())
        assert table.added == TOKEN_IDS and table.count == NUM_TOKENS


def test_added_tokens_json_counts_and_conflicts_are_refused() -> None:
    text = json.dumps(tokenizer_json())
    table = token_table(TokenizerSource(Path("t.json"), text, added_tokens={"<new>": 300}))
    assert table.added["<new>"] == 300 and table.count == 301
    with pytest.raises(
        ModelFileError, match=r"'<think>' has id \d+ in added_tokens, but 5 in added_tokens.json"
    ):
        token_table(TokenizerSource(Path("t.json"), text, added_tokens={"<think>": 5}))


@pytest.mark.parametrize("decoder", [[1], {"x": {"content": "a"}}, {"1": "a"}, {"1": {}}])
def test_a_malformed_decoder_is_refused(decoder: object) -> None:
    source = TokenizerSource(Path("t.json"), json.dumps(tokenizer_json()), {"added_tokens_decoder": decoder})
    with pytest.raises(ModelFileError, match=r"tokenizer_config.json: added"):
        token_table(source)


def test_padding_is_what_is_unused_at_the_end() -> None:
    source = TokenizerSource(Path("m.gguf"), tokens=list("abcdef"), token_types=[1, 5, 1, 3, 5, 5])
    table = token_table(source)
    assert table.count == 4 and table.added == {"d": 3}
    assert token_table(TokenizerSource(Path("m.gguf"), tokens=list("abc"))).count == 3


def test_no_lists_no_tokenizer(tmp_path: Path) -> None:
    files = resolve_model(write_gguf(tmp_path, random_model(TinyShape(vision=False))))
    files.text.metadata.pop("tokenizer.ggml.tokens")  # type: ignore[attr-defined]
    assert gguf_tokenizer(files.text) is None
