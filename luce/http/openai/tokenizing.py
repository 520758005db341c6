"""POST /tokenize, /detokenize and /apply-template: what the model reads, without asking it."""

from __future__ import annotations

from typing import Any

import msgspec
from quart import Request, Response

from luce.engines.loaded import LoadedModel
from luce.errors import RequestError
from luce.http.answering.prepare import build_prompt, check_model, read_request
from luce.http.answering.room import refuse_too_much_text
from luce.http.answering.start import Answering
from luce.http.answering.token_ids import check_ids
from luce.http.answering.wish import Limit, Wish
from luce.http.openai.token_names import token_name
from luce.http.openai.tokenize_request import (
    UNSERVED,
    Detokenized,
    DetokenizeRequest,
    TemplateApplied,
    TemplateRequest,
    TokenizeRequest,
    Tokens,
)
from luce.http.options import HttpOptions
from luce.sampling.parameters import SamplingParams
from luce.text.messages import normalise

__all__ = ["Tokenizing", "apply_template", "detokenize", "tokenize"]


class Tokenizing:
    """The endpoints. One for the server; they share its bound on requests that are being prepared."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    async def tokenize(self, request: Request) -> Response:
        return _json(await self._answering.prepared(request, tokenize))

    async def detokenize(self, request: Request) -> Response:
        return _json(await self._answering.prepared(request, detokenize))

    async def apply_template(self, request: Request) -> Response:
        return _json(await self._answering.prepared(request, apply_template))


def tokenize(body: bytes | bytearray, model: LoadedModel, options: HttpOptions) -> Tokens:
    """Token ids of a text or of messages. They may be more than the context holds.

    Raises:
        RequestError: names the field at fault.
    """
    request, raw = read_request(body, TokenizeRequest, model, UNSERVED, texts=())
    check_model(request.model, model, options)
    field = _one_of(request)
    context = model.engine.capabilities.max_context
    refuse_too_much_text(raw, context, (field, "tools", "chat_template_kwargs"))
    if field == "messages":
        ids = _of_messages(request, raw, model, options)
    else:
        encode = (
            model.tokenizer.encode_text if request.parse_special is False else model.tokenizer.encode_prompt
        )
        ids = encode(raw[field], field=field)
    return Tokens(
        count=len(ids),
        max_model_len=context,
        tokens=ids,
        token_strs=[token_name(model.tokenizer, one) for one in ids]
        if request.return_token_strs
        else msgspec.UNSET,
    )


def detokenize(body: bytes | bytearray, model: LoadedModel, options: HttpOptions) -> Detokenized:
    """Text of token ids, special tokens too.

    Raises:
        RequestError: names the field at fault.
    """
    request, _ = read_request(body, DetokenizeRequest, model, texts=())
    check_model(request.model, model, options)
    check_ids(request.tokens, model.tokenizer, "tokens")
    text = model.tokenizer.decode(request.tokens, skip_special=False)
    return Detokenized(text, text)


def apply_template(body: bytes | bytearray, model: LoadedModel, options: HttpOptions) -> TemplateApplied:
    """The text that the chat template makes of messages. Pictures are not looked at: each is one pad.

    Raises:
        RequestError: names the field at fault.
    """
    request, raw = read_request(body, TemplateRequest, model, UNSERVED)
    check_model(request.model, model, options)
    text = model.preparer.render(
        normalise(raw["messages"]).messages,
        tools=raw.get("tools"),
        template_kwargs=request.chat_template_kwargs,
        add_generation_prompt=request.add_generation_prompt is not False,
    )
    return TemplateApplied(text)


def _one_of(request: TokenizeRequest) -> str:
    given = [name for name in ("prompt", "content", "messages") if getattr(request, name) is not None]
    if len(given) != 1:
        raise RequestError(
            "the body must have one of prompt, content and messages", field=given[1] if given else "prompt"
        )
    for name in ("tools", "chat_template_kwargs", "add_generation_prompt"):
        if getattr(request, name) is not None and given[0] != "messages":
            raise RequestError(
                f"{name} goes with messages: a {given[0]} goes through no template", field=name
            )
    return given[0]


def _of_messages(
    request: TokenizeRequest, raw: dict[str, Any], model: LoadedModel, options: HttpOptions
) -> list[int]:
    conversation = normalise(raw["messages"])
    wish = Wish(
        conversation=conversation,
        params=SamplingParams(),
        limit=Limit("max_tokens", None),
        tools=tuple(raw.get("tools") or ()),
        template_kwargs=request.chat_template_kwargs,
    )
    _, prompt = build_prompt(
        conversation, wish, model, options, add_generation_prompt=request.add_generation_prompt is not False
    )
    ids: list[int] = prompt.token_ids.tolist()
    return ids


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), content_type="application/json")
