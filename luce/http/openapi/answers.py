"""Shapes of answers that are written without a type of their own, for the document."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

__all__ = [
    "AnthropicErrorBody",
    "Cancelled",
    "ErrorBody",
    "Ping",
    "Properties",
    "ServerState",
]


class ErrorDetail(Struct, frozen=True):
    message: str
    type: Literal["invalid_request_error", "server_error"]
    param: str | None
    """The field at fault, with its place."""
    code: str | None


class ErrorBody(Struct, frozen=True):
    """An error as OpenAI's clients read it."""

    error: ErrorDetail


class AnthropicErrorCause(Struct, frozen=True):
    error_code: Literal["thread_unsupported_request"]
    unsupported: list[str]


class AnthropicErrorDetail(Struct, frozen=True):
    type: str
    message: str
    details: AnthropicErrorCause | UnsetType = UNSET
    """With a refused `thread` alone: its clients then send the whole conversation by themselves."""


class AnthropicErrorBody(Struct, frozen=True):
    """An error as Anthropic's clients read it."""

    error: AnthropicErrorDetail
    request_id: str
    type: Literal["error"] = "error"


class ServerState(Struct, frozen=True):
    status: Literal["ok", "starting", "ready", "draining", "stopped", "failed"]
    error: ErrorDetail | UnsetType = UNSET


class Cancelled(Struct, frozen=True):
    id: str
    cancelled: list[str]
    """Ids of the answers that were cancelled."""
    object: Literal["request.cancelled"] = "request.cancelled"


class Properties(Struct, frozen=True):
    """What the server is and can do. ``schema`` grows when a field changes its meaning or goes."""

    schema: int
    version: str | None
    state: Literal["starting", "ready", "draining", "stopped", "failed"]
    model: dict[str, Any]
    capabilities: dict[str, Any]
    limits: dict[str, Any]
    memory: dict[str, Any]
    caches: dict[str, Any]


class Ping(Struct, tag_field="type", tag="ping", frozen=True):
    """Sent in a stream of Anthropic's API while there is nothing to say."""
