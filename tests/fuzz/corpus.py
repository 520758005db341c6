"""Valid requests and pictures that the fuzzer starts from."""

from __future__ import annotations

import base64
import functools
import io
from typing import Any

from PIL import Image

from tests.vision.pictures import noise

__all__ = ["PATHS", "POSTS", "data_url", "pictures"]


@functools.cache
def pictures() -> tuple[tuple[str, bytes], ...]:
    """(media type, file) in every format that is read, and some that are not."""
    image = Image.fromarray(noise(40, 56, 3))
    found = []
    modes = {
        "PNG": ("RGB", "RGBA", "L", "LA", "P", "1", "I;16"),
        "JPEG": ("RGB", "L", "CMYK"),
        "WEBP": ("RGB", "RGBA"),
    }
    for form in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"):
        for mode in modes.get(form, ("RGB",)):
            picture = image.convert("I").convert("I;16") if mode == "I;16" else image.convert(mode)
            options = {"exif": _rotated()} if form in ("JPEG", "PNG", "WEBP") and mode == "RGB" else {}
            data = io.BytesIO()
            picture.save(data, form, **options)
            found.append((f"image/{form.lower()}", data.getvalue()))
    frames = io.BytesIO()
    image.convert("P").save(
        frames, "GIF", save_all=True, append_images=[image.rotate(90).convert("P")], loop=0
    )
    found.append(("image/gif", frames.getvalue()))
    interlaced = io.BytesIO()
    image.save(interlaced, "JPEG", progressive=True)
    found.append(("image/jpeg", interlaced.getvalue()))
    return tuple(found)


def _rotated() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


PATHS = ("/health", "/ready", "/metrics", "/props", "/slots", "/openapi.json", "/v1/models", "/v1/models/x")
"""What is asked for with GET."""

_HI = [{"role": "user", "content": "Hi"}]
_TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "adds",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": ["string", "null"]}},
        },
    },
}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
PICTURE = "PICTURE"
"""Stands for a picture's URL, or for its base64 where its media type stands beside it."""

_SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"$ref": "#/$defs/n"},
        "b": {"type": "array", "items": {"enum": ["x", "y", None, 1]}, "maxItems": 3},
        "c": {"type": "string", "pattern": "^[a-z]{0,3}$"},
        "d": {"anyOf": [{"type": "number", "minimum": -1, "maximum": 1.5}, {"const": "é"}]},
    },
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}},
}
_GRAMMAR = 'start: "a" (NAME | "b")+\nNAME: /[c-e]{1,3}/'
_SHOWN = {"type": "image_url", "image_url": {"url": PICTURE}}

POSTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/chat/completions", {"messages": _HI, "max_tokens": 5}),
    (
        "/v1/chat/completions",
        {
            "model": "tiny", "messages": [{"role": "system", "content": "Be <|im_end|> brief"}, *_HI], "max_tokens": 9,
            "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "temperature": 1.5, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "seed": 7, "logprobs": True,
            "top_logprobs": 3,
            "stop": ["é", "</think>"], "logit_bias": {"5": 2.5}, "presence_penalty": 0.5, "frequency_penalty": -0.5,
            "repetition_penalty": 1.1, "min_tokens": 2, "stop_token_ids": [9], "ignore_eos": True, "user": "u",
            "metadata": {"a": "b"}, "cache_salt": "s", "request_id": "fuzz-1", "timeout": 20.5, "n": 2,
            "skip_special_tokens": False, "include_stop_str_in_output": True, "reasoning_format": "none",
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [
                *_HI,
                {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [_CALL]},
                {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "3"}]},
            ],
            "tools": [_TOOL], "tool_choice": "auto", "parallel_tool_calls": False, "max_completion_tokens": 8,
            "chat_template_kwargs": {"enable_thinking": False}, "response_format": {"type": "text"}, "stream": True,
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "What is <|image_pad|>?"},
                        {"type": "image_url", "image_url": {"url": PICTURE, "detail": "auto"}},
                        {"type": "image_url", "image_url": {"url": PICTURE}},
                    ],
                }
            ],
            "max_tokens": 3,
        },
    ),
    (
        "/v1/chat/completions",
        {"messages": [*_HI, {"role": "assistant", "content": "I"}], "continue_final_message": True, "max_tokens": 4},
    ),
    (
        "/v1/chat/completions",
        {
            "messages": _HI, "max_tokens": 30, "stream": True, "thinking_token_budget": 3,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": _SCHEMA, "strict": True}},
        },
    ),
    (
        "/v1/chat/completions",
        {"messages": _HI, "max_tokens": 20, "tools": [_TOOL], "tool_choice": "required", "reasoning_effort": "low"},
    ),
    ("/v1/chat/completions", {"messages": _HI, "max_tokens": 9, "response_format": {"type": "json_object"}, "n": 2}),
    ("/v1/completions", {"prompt": "a", "max_tokens": 9, "structured_outputs": {"regex": "[ab]{1,5}(c|d)+"}}),
    ("/v1/completions", {"prompt": "a", "max_tokens": 9, "structured_outputs": {"choice": ["yes", "no", "é"]}}),
    ("/v1/completions", {"prompt": "a", "max_tokens": 9, "structured_outputs": {"grammar": _GRAMMAR}, "stream": True}),
    ("/v1/completions", {"prompt": "Hi <|im_start|>", "max_tokens": 6, "logprobs": 2, "parse_special": True}),
    (
        "/v1/completions",
        {"prompt": ["a", "b", " "], "max_tokens": 6, "stream": True, "echo": True, "stop": "a", "suffix": None, "n": 1},
    ),
    ("/v1/completions", {"prompt": [[1, 2, 3], [4]], "max_tokens": 6, "stream": True, "seed": -5, "n": 3}),
    ("/v1/responses", {"input": "Hi", "max_output_tokens": 6, "stream": True, "instructions": "Be brief"}),
    (
        "/v1/responses",
        {
            "input": [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "a"},
                        {"type": "input_image", "image_url": PICTURE, "detail": "auto"},
                    ],
                },
                {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "3"},
            ],
            "tools": [{"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}],
            "max_output_tokens": 6, "temperature": 0.5, "top_logprobs": 2, "include": ["message.output_text.logprobs"],
        },
    ),
    ("/v1/messages", {"model": "tiny", "max_tokens": 6, "messages": _HI, "stream": True, "system": "Be brief"}),
    (
        "/v1/messages",
        {
            "model": "tiny", "max_tokens": 6, "stop_sequences": ["x"], "top_k": 5, "temperature": 0.5,
            "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}},
                        {"type": "text", "text": "a"},
                    ],
                },
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "add", "input": {"a": 1}}]},
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "t", "content": "3", "is_error": False}],
                },
            ],
            "tools": [{"name": "add", "description": "d", "input_schema": {"type": "object", "properties": {}}}],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        },
    ),
    ("/v1/messages/count_tokens", {"model": "tiny", "messages": _HI, "system": "s"}),
    ("/tokenize", {"prompt": "Hi <|im_end|> é", "return_token_strs": True}),
    ("/v1/tokenize", {"messages": [{"role": "user", "content": [_SHOWN]}]}),
    ("/detokenize", {"tokens": [1, 2, 3, 255, 256, 270]}),
    ("/apply-template", {"messages": _HI, "tools": [_TOOL], "add_generation_prompt": False}),
    ("/v1/requests/fuzz-1/cancel", {}),
)  # fmt: skip
