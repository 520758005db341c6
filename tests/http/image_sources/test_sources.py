"""Pictures from elsewhere through the whole HTTP side: when they are fetched, what bounds it, what it leaves behind."""

from __future__ import annotations

import base64
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import trio

from luce.actors.options import ServiceOptions
from luce.http.image_sources.hosts import HostRule
from luce.http.image_sources.options import ImageSourceOptions
from luce.vision.decode import DecodeLimits, check_image
from tests.http.conftest import Server, serving, until
from tests.http.image_sources.picture_host import PICTURE, Host, answer, hosting
from tests.http.stubs import StubEngine, StubPreparer, StubService, make_model
from tests.vision.pictures import encode, noise

pytestmark = pytest.mark.trio

CHAT = "/v1/chat/completions"
DATA = f"data:image/png;base64,{base64.b64encode(PICTURE).decode()}"


def body(*urls: str, **fields: Any) -> dict[str, Any]:
    content = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"messages": [{"role": "user", "content": content}], **fields}


def place(index: int) -> str:
    return f"messages[0].content[{index}].image_url.url"


def fetching(host: Host, **changes: Any) -> ImageSourceOptions:
    return ImageSourceOptions(hosts=(HostRule("127.0.0.1", host.port),), private=True, **changes)


async def refused(server: Server, asked: dict[str, Any], field: str, status: int = 400) -> str:
    async with server.http() as client:
        response = await client.post(CHAT, json=asked)
    error = response.json()["error"]
    assert response.status_code == status and error["param"] == field, response.text
    assert "secret" not in response.text
    assert server.bodies.held == 0
    return str(error["message"])


def pictures_seen(server: Server) -> list[Any]:
    return server.model.preparer.seen[-1]["images"]  # type: ignore[attr-defined,no-any-return]


async def test_pictures_from_a_host() -> None:
    """In their places among others; one that is named twice is fetched once; nothing is held afterwards."""
    async with hosting({"/a": answer(), "/b": answer(encode(noise(8, 8), "JPEG"))}) as host:
        async with serving(image_sources=fetching(host)) as server, server.http() as client:
            asked = body(f"{host.url}/a", DATA, f"{host.url}/b", f" {host.url}/a", f"{host.url}/a")
            response = await client.post(CHAT, json=asked)
            assert response.status_code == 200, response.text
            assert len(pictures_seen(server)) == 5 and server.bodies.held == 0
        assert sorted(head.split()[1] for head in host.asked) == [b"/a", b"/a", b"/b"]


async def test_nothing_is_fetched_unless_told_to(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PICTURE)
    async with hosting({"/a": answer()}) as host:
        async with serving() as server:
            message = await refused(server, body(DATA, f"{host.url}/a?secret"), place(1))
            assert message == (
                f"{place(1)}: http: URLs are not supported by this server, which fetches no pictures (its operator can "
                "allow it: --fetch-images); "
                "send the picture as data:image/png;base64,…"
            )
            assert "reads no picture files (its operator can allow it: --image-folder)" in await refused(
                server, body(f"file://{tmp_path}/a.png"), place(0)
            )
        async with serving(image_sources=ImageSourceOptions(folder=tmp_path)) as server:
            assert "fetches no pictures" in await refused(server, body(f"{host.url}/a"), place(0))
        async with serving(image_sources=fetching(host)) as server:
            assert "reads no picture files" in await refused(
                server, body(f"file://{tmp_path}/a.png"), place(0)
            )
            for url, said in (("ftp://127.0.0.1/a", "ftp: URLs are not supported"), ("a.png", "this is not a URL"),
                              ("x" * 50_000 + "://a", "this is not a URL")):  # fmt: skip
                assert said in await refused(server, body(url), place(0))
        assert host.asked == []


