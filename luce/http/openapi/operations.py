"""All operations of the server. Bodies and answers are the types that the endpoints themselves read and write."""

from __future__ import annotations

from luce.http.anthropic.blocks import BlockDelta, BlockStart, BlockStop
from luce.http.anthropic.request import CountRequest, MessagesRequest
from luce.http.anthropic.response import Message, MessageDelta, MessageStart, MessageStop, TokenCount
from luce.http.openai.chat_request import ChatRequest
from luce.http.openai.chat_response import Answer, Chunk
from luce.http.openai.completion_request import CompletionRequest
from luce.http.openai.completion_response import Completion, CompletionChunk
from luce.http.openai.models import ModelCard, ModelList
from luce.http.openai.responses import items, response
from luce.http.openai.responses.request import ResponsesRequest
from luce.http.openai.tokenize_request import (
    Detokenized,
    DetokenizeRequest,
    TemplateApplied,
    TemplateRequest,
    TokenizeRequest,
    Tokens,
)
from luce.http.openapi.answers import AnthropicErrorBody, Cancelled, ErrorBody, Ping, Properties, ServerState
from luce.http.openapi.operation import Operation, Parameter
from luce.http.slots import SlotsState

__all__ = ["OPERATIONS"]

_HI = [{"role": "user", "content": "Hi"}]
_ANSWER = Parameter(
    "id", "path", {"type": "string", "minLength": 1}, "Of an answer, or the `x-request-id` of who asked"
)
_MODEL = Parameter("name", "path", {"type": "string", "minLength": 1}, "The model's name or an alias")
_FULL = Parameter(
    "fail_on_no_slot", "query", {"enum": ["0", "1"], "default": "0"}, "1: answer 503 when no slot is free"
)


def _tokenizing(prefix: str) -> tuple[Operation, ...]:
    return (
        Operation(
            method="POST",
            path=f"{prefix}/tokenize",
            summary="Token ids of a text or of messages",
            tag="tokens",
            request=TokenizeRequest,
            answer=Tokens,
            examples={"text": {"prompt": "Hi"}, "messages": {"messages": _HI, "return_token_strs": True}},
        ),
        Operation(
            method="POST",
            path=f"{prefix}/detokenize",
            summary="Text of token ids",
            tag="tokens",
            request=DetokenizeRequest,
            answer=Detokenized,
            examples={"ids": {"tokens": [1, 2, 3]}},
        ),
        Operation(
            method="POST",
            path=f"{prefix}/apply-template",
            summary="The prompt that the chat template makes of messages",
            tag="tokens",
            request=TemplateRequest,
            answer=TemplateApplied,
            examples={"messages": {"messages": _HI}},
        ),
    )


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="POST",
        path="/v1/chat/completions",
        summary="A chat answer, whole or streamed",
        tag="openai",
        request=ChatRequest,
        answer=Answer,
        events=(Chunk, ErrorBody),
        done=True,
        examples={
            "whole": {"messages": _HI, "max_tokens": 4},
            "stream": {
                "messages": _HI,
                "max_tokens": 4,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
        },
        generates=True,
    ),
    Operation(
        method="POST",
        path="/v1/completions",
        summary="What follows a prompt",
        tag="openai",
        request=CompletionRequest,
        answer=Completion,
        events=(CompletionChunk, ErrorBody),
        done=True,
        examples={
            "text": {"prompt": "Hi", "max_tokens": 4, "logprobs": 1},
            "ids": {"prompt": [[1, 2], [3]], "max_tokens": 4, "stream": True},
        },
        generates=True,
    ),
    Operation(
        method="POST",
        path="/v1/responses",
        summary="A response, whole or streamed, without a memory",
        tag="openai",
        request=ResponsesRequest,
        answer=response.ResponseObject,
        events=(
            response.Created,
            response.InProgress,
            items.ItemAdded,
            items.ItemDone,
            items.PartAdded,
            items.PartDone,
            items.TextDelta,
            items.TextDone,
            items.ThoughtDelta,
            items.ThoughtDone,
            items.ArgumentsDelta,
            items.ArgumentsDone,
            response.Completed,
            response.IncompleteEnd,
            response.Failed,
            response.ErrorEvent,
        ),
        examples={"whole": {"input": "Hi", "max_output_tokens": 4}},
        generates=True,
    ),
    Operation(
        method="POST",
        path="/v1/messages",
        summary="An answer of Anthropic's API, whole or streamed",
        tag="anthropic",
        request=MessagesRequest,
        answer=Message,
        events=(
            MessageStart,
            BlockStart,
            BlockDelta,
            BlockStop,
            MessageDelta,
            MessageStop,
            Ping,
            AnthropicErrorBody,
        ),
        examples={"whole": {"model": "luce-demo", "messages": _HI, "max_tokens": 4}},
        generates=True,
    ),
    Operation(
        method="POST",
        path="/v1/messages/count_tokens",
        summary="Tokens of a prompt",
        tag="anthropic",
        request=CountRequest,
        answer=TokenCount,
        examples={"text": {"model": "luce-demo", "messages": _HI}},
    ),
    *_tokenizing(""),
    *_tokenizing("/v1"),
    Operation(method="GET", path="/v1/models", summary="The served model", tag="openai", answer=ModelList),
    Operation(
        method="GET",
        path="/v1/models/{name}",
        summary="The served model by its name",
        tag="openai",
        answer=ModelCard,
        parameters=(_MODEL,),
        statuses=(404,),
    ),
    Operation(
        method="GET",
        path="/health",
        summary="The process answers and its service has not failed",
        tag="operation",
        answer=ServerState,
        statuses=(503,),
        probe=True,
    ),
    Operation(
        method="GET",
        path="/ready",
        summary="Requests are taken",
        tag="operation",
        answer=ServerState,
        statuses=(503,),
        probe=True,
    ),
    Operation(method="GET", path="/metrics", summary="Prometheus metrics", tag="operation"),
    Operation(
        method="GET",
        path="/props",
        summary="What the server is and can do",
        tag="operation",
        answer=Properties,
    ),
    Operation(
        method="GET",
        path="/slots",
        summary="Where every request is",
        tag="operation",
        answer=SlotsState,
        parameters=(_FULL,),
        statuses=(503,),
    ),
    Operation(
        method="POST",
        path="/v1/requests/{id}/cancel",
        summary="Cancel what runs under an id",
        tag="operation",
        answer=Cancelled,
        parameters=(_ANSWER,),
        statuses=(404,),
    ),
    Operation(
        method="DELETE",
        path="/v1/requests/{id}",
        summary="Cancel what runs under an id",
        tag="operation",
        answer=Cancelled,
        parameters=(_ANSWER,),
        statuses=(404,),
    ),
    Operation(
        method="GET",
        path="/openapi.json",
        summary="This document",
        tag="operation",
        answer=dict,
    ),
)
