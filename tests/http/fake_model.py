"""A model for the HTTP tests whose engine is the fake one: real actors, real answers, no weights."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from luce.actors.options import ServiceOptions
from luce.actors.service import Service
from luce.engines.fake.engine import FakeEngine
from luce.engines.fake.pictures import make_picture
from luce.engines.loaded import GenerationDefaults, LoadedModel
from luce.engines.seam import PatchImage
from luce.http.app import create_app
from luce.http.asgi import App
from luce.http.connections import serve_app
from luce.http.options import HttpOptions
from luce.http.server import listen
from tests.actors.harness import ByteTokenizer, Prompt, make_prompt
from tests.http.conftest import Server


class FakePreparer:
    """The prompt depends on the whole text; pictures are told apart by their bytes."""

    options = frozenset[str]()

    def build(
        self,
        messages: Sequence[Mapping[str, Any]],
        images: Sequence[PatchImage],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continuation: str = "",
    ) -> Prompt:
        text = "".join(
            content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
            for content in (message["content"] for message in messages)
        )
        text += continuation
        name = int.from_bytes(hashlib.sha256(text.encode()).digest()[:3], "big")
        return make_prompt(name, 8 + len(text) % 40, images)

    def count(
        self, messages: Sequence[Mapping[str, Any]], image_tokens: Sequence[int], **options: Any
    ) -> int:
        return len(self.build(messages, (), **options).token_ids) + sum(image_tokens)

    def from_ids(
        self, ids: Sequence[int], images: Sequence[PatchImage] = (), *, field: str = "ids"
    ) -> Prompt:
        name = int.from_bytes(hashlib.sha256(bytes(ids)).digest()[:3], "big")
        return make_prompt(name, len(ids))

    def render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        return "".join(str(message["content"]) for message in messages)

    def prepare_image(self, data: bytes, *, field: str) -> PatchImage:
        return make_picture(hashlib.sha256(data).digest())

    def image_tokens(self, data: bytes, *, field: str) -> int:
        return self.prepare_image(data, field=field).num_tokens


@attrs.define
class Live:
    """A server with its real service."""

    server: Server
    service: Service
    engine: FakeEngine


@asynccontextmanager
async def live(
    engine: FakeEngine,
    http: HttpOptions | None = None,
    observe: Callable[[Service, App], object] | None = None,
    **options: Any,
) -> AsyncIterator[Live]:
    model = LoadedModel(
        name="fake",
        engine=engine,
        tokenizer=ByteTokenizer(),  # type: ignore[arg-type]
        preparer=FakePreparer(),
        eos_token_ids=(),
        defaults=GenerationDefaults(temperature=0.0),
        created=0,
    )
    http = attrs.evolve(http or HttpOptions(), port=0, exit_grace=1.0)
    service = Service(model, ServiceOptions(**options))
    listener = listen(http)
    app = create_app(service, model, http)
    if observe is not None:
        observe(service, app)
    port = listener.getsockname()[1]
    server = Server(service, model, port, trio.Event(), trio.Event(), None, app.bodies)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        await nursery.start(serve_app, app, listener, http, server.stop)
        yield Live(server, service, engine)
        service.drain()
        await service.stopped()
        server.stop.set()
