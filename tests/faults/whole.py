"""A tiny random model served whole: files, tokenizer, template, pictures, engine, actors and HTTP, nothing replaced.

It loads in some 20 ms, so every test has servers of its own. ``alone`` is REF: each request by itself on a fresh
server, one slot, whole prefill. On request the fake engine serves in the numpy engine's place, behind the same
tokenizer, template and pictures; its answers show every mix-up of tokens, positions, blocks and states.
"""

from __future__ import annotations

import base64
import functools
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import trio

from luce.actors.encoder import Encode, on_worker_thread
from luce.actors.options import ServiceOptions
from luce.actors.service import Service
from luce.actors.submission import Handle, Submission
from luce.engines.fake.engine import FakeEngine, fake_capabilities
from luce.engines.fake.times import Times
from luce.engines.load_model import LoadOptions, OpenedModel, load_model, open_model
from luce.engines.loaded import LoadedModel
from luce.engines.qwen35.engine import Qwen35Engine
from luce.engines.seam import Engine
from luce.http.app import create_app
from luce.http.connections import serve_app
from luce.http.openai.prepare import prepare_chat
from luce.http.options import HttpOptions
from luce.http.server import listen
from luce.scheduling.plan import plan
from luce.scheduling.state import Policy
from tests.actors.harness import Answer, read
from tests.http.conftest import Server
from tests.text.conftest import STYLE
from tests.vision.pictures import encode, noise
from tests.weights.writers import random_model, write_hf

CHAT = "/v1/chat/completions"
SLOTS, CONTEXT = 4, 512

ENGINES = ("qwen35", "fake")

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
def opened(slots: int = SLOTS, context: int = CONTEXT, blocks: int | None = None) -> OpenedModel:
    options = LoadOptions(slots=slots, context=context, block_size=16, num_blocks=blocks)
    return open_model(model_folder(), options)


@functools.cache
def _without_engine(found: OpenedModel) -> LoadedModel:
    model = load_model(found)
    model.engine.shutdown()
    return model


def load(engine: str, found: OpenedModel) -> LoadedModel:
    """The opened model on the named engine, one of :data:`ENGINES`."""
    if engine == "qwen35":
        return load_model(found)
    sizes, model = found.plan.options, _without_engine(found)
    capabilities = fake_capabilities(
        num_slots=sizes.slots,
        block_size=sizes.block_size,
        num_blocks=sizes.blocks,
        max_context=found.context,
        vocab_size=model.tokenizer.num_token_ids,
        bytes_per_snapshot=1000,  # much more than the rows of a block, as in the model
        bytes_per_token=4,
    )
    # Steps take about as long as the model's, or most requests would be done before the next one comes.
    return attrs.evolve(model, engine=FakeEngine(capabilities, times=Times(step=0.001)))


def prefix_room(model: LoadedModel, snapshots: int) -> int:
    """Bytes for so many snapshots of prefixes, however their positions cut blocks."""
    capabilities = model.engine.capabilities
    return snapshots * capabilities.captured_bytes(capabilities.block_size - 1)


def stored_handles(engine: Engine) -> set[int]:
    """States that the engine has in host memory."""
    if isinstance(engine, FakeEngine):
        return set(engine.stored_handles)
    assert isinstance(engine, Qwen35Engine)
    return set(engine._runner.stored.states)


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

    def submission(self, body: dict[str, Any], name: str = "r") -> Submission:
        """A body as the service takes it."""
        job = prepare_chat(json.dumps(body).encode(), self.model, HttpOptions()).job
        return attrs.evolve(job.submission, id=name)

    def submit(self, body: dict[str, Any], name: str = "r") -> Handle:
        """Past HTTP: for tests that look into the service while it answers."""
        return self.service.submit(self.submission(body, name))

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
    blocks: int | None = None,
    engine: str = "qwen35",
    encode: Callable[[Encode], Encode] | None = None,
    http: HttpOptions | None = None,
    model: LoadedModel | None = None,
    policy: Policy = plan,
    snapshots: int | None = None,
    **options: Any,
) -> AsyncIterator[Live]:
    """A server on loopback; on the way out it must drain and hold nothing any more.

    Args:
        encode: makes what encodes pictures from what a server has by itself.
        snapshots: that the prefix cache has room for; None: what it takes by itself, 32.
    """
    loaded = model or load(engine, opened(slots, context, blocks))
    http = attrs.evolve(http or HttpOptions(), port=0, exit_grace=1.0)
    if snapshots is not None:
        options["prefix_bytes"] = prefix_room(loaded, snapshots)
    tower = on_worker_thread(loaded.engine.encode)
    service = Service(loaded, ServiceOptions(**options), encode(tower) if encode else tower, policy)
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
    memory = service.loop.memory
    assert memory.pool.free + memory.pool.cached == memory.pool.num_blocks
    assert memory.saved_bytes == 0 and not memory.work
    assert not memory.cache._capturing and not memory.cache._adopting
    kept = {entry.snapshot for entry in memory.cache.index}
    assert stored_handles(loaded.engine) == kept, "states in host memory that nobody knows of"


def same_part(answer: dict[str, Any]) -> dict[str, Any]:
    """What must be equal, whatever the cache held."""
    part = {key: value for key, value in answer.items() if key not in ("id", "created")}
    return part | {"usage": counted(answer)}


def counted(answer: dict[str, Any]) -> dict[str, int]:
    """Its usage, but for what came from the cache."""
    return {key: value for key, value in answer["usage"].items() if key != "prompt_tokens_details"}


_REFERENCES: dict[str, dict[str, Any]] = {}


async def alone(
    bodies: Sequence[dict[str, Any]], engine: str = "qwen35", context: int = CONTEXT
) -> list[dict[str, Any]]:
    """REF of each body."""
    keys = [json.dumps([engine, context, body]) for body in bodies]
    for key, body in zip(keys, bodies, strict=True):
        if key not in _REFERENCES:
            async with live(engine=engine, slots=1, context=context, prefill_budget=None) as server:
                (_REFERENCES[key],) = await server.all([body])
    return [_REFERENCES[key] for key in keys]


async def alone_at_service(submission: Submission, engine: str = "qwen35", context: int = CONTEXT) -> Answer:
    """The same of a submission that comes past HTTP."""
    async with live(engine=engine, slots=1, context=context, prefill_budget=None) as server:
        return await read(server.service.submit(submission))


def cached(answer: httpx.Response) -> int:
    """Tokens of its prompt that came from the prefix cache."""
    details = answer.json()["usage"].get("prompt_tokens_details") or {"cached_tokens": 0}
    found: int = details["cached_tokens"]
    return found


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
    """A greedy request with log-probabilities, whose answer goes on to its limit and is all content: random text would
    be the reasoning that the template's prompt begins.
    """
    defaults = {
        "temperature": 0,
        "max_tokens": 10,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": 3,
        "reasoning_format": "none",
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
