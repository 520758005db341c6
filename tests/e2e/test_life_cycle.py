"""How a real process ends over each protocol: an engine that breaks, and clients that do not read."""

from __future__ import annotations

import json
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.server import ServerProcess, serving, until
from tests.e2e.test_serve import body
from tests.http.peers import CERTIFICATE

BREAKABLE = """
import signal
from luce.engines.qwen35.engine import Qwen35Engine

broken, collect = [], Qwen35Engine.collect
signal.signal(signal.SIGUSR1, lambda *_: broken.append(True))

def breaking(self, ticket):
    if broken:
        raise ZeroDivisionError("broken on purpose")
    return collect(self, ticket)

Qwen35Engine.collect = breaking
from luce.cli.main import main
main()
"""
PATH = "/v1/chat/completions"


@pytest.fixture(params=["HTTP/1.1", "HTTP/2", "HTTP/1.1 over TLS", "HTTP/2 over TLS"])
def protocol(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def flags(protocol: str, folder: Path) -> list[str]:
    if "TLS" not in protocol:
        return []
    file = folder / "both.pem"
    CERTIFICATE.private_key_and_cert_chain_pem.write_to_path(str(file))
    return ["--tls-cert", str(file)]


def client_of(server: ServerProcess, protocol: str) -> httpx.Client:
    second = protocol.startswith("HTTP/2")
    return server.http(http1=not second, http2=second)


def requests(server: ServerProcess) -> list[dict[str, Any]]:
    with server.http() as client:
        found: list[dict[str, Any]] = client.get("/slots").json()["requests"]
    return found


def test_an_engine_that_breaks_ends_the_process_once_every_client_is_told(
    tiny_model: Path, tmp_path: Path, protocol: str
) -> None:
    """Two that run, streamed and not, two that wait, and one that reads nothing."""
    program = (sys.executable, "-c", BREAKABLE)
    given = ["--context", "4096", "--slots", "2", *flags(protocol, tmp_path)]
    with serving(tiny_model, *given, program=program) as server, ThreadPoolExecutor(4) as pool:

        def ask(stream: bool) -> httpx.Response:
            with client_of(server, protocol) as client:
                response = client.post(PATH, json=body("Hi", stream=stream, max_tokens=4000))
                assert response.http_version == protocol.removesuffix(" over TLS")
                return response

        with (
            client_of(server, protocol) as unread,
            unread.stream("POST", PATH, json=body("Hi", stream=True, max_tokens=4000)) as response,
        ):
            assert response.status_code == 200
            asked = []
            for stream in (True, False, True, False):
                asked.append(pool.submit(ask, stream))
                until(lambda: len(requests(server)) == len(asked) + 1, 20)
            server.signal(signal.SIGUSR1)
            answers = [one.result(30) for one in asked]
            assert server.wait(10) == 1
    for answer, streamed in zip(answers, (True, False, True, False), strict=True):
        if streamed:
            assert answer.status_code == 200 and "[DONE]" not in answer.text
            last = json.loads(answer.text.split("data: ")[-1])
        else:
            assert answer.status_code == 500
            last = answer.json()
        assert last["error"]["type"] == "server_error"
        assert "broken on purpose" not in answer.text
    report = "\n".join(server.lines)
    assert "broken on purpose" in report and "ZeroDivisionError" in report


def test_a_client_that_never_reads_does_not_hold_the_exit(
    tiny_model: Path, tmp_path: Path, protocol: str
) -> None:
    with serving(
        tiny_model, "--context", "4096", "--drain-timeout", "0.5", *flags(protocol, tmp_path)
    ) as server:
        asked = body("Hi", stream=True, max_tokens=4000)
        with (
            client_of(server, protocol) as client,
            client.stream("POST", PATH, json=asked) as response,
        ):
            lines = response.iter_lines()
            for _ in range(6):
                next(lines)
            server.signal()
            assert server.wait(10) == 0


def test_a_signal_lets_streams_finish_over_each_protocol(
    tiny_model: Path, tmp_path: Path, protocol: str
) -> None:
    with serving(tiny_model, "--context", "4096", *flags(protocol, tmp_path)) as server:
        asked = body("Hi", stream=True, max_tokens=600)
        with (
            client_of(server, protocol) as client,
            client.stream("POST", PATH, json=asked) as response,
        ):
            lines = response.iter_lines()
            for _ in range(6):
                next(lines)
            with server.http() as other:
                server.signal()
                until(lambda: other.get("/ready").status_code == 503)
                assert other.get("/health").status_code == 200
            assert "data: [DONE]" in list(lines)
        assert server.wait(10) == 0
