"""The page's addresses over a real socket on real actors: its files, the live events, saved traces."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import trio

from luce.actors.tracing import landed
from luce.charts.loader import chart_names
from luce.engines.fake.engine import FakeEngine, fake_capabilities
from luce.engines.fake.times import Times
from luce.http.options import HttpOptions
from luce.http.ui import routes
from luce.http.ui.files import STATIC
from luce.http.ui.live import MOST_DETAILS
from luce.http.ui.routes import MOST_PAGES
from luce.http.ui.saved import SavedEvents
from luce.trace.events import EventRecord
from luce.trace.schema import Illegal
from tests.http.conftest import data_url, until
from tests.http.fake_model import Live, live
from tests.http.test_service import body
from tests.trace.recording import written

pytestmark = [pytest.mark.trio, pytest.mark.unrecorded]  # whether anybody listens is asked

HEADERS = {"content-type": "application/json"}


def client_of(server: Live, **headers: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.server.port}", headers=headers, timeout=20)


async def told(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The messages of a stream of events."""
    assert response.headers["content-type"].startswith("text/event-stream")
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield msgspec.json.decode(line[6:])


async def test_files_are_there_and_know_each_other() -> None:
    async with live(FakeEngine(), HttpOptions(api_keys=("secret",))) as server, client_of(server) as client:
        page = await client.get("/ui")  # without a key
        assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "http" not in policy
        for name in (one.relative_to(STATIC).as_posix() for one in STATIC.rglob("*.*")):
            found = await client.get(f"/ui/static/{name}")
            assert found.status_code == 200, name
            if name.endswith(".js"):
                assert found.headers["content-type"].startswith("text/javascript")
            again = await client.get(f"/ui/static/{name}", headers={"if-none-match": found.headers["etag"]})
            assert again.status_code == 304 and not again.content
        for name in ("missing.js", "../wire.py", "%2e%2e/wire.py", "vendor"):
            assert (await client.get(f"/ui/static/{name}")).status_code in (404, 401), name
        assert (await client.get("/ui/events")).status_code == 401
        assert (await client.post("/ui/trace", content=b"x")).status_code == 401


async def test_pages_name_only_files_that_are_there() -> None:
    texts = {one.name: one.read_text() for one in STATIC.iterdir() if one.is_file()}
    html = texts["index.html"]
    named = re.findall(r'(?:src|href)="/ui/static/([^"]+)"', html)
    for text in (text for name, text in texts.items() if name.endswith(".js")):
        named += re.findall(r'from "\./([^"]+)"', text)
        for wanted in re.findall(r'\$\("([a-z-]+)"\)', text):
            assert f'id="{wanted}"' in html, wanted
    assert len(named) > 12
    for name in named:
        assert (STATIC / name).is_file(), name
    assert not any(re.search(r"https?://", text) for name, text in texts.items()), "the page asks nobody else"


async def test_no_page_where_the_operator_wants_none() -> None:
    async with live(FakeEngine(), HttpOptions(ui=False)) as server, client_of(server) as client:
        for path in ("/ui", "/ui/events", "/ui/static/main.js"):
            assert (await client.get(path)).status_code == 404


