"""The real Qwen3 template against jinja2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from luce.text.chat_template import ChatTemplate
from luce.text.tokenizer import Tokenizer
from luce.weights.sources import ChatTemplateSource
from tests.text.chats import CHATS, TOOLS
from tests.text.oracle import jinja_render


@pytest.fixture(scope="module")
def source(qwen3_files: Path) -> ChatTemplateSource:
    path = qwen3_files / "tokenizer_config.json"
    return ChatTemplateSource(json.loads(path.read_text())["chat_template"], path)


@pytest.fixture(scope="module")
def chat_template(source: ChatTemplateSource, qwen3: Tokenizer) -> ChatTemplate:
    return ChatTemplate(source, qwen3)


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("name", CHATS)
@pytest.mark.parametrize("options", [{}, {"enable_thinking": False}, {"enable_thinking": True}])
def test_real_template_equals_jinja(
    source: ChatTemplateSource,
    chat_template: ChatTemplate,
    qwen3: Tokenizer,
    name: str,
    tools: list[Any] | None,
    options: dict[str, Any],
) -> None:
    expected = jinja_render(source.text, CHATS[name], tools=tools, **options)
    rendered = chat_template.render(CHATS[name], tools=tools, template_kwargs=options)
    assert rendered.text == expected
    ids = qwen3.encode_rendered(rendered.pieces)
    assert qwen3.decode(ids, skip_special=False) == expected
    without = jinja_render(source.text, CHATS[name], tools=tools, add_generation_prompt=False, **options)
    shorter = chat_template.render(
        CHATS[name], tools=tools, template_kwargs=options, add_generation_prompt=False
    )
    assert shorter.text == without
