"""Errors are OpenAI's JSON objects, whatever failed and whenever it did."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from luce.errors import CapacityError, DeadlineError, DeviceError, RequestError, quoted
from luce.http.errors import anthropic_error
from tests.http.conftest import serving
from tests.http.stubs import StubService, failing, make_model, saying

pytestmark = pytest.mark.trio


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/", {}, 404),
        ("GET", "/v1", {}, 404),
        ("POST", "/v1/chat/completions/", {}, 404),
        ("GET", "/v1/models/none", {}, 404),
        ("GET", "/v1/models/a/b%20c", {}, 404),
        ("GET", "/v1/chat/completions", {}, 405),
        ("DELETE", "/v1/models", {}, 405),
        ("POST", "/health", {}, 405),
        ("POST", "/v1/chat/completions", {"content-type": "text/plain"}, 415),
        ("POST", "/v1/chat/completions", {"content-type": "multipart/form-data; boundary=x"}, 415),
        ("POST", "/v1/chat/completions", {"content-encoding": "gzip"}, 415),
        ("POST", "/v1/chat/completions", {"content-type": "application/json"}, 400),
    ],
)
async def test_every_status_is_json(method: str, path: str, headers: dict[str, str], status: int) -> None:
    async with serving() as server, server.http() as client:
        response = await client.request(
            method, path, headers=headers, content=b"{}" if method == "POST" else b""
        )
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert response.headers["x-request-id"]
    if status == 405:
        assert response.headers["allow"]


HAS = (
    "this server has GET /health, GET /ready, POST /v1/chat/completions, POST /v1/completions, "
    "POST /v1/responses, "
    "POST /tokenize, POST /detokenize, POST /apply-template, "
    "POST /v1/tokenize, POST /v1/detokenize, POST /v1/apply-template, "
    "GET /v1/models, GET /v1/models/{name}, POST /v1/messages, POST /v1/messages/count_tokens, "
    "GET /metrics, GET /openapi.json, GET /props, GET /slots, GET /ui, "
    "POST /v1/requests/{id}/cancel, DELETE /v1/requests/{id}"
)


@pytest.mark.parametrize(
    ("method", "path", "message"),
    [
        ("GET", "/v1/responses", "/v1/responses takes POST, not GET"),
        ("POST", "/v1/embeddings", f"/v1/embeddings is not served yet; {HAS}"),
        ("POST", "/v1/messages/batches", f"/v1/messages/batches is not served yet; {HAS}"),
        ("GET", "/v1/responses/resp_1", f"/v1/responses/resp_1 is not served yet; {HAS}"),
        ("POST", "/chat/completions", f"there is nothing at '/chat/completions'; {HAS}"),
        ("GET", "/v1//models", f"there is nothing at '/v1//models'; {HAS}"),
        ("POST", "/v1/messages//count_tokens", f"there is nothing at '/v1/messages//count_tokens'; {HAS}"),
        ("GET", f"/{'x' * 500}", f"there is nothing at {quoted('/' + 'x' * 500)}; {HAS}"),
        ("GET", "/v1/chat/completions", "/v1/chat/completions takes POST, not GET"),
        ("DELETE", "/v1/models", "/v1/models takes GET, not DELETE"),
        ("POST", "/health", "/health takes GET, not POST"),
        ("B" * 500, "/health", f"/health takes GET, not {quoted('B' * 500)}"),
        ("GET", "/v1/files/%1B%5B31m%0A", f"'/v1/files/\\x1b[31m\\n' is not served yet; {HAS}"),
    ],
)
async def test_wrong_addresses_say_what_there_is(method: str, path: str, message: str) -> None:
    async with serving() as server, server.http() as client:
        response = await client.request(method, path)
    assert response.json()["error"]["message"] == message


async def test_bug_in_preparation_is_500_and_says_nothing(
    user: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model()

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("secret")

    model.preparer.build = broken  # type: ignore[method-assign]
    async with serving(model=model) as server, server.http() as client:
        response = await client.post("/v1/chat/completions", json={"messages": user})
        assert response.status_code == 500
        assert response.json()["error"]["type"] == "server_error"
        assert "secret" not in response.text
        assert (await client.get("/health")).status_code == 200
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (RequestError("bad field", field="stop"), 400, openai.BadRequestError),
        (CapacityError("shutting down", retry_after=5), 503, openai.InternalServerError),
        (DeviceError("the device failed"), 500, openai.InternalServerError),
    ],
)
async def test_answer_that_fails(user: Any, error: Any, status: int, kind: type[Exception]) -> None:
    """Not streamed: a status. Streamed: an error event after what there was, and no [DONE]."""
    async with serving(StubService(failing(error, after="ab"))) as server, server.openai() as client:
        with pytest.raises(kind) as raised:
            await client.chat.completions.create(model="stub", messages=user)
        assert raised.value.status_code == status  # type: ignore[attr-defined]
        assert raised.value.body["message"] == str(error)  # type: ignore[attr-defined]

        stream = await client.chat.completions.create(model="stub", messages=user, stream=True)
        text = ""
        with pytest.raises(openai.APIError) as broken:
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
                assert chunk.choices[0].finish_reason is None
        assert text == "ab"
        assert broken.value.message == str(error)

        async with server.http() as http:
            response = await http.post("/v1/chat/completions", json={"messages": user, "stream": True})
        events = [event for event in response.text.split("\n\n") if event]
        assert json.loads(events[-1].removeprefix("data: "))["error"]["message"] == str(error)
        assert "[DONE]" not in response.text


async def test_bug_while_streaming_is_an_error_event(user: Any) -> None:
    model = make_model()
    model.tokenizer.token_bytes = lambda token: 1 / 0  # type: ignore[assignment,method-assign,return-value]
    async with serving(StubService(saying("a")), model) as server, server.http() as client:
        body = {"messages": user, "stream": True, "logprobs": True}
        response = await client.post("/v1/chat/completions", json=body)
        last = json.loads(response.text.strip().split("\n\n")[-1].removeprefix("data: "))
        assert last["error"]["type"] == "server_error"
        assert "division" not in response.text
        assert not server.service.running


async def test_cancelled_by_the_server(user: Any) -> None:
    service = StubService(saying("a" * 100, pause=0.01))
    async with serving(service) as server, server.openai() as client:
        stream = await client.chat.completions.create(model="stub", messages=user, stream=True)
        with pytest.raises(openai.APIError, match="the answer was cancelled"):
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    for scope in service.running.values():
                        scope.cancel()


@pytest.mark.parametrize("what", ["full", "draining", "starting"])
async def test_no_capacity_is_503_with_retry_after(user: Any, what: str) -> None:
    service = StubService()
    if what == "full":
        service.full = True
    else:
        service.state = what
    async with serving(service) as server, server.http() as client:
        response = await client.post("/v1/chat/completions", json={"messages": user})
        assert response.status_code == 503
        assert response.headers["retry-after"] == ("3" if what == "full" else "5")
        assert response.json()["error"]["code"] == "overloaded"


async def test_client_library_retries_on_503(user: Any) -> None:
    service = StubService()
    service.full = True
    async with serving(service) as server, server.openai(max_retries=1) as client:
        real = service.submit_all

        def once_full(submissions: Any, arrived: float) -> Any:
            try:
                return real(submissions, arrived)
            except CapacityError as error:
                service.full = False
                raise CapacityError(error.message, retry_after=0.1) from None

        service.submit_all = once_full  # type: ignore[method-assign]
        answer = await client.chat.completions.create(model="stub", messages=user)
        assert answer.choices[0].message.content


async def test_client_library_sees_the_field(user: Any) -> None:
    async with serving() as server, server.openai() as client:
        with pytest.raises(openai.BadRequestError) as raised:
            await client.chat.completions.create(model="stub", messages=user, temperature=-1)
    assert raised.value.param == "temperature"
    assert raised.value.type == "invalid_request_error"


ANTHROPIC = [
    ("POST", "/v1/messages", {"content-type": "text/plain"}, b"x", {404, 415}, None),
    ("DELETE", "/v1/messages", {}, b"", {404, 405}, None),
    ("GET", "/v1/messages/nothing", {}, b"", {404}, "not_found_error"),
    ("POST", "/v1/messages/count_tokens", {"x-api-key": "wrong"}, b"{}", {401}, "authentication_error"),
    ("POST", "/v1/messages", {"x-api-key": "wrong"}, b"{}", {401}, "authentication_error"),
    ("POST", "/v1/messages", {"expect": "miracles"}, b"{}", {404, 417}, None),
]


@pytest.mark.parametrize(("method", "path", "headers", "content", "status", "kind"), ANTHROPIC)
async def test_every_layer_speaks_anthropic_s_shape_there(
    method: str, path: str, headers: dict[str, str], content: bytes, status: set[int], kind: str | None
) -> None:
    async with serving(api_keys=("right",)) as server, server.http() as client:
        keyed = {"x-api-key": "right", "x-request-id": "mine"} | headers
        response = await client.request(method, path, headers=keyed, content=content)
    assert response.status_code in status
    said = response.json()
    assert said["type"] == "error" and set(said["error"]) == {"type", "message"}
    assert said["request_id"] == response.headers["x-request-id"] == "mine"
    assert kind is None or said["error"]["type"] == kind


@pytest.mark.parametrize("path", ["/v1/messagesx", "/v1/message", "/V1/messages", "/v1"])
async def test_other_addresses_speak_openai_s(path: str) -> None:
    async with serving() as server, server.http() as client:
        assert set((await client.post(path)).json()) == {"error"}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RequestError("x"), "invalid_request_error"),
        (RequestError("x", status=401), "authentication_error"),
        (RequestError("x", status=403), "permission_error"),
        (RequestError("x", status=404), "not_found_error"),
        (RequestError("x", status=413), "request_too_large"),
        (RequestError("x", status=429), "rate_limit_error"),
        (CapacityError("x"), "overloaded_error"),
        (DeadlineError("x"), "timeout_error"),
        (DeviceError("x"), "api_error"),
        (ZeroDivisionError("x"), "api_error"),
    ],
)
async def test_kinds_of_anthropic_s_errors(error: Exception, kind: str) -> None:
    assert anthropic_error(error)["error"]["type"] == kind
    assert anthropic_error(error, "id")["request_id"] == "id"
