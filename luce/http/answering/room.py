"""Does the prompt fit, and how long may the answer be."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from luce.errors import RequestError, quoted
from luce.http.answering.wish import Limit
from luce.http.json_scan import Limits
from luce.http.json_types import listed
from luce.text.tokenizer import Tokenizer

__all__ = [
    "CHAT_TEXTS",
    "answer_room",
    "body_limits",
    "refuse_hopeless",
    "refuse_hopeless_text",
    "refuse_overlong",
    "refuse_too_large",
    "refuse_too_much_text",
]

CHAT_TEXTS = ("messages", "tools", "chat_template_kwargs")
"""Fields of a chat request that hold text for the model, the one that errors name first."""

SHRINK = 3
"""Normalisation to NFC can make text up to three times shorter in bytes (three Hangul letters become one syllable)."""

TOO_LONG, MAXIMUM = "prompt is too long", "this model's maximum context length is"
"""The words of Anthropic's and OpenAI's servers. Programs that shorten a conversation and ask again know it by them:
most do not look at the code."""


def answer_room(prompt_tokens: int, limit: Limit, context: int, place: str) -> int:
    """How many tokens the answer may have: what was asked for, or the rest of the context.

    The rule is vLLM's: a prompt that leaves no room and a max_tokens past the room are both errors with the
    numbers in them; nothing is cut. Where the limit is bounded by the context, one past the room means all of
    the room.

    Args:
        place: the field that holds the prompt, for errors.

    Raises:
        RequestError: code ``context_length_exceeded``.
    """
    refuse_overlong(prompt_tokens, context, place)
    room, wanted, field = context - prompt_tokens, limit.tokens, limit.field
    if wanted is None:
        return room if limit.default is None else min(room, limit.default)
    if wanted > room and limit.bounded_by_context:
        return room
    if wanted > room:
        raise RequestError(
            f"{field} is {quoted(wanted)}, but the prompt has {prompt_tokens} tokens and {MAXIMUM} {context}: "
            f"at most {room} remain (leave {field} out to use them all)",
            field=field,
            code="context_length_exceeded",
        )
    return wanted


def refuse_overlong(prompt_tokens: int, context: int, place: str) -> None:
    """Raises RequestError, code ``context_length_exceeded``, for a prompt that leaves no room for an answer."""
    if prompt_tokens >= context:
        raise RequestError(
            f"{TOO_LONG}: the prompt has {prompt_tokens} tokens; {MAXIMUM} {context} and the answer needs at least 1",
            field=place,
            code="context_length_exceeded",
        )


def refuse_hopeless(messages: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, context: int) -> None:
    """Refuse text so long that it cannot fit, before time is spent on tokenizing it: 64 MiB would take half a minute.

    Only what every template writes is counted, without the blanks around it: no answers or thoughts of the assistant.

    Raises:
        RequestError: as :func:`answer_room`, with the least number of tokens that it can be.
    """
    size = sum(_text_bytes(message["content"]) for message in messages if message["role"] != "assistant")
    _refuse_bytes(size, tokenizer, context, "messages")


def refuse_hopeless_text(text: str, tokenizer: Tokenizer, context: int, place: str) -> None:
    """As :func:`refuse_hopeless`, for a prompt that goes through no template."""
    _refuse_bytes(len(text.encode()), tokenizer, context, place)


def refuse_too_large(image_tokens: int, context: int) -> None:
    """Refuse pictures that cannot fit, by their headers, before any of them is decoded into patches.

    Raises:
        RequestError: as :func:`answer_room`, with the tokens of the pictures alone.
    """
    if image_tokens >= context:
        raise RequestError(
            f"{TOO_LONG}: the pictures alone take {image_tokens} tokens; {MAXIMUM} {context} "
            "and the answer needs at least 1",
            field="messages",
            code="context_length_exceeded",
        )


CHARACTERS, CHARACTERS_PER_TOKEN = 16_384, 32
"""Text that is looked at, at most: far more than a context holds (about four characters a token)."""
ESCAPED, BESIDE = 6, 1 << 20
"""Bytes of a character that is written ``\\u4e00``, and bytes for all that is no text: names, numbers, blanks."""
VALUES = 100_000
"""Beside token ids: a message takes about five, a tool about a hundred."""


def _most_text(context: int) -> int:
    return CHARACTERS + CHARACTERS_PER_TOKEN * context


def body_limits(context: int) -> Limits:
    """What a body may hold at most, for a look at it before it is parsed: nothing that could be served is refused."""
    return Limits(
        values=VALUES + context,
        plain_bytes=BESIDE + ESCAPED * _most_text(context),
        plain_reason=f"a context of {context} tokens takes no more",
    )


def refuse_too_much_text(
    body: Mapping[str, Any], context: int, texts: Sequence[str] = CHAT_TEXTS, *, pictures: bool = True
) -> None:
    """Refuse bodies whose messages and tools hold far more text than the context, before any of it is worked on.

    Text of earlier answers counts too, although a template may leave some of it out: it is parsed, guarded and
    rendered all the same, at some 100 KB a second and a worker. Addresses of pictures do not count, where the body may
    hold ``pictures``.

    Args:
        texts: the fields that count.

    Raises:
        RequestError: code ``context_length_exceeded``.
    """
    most = _most_text(context)
    size, waiting = 0, [body.get(name) for name in texts]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, list | tuple):
            waiting += value
        elif isinstance(value, dict):
            size += sum(map(len, value))
            waiting += [item for name, item in value.items() if not pictures or name != "image_url"]
    if size > most:
        raise RequestError(
            f"{TOO_LONG}: {listed(texts[:2], 'and')} hold {size} characters of text; at most {most} are taken for a "
            f"context of {context}",
            field=texts[0],
            code="context_length_exceeded",
        )


def _refuse_bytes(size: int, tokenizer: Tokenizer, context: int, place: str) -> None:
    least = size // (SHRINK * _longest_token(tokenizer))
    if least >= context:
        raise RequestError(
            f"{TOO_LONG}: the prompt has at least {least} tokens; {MAXIMUM} {context} and the answer needs at least 1",
            field=place,
            code="context_length_exceeded",
        )


def _text_bytes(content: str | list[dict[str, str]]) -> int:
    parts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
    return sum(len(part.strip().encode()) for part in parts)


@functools.lru_cache(maxsize=2)
def _longest_token(tokenizer: Tokenizer) -> int:
    """Bytes of the longest token; once per model."""
    return max(len(tokenizer.token_bytes(index)) for index in range(tokenizer.num_token_ids))
