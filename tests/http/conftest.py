"""A real server on a loopback port, in front of a scripted service."""

from __future__ import annotations

import base64
import io
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import httpx
import pytest
import trio
from openai import AsyncOpenAI
from PIL import Image

from luce.engines.loaded import LoadedModel
from luce.http.app import create_app
from luce.http.connections import serve_app
from luce.http.held_bodies import BodyBudget
from luce.http.options import HttpOptions
from luce.http.server import listen
from tests.http.stubs import StubService, make_model


@attrs.define
class Server:
    service: StubService
    model: LoadedModel
    port: int
    stop: trio.Event
    ended: trio.Event
    secure: ssl.SSLContext | None = None
    """What a client speaks TLS with; None for a server without."""
    bodies: BodyBudget = attrs.field(factory=lambda: BodyBudget(0))
    """What the server holds of bodies; nothing where a test does not care."""

    @property
    def url(self) -> str:
        return f"http{'s' if self.secure else ''}://127.0.0.1:{self.port}"

    def http(self, **options: Any) -> httpx.AsyncClient:
        verify = self.secure or False  # loading the system's certificates is slow
        return httpx.AsyncClient(base_url=self.url, timeout=20, verify=verify, **options)

    def openai(self, **options: Any) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", **({"max_retries": 0} | options))

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)


@asynccontextmanager
async def serving(
    service: StubService | None = None,
    model: LoadedModel | None = None,
    secure: ssl.SSLContext | None = None,
    **options: Any,
) -> AsyncIterator[Server]:
    service = service or StubService()
    model = model or make_model()
    http_options = HttpOptions(port=0, **({"exit_grace": 1.0} | options))
    listener = listen(http_options)
    app = create_app(service, model, http_options)  # type: ignore[arg-type]
    port = listener.getsockname()[1]
    server = Server(service, model, port, trio.Event(), trio.Event(), secure, app.bodies)
    async with trio.open_nursery() as nursery:
        service.nursery = nursery

        async def serve(task_status: trio.TaskStatus[None]) -> None:
            await serve_app(app, listener, http_options, server.stop, task_status)
            server.ended.set()

        await nursery.start(serve)
        try:
            yield server
        finally:
            server.stop.set()
            with trio.move_on_after(10, shield=True):
                await server.ended.wait()
            nursery.cancel_scope.cancel()


@pytest.fixture
def user() -> list[dict[str, Any]]:
    return [{"role": "user", "content": "Hi"}]


async def until(condition: Any, seconds: float = 20.0) -> None:
    """Wait for something that other tasks make true."""
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - what it waits for has no event
            await trio.sleep(0.005)


def data_url(width: int = 4, height: int = 4, form: str = "PNG", mode: str = "RGB") -> str:
    data = io.BytesIO()
    Image.new(mode, (width, height), 128 if mode == "L" else None).save(data, form)
    return f"data:image/{form.lower()};base64,{base64.b64encode(data.getvalue()).decode()}"


@pytest.fixture
def picture() -> str:
    return data_url()