async def test_nothing_is_fetched_for_a_request_that_is_refused_anyway() -> None:
    async with hosting({"/a": answer()}) as host:
        options, url = fetching(host), f"{host.url}/a"
        async with serving(image_sources=options) as server:
            await refused(server, body(*[url] * 17), "messages")
            await refused(server, body(url, top_p=7), "top_p")
            await refused(server, body(url, unknown=1), "unknown")
            await refused(server, body(url, "ftp://x"), place(1))
            low = body(url)
            low["messages"][0]["content"][0]["image_url"]["detail"] = "low"
            await refused(server, low, "messages[0].content[0].image_url.detail")
        async with serving(
            image_sources=options, model=make_model(engine=StubEngine(images=False))
        ) as server:
            await refused(server, body(url), place(0))
        async with serving(image_sources=options, api_keys=("key",)) as server, server.http() as client:
            assert (await client.post(CHAT, json=body(url))).status_code == 401
        assert host.asked == []
        async with serving(image_sources=options) as server, server.http() as client:
            assert (await client.post(CHAT, json=body(url))).status_code == 200
        assert len(host.asked) == 1, "the trap: it would be"


async def test_errors_name_the_picture() -> None:
    answers = {"/a": answer(), "/none": answer(b"", "404 Not Found"), "/text": answer(b"<svg>secret</svg>")}
    async with hosting(answers) as host, serving(image_sources=fetching(host)) as server:
        message = await refused(server, body(DATA, f"{host.url}/a", f"{host.url}/none?secret"), place(2))
        assert message == (
            f"{place(2)}: 127.0.0.1:{host.port} answered with status 404; check the URL, or send the picture as "
            "data:image/png;base64,…"
        )
        assert "127.0.0.1:1" in await refused(server, body("http://127.0.0.1:1/secret"), place(0))
        await refused(server, body(f"{host.url}/text"), place(0))


async def test_sizes() -> None:
    small, large = encode(noise(8, 8), "BMP"), encode(noise(40, 40), "BMP")
    async with hosting({f"/{n}": answer(small) for n in range(9)} | {"/large": answer(large)}) as host:
        async with (
            serving(image_sources=fetching(host), max_image_bytes=1000) as server,
            server.http() as client,
        ):
            assert (await client.post(CHAT, json=body(f"{host.url}/0"))).status_code == 200
            assert "at most 1000 bytes" in await refused(server, body(f"{host.url}/large"), place(0))
        total = fetching(host, max_total_bytes=3 * len(small))
        async with serving(image_sources=total) as server, server.http() as client:
            three = [f"{host.url}/{n}" for n in range(3)]
            assert (await client.post(CHAT, json=body(*three))).status_code == 200
            four = body(*three, f"{host.url}/3")
            async with server.http() as other:
                assert "too large together" in (await other.post(CHAT, json=four)).json()["error"]["message"]
            here = f"data:image/bmp;base64,{base64.b64encode(small).decode()}"
            assert "bytes together" in await refused(server, body(*three, here), place(3))
            assert "bytes together" in await refused(server, body(*[here] * 4), place(3))


async def test_pixels_of_a_request_are_bounded_by_the_headers() -> None:
    """Before any of its pictures is decoded."""
    half = f"data:image/png;base64,{base64.b64encode(encode(noise(16, 16))[:40]).decode()}"
    async with serving(max_total_pixels=2 * 256) as server:
        assert "more than 512 pixels together" in await refused(server, body(DATA, DATA, half), place(2))
        assert "not a picture" in await refused(server, body(DATA, half), place(1))


async def test_one_picture_over_its_own_bound_is_not_told_that_of_all_together() -> None:
    class Strict(StubPreparer):
        def image_tokens(self, data: bytes, *, field: str) -> int:
            _, height, width = check_image(data, limits=DecodeLimits(max_pixels=256), field=field)
            return height * width // 64

    wide = f"data:image/png;base64,{base64.b64encode(encode(noise(16, 32))[:40]).decode()}"
    async with serving(model=make_model(preparer=Strict()), max_total_pixels=300) as server:
        for urls in ((wide,), (DATA, wide)):
            said = await refused(server, body(*urls), place(len(urls) - 1))
            assert "is too large" in said and "at most 256 pixels" in said, said


async def test_what_all_requests_hold_bounds_what_is_fetched() -> None:
    big = encode(noise(100, 100), "BMP")
    async with (
        hosting({"/a": answer(big), "/small": answer()}) as host,
        serving(image_sources=fetching(host), max_body_bytes=5000, max_buffered_bytes=20_000) as server,
        server.http() as client,
    ):
        response = await client.post(CHAT, json=body(f"{host.url}/a"))
        assert response.status_code == 503 and "retry-after" in response.headers, response.text
        assert server.bodies.held == 0
        assert (await client.post(CHAT, json=body(f"{host.url}/small"))).status_code == 200
        assert server.bodies.held == 0


