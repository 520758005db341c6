"""`luce serve` with its flags for pictures from elsewhere: they answer as those in the request do."""

from __future__ import annotations

import base64
import http.server
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server import ServerProcess, serving
from tests.vision.pictures import encode, noise

PICTURE = encode(noise(48, 64))


class Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "pictures"
    found.mkdir()
    (found / "a.png").write_bytes(PICTURE)
    (tmp_path / "b.png").write_bytes(PICTURE)
    return found


@pytest.fixture
def host(folder: Path) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=folder))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def ask(server: ServerProcess, url: str) -> tuple[int, Any]:
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is it?"}]
    body = {
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": 6,
        "ignore_eos": True,
    }
    with server.http() as client:
        response = client.post("/v1/chat/completions", json=body)
    answer = response.json()
    if response.status_code != 200:
        return response.status_code, answer["error"]["message"]
    return 200, answer["choices"][0]["message"]


def test_pictures_from_elsewhere_answer_alike(tiny_model: Path, folder: Path, host: str) -> None:
    data = f"data:image/png;base64,{base64.b64encode(PICTURE).decode()}"
    remote, local = f"http://{host}/a.png?secret=word", f"file://{folder}/a.png"
    flags = ("--fetch-images", "--image-host", host, "--fetch-private", "--image-folder", str(folder))
    with serving(tiny_model, "--context", "512", "--slots", "1", *flags) as server:
        expected = ask(server, data)
        assert expected[0] == 200 and ask(server, remote) == ask(server, local) == expected
        refusals = [
            ask(server, url)
            for url in (
                f"http://{host}/none.png",
                f"http://localhost:{host[10:]}/a.png",
                f"file://{folder.parent}/b.png",
            )
        ]
    assert [status for status, _ in refusals] == [400, 400, 400]
    for (_, message), said in zip(
        refusals, ("status 404", "fetches nothing from localhost", "no such file"), strict=True
    ):
        assert said in message
    assert "secret" not in "\n".join(server.lines)
    with serving(tiny_model, "--context", "512", "--slots", "1") as server:
        for url, said in ((remote, "fetches no pictures"), (local, "reads no picture files")):
            status, message = ask(server, url)
            assert status == 400 and said in message
