"""What a server is like: its model, what it takes, what words and pictures cost in tokens. Asked before the load."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import attrs
import msgspec
import numpy as np

from luce.bench.pictures import png
from luce.errors import ConfigError, DeviceError, printable, quoted
from luce.replay.load.target import Target, exchange
from luce.replay.load.words import WORDS, Words
from luce.vision.data_url import data_url

__all__ = ["EXTRAS", "PictureSizes", "ServerTraits", "error_text", "picture_parts", "probe"]

EXTRAS: dict[str, Any] = {"ignore_eos": True, "skip_special_tokens": False}
"""Fields beyond OpenAI's: answers have the length that is asked for, and every token is seen."""
SHORT, LONG = 16, 272
"""Words of the two prompts by which the costs are told."""
SINGLE = 64
"""Words that are measured one by one, where not all cost one token."""
REPEATED = 8
SIDES = (256, 512)
"""Of the two pictures."""
GRAIN = 32
"""Sides of pictures are multiples of it."""


@attrs.frozen
class PictureSizes:
    """What square pictures cost: ``fixed`` tokens each and ``per_pixel`` for each pixel."""

    fixed: float
    per_pixel: float

    def side(self, tokens: int) -> int:
        """Pixels along a side of a picture of about so many tokens; 512 where size makes no difference."""
        if self.per_pixel <= 0:
            return SIDES[1]
        side = math.sqrt(max(tokens - self.fixed, 1) / self.per_pixel)
        return max(round(side / GRAIN), 1) * GRAIN

    def tokens(self, side: int) -> float:
        return self.fixed + self.per_pixel * side**2


@attrs.frozen
class ServerTraits:
    """What requests are made by."""

    model: str
    words: Words = attrs.field(repr=False)
    overhead: float
    """Prompt tokens of a request with one message, beside its text and pictures."""
    per_turn: float
    """More of them for each further message."""
    extras: Mapping[str, Any]
    """Of :data:`EXTRAS`, if the server takes them."""
    pictures: PictureSizes | None
    """None: it takes none."""
    counted: str
    """By what words were counted: '/tokenize' or 'usage'."""


class _Usage(msgspec.Struct):
    prompt_tokens: Annotated[int, msgspec.Meta(ge=0)]


class _Answer(msgspec.Struct):
    usage: _Usage | None = None


class _Tokens(msgspec.Struct):
    tokens: list[Any]


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class _NoAnswerError(DeviceError):
    """The server answers, but not the question."""


async def probe(target: Target, model: str | None) -> ServerTraits:
    """Ask a server.

    Args:
        model: its name there; None for the first that the server lists.

    Raises:
        DeviceError: it cannot be reached, or does not answer as an OpenAI server would.
    """
    name = model if model is not None else await _first_model(target)
    extras: Mapping[str, Any] = EXTRAS
    try:
        short = await _prompt_tokens(target, name, extras, _repeated(SHORT))
    except ConfigError:
        extras = {}
        short = await _prompt_tokens(target, name, extras, _repeated(SHORT))
    long = await _prompt_tokens(target, name, extras, _repeated(LONG))
    per_word = (long - short) / (LONG - SHORT)
    if per_word <= 0:
        raise DeviceError(
            f"{target}: usage says that {SHORT} words are {short} tokens, and {LONG} words {long}"
        )
    turns = [
        {"role": "user" if index % 2 == 0 else "assistant", "content": _repeated(SHORT)} for index in range(3)
    ]
    per_turn = max((await _asked(target, name, extras, turns) - short) / 2 - per_word * SHORT, 0.0)
    words = await _counted_words(target, name)
    counted = "usage" if words is None else "/tokenize"
    if words is None:
        words = Words(WORDS[:SHORT], np.full(SHORT, per_word))  # the ones that were measured
    pictures = await _picture_sizes(target, name, extras)
    return ServerTraits(name, words, short - per_word * SHORT, per_turn, extras, pictures, counted)


def _repeated(count: int) -> str:
    """The same few words again and again: twice as many of them are twice as many tokens."""
    return "".join(f" {WORDS[index % SHORT]}" for index in range(count))


async def _first_model(target: Target) -> str:
    status, content = await exchange(target, "GET", "/v1/models")
    if status != 200:
        raise DeviceError(f"{target}/v1/models: {error_text(status, content)}")
    try:
        return msgspec.json.decode(content, type=_Models).data[0].id
    except (msgspec.DecodeError, IndexError, RecursionError):
        raise ConfigError("the server lists no models; name one", flag="--name") from None


