"""The log of `luce serve` as an operator sees it, and its end by signals as a client sees it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import httpx

from tests.e2e.server import LUCE, serving, until
from tests.e2e.test_serve import body, picture, post, url


def test_every_request_is_a_line_on_standard_error(tiny_model: Path) -> None:
    with serving(tiny_model) as server:
        usage = post(server, body("Not to be logged", url(picture(32, 32)), max_tokens=5)).json()["usage"]
        assert post(server, {"messages": []}).status_code == 400
        until(lambda: sum(" luce.requests: " in line for line in server.lines) == 2, 20)
        text = "\n".join(server.lines)
    answered, refused = re.findall(r"^\S+ \S+ INFO luce\.requests: request (.*)$", text, re.MULTILINE)
    assert re.fullmatch(
        r"request_id=\w{32} method=POST path=/v1/chat/completions status=200 outcome=finished answer=chatcmpl-\w{32} "
        rf"finish=length prompt_tokens={usage['prompt_tokens']} cached_tokens=0 completion_tokens=5 "
        r"queue_s=\d+\.\d{3} first_token_s=\d+\.\d{3} duration_s=\d+\.\d{3}",
        answered,
    ), answered
    assert " status=400 outcome=refused param=messages duration_s=" in refused, refused
    assert "Not to be logged" not in text


def test_all_that_is_written_can_be_json(tiny_model: Path) -> None:
    """The address that it serves at, too: nothing is on standard output."""
    flags = ["serve", str(tiny_model), "--port", "0", "--log-format", "json"]
    with subprocess.Popen(
        [*LUCE, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"^serving .* at (http://\S+)/v1", json.loads(line)["event"]):
                break
        with httpx.Client(base_url=found[1], timeout=60, headers={"x-request-id": "my-call"}) as client:  # type: ignore[index]
            assert client.post("/v1/chat/completions", json=body("Hi", max_tokens=3)).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == ""
        entries = [json.loads(line) for line in process.stderr]
    (one,) = [entry for entry in entries if entry["logger"] == "luce.requests"]
    assert (one["request_id"], one["status"], one["completion_tokens"]) == ("my-call", 200, 3)
    assert isinstance(one["duration_s"], float) and one["level"] == "info"
    assert [entry["event"] for entry in entries if entry["logger"] == "luce.http"] == [
        "SIGTERM: finishing what runs, for up to 30 s; a second signal ends it"
    ]


def test_level_of_the_log_leaves_the_lines_out(tiny_model: Path) -> None:
    with serving(tiny_model, "--log-level", "warning") as server:
        post(server, body("Hi"))
        server.signal()
        assert server.wait(5) == 0
        until(lambda: any("SIGTERM" in line for line in server.lines))
    assert not [line for line in server.lines if "luce.requests" in line]


def test_second_signal_tells_streams_and_leaves(tiny_model: Path) -> None:
    with serving(tiny_model, "--context", "4096") as server, server.http() as client:
        asked = body("Hi", stream=True, max_tokens=4000)
        with client.stream("POST", "/v1/chat/completions", json=asked) as response:
            lines = response.iter_lines()
            for _ in range(6):  # past the first token: what only waits is sent away by the first signal
                next(lines)
            server.signal(signal.SIGTERM)
            until(lambda: client.get("/ready").status_code == 503)
            server.signal(signal.SIGTERM)
            rest = [line for line in lines if line.startswith("data: ")]
        assert '"the server is shutting down"' in rest[-1] and "[DONE]" not in rest[-1]
        assert server.wait(10) == 130
    assert any("outcome=failed" in line for line in server.lines)
