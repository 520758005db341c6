"""The log's line for every request: what it says, and what it never says."""

from __future__ import annotations

import logging
import re
from typing import Any

import httpx
import pytest
import trio
from structlog.contextvars import get_contextvars

from luce.actors.request import Request
from luce.cli.logs import _shown
from luce.engines.fake.engine import FakeEngine, fake_capabilities
from luce.engines.fake.times import Times
from luce.errors import CapacityError, DeviceError
from tests.http.conftest import Server, data_url, serving, until
from tests.http.fake_model import live
from tests.http.stubs import StubService, endless, failing, saying, silent
from tests.http.test_connections import HI, read_until, request
from tests.http.test_service import body

pytestmark = pytest.mark.trio

CHAT = "/v1/chat/completions"


PLAIN = set(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def fields_of(record: logging.LogRecord) -> dict[str, str]:
    """Of an entry, as a line for people shows them."""
    assert record.getMessage() == "request"
    found = {name: _shown(value) for name, value in vars(record).items() if name not in PLAIN}
    assert all(text.isprintable() for text in found.values())
    return found


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """The lines so far, as fields by name."""
    caplog.set_level(logging.INFO, "luce")

    def read() -> list[dict[str, str]]:
        return [fields_of(record) for record in caplog.records if record.name == "luce.requests"]

    return read


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_is_one_line(lines: Any, stream: bool) -> None:
    async with serving() as server, server.http() as client:
        headers = {"x-request-id": "mine-1"}
        response = await client.post(CHAT, json={"messages": HI, "stream": stream}, headers=headers)
        assert response.status_code == 200
        await until(lines)
    (line,) = lines()
    answer = re.search(r'"id":"(chatcmpl-\w+)"', response.text)
    assert answer is not None
    assert re.fullmatch(r"\d+\.\d{3}", line.pop("duration_s"))
    assert re.fullmatch(r"\d+\.\d{3}", line.pop("queue_s"))
    assert line == {
        "request_id": "mine-1",
        "method": "POST",
        "path": CHAT,
        "status": "200",
        "outcome": "finished",
        "answer": answer[1],
        "finish": "stop",
        "prompt_tokens": "2",
        "cached_tokens": "0",
        "completion_tokens": "14",
    }


async def test_times_on_a_real_service(lines: Any) -> None:
    """The second of two requests waits for the only slot; a text and a picture are counted as prompt."""
    engine = FakeEngine(fake_capabilities(num_slots=1), times=Times(step=0.02))
    async with live(engine) as server, server.server.http() as client, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: client.post(CHAT, json=body("first", max_tokens=10)))
        await until(lambda: engine.open_slots)
        response = await client.post(CHAT, json=body("second", data_url(), max_tokens=5))
    first, second = lines()
    assert (first["finish"], first["completion_tokens"]) == ("length", "10")
    assert second["prompt_tokens"] == str(response.json()["usage"]["prompt_tokens"])
    assert second["completion_tokens"] == "5"
    queue, token, whole = (float(second[name]) for name in ("queue_s", "first_token_s", "duration_s"))
    assert float(first["queue_s"]) < queue <= token <= whole
    assert queue > 0 and token > queue


async def test_the_answer_says_the_id_that_is_logged(lines: Any) -> None:
    given = ["", "plain", "two words", "a\tb", "x" * 129, "ü"]
    async with serving() as server, server.http() as client:
        said = []
        for one in given:
            headers = {b"x-request-id": one.encode("latin1")} if one else {}
            said.append((await client.get("/v1/models", headers=headers)).headers["x-request-id"])
        await until(lambda: len(lines()) == len(given))
    assert [line["request_id"] for line in lines()] == said
    assert said[1] == "plain" and all(re.fullmatch("[0-9a-f]{32}", one) for one in said[:1] + said[2:])


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "outcome", "shown"),
    [
        ("GET", "/v1/models", None, 200, "answered", "/v1/models"),
        ("GET", "/v1/models/none", None, 404, "refused", "/v1/models/{name}"),
        ("POST", CHAT, b"{", 400, "refused", CHAT),
        ("POST", "/v1/embeddings", b"{}", 404, "refused", "/v1/embeddings"),
        ("GET", "/a%0Ab%1b[31m?x=1", None, 404, "refused", "'/a\\nb\\x1b[31m'"),
        ("PUT", "/v1/models", None, 405, "refused", "/v1/models"),
    ],
)
async def test_requests_that_nothing_ran_for(
    lines: Any, method: str, path: str, content: bytes | None, status: int, outcome: str, shown: str
) -> None:
    async with serving() as server, server.http() as client:
        await client.request(method, path, content=content)
        await until(lines)
    (line,) = lines()
    assert (line["method"], line["path"]) == (method, shown)
    assert (line["status"], line["outcome"]) == (str(status), outcome)
    assert not {"answer", "prompt_tokens", "queue_s", "complete"} & set(line)