async def _prompt_tokens(
    target: Target, model: str, extras: Mapping[str, Any], content: str | list[Any]
) -> int:
    """Of one message. Raises as :func:`_asked`."""
    return await _asked(target, model, extras, [{"role": "user", "content": content}])


async def _asked(target: Target, model: str, extras: Mapping[str, Any], messages: list[Any]) -> int:
    """Prompt tokens that messages make.

    Raises:
        ConfigError: the server says that the request is at fault.
        _NoAnswerError: it says something else than an answer with its usage.
        DeviceError: it does not answer at all.
    """
    body = {"model": model, "messages": messages, "max_tokens": 1}
    status, answer = await exchange(target, "POST", "/v1/chat/completions", body | dict(extras))
    if status in (400, 413, 415, 422):
        raise ConfigError(f"{target}: {error_text(status, answer)}")
    if status != 200:
        raise _NoAnswerError(f"{target}: {error_text(status, answer)}")
    try:
        usage = msgspec.json.decode(answer, type=_Answer).usage
    except (msgspec.DecodeError, RecursionError):
        usage = None
    if usage is None:
        raise _NoAnswerError(f"{target}: its answers say nothing of usage, so prompts cannot be measured")
    return usage.prompt_tokens


async def _counted_words(target: Target, model: str) -> Words | None:
    """Words by what /tokenize says of them; None where there is no such thing."""
    at_once = await _count(target, model, "".join(f" {word}" for word in WORDS))
    if not at_once:
        return None
    if at_once == len(WORDS):
        return Words(WORDS, np.ones(len(WORDS)))
    costs = []
    for word in WORDS[:SINGLE]:
        count = await _count(target, model, f" {word}" * REPEATED)
        if not count:
            return None
        costs.append(count / REPEATED)
    return Words(WORDS[:SINGLE], np.array(costs))


async def _count(target: Target, model: str, text: str) -> int:
    """Tokens, by vLLM's way to ask or llama.cpp's; 0 where neither is answered."""
    for body in (
        {"model": model, "prompt": text, "add_special_tokens": False},
        {"content": text, "add_special": False},
    ):
        status, content = await exchange(target, "POST", "/tokenize", body)
        if status != 200:
            continue
        try:
            if count := len(msgspec.json.decode(content, type=_Tokens).tokens):
                return count
        except (msgspec.DecodeError, RecursionError):
            continue
    return 0


async def _picture_sizes(target: Target, model: str, extras: Mapping[str, Any]) -> PictureSizes | None:
    """None: the server says that it takes none, or does not look at them.

    Raises:
        DeviceError: nothing is known, since it has not answered.
    """
    text = _repeated(SHORT)
    try:
        bare = await _prompt_tokens(target, model, extras, text)
        costs = []
        for side in SIDES:
            parts = picture_parts(text, [data_url(png(side, side, side))])
            costs.append(await _prompt_tokens(target, model, extras, parts) - bare)
    except (ConfigError, _NoAnswerError):
        return None
    (small, large), (low, high) = SIDES, costs
    if high <= 0:
        return None  # they were not looked at
    per_pixel = max(high - low, 0) / (large**2 - small**2)
    return PictureSizes(low - per_pixel * small**2, per_pixel)


def picture_parts(text: str, urls: list[str]) -> list[dict[str, Any]]:
    """The content of a message: its text, then its pictures, so that texts can share their start."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}]
    return parts + [{"type": "image_url", "image_url": {"url": url}} for url in urls]


class _Fault(msgspec.Struct):
    message: str = ""


class _Error(msgspec.Struct):
    error: _Fault | str | None = None
    message: str = ""
    detail: Any = None


def error_text(status: int, content: bytes) -> str:
    """What an answer that is none says, in one line."""
    try:
        error = msgspec.json.decode(content, type=_Error)
    except (msgspec.DecodeError, RecursionError):
        error = _Error()
    said = (error.error.message if isinstance(error.error, _Fault) else error.error) or error.message
    if not said and error.detail is not None:
        said = quoted(error.detail)
    if not said and content:
        said = quoted(content[:200].decode(errors="replace"))
    return printable(f"HTTP {status}: {said}"[:200]) if said else f"HTTP {status}"
