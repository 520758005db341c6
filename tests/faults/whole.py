"""A tiny random model served whole: files, tokenizer, template, pictures, engine, actors and HTTP, nothing replaced.

It loads in some 20 ms, so every test has servers of its own. ``alone`` is REF: each request by itself on a fresh
server, one slot, whole prefill.
"""

from __future__ import annotations

import base64
import functools
import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import trio

from luce.actors.options import ServiceOptions
from luce.actors.service import Service
from luce.engines.load_model import LoadOptions, OpenedModel, load_model, open_model
from luce.engines.loaded import LoadedModel
from luce.http.app import create_app
from luce.http.connections import serve_app
from luce.http.options import HttpOptions
from luce.http.server import listen
from tests.http.conftest import Server
from tests.text.conftest import STYLE
from tests.vision.pictures import encode, noise
from tests.weights.writers import random_model, write_hf

CHAT = "/v1/chat/completions"
SLOTS, CONTEXT = 4, 512

SETTINGS: list[dict[str, Any]] = [
    {"slots": 1, "prefill_budget": 7, "depth": 2},
    {"slots": 4, "prefill_budget": 5, "depth": 1},
    {"slots": 4, "prefill_budget": 64, "depth": 2},
    {"slots": 4, "prefill_budget": None, "depth": 1},
]
"""{small, whole chunks} x {one, four requests at a time} x {one, two steps in flight}, thinned out."""

_FOLDER = tempfile.TemporaryDirectory(prefix="luce-faults-")


@functools.cache
def model_folder() -> Path:
    """Random weights with the family's template; pictures of 4 to 144 tokens (patch 8, merged 2 x 2)."""
    folder = write_hf(Path(_FOLDER.name) / "tiny", random_model(seed=11))
    (folder / "chat_template.jinja").write_text(STYLE.read_text())
    path = folder / "preprocessor_config.json"
    limits = {"shortest_edge": 1024, "longest_edge": 144 * 256}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"size": limits}))
    return folder


@functools.cache
def opened(slots: int = SLOTS, context: int = CONTEXT) -> OpenedModel:
    return open_model(model_folder(), LoadOptions(slots=slots, context=context, block_size=16))


@attrs.define
class Live:
    server: Server
    service: Service
    model: LoadedModel
    client: httpx.AsyncClient

    async def post(self, body: dict[str, Any]) -> httpx.Response:
        return await self.client.post(CHAT, json=body)

    async def send(self, data: bytes) -> httpx.Response:
        """A body as it stands."""
        return await self.client.post(CHAT, content=data, headers={"content-type": "application/json"})

    async def all(self, bodies: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """All at once; whole answers in the order of the bodies, without id and time."""
        answers: dict[int, dict[str, Any]] = {}

        async def one(index: int, body: dict[str, Any]) -> None:
            response = await self.post(body)
            assert response.status_code == 200, response.text
            answers[index] = same_part(response.json())

        async with trio.open_nursery() as nursery:
            for index, body in enumerate(bodies):
                nursery.start_soon(one, index, body)
        return [answers[index] for index in range(len(bodies))]

    async def events(self, body: dict[str, Any]) -> list[str]:
        """Data of the events of a streamed answer."""
        response = await self.post(body | {"stream": True})
        assert response.headers["content-type"].startswith("text/event-stream"), response.text
        blocks = [block for block in response.text.split("\n\n") if block]
        assert all(block.startswith(("data: ", ":")) and "\n" not in block for block in blocks), blocks
        return [block[6:] for block in blocks if block.startswith("data: ")]


@asynccontextmanager
async def live(
    *,
    slots: int = SLOTS,
    context: int = CONTEXT,
    http: HttpOptions | None = None,
    model: LoadedModel | None = None,
    **options: Any,
) -> AsyncIterator[Live]:
    """A server on loopback; on the way out it must drain and hold nothing any more."""
    loaded = model or load_model(opened(slots, context))
    http = attrs.evolve(http or HttpOptions(), port=0, exit_grace=1.0)
    service = Service(loaded, ServiceOptions(**options))
    listener = listen(http)
    server = Server(service, loaded, listener.getsockname()[1], trio.Event(), trio.Event())  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        await nursery.start(serve_app, create_app(service, loaded, http), listener, http, server.stop)
        # no TLS here, and reading the certificates takes longer than most tests
        async with httpx.AsyncClient(base_url=server.url, timeout=20, verify=False) as client:
            yield Live(server, service, loaded, client)
        service.drain()
        await service.stopped()
        server.stop.set()
    assert service.requests == {} and not service.loop.running
    service.loop.memory.check_integrity(())
    pool = service.loop.memory.pool
    assert pool.free + pool.cached == pool.num_blocks


def same_part(answer: dict[str, Any]) -> dict[str, Any]:
    """What must be equal, whatever the cache held."""
    part = {key: value for key, value in answer.items() if key not in ("id", "created")}
    return part | {"usage": counted(answer)}


def counted(answer: dict[str, Any]) -> dict[str, int]:
    """Its usage, but for what came from the cache."""
    return {key: value for key, value in answer["usage"].items() if key != "prompt_tokens_details"}


_REFERENCES: dict[str, dict[str, Any]] = {}


async def alone(bodies: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """REF of each body."""
    for body in bodies:
        key = json.dumps(body)
        if key not in _REFERENCES:
            async with live(slots=1, prefill_budget=None) as server:
                (_REFERENCES[key],) = await server.all([body])
    return [_REFERENCES[json.dumps(body)] for body in bodies]


def url(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def picture(seed: int, height: int = 32, width: int = 48) -> str:
    """A PNG of noise; at this size 6 tokens."""
    return url(encode(noise(height, width, seed)))


def turn(*parts: str, role: str = "user") -> dict[str, Any]:
    """A message of texts and pictures (``data:`` URLs)."""
    return {
        "role": role,
        "content": [
            {"type": "image_url", "image_url": {"url": part}}
            if part.startswith("data:")
            else {"type": "text", "text": part}
            for part in parts
        ],
    }


def ask(*parts: str, **fields: Any) -> dict[str, Any]:
    """A greedy request with log-probabilities, whose answer goes on to its limit."""
    defaults = {
        "temperature": 0,
        "max_tokens": 10,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": 3,
    }
    return {"messages": [turn(*parts)]} | defaults | fields


def text_of(answer: dict[str, Any]) -> str:
    text: str = answer["choices"][0]["message"]["content"]
    return text


def shown(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Log-probability entries."""
    entries: list[dict[str, Any]] = answer["choices"][0]["logprobs"]["content"]
    return entries


def token_bytes(answer: dict[str, Any]) -> bytes:
    return b"".join(bytes(entry["bytes"]) for entry in shown(answer))
