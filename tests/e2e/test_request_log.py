"""The log of `luce serve` as an operator sees it, and its end by signals as a client sees it."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from tests.e2e.server import serving, until
from tests.e2e.test_serve import body, picture, post, url


def test_every_request_is_a_line_on_standard_error(tiny_model: Path) -> None:
    with serving(tiny_model) as server:
        usage = post(server, body("Not to be logged", url(picture(32, 32)), max_tokens=5)).json()["usage"]
        assert post(server, {"messages": []}).status_code == 400
        until(lambda: sum(" luce.requests: " in line for line in server.lines) == 2, 20)
        text = "\n".join(server.lines)
    answered, refused = re.findall(r"^\S+ \S+ INFO luce\.requests: (.*)$", text, re.MULTILINE)
    assert re.fullmatch(
        r"id=\w{32} method=POST path=/v1/chat/completions status=200 outcome=finished answer=chatcmpl-\w{32} "
        rf"finish=length prompt_tokens={usage['prompt_tokens']} cached_tokens=0 completion_tokens=5 "
        r"queue_s=\d+\.\d{3} first_token_s=\d+\.\d{3} duration_s=\d+\.\d{3}",
        answered,
    ), answered
    assert " status=400 outcome=refused duration_s=" in refused
    assert "Not to be logged" not in text


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