@pytest.mark.parametrize(
    ("path", "asked", "code", "param"),
    [
        (CHAT, {"messages": HI, "temprature": 1}, "unknown_field", "temprature"),
        (CHAT, {"messages": HI, "n_predict": 1}, "unsupported_value", "n_predict"),
        (CHAT, {"messages": [{"role": "wizard"}]}, None, "messages[0].role"),
        ("/v1/messages", {"max_tokens": 1, "messages": HI, "speed": "fast"}, "unsupported_value", "speed"),
        ("/v1/responses", {"input": "Hi", "background": True}, "unsupported_value", "background"),
        (f"{CHAT}?key=1", {"messages": HI}, "unknown_parameter", "key"),
        (CHAT, {"messages": HI, "a status=200": 1}, "unknown_field", "'a status=200'"),
        (CHAT, {"messages": HI, "a\n\x1b[31m\u202e": 1}, "unknown_field", r"'a\\n\\x1b[31m\\u202e'"),
        (CHAT, {"messages": HI, '"}': 1}, "unknown_field", "'\"}'"),
    ],
)
async def test_a_refusal_says_why(
    lines: Any, path: str, asked: dict[str, Any], code: str | None, param: str
) -> None:
    async with serving() as server, server.http() as client:
        status = (await client.post(path, json=asked)).status_code
        await until(lines)
    (line,) = lines()
    assert (status, line["status"], line["outcome"]) == (400, "400", "refused")
    assert (line.get("code"), line.get("param")) == (code, param)


async def test_what_a_refusal_names_is_short(lines: Any) -> None:
    async with serving() as server, server.http() as client:
        await client.post(CHAT, json={"messages": HI, "x" * 5000: 1})
        await client.post(CHAT, json={"messages": HI, "metadata": {}})
        await until(lambda: len(lines()) == 2)
    refused, answered = lines()
    assert len(refused["param"]) <= 100
    assert not {"code", "param"} & set(answered)


async def test_answers_that_fail(lines: Any) -> None:
    async with (
        serving(StubService(failing(DeviceError("broken"), after="ab"))) as server,
        server.http() as client,
    ):
        for stream in (False, True):
            await client.post(CHAT, json={"messages": HI, "stream": stream})
        server.service.full = True
        await client.post(CHAT, json={"messages": HI})
        await until(lambda: len(lines()) == 3)
    whole, streamed, full = lines()
    assert (whole["status"], whole["outcome"], whole["completion_tokens"]) == ("500", "failed", "2")
    assert (streamed["status"], streamed["outcome"], "finish" in streamed) == ("200", "failed", False)
    assert (full["status"], full["outcome"], full["code"]) == ("503", "refused", "overloaded")


async def test_bug_is_a_failure(lines: Any) -> None:
    async with serving() as server, server.http() as client:
        server.model.preparer.build = lambda *args, **kwargs: 1 / 0  # type: ignore[method-assign,assignment,return-value]
        await client.post(CHAT, json={"messages": HI})
        await until(lines)
    assert (lines()[0]["status"], lines()[0]["outcome"]) == ("500", "failed")


async def _leaves(server: Server, stream: bool) -> None:
    async with await server.connect() as connection:
        await connection.send_all(request({"messages": HI, "stream": stream}))
        if stream:
            await read_until(connection, b'"content":"x')
        else:
            await until(lambda: server.service.running)


@pytest.mark.parametrize("stream", [False, True])
async def test_clients_that_leave(lines: Any, stream: bool) -> None:
    async with serving(StubService(endless if stream else silent)) as server:
        await _leaves(server, stream)
        await until(lines)
    (line,) = lines()
    assert (line["outcome"], line["complete"]) == ("cancelled", "no")
    assert line.get("status") == ("200" if stream else None)
    assert (int(line["completion_tokens"]) > 0) == stream


async def test_client_that_leaves_before_its_body_is_whole(lines: Any) -> None:
    async with serving() as server:
        async with await server.connect() as connection:
            await connection.send_all(request({"messages": HI})[:-4])
            await until(lambda: server.bodies.held)
        await until(lines)
    assert (lines()[0]["outcome"], lines()[0]["complete"], "status" in lines()[0]) == (
        "cancelled",
        "no",
        False,
    )