async def test_a_request_is_seen_on_its_way() -> None:
    engine = FakeEngine(fake_capabilities(num_slots=2), times=Times(step=0.002))
    async with live(engine) as server, client_of(server) as client:
        async with client.stream("GET", "/ui/events") as response:
            messages = told(response)
            hello = await anext(messages)
            assert hello["kind"] == "hello" and hello["live"] and hello["slots"] == 2
            charts = {chart["name"]: chart for chart in hello["charts"]}
            assert sorted(charts) == sorted(chart_names())
            assert 'id="state-decoding_free"' in charts["request"]["dot"]
            assert ["server", 0, ["ready"]] in hello["machines"]
            asked = body("hi", data_url(), max_tokens=20)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: client.post("/v1/chat/completions", json=asked))
                events, phases, boards, numbers = [], [], [], []
                strips = set()
                async for news in messages:
                    assert news["kind"] == "news" and not news["lost"] and not news["illegal"]
                    numbers.append((news["first"], len(news["steps"])))
                    events += [step for step in news["steps"] if step[1] == "request"]
                    strips |= {strip[0] for strip in news["strips"]}
                    phases += [strip[3] for strip in news["strips"] if strip[0] == "phase"]
                    if news["board"]:
                        boards += news["board"]["requests"]
                    if phases and phases[-1] == "finished":
                        break
        assert [one for one in phases if one != "encoding"] == [
            "queued",
            "staging",
            "decoding",
            "ending",
            "finished",
        ]
        assert sum(event[3] == "token" for event in events) >= 20
        assert {"phase", "step", "encode", "counts"} <= strips
        assert numbers == sorted(numbers)
        assert all(set(board) >= {"slot", "position", "blocks", "pictures_encoded"} for board in boards)
        await until(lambda: not server.service.events.detailed)  # nobody listens any more


async def test_a_page_that_does_not_read_is_told_what_it_missed() -> None:
    engine = FakeEngine(fake_capabilities(num_slots=2))
    async with (
        live(engine) as server,
        client_of(server) as client,
        client.stream("GET", "/ui/events") as response,
    ):
        messages = told(response)
        await anext(messages)
        events = server.service.events
        for number in range(70_000):  # more than the ring holds, between two frames
            events.observe(("request", f"r{number % 8}", "token", 0, ("live",)))
            events.detail(landed, number, 0.0, None)
        assert [len(reader.notes) for reader in events._readers] == [MOST_DETAILS], "no more is kept"
        while not (news := await anext(messages))["lost"]:
            pass
        assert news["lost"] > 4000
        assert len(news["steps"]) <= 2000 and news["thinned"] > 60_000


async def test_so_many_pages_and_no_more() -> None:
    async with live(FakeEngine()) as server, client_of(server) as client:
        async with trio.open_nursery() as nursery:
            opened = 0

            async def page() -> None:
                nonlocal opened
                async with client_of(server) as own, own.stream("GET", "/ui/events") as response:
                    assert response.status_code == 200
                    opened += 1
                    await trio.sleep_forever()

            for _ in range(MOST_PAGES):
                nursery.start_soon(page)
            await until(lambda: opened == MOST_PAGES, 20)
            refused = await client.get("/ui/events")
            assert refused.status_code == 503 and "close one" in refused.json()["error"]["message"]
            nursery.cancel_scope.cancel()
        await until(lambda: not server.service.events.detailed, 20)
        async with client.stream("GET", "/ui/events") as response:
            assert response.status_code == 200


# -- saved traces -----------------------------------------------------------------------------------------------------

QUEUED = ("live", "phase", "waiting", "queued", "client", "flowing")
STAGING = ("live", "phase", "staging", "staging_chunk", "client", "flowing")
DECODING = ("live", "phase", "decoding", "decoding_free", "client", "flowing")


def trace(directory: Path, *, planted: bool = False, illegal: bool = False, tokens: int = 3) -> bytes:
    steps = [("(start)", 0, QUEUED), ("slot.granted", 0, STAGING), ("chunk.done", 32, DECODING)]
    steps += [("token", 2048, DECODING)] * tokens
    if planted:
        steps.insert(4, ("slot.granted", 0, DECODING))
    records = [EventRecord(n, 10 + n / 100, "request", "r1", *step) for n, step in enumerate(steps)]
    details = [(len(records), 20.0, Illegal("request r1", "slot.granted", DECODING))] if illegal else []
    return written(directory, records, details).read_bytes()


async def shown(client: httpx.AsyncClient, content: bytes, query: str = "") -> list[dict[str, Any]]:
    async with client.stream("POST", f"/ui/trace{query}", content=content) as response:
        assert response.status_code == 200, await response.aread()
        return [message async for message in told(response)]


