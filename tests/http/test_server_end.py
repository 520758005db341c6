"""`run_server` when its service breaks: clients are told, then the fault comes out."""

from __future__ import annotations

from typing import Any

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
from tests.http.fake_model import FakePreparer
from tests.http.test_connections import request
from tests.http.test_service import body

pytestmark = pytest.mark.trio


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
    engine = FakeEngine(fake_capabilities(max_context=4096), times=Times(step=0.01))
    model = LoadedModel(
        name="fake",
        engine=engine,
        tokenizer=ByteTokenizer(),  # type: ignore[arg-type]
        preparer=FakePreparer(),
        eos_token_ids=(),
        defaults=GenerationDefaults(),
        created=0,
    )
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
