"""The fuzzer finds nothing in a fixed set of cases, and would find something: each of its checks is shown a fault.

`python -m tests.fuzz --seconds 600` tries other cases for as long as one likes.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import trio

from luce.errors import RequestError
from luce.http.openai import chat
from tests.faults.whole import live
from tests.fuzz import campaign, transport
from tests.fuzz.campaign import run
from tests.fuzz.cases import Case, make_case
from tests.fuzz.checks import Fault, check
from tests.fuzz.corpus import PICTURE, POSTS, data_url, pictures
from tests.fuzz.json_mutations import ODD
from tests.fuzz.transport import Reply


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_found() -> None:
    report = trio.run(lambda: run(2026, cases=1200))
    assert report.found == []
    assert report.cases == 1200
    assert report.outcomes["200"] > 200
    assert report.outcomes["400"] > 400


@pytest.mark.trio
async def test_what_it_starts_from_is_right() -> None:
    (png, file), *_ = pictures()

    def shown(value: Any) -> Any:
        if isinstance(value, dict):
            found = {key: shown(item) for key, item in value.items()}
            if value.get("data") == PICTURE:
                found["data"] = data_url(png, file).partition(",")[2]
            return found
        if isinstance(value, list):
            return list(map(shown, value))
        return data_url(png, file) if value == PICTURE else value

    async with live(context=campaign.CONTEXT) as server:
        for path, body in POSTS:
            response = await server.client.post(path, json=shown(body))
            expected = 404 if path.endswith("/cancel") else 200
            assert response.status_code == expected, (path, body, response.text)


def test_every_case_can_be_made() -> None:
    before = copy.deepcopy(ODD)
    paths = {make_case(8, number).path for number in range(30_000)}
    assert {path for path, _ in POSTS} <= paths
    assert copy.deepcopy(ODD) == before


def test_cases_follow_from_seed_and_number() -> None:
    assert [make_case(5, n) for n in range(50)] == [make_case(5, n) for n in range(50)]
    assert make_case(5, 1) != make_case(6, 1)
    ways = {make_case(5, n).way for n in range(50)}
    assert ways == {"asgi", "socket", "pieces", "leave"}


HEADERS = {"x-request-id": "a"}
ASKED = Case("0:0", "POST", "/v1/chat/completions", (), b"{}", "asgi")
ERROR = {"error": {"message": "m", "type": "invalid_request_error", "param": None, "code": None}}
SSE = "text/event-stream; charset=utf-8"


def reply(status: int, body: Any, kind: str = "application/json", **headers: str) -> Reply:
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    return Reply(status, kind, HEADERS | headers, data)


@pytest.mark.parametrize(
    "good",
    [
        reply(200, {}),
        reply(400, ERROR),
        Reply(503, "application/json", HEADERS | {"retry-after": "1"}, json.dumps(ERROR).encode()),
        reply(200, ": keep-alive\n\ndata: {}\n\ndata: [DONE]\n\n", SSE),
        reply(200, 'data: {}\n\ndata: {"error": {}}\n\n', SSE),
    ],
)
def test_what_is_right_passes(good: Reply) -> None:
    check(ASKED, good)


@pytest.mark.parametrize(
    "bad",
    [
        reply(500, ERROR),
        reply(422, ERROR),
        reply(503, ERROR),
        reply(405, ERROR),
        reply(400, "<html>", "text/html"),
        reply(400, {"detail": "x"}),
        reply(400, {"error": ERROR["error"] | {"more": 1}}),
        reply(400, {"error": ERROR["error"] | {"message": ""}}),
        reply(400, {"error": ERROR["error"] | {"message": "a\nb"}}),
        reply(400, {"error": ERROR["error"] | {"message": "x" * 5000}}),
        reply(200, "{"),
        reply(200, "{}", "text/html"),
        Reply(200, "application/json", {}, b"{}"),
        reply(200, "data: {}\n\n", SSE),
        reply(200, "data: {\n\ndata: [DONE]\n\n", SSE),
        reply(200, "data: {}\n\ndata: [DONE]", SSE),
        reply(200, "garbage\n\ndata: [DONE]\n\n", SSE),
        reply(200, "", SSE),
    ],
)
def test_what_is_wrong_is_found(bad: Reply) -> None:
    with pytest.raises(Fault):
        check(ASKED, bad)


def test_a_bug_in_the_server_is_found(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(chat, "prepare_chat", broken)
    monkeypatch.setattr(campaign, "PLAIN", {"prompt": "a"})
    monkeypatch.setattr("tests.faults.whole.CHAT", "/v1/completions")
    monkeypatch.setattr(campaign, "_plain", _nothing)
    report = trio.run(lambda: run(1, cases=200))
    assert {found.fault for found in report.found} == {"status 500"}


async def _nothing(server: Any) -> str:
    return ""


def test_a_request_that_hangs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: Any) -> Any:
        trio.from_thread.run(trio.sleep, 30)
        raise RequestError("late")

    monkeypatch.setattr(transport, "LIMIT", 0.05)
    monkeypatch.setattr(chat, "prepare_chat", slow)
    monkeypatch.setattr(campaign, "_plain", _nothing)
    report = trio.run(lambda: run(1, cases=12))
    assert "it hangs" in {found.fault for found in report.found}


def test_memory_that_grows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "WARM_UP", 0)
    monkeypatch.setattr(campaign, "GROWTH", -1)
    report = trio.run(lambda: run(1, cases=20))
    assert [found.fault for found in report.found] == ["memory grew by 0 bytes"]


def test_another_answer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(("before", "after"))

    async def plain(server: Any) -> str:
        return next(answers)

    monkeypatch.setattr(campaign, "_plain", plain)
    report = trio.run(lambda: run(1, cases=20))
    assert [found.fault for found in report.found] == ["a plain request gets 'after', not 'before'"]