async def test_a_saved_trace_is_told_like_a_server(tmp_path: Path) -> None:
    async with live(FakeEngine()) as server, client_of(server) as client:
        whole = trace(tmp_path)
        hello, *news, end = await shown(client, whole)
        assert not hello["live"] and len(hello["charts"]) == len(chart_names())
        steps = [step for one in news for step in one["steps"]]
        assert [step[3] for step in steps] == [
            "(start)",
            "slot.granted",
            "chunk.done",
            "token",
            "token",
            "token",
        ]
        phases = [strip[3] for one in news for strip in one["strips"] if strip[0] == "phase"]
        assert phases == ["queued", "staging", "decoding"]
        counts = [strip[2:5] for one in (hello, *news) for strip in one["strips"] if strip[0] == "counts"]
        assert counts == [[0, 0, 0], [1, 0, 0], [0, 1, 0]], "waiting, running, parked"
        assert not any(one["illegal"] for one in news)
        assert end == {"kind": "end", "records": 6, "more": False, "warnings": []}
        assert len([1 for one in (await shown(client, whole, "?skip=4"))[1:-1] for _ in one["steps"]]) == 2


@pytest.mark.parametrize("how", ["planted", "illegal"])
async def test_an_illegal_event_in_a_trace_is_found(how: str, tmp_path: Path) -> None:
    """One that the records show, and one that the server met and recorded."""
    async with live(FakeEngine()) as server, client_of(server) as client:
        _, *news, _ = await shown(client, trace(tmp_path, **{how: True}))
        (found,) = [fault for one in news for fault in one["illegal"]]
        assert (found["machine"], found["id"], found["event"]) == ("request", "r1", "slot.granted")
        assert "decoding" in found["states"] and found["why"]


async def test_traces_that_cannot_be_shown(tmp_path: Path) -> None:
    whole = trace(tmp_path)
    async with live(FakeEngine()) as server, client_of(server) as client:
        for content in (b"nonsense" * 100, whole[:20]):
            response = await client.post("/ui/trace", content=content)
            assert response.status_code == 400 and "trace" in response.json()["error"]["message"]
        assert (await client.post("/ui/trace?skip=-1", content=whole)).status_code == 400
        *_, end = await shown(client, whole[:-3])
        assert "breaks off" in end["warnings"][0]
        altered = bytearray(whole)
        altered[-4] ^= 0x55
        *_, end = await shown(client, bytes(altered))
        assert end["warnings"]


async def test_so_many_saved_traces_at_once_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trace(tmp_path)
    go, waiting = trio.Event(), 0

    class Waits(SavedEvents):
        async def next(self) -> bytes:
            nonlocal waiting
            waiting += 1
            await go.wait()
            return await super().next()

    monkeypatch.setattr(routes, "SavedEvents", Waits)
    async with live(FakeEngine()) as server, client_of(server) as client, trio.open_nursery() as nursery:
        for _ in range(routes.MOST_SAVED):
            nursery.start_soon(shown, client, whole)
        await until(lambda: waiting == routes.MOST_SAVED, 20)
        refused = await client.post("/ui/trace", content=whole)
        assert refused.status_code == 503 and "saved traces" in refused.json()["error"]["message"]
        async with client.stream("GET", "/ui/events") as response:
            assert response.status_code == 200, "the live page has places of its own"
        go.set()
    async with live(FakeEngine()) as server, client_of(server) as client:
        for _ in range(routes.MOST_SAVED + 1):
            assert (await shown(client, whole))[-1]["kind"] == "end"
            assert (await client.post("/ui/trace", content=b"nonsense")).status_code == 400


async def test_faults_of_an_upload_name_no_file_of_the_server(tmp_path: Path) -> None:
    whole = trace(tmp_path)
    async with live(FakeEngine()) as server, client_of(server) as client:
        for content in (b"nonsense" * 100, whole[:20]):
            said = (await client.post("/ui/trace", content=content)).json()["error"]["message"]
            assert "the uploaded file" in said and ".ltrace" not in said
        for content in (whole[:-3], whole[:-4] + b"????"):
            *_, end = await shown(client, content)
            assert end["warnings"][0].startswith("the uploaded file: ")
