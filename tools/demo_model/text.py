"""Tokenizer and chat template of the demo model: how a case becomes token ids."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from luce.demo.case import Case

HERE = Path(__file__).parent
TOKENIZER_FILE = HERE / "tokenizer.json"
TEMPLATE_FILE = HERE / "chat_template.jinja"

# Rows of the embedding.  The tokenizer fills all but the last one, which is the mask id of a block drafter.
VOCAB_SIZE = 2048
MASK_ID = VOCAB_SIZE - 1
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The added tokens of Qwen3.5 in their order, with the flag `special`.
ADDED_TOKENS: tuple[tuple[str, bool], ...] = (
    ("<|endoftext|>", True),
    ("<|im_start|>", True),
    ("<|im_end|>", True),
    ("<|object_ref_start|>", True),
    ("<|object_ref_end|>", True),
    ("<|box_start|>", True),
    ("<|box_end|>", True),
    ("<|quad_start|>", True),
    ("<|quad_end|>", True),
    ("<|vision_start|>", True),
    ("<|vision_end|>", True),
    ("<|vision_pad|>", True),
    ("<|image_pad|>", True),
    ("<|video_pad|>", True),
    ("<tool_call>", False),
    ("</tool_call>", False),
    ("<|fim_prefix|>", False),
    ("<|fim_middle|>", False),
    ("<|fim_suffix|>", False),
    ("<|fim_pad|>", False),
    ("<|repo_name|>", False),
    ("<|file_sep|>", False),
    ("<tool_response>", False),
    ("</tool_response>", False),
    ("<think>", False),
    ("</think>", False),
    ("<|audio_start|>", True),
    ("<|audio_end|>", True),
    ("<tts_pad>", True),
    ("<tts_text_bos>", True),
    ("<tts_text_eod>", True),
    ("<tts_text_bos_single>", True),
    ("<|audio_pad|>", True),
)
BASE_PIECES = MASK_ID - len(ADDED_TOKENS)
IDS = {name: BASE_PIECES + index for index, (name, _) in enumerate(ADDED_TOKENS)}
END_OF_TEXT = IDS["<|endoftext|>"]
IM_END = IDS["<|im_end|>"]
IMAGE_PAD = IDS["<|image_pad|>"]


@lru_cache(maxsize=1)
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TOKENIZER_FILE))


@lru_cache(maxsize=1)
def template() -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment.globals["raise_exception"] = raise_exception
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(TEMPLATE_FILE.read_text())


def decoded_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """The message with the JSON strings of its tool calls' arguments turned into mappings."""
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        function = call["function"]
        calls.append(call | {"function": function | {"arguments": json.loads(function["arguments"])}})
    return message | {"tool_calls": calls}


def render(case: Case) -> str:
    """The prompt of a case, one image pad for each picture."""
    return template().render(
        messages=[decoded_arguments(m) for m in case.messages],
        tools=case.tools,
        add_generation_prompt=True,
        enable_thinking=case.enable_thinking,
    )


def encode(case: Case) -> tuple[list[int], list[int]]:
    """Prompt ids, image pads expanded to one id a merged token, and completion ids with the end token."""
    prompt = tokenizer().encode(render(case), add_special_tokens=False).ids
    counts = iter([(c.height // 32) * (c.width // 32) for c in case.charts])
    expanded: list[int] = []
    for token in prompt:
        expanded.extend([token] * next(counts) if token == IMAGE_PAD else [token])
    completion = tokenizer().encode(case.completion, add_special_tokens=False).ids
    return expanded, [*completion, IM_END]