async def test_probes_are_for_debugging_only(lines: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as server, server.http() as client:
        for path in ("/health", "/ready", "/v1/models"):
            await client.get(path)
        await until(lines)
        assert [line["path"] for line in lines()] == ["/v1/models"]
        caplog.set_level(logging.DEBUG, "luce.requests")
        await client.get("/health")
        await until(lambda: len(lines()) == 2)
    assert lines()[1]["path"] == "/health"


SECRET = "Xyzzy"
SAYINGS: list[tuple[str, dict[str, Any] | None]] = [
    (CHAT, {"messages": [{"role": "user", "content": SECRET}]}),
    (CHAT, {"messages": [{"role": "user", "content": SECRET}], "stream": True}),
    (CHAT, {"messages": [{"role": SECRET, "content": SECRET}]}),
    (CHAT, {"messages": HI, "temprature": SECRET}),
    (CHAT, {"messages": HI, "temperature": SECRET}),
    (CHAT, {"messages": HI, "model": SECRET}),
    (CHAT, {"messages": HI, "user": SECRET, "metadata": {SECRET: SECRET}}),
    (CHAT, {"messages": [{"role": "user", "content": SECRET * 100}]}),
    (CHAT, body("x", f"data:image/png;base64,{SECRET}")),
    (CHAT, body("x", f"http://{SECRET}/")),
    (f"{CHAT}?key={SECRET}", {"messages": HI}),
    (f"/v1/models/{SECRET}", None),
    (f"/nope?key={SECRET}", {}),
]


@pytest.mark.parametrize(
    "script", [saying(SECRET), failing(CapacityError("full"), after=SECRET)], ids=["well", "ill"]
)
async def test_nothing_of_questions_answers_pictures_or_keys_is_logged(
    caplog: pytest.LogCaptureFixture, lines: Any, script: Any
) -> None:
    caplog.set_level(logging.DEBUG, "luce")
    async with serving(StubService(script)) as server:
        headers = {"authorization": f"Bearer {SECRET}", "x-api-key": SECRET, "cookie": SECRET}
        async with httpx.AsyncClient(base_url=server.url, verify=False, headers=headers) as client:
            for path, asked in SAYINGS:
                await client.request("GET" if asked is None else "POST", path, json=asked)
        await until(lambda: len(lines()) == len(SAYINGS))
    kept = [record for record in caplog.records if record.name.startswith("luce")]
    said = [str({**vars(record), "args": record.getMessage(), "exc_info": None}) for record in kept]
    assert len(said) >= len(SAYINGS) and not [one for one in said if SECRET in one]


async def test_bugs_quote_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Beside their own report, which the log's set-up writes without its message."""

    def build(*arguments: Any, **options: Any) -> Any:
        raise KeyError(SECRET)

    async with serving() as server, server.http() as client:
        server.model.preparer.build = build  # type: ignore[method-assign]
        await client.post(CHAT, json={"messages": HI})
    (failed,) = [record for record in caplog.records if record.name == "luce.http"]
    assert failed.getMessage() == "a request failed: KeyError" and failed.exc_info


async def test_what_is_logged_on_the_way_names_the_request(caplog: pytest.LogCaptureFixture) -> None:
    """Worker threads included: the preparation runs in one."""
    found: list[dict[str, object]] = []

    def build(*arguments: Any, **options: Any) -> Any:
        found.append(dict(get_contextvars()))
        raise ZeroDivisionError

    async with serving() as server, server.http() as client:
        server.model.preparer.build = build  # type: ignore[method-assign]
        for name in ("one", "two"):
            await client.post(CHAT, json={"messages": HI}, headers={"x-request-id": name})
    assert found == [{"request_id": "one"}, {"request_id": "two"}]
    assert not get_contextvars(), "and nothing else does"


async def test_the_task_of_a_request_knows_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[dict[str, object]] = []
    really = Request.run

    async def run(self: Request) -> None:
        found.append(dict(get_contextvars()))
        await really(self)

    monkeypatch.setattr(Request, "run", run)
    async with live(FakeEngine()) as server, server.server.http() as client:
        for name in ("one", "two"):
            await client.post(CHAT, json=body(max_tokens=2), headers={"x-request-id": name})
    assert found == [{"request_id": "one"}, {"request_id": "two"}]
