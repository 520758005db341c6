"""The OpenAPI 3.1 document of the server, made from its operations and the types that they read and write."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from luce.http.errors import is_anthropic
from luce.http.openapi.answers import AnthropicErrorBody, ErrorBody
from luce.http.openapi.operation import Operation, Parameter
from luce.http.openapi.operations import OPERATIONS
from luce.http.openapi.statuses import HEADERS, MEANINGS, statuses_of

__all__ = ["document", "encoded"]

TITLE = "luce"
_SCHEMAS = "#/components/schemas/"
_FAILURES = {"Error": ErrorBody, "AnthropicError": AnthropicErrorBody}
DESCRIPTION = (
    "An LLM server that speaks OpenAI's and Anthropic's APIs. Fields that are null are as good as absent; fields that "
    "are not here are refused with 400, those of other servers with what to use instead. A method that an address does "
    "not have is 405, and `Allow` says which it has. Every answer carries `x-request-id`. Docs: docs/http-api.md."
)
_STREAM = (
    "One of the events that come when `stream` is true; comment lines come while there is nothing to say"
)


def document() -> dict[str, Any]:
    """The document as JSON values."""
    types = _types()
    references, schemas = msgspec.json.schema_components(types, ref_template=f"{_SCHEMAS}{{name}}")
    by_type = {one: _renamed(found) for one, found in zip(types, references, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, by_type)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": TITLE,
            "version": "1",
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {"apiKey": []}],
        "paths": paths,
        "components": {
            "schemas": {name: _tidied(name, schema) for name, schema in _named(schemas).items()},
            "responses": {
                f"{shape}{status}": _failure(status, by_type[kind])
                for shape, kind in _FAILURES.items()
                for status in MEANINGS
            },
            "headers": HEADERS,
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "One of the keys of --api-key or --api-key-file; without these nobody needs one",
                },
                "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same"},
            },
        },
    }


def encoded() -> bytes:
    """The document as it is served and kept: indented, one line end behind it."""
    return msgspec.json.format(msgspec.json.encode(document()), indent=1) + b"\n"


def _types() -> list[type]:
    found: dict[type, None] = {}
    for operation in OPERATIONS:
        for one in (operation.request, operation.answer, *operation.events):
            if one is not None and issubclass(one, msgspec.Struct):
                found[one] = None
    return [*found, *(one for one in (ErrorBody, AnthropicErrorBody) if one not in found)]


def _operation(operation: Operation, schemas: dict[type, dict[str, Any]]) -> dict[str, Any]:
    shape = "AnthropicError" if is_anthropic(operation.path) else "Error"
    failures: dict[str, Any] = {
        str(status): {"$ref": f"#/components/responses/{shape}{status}"} for status in statuses_of(operation)
    }
    if operation.probe and operation.answer is not None:
        failures["503"] = _failure(503, {"anyOf": [schemas[operation.answer], schemas[ErrorBody]]})
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [_parameter(one) for one in operation.parameters],
        "responses": {"200": _success(operation, schemas), **failures},
    }
    if operation.request is not None:
        content: dict[str, Any] = {"schema": schemas[operation.request]}
        if operation.examples:
            content["examples"] = {name: {"value": value} for name, value in operation.examples.items()}
        found["requestBody"] = {"required": True, "content": {"application/json": content}}
    if operation.probe:
        found["security"] = []
    return found


def _parameter(one: Parameter) -> dict[str, Any]:
    return {
        "name": one.name,
        "in": one.place,
        "required": one.place == "path",
        "schema": dict(one.schema),
        "description": one.description,
    }


def _success(operation: Operation, schemas: dict[type, dict[str, Any]]) -> dict[str, Any]:
    headers = {"x-request-id": _header("RequestId")}
    if operation.generates:
        headers["x-luce-seed"] = _header("Seed")
    content: dict[str, Any]
    if operation.answer is None:
        content = {"text/plain": {"schema": {"type": "string"}}}
    else:
        content = {"application/json": {"schema": schemas.get(operation.answer, {"type": "object"})}}
    description = operation.summary
    if operation.events:
        event = {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"anyOf": [schemas[one] for one in operation.events]},
        }
        content["text/event-stream"] = {
            "schema": {
                "description": _STREAM,
                "type": "object",
                "properties": {
                    "event": {"type": "string"},
                    "data": {"anyOf": [event, {"const": "[DONE]"}]} if operation.done else event,
                },
                "required": ["data"],
            }
        }
    return {"description": description, "headers": headers, "content": content}


def _failure(status: int, schema: dict[str, Any]) -> dict[str, Any]:
    headers = {"x-request-id": _header("RequestId")}
    if status == 503:
        headers["Retry-After"] = _header("RetryAfter")
    if status == 401:
        headers["WWW-Authenticate"] = _header("Authenticate")
    if status == 504:
        headers["x-should-retry"] = _header("ShouldRetry")
    return {
        "description": MEANINGS[status],
        "headers": headers,
        "content": {"application/json": {"schema": schema}},
    }


def _header(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/headers/{name}"}


_APIS = (
    ("luce.http.openai.responses.", "Responses"),
    ("luce.http.anthropic.", "Anthropic"),
    ("luce.http.", ""),
)


def _short(name: str) -> str:
    """Types of the same name in several modules come with their modules; they get their API's name before it, and
    what is read is told from what is written."""
    module, _, plain = name.rpartition(".")
    if not module:
        return plain
    api = next(word for prefix, word in _APIS if name.startswith(prefix))
    return f"{api}{'Input' if module.endswith('request') else ''}{plain}"


def _named(schemas: dict[str, Any]) -> dict[str, Any]:
    return {_short(name): _renamed(schema) for name, schema in schemas.items()}


def _renamed(schema: Any) -> Any:
    """The same with short names in its references."""
    if isinstance(schema, dict):
        return {name: _renamed(value) for name, value in schema.items()}
    if isinstance(schema, list):
        return [_renamed(value) for value in schema]
    if isinstance(schema, str) and schema.startswith(_SCHEMAS):
        return _SCHEMAS + _short(schema.removeprefix(_SCHEMAS))
    return schema


_MARKUP = re.compile(r"``|:\w+:(?=`)")


_OPTIONAL = {"ResponsesInputMessageItem": "type"}
"""What may be left out, or null, though the type that is read has it: OpenAI's short form of a message."""


def _tidied(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Docstrings are written for readers of the code: their markup is Markdown here."""
    if field := _OPTIONAL.get(name):
        kinds = {field: {"enum": [*schema["properties"][field]["enum"], None]}}
        required = [one for one in schema["required"] if one != field]
        schema = schema | {"properties": schema["properties"] | kinds, "required": required}
    if "description" in schema:
        return schema | {"description": _MARKUP.sub("`", schema["description"]).strip()}
    return schema
