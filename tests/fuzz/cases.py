"""One case of the fuzzer: a request, and how it is sent. All of it follows from a seed and a number."""

from __future__ import annotations

import base64
import json
from random import Random
from typing import Any

import attrs

from tests.fuzz.corpus import PATHS, PICTURE, POSTS
from tests.fuzz.json_mutations import mutated_text, mutated_value
from tests.fuzz.picture_mutations import any_picture, any_url

__all__ = ["Case", "make_case"]

ODD_PATHS = (
    "/",
    "/v1",
    "/slots?fail_on_no_slot=1",
    "/slots?a=%00",
    "/%ff",
    "/v1/models/%2e%2e",
    f"/v1/models/{chr(120) * 900}",
)
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD")
TYPES = (
    "application/json",
    "application/json; charset=utf-8",
    "text/plain",
    "application/json; charset=x",
    "",
    "a/b+json",
)


@attrs.frozen
class Case:
    name: str
    """`seed:number`."""
    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    way: str
    """"asgi": in this process; "socket": over one, whole; "pieces": over one, cut up; "leave": gone before the end."""


def make_case(seed: int, number: int) -> Case:
    random = Random(f"{seed}:{number}")
    way = random.choice(("asgi", "asgi", "socket", "pieces", "leave"))
    name, headers = f"{seed}:{number}", [("content-type", "application/json")]
    if random.random() < 0.03:
        path = random.choice(
            (*PATHS, "/", "/v1", "/slots?fail_on_no_slot=1", "/slots?a=%00", "/%ff", "/v1/models/%2e%2e")
        )
        return Case(name, random.choice(METHODS), path, (), b"", way)
    path, value = random.choice(POSTS)
    kind = random.choice(("value", "value", "text", "picture", "picture", "whole"))
    value = _with_pictures(value, random)
    if kind == "value":
        value = mutated_value(value, random)
    body = json.dumps(value).encode()
    if kind == "text":
        body = mutated_text(body, random)
    if random.random() < 0.04:
        headers = [("content-type", random.choice(TYPES))]
    if random.random() < 0.02:
        headers.append(
            random.choice((("content-encoding", "gzip"), ("expect", "x"), ("x-request-id", "a b")))
        )
    method = random.choice(METHODS) if random.random() < 0.01 else "POST"
    return Case(name, method, path, tuple(headers), body, way)


def _with_pictures(value: Any, random: Random) -> Any:
    if isinstance(value, dict):
        if value.get("data") == PICTURE:
            kind, data = any_picture(random)
            return value | {"media_type": kind, "data": base64.b64encode(data).decode()}
        return {key: _with_pictures(item, random) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_pictures(item, random) for item in value]
    return any_url(random) if value == PICTURE else value