async def test_time_is_bounded_for_all_together() -> None:
    async with (
        hosting({"/never": None, "/a": answer()}) as host,
        serving(image_sources=fetching(host, timeout=0.3)) as server,
    ):
        message = await refused(server, body(DATA, f"{host.url}/never"), place(1))
        assert "was not there within 0.3 s" in message
        await until(lambda: host.left == 1)


@pytest.mark.parametrize("own", [True, False])
async def test_the_time_limit_of_the_answer_counts_while_its_pictures_are_fetched(own: bool) -> None:
    """The request's own, or the server's."""
    service = StubService()
    service.options = ServiceOptions(request_timeout=None if own else 0.3)
    async with (
        hosting({"/never": None}) as host,
        serving(service, image_sources=fetching(host, timeout=60)) as server,
        server.http() as client,
    ):
        asked = body(f"{host.url}/never", **({"timeout": 0.3} if own else {}))
        with trio.fail_after(30):
            response = await client.post(CHAT, json=asked)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (504, "timeout")
        limit = "timeout" if own else "--request-timeout"
        assert error["message"] == (
            f"the answer was not complete 0.3 s after its request arrived ({limit}): "
            "its pictures were still being fetched"
        )
        await until(lambda: host.left == 1)
        assert server.bodies.held == 0


async def test_a_slow_host_holds_up_no_other_request() -> None:
    """No preparing thread waits for it."""
    async with (
        hosting({"/never": None}) as host,
        serving(image_sources=fetching(host), preparing=1) as server,
        server.http() as client,
        trio.open_nursery() as nursery,
    ):
        for _ in range(3):
            nursery.start_soon(send_and_wait, server, f"{host.url}/never")
        await until(lambda: len(host.asked) == 3)
        for _ in range(3):
            assert (await client.post(CHAT, json=body(DATA))).status_code == 200
        nursery.cancel_scope.cancel()


async def send_and_wait(server: Server, url: str) -> None:
    async with server.http() as client:
        await client.post(CHAT, json=body(url))


async def test_a_client_that_leaves_ends_the_fetch() -> None:
    async with (
        hosting({"/never": None}) as host,
        serving(image_sources=fetching(host, timeout=1000)) as server,
    ):
        data = json.dumps(body(f"{host.url}/never")).encode()
        stream = await server.connect()
        await stream.send_all(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(data), data)
        )
        await until(lambda: len(host.asked) == 1)
        assert host.left == 0
        await stream.aclose()
        await until(lambda: host.left == 1)
        await until(lambda: server.bodies.held == 0)


async def test_files_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PICTURE)
    (tmp_path / "text.png").write_text("secret")
    async with serving(image_sources=ImageSourceOptions(folder=tmp_path), max_image_bytes=5000) as server:
        async with server.http() as client:
            response = await client.post(CHAT, json=body(f"file://{tmp_path}/a.png", DATA))
            assert response.status_code == 200 and len(pictures_seen(server)) == 2
        assert "no such file" in await refused(server, body(f"file://{tmp_path}/../a.png"), place(0))
        await refused(server, body(f"file://{tmp_path}/text.png"), place(0))
        (tmp_path / "large.png").write_bytes(b"x" * 5001)
        assert "at most 5000 bytes" in await refused(server, body(f"file://{tmp_path}/large.png"), place(0))


async def test_nothing_of_a_url_but_its_host_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with (
        hosting({"/secret": answer(), "/secret/none": answer(b"", "404 No")}) as host,
        serving(image_sources=fetching(host)) as server,
        server.http() as client,
    ):
        for path, status in (("/secret?secret", 200), ("/secret/none?secret", 400)):
            assert (await client.post(CHAT, json=body(host.url + path))).status_code == status
    said = "\n".join(f"{record.name} {record.getMessage()} {record.exc_text}" for record in caplog.records)
    ours = [record for record in caplog.records if record.name.startswith("luce")]
    assert any("fetched" in record.getMessage() for record in ours), "the trap: it is logged"
    assert "secret" not in "\n".join(line for line in said.splitlines() if line.startswith("luce"))
