"""How `run_server` ends: when its service breaks, and by signals. Clients are told first."""

from __future__ import annotations

import os
import signal
import socket
from typing import Any

import httpx
import pytest
import trio

from luce.actors.options import ServiceOptions
from luce.actors.service import Service
from luce.engines.fake.engine import FakeEngine, fake_capabilities
from luce.engines.fake.times import Times
from luce.engines.loaded import GenerationDefaults, LoadedModel
from luce.http import server as server_module
from luce.http.options import HttpOptions
from luce.http.server import listen, run_server
from tests.actors.harness import ByteTokenizer
from tests.http.conftest import until
from tests.http.fake_model import FakePreparer
from tests.http.test_connections import request
from tests.http.test_service import body

pytestmark = pytest.mark.trio


def endless_model() -> LoadedModel:
    """Answers take 20 seconds."""
    return LoadedModel(
        name="fake",
        engine=FakeEngine(fake_capabilities(max_context=4096, num_blocks=4096), times=Times(step=0.005)),
        tokenizer=ByteTokenizer(),  # type: ignore[arg-type]
        preparer=FakePreparer(),
        eos_token_ids=(),
        defaults=GenerationDefaults(),
        created=0,
    )


async def test_service_that_breaks_tells_its_clients_first(monkeypatch: pytest.MonkeyPatch) -> None:
    breaks = trio.Event()

    class Broken(Service):
        async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
            async with trio.open_nursery() as nursery:
                await nursery.start(super().run)
                task_status.started()
                await breaks.wait()
                raise ZeroDivisionError

    monkeypatch.setattr(server_module, "Service", Broken)
    model = endless_model()
    options = HttpOptions(port=0, exit_grace=1.0)
    listener = listen(options)
    port = listener.getsockname()[1]
    told: list[bytes] = []
    serving = trio.Event()

    async def client() -> None:
        await serving.wait()
        async with await trio.open_tcp_stream("127.0.0.1", port) as connection:
            asked: dict[str, Any] = body(max_tokens=4000, stream=True)
            await connection.send_all(request(asked))
            data = b""
            async for piece in connection:
                data += piece
                if data.count(b"data: ") > 3:
                    breaks.set()
            told.append(data)

    with pytest.raises(ExceptionGroup) as raised:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client)
            with trio.fail_after(10):
                await run_server(model, ServiceOptions(), options, listener, lambda address: serving.set())
    assert raised.group_contains(ZeroDivisionError, depth=2)
    assert b'"the server failed; see its log"' in told[0]
    assert b"[DONE]" not in told[0]


async def test_service_that_cannot_start_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Service):
        async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
            raise ZeroDivisionError

    monkeypatch.setattr(server_module, "Service", Broken)
    model = LoadedModel("fake", FakeEngine(), ByteTokenizer(), FakePreparer(), (), GenerationDefaults(), 0)  # type: ignore[arg-type]
    listener = listen(HttpOptions(port=0))
    with pytest.raises(ExceptionGroup) as raised:
        await run_server(
            model, ServiceOptions(), HttpOptions(), listener, lambda address: pytest.fail("announced")
        )
    listener.close()
    assert raised.group_contains(ZeroDivisionError)


async def test_second_signal_ends_answers_with_an_error_and_waits_for_no_reader(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    services: list[Service] = []

    class Kept(Service):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            services.append(self)

    monkeypatch.setattr(server_module, "Service", Kept)
    options = HttpOptions(port=0, abort_grace=1.0, exit_grace=30.0)
    listener = listen(options)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    address = listener.getsockname()
    serving, told, orderly = trio.Event(), trio.Event(), list[bool]()
    streams: list[bytes] = []
    wholes: list[httpx.Response] = []

    async def stream() -> None:
        async with await trio.open_tcp_stream(*address) as connection:
            await connection.send_all(request(body(max_tokens=4000, stream=True)))
            data = b""
            async for piece in connection:
                data += piece
                if data.count(b"data: ") > 3:
                    told.set()
            streams.append(data)

    async def whole() -> None:
        async with httpx.AsyncClient(verify=False, timeout=20) as client:
            url = f"http://127.0.0.1:{address[1]}/v1/chat/completions"
            wholes.append(await client.post(url, json=body(max_tokens=4000)))

    async def server() -> None:
        model, service = endless_model(), ServiceOptions(client_timeout=60)
        orderly.append(await run_server(model, service, options, listener, lambda address: serving.set()))

    with trio.fail_after(15):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server)
            await serving.wait()
            (service,) = services
            with trio.socket.socket() as unread:
                unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                await unread.connect(address)
                await unread.send(request(body(max_tokens=4000, stream=True)))
                await until(lambda: service.requests)
                (stalled,) = service.requests.values()
                await until(lambda: len(stalled.buffer) > 20, 5)  # its handler waits for the socket
                nursery.start_soon(whole)
                nursery.start_soon(stream)
                await told.wait()
                await until(lambda: len(service.requests) == 3)
                await until(lambda: all(one.slot is not None for one in service.requests.values()))
                os.kill(os.getpid(), signal.SIGTERM)
                await until(lambda: service.state == "draining")
                assert not streams and not wholes, "the first signal lets them go on"
                os.kill(os.getpid(), signal.SIGINT)
                await until(lambda: orderly, 10)
    assert orderly == [False]
    assert b'"the server is shutting down"' in streams[0].split(b"data: ")[-1]
    assert b"[DONE]" not in streams[0]
    assert wholes[0].status_code == 503
    assert wholes[0].json()["error"]["message"] == "the server is shutting down"
    said = [record.getMessage() for record in caplog.records if record.name == "luce.http"]
    assert said == [
        "SIGTERM: finishing what runs, for up to 30 s; a second signal ends it",
        "SIGINT: ending what runs within 1 s; a third signal cuts it",
    ]
