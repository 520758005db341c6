"""The whole program on a tiny random model: start, answers, bad pictures, signals."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import re
import signal
import struct
import subprocess
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from PIL import Image, ImageDraw

from tests.e2e.server import LUCE, ServerProcess, serving, until


def url(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def picture(width: int, height: int, seed: int = 0, form: str = "PNG") -> bytes:
    image = Image.new("RGB", (width, height), (seed * 37 % 256, 90, 160))
    ImageDraw.Draw(image).rectangle((0, 0, width // 2, height // 2), (250, seed * 61 % 256, 0))
    out = io.BytesIO()
    image.save(out, form)
    return out.getvalue()


def body(text: str, *pictures: str, **fields: Any) -> dict[str, Any]:
    content: Any = text
    if pictures:
        content = [{"type": "image_url", "image_url": {"url": one}} for one in pictures]
        content.append({"type": "text", "text": text})
    defaults = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
    return {"messages": [{"role": "user", "content": content}]} | defaults | fields


def post(server: ServerProcess, asked: dict[str, Any]) -> httpx.Response:
    with server.http() as client:
        return client.post("/v1/chat/completions", json=asked)


def test_start_says_what_it_does(tiny_server: ServerProcess) -> None:
    text = "\n".join(tiny_server.lines)
    for name, value in (("temperature", "1"), ("top_k", "20"), ("top_p", "0.95")):
        assert re.search(rf"  {name} +{value} +generation_config.json", text)
    assert re.search(r"pictures of up to [\d,]+ pixels", text)
    assert re.search(r"  decoding +[\d,]+ bytes", text)
    assert re.search(r"total +[\d,]+ bytes", text)
    assert "loaded in" in text
    with tiny_server.http() as client:
        assert client.get("/ready").json() == {"status": "ready"}
        card = client.get("/v1/models").json()["data"][0]
    assert (card["id"], card["max_model_len"], card["input_modalities"]) == ("tiny", 2048, ["text", "image"])


def test_answers_at_once_equal_answers_alone(tiny_server: ServerProcess) -> None:
    """Bit for bit: log-probabilities too, with more requests than slots, pictures of several sizes, two seeds."""
    asked = [
        body(
            f"Question {index}: " + "word " * (index * 7),
            *[url(picture(24 + 8 * index, 40, index))] * (index % 3),
            temperature=0.8 * (index % 2),
            seed=index,
            logprobs=True,
            top_logprobs=3,
        )
        for index in range(9)
    ]
    alone = [post(tiny_server, one).json()["choices"][0] for one in asked]
    assert len({str(one) for one in alone}) == len(asked)
    with ThreadPoolExecutor(len(asked)) as pool:
        together = [
            answer.json()["choices"][0] for answer in pool.map(lambda one: post(tiny_server, one), asked)
        ]
    assert together == alone


def test_stream_and_whole_agree(tiny_server: ServerProcess) -> None:
    asked = body("Hello", url(picture(64, 48)), seed=3)
    whole = post(tiny_server, asked).json()
    with tiny_server.openai() as client:
        chunks = list(
            client.chat.completions.create(
                model="tiny",
                messages=asked["messages"],
                temperature=0,
                max_tokens=24,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True},
            )
        )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole["choices"][0]["message"]["content"]
    assert chunks[-1].usage is not None
    usage = chunks[-1].usage.model_dump(exclude_none=True)
    details = usage.pop("prompt_tokens_details"), whole["usage"].pop("prompt_tokens_details")
    assert usage == whole["usage"]
    assert details[0]["cached_tokens"] > details[1]["cached_tokens"] == 0, "the second one finds the first"
    assert whole["usage"]["completion_tokens"] == 24
    assert whole["choices"][0]["finish_reason"] == "length"


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and has no pixels to speak of."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
        + chunk(b"IEND", b"")
    )


GOOD = [(1, 1), (2, 3), (30, 305), (23, 237), (31, 31), (7, 1000)]


@pytest.mark.parametrize(("width", "height"), GOOD)
def test_small_and_thin_pictures_are_answered(tiny_server: ServerProcess, width: int, height: int) -> None:
    response = post(tiny_server, body("What is this?", url(picture(width, height))))
    assert response.status_code == 200, response.text


BAD = {
    "1x2000": picture(1, 2000),
    "2000x9": picture(2000, 9),
    "not a picture": b"Hello, this is text, not a picture at all.",
    "empty file type": b"\x89PNG\r\n\x1a\n",
    "truncated": picture(64, 64)[:120],
    "truncated jpeg": picture(640, 640, form="JPEG")[:1500],
    "bomb": png_header(60_000, 60_000),
    "bomb with sides in range": png_header(30_000, 30_000),
    "no pixels": png_header(0, 10),
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"/>',
    "tiff": picture(8, 8, form="TIFF"),
    "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n",
}


@pytest.mark.parametrize("name", BAD)
def test_bad_pictures_name_their_field(tiny_server: ServerProcess, name: str) -> None:
    start = time.monotonic()
    response = post(tiny_server, body("What is this?", url(picture(8, 8)), url(BAD[name])))
    if name == "2000x9" and response.status_code == 200:
        pytest.fail("a picture beyond 200 to 1 was taken")
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == "messages[0].content[1].image_url.url"
    assert time.monotonic() - start < 2
    assert post(tiny_server, body("And now?")).status_code == 200


def test_prompt_over_context_gives_both_numbers(tiny_server: ServerProcess) -> None:
    error = post(tiny_server, body("word " * 3000)).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "2048" in error["message"]
    assert re.search(r"prompt has \d{4,} tokens", error["message"])


def test_template_refusals_are_400(tiny_server: ServerProcess) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "system", "content": "late"}]
    response = post(tiny_server, {"messages": messages, "chat_template_kwargs": {"messages": []}})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "chat_template_kwargs.messages"


def test_sixteen_pictures(tiny_server: ServerProcess) -> None:
    pictures = [url(picture(16 + index, 32, index)) for index in range(16)]
    response = post(tiny_server, body("Compare", *pictures))
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["prompt_tokens"] > 16
    response = post(tiny_server, body("Compare", *pictures, pictures[0]))
    assert response.status_code == 400


def test_first_signal_finishes_what_runs(tiny_model: Path) -> None:
    with serving(tiny_model, "--context", "4096") as server, server.openai() as client:
        stream = client.chat.completions.create(
            model="Tiny-VL",
            messages=[{"role": "user", "content": "Hi"}],
            stream=True,
            max_tokens=1000,
            extra_body={"ignore_eos": True},
        )
        _answering(stream)
        server.signal()
        until(lambda: post(server, body("more")).status_code == 503)
        refused = post(server, body("more"))
        assert refused.headers["retry-after"]
        reason = None
        for chunk in stream:
            reason = chunk.choices[0].finish_reason or reason
        assert reason == "length"
        assert server.wait(5) == 0


def test_drain_limit_ends_with_an_error_event(tiny_model: Path) -> None:
    with (
        serving(tiny_model, "--context", "4096", "--drain-timeout", "0.3") as server,
        server.openai() as client,
    ):
        stream = client.chat.completions.create(
            model="Tiny-VL",
            messages=[{"role": "user", "content": "Hi"}],
            stream=True,
            extra_body={"ignore_eos": True},
        )
        _answering(stream)
        server.signal()
        with pytest.raises(openai.APIError, match="shutting down"):
            list(stream)
        assert server.wait(5) == 0


@pytest.mark.parametrize("reads", [True, False])
def test_second_signal_stops_at_once(tiny_model: Path, reads: bool) -> None:
    """Also when a client has stopped reading."""
    with serving(tiny_model, "--context", "4096") as server, server.http() as client:
        asked = body("Hi", stream=True, max_tokens=4000)
        with client.stream("POST", "/v1/chat/completions", json=asked) as response:
            lines = response.iter_lines()
            for _ in range(6):  # past the first token: what only waits is sent away by the first signal
                next(lines)
            if reads:
                threading.Thread(target=lambda: [None for _ in _quiet(lines)], daemon=True).start()
            server.signal(signal.SIGINT)
            time.sleep(0.2)
            assert server.process.poll() is None
            server.signal(signal.SIGINT)
            assert server.wait(3) == 130


def test_second_signal_does_not_wait_for_a_step() -> None:
    """One step that takes far longer than the server may: while one answer runs, whole prompts meet in a step."""
    long = body("word " * 1900, max_tokens=2)
    flags = ("--prefill", "1000000", "--slots", "8", "--prefix-memory", "0")
    with serving(None, *flags) as server, server.http() as client:
        asked = body("Hi", stream=True, max_tokens=3000, ignore_eos=True)
        with client.stream("POST", "/v1/chat/completions", json=asked) as response:
            lines = response.iter_lines()
            for _ in range(6):
                next(lines)
            for _ in range(8):
                threading.Thread(target=lambda: _quietly(client, long), daemon=True).start()
            # Whoever came first is alone in a step; the others get their slots when the next one is launched.
            until(lambda: sum("staging" in one["states"] for one in _requests(client)) >= 3, 60)
            server.signal()
            time.sleep(0.2)
            server.signal()
            assert server.wait(5) == 130


def _requests(client: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/slots").json()["requests"]
    return found


def _quietly(client: httpx.Client, asked: Any) -> None:
    with contextlib.suppress(httpx.HTTPError):
        client.post("/v1/chat/completions", json=asked)


def _answering(stream: Any) -> None:
    """Read to the first text: what only waits is sent away by the first signal."""
    while not next(stream).choices[0].delta.content:
        pass


def _quiet(lines: Any) -> Any:
    try:
        yield from lines
    except httpx.HTTPError:
        pass


def test_idle_server_stops_quickly_with_open_connections(tiny_model: Path) -> None:
    with serving(tiny_model) as server, server.http() as client:
        assert client.get("/health").status_code == 200
        start = time.monotonic()
        server.signal()
        assert server.wait(5) == 0
        assert time.monotonic() - start < 2


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LUCE, *arguments], capture_output=True, text=True, timeout=60, env=os.environ | env, check=False
    )


def test_port_in_use_is_one_line(tiny_server: ServerProcess) -> None:
    port = tiny_server.url.rsplit(":", 1)[1]
    done = run("serve", "--port", port)
    assert done.returncode == 2
    said = f"luce: --port: cannot listen on 127.0.0.1:{port}: Address already in use; "
    assert done.stderr.startswith(said) and done.stderr.count("\n") == 1


def test_model_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = run("serve", str(tmp_path / "none"), "--port", "0")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "does not exist" in done.stderr


def test_flags_from_file_and_environment(tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "luce.toml"
    file.write_text('[serve]\nslots = 2\ncontext = 128\nname = "from-file"\nalias = ["other"]\n')
    env = os.environ | {"LUCE_CONTEXT": "192", "LUCE_SLOTS": "3"}
    with serving(tiny_model, "--config", str(file), "--slots", "1", env=env) as server:
        assert any(line.startswith("1 slots of 192 tokens") for line in server.lines)
        assert any(line.startswith("serving from-file at") for line in server.lines)
        assert post(server, body("Hi", model="other")).status_code == 200
