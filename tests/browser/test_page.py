"""The page in a real browser, on live servers in front of the fake engine and of the bundled model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from luce.engines.fake.engine import FakeEngine, deepseek_capabilities, fake_capabilities
from luce.engines.fake.times import Times
from luce.errors import RequestError
from luce.http.options import HttpOptions
from luce.http.ui import routes
from luce.http.ui.saved import SavedEvents
from tests.browser.driving import ARTIFACTS, chromium, drive, watched_page
from tests.http.fake_model import live
from tests.http.ui.test_page import trace

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "chart.png"


@pytest.fixture(autouse=True)
def browser() -> None:
    chromium()
    ARTIFACTS.mkdir(parents=True, exist_ok=True)


def until(page: Any, condition: str) -> None:
    """Playwright's own way evaluates text within the page, which its policy forbids."""
    page.evaluate(f"async () => {{ while (!({condition})) await new Promise((go) => setTimeout(go, 20)); }}")


def shot(page: Any, name: str) -> None:
    page.screenshot(path=str(ARTIFACTS / f"{name}.png"))


@pytest.mark.trio
async def test_a_picture_question_goes_through_the_chart() -> None:
    """Slow steps and a slow encoder, so that one can see where the token stands."""
    engine = FakeEngine(
        deepseek_capabilities(max_context=160), times=Times(step=0.03, layer=0.05, picture=3.0)
    )

    def look(address: str) -> None:
        with watched_page(address) as page:
            page.get_by_role("tab", name="request").click()
            page.locator("#picture").set_input_files(str(PICTURE))
            page.get_by_label("Question").fill("What is this?")
            page.get_by_role("button", name="Send").click()
            for state in ("encoding", "staging_", "decoding_"):
                page.locator(f'circle.token[data-state^="{state}"]').first.wait_for(state="visible")
                seen = page.locator(f'circle.token[data-state^="{state}"]').first.bounding_box()
                assert seen is None or seen["width"] >= 8, "too small to be seen"
                shot(page, f"request-{state.strip('_')}")
            page.locator("#rows tr").first.wait_for()
            page.locator("#rows button").first.click()
            detail = page.locator("#detail-body")
            detail.get_by_text("slot.granted").wait_for()
            page.locator(".turn.answer").wait_for()
            page.locator("#stop").wait_for(state="hidden")
            page.wait_for_timeout(600)
            found = page.evaluate(
                "[...luce.store.machines.values()].filter(m => m.chart === 'request').at(-1).events.flatMap(e => e[3])"
            )
            ways = [one for one in found if re.match(r"queued|encoding$|staging$|decoding$|finished", one)]
            order = list(dict.fromkeys(ways))
            assert order == ["queued", "encoding", "staging", "decoding", "finished"], order
            lanes = page.evaluate("[...luce.store.lanes.values()].at(-1).map(one => one.phase)")
            assert lanes[:4] == ["queued", "encoding", "staging", "decoding"] and lanes[-1] == "finished", (
                lanes
            )
            assert page.evaluate("luce.timeline.boxes[0].text()").startswith("waiting 0\nrunning 0\n")
            blocks = engine.capabilities.num_blocks
            left = page.evaluate("luce.timeline.boxes[0].text()").split("\n")[-1]
            found = [int(number) for number in re.findall(r"\d+", left)]
            assert left.startswith("blocks left") and found[0] == found[1] + found[2] == blocks, left
            shot(page, "request-finished")

    async with live(engine) as server:
        await drive(look, server.server.port)


@pytest.mark.trio
async def test_a_saved_trace_shows_the_illegal_event_in_it(tmp_path: Path) -> None:
    trace(tmp_path, planted=True, tokens=400)
    file = tmp_path / "run-000000.ltrace"

    def look(address: str) -> None:
        with watched_page(address) as page:
            page.locator("#trace").set_input_files(str(file))
            page.get_by_text("saved trace, 404 records").wait_for()
            shown = page.evaluate("[luce.timeline.right - luce.timeline.seconds, luce.timeline.right]")
            assert 9.5 < shown[0] <= 10 and 14 < shown[1] < 14.5, "where its request lives"
            page.evaluate("[...luce.store.lanes.values()][0].at(-1).to = luce.store.now")
            page.evaluate("luce.store.now += 40; luce.timeline.showAll()")
            assert shown == page.evaluate(
                "[luce.timeline.right - luce.timeline.seconds, luce.timeline.right]"
            )
            alarm = page.locator("#alarms button")
            alarm.wait_for()
            assert "slot.granted of request r1" in alarm.inner_text()
            before = page.evaluate("luce.timeline.seconds")
            for _ in range(3):
                page.get_by_label("Zoom in").click()
            assert page.evaluate("luce.timeline.seconds") < before / 7
            canvas = page.locator("#lanes")
            canvas.focus()
            right = page.evaluate("luce.timeline.right")
            page.keyboard.press("ArrowLeft")
            assert page.evaluate("luce.timeline.right") < right
            page.mouse.move(700, 800)
            page.mouse.wheel(0, -400)
            page.wait_for_timeout(200)
            assert page.evaluate("luce.timeline.seconds") < before / 8
            alarm.click()
            page.locator(".illegal-row").first.wait_for()
            at = page.evaluate(
                "[luce.timeline.right - luce.timeline.seconds, luce.timeline.right, luce.store.illegal[0].t]"
            )
            assert at[0] <= at[2] <= at[1], "the timeline shows the moment"
            assert page.locator("#state-decoding_free.illegal").count() == 1
            shot(page, "illegal")
            page.get_by_role("button", name="Back to live").click()
            page.locator("#status", has_text="live").wait_for()
            assert page.evaluate("luce.store.illegal.length") == 0

    async with live(FakeEngine()) as server:
        await drive(look, server.server.port)


@pytest.mark.trio
@pytest.mark.parametrize("how", ["fault", "end"])
async def test_a_saved_trace_that_ends_in_an_error_says_so(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace(tmp_path)

    class Breaks(SavedEvents):
        async def next(self) -> bytes:
            if how == "end":
                return b""
            raise RequestError("something in it is odd")

    monkeypatch.setattr(routes, "SavedEvents", Breaks)
    said = {"fault": "something in it is odd", "end": "the rest of the trace did not come"}[how]

    def look(address: str) -> None:
        with watched_page(address) as page:
            page.locator("#trace").set_input_files(str(tmp_path / "run-000000.ltrace"))
            page.locator("#status", has_text=f"the trace cannot be shown: {said}").wait_for()

    async with live(FakeEngine()) as server:
        await drive(look, server.server.port)


@pytest.mark.trio
async def test_keys_states_themes_and_small_screens() -> None:
    engine = FakeEngine(fake_capabilities(max_context=128), times=Times(step=0.01))

    def look(address: str) -> None:
        with watched_page(address, viewport={"width": 420, "height": 800}, color_scheme="dark") as page:
            page.locator("#key").wait_for()
            page.locator("#key").fill("a key")
            page.get_by_role("button", name="Use", exact=True).click()
            page.locator("#status", has_text="live").wait_for()
            dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
            page.get_by_role("button", name="Theme").click()
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
            page.get_by_role("button", name="chat", exact=True).click()
            page.get_by_label("Question").fill("Hi")
            page.keyboard.press("Enter")
            page.locator(".turn.answer").wait_for()
            page.evaluate("luce.charts.show('server')")  # while another view is shown, nothing has a place
            page.wait_for_timeout(200)
            page.get_by_role("button", name="charts", exact=True).click()
            page.wait_for_timeout(200)
            token = page.locator('circle.token[data-state="ready"]').bounding_box()
            state = page.locator("#state-ready").bounding_box()
            assert token["x"] >= state["x"] - 1 and token["x"] < state["x"] + state["width"], (token, state)
            assert abs(token["y"] - state["y"] - state["height"]) < 20, (token, state)
            page.get_by_role("tab", name="request").focus()
            page.keyboard.press("ArrowRight")
            assert page.get_by_role("tab", name="server").get_attribute("aria-selected") == "true"
            page.get_by_role("tab", name="request").click()
            page.locator("#state-queued").click()
            page.get_by_text("entered 1 times").wait_for()
            shot(page, "small")
            page.keyboard.press("Escape")
            assert page.locator("#detail").is_hidden()
            width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert width[0] <= width[1], "nothing sticks out"

    faults = "Failed to load resource: the server responded with a status of 401"
    async with live(engine, HttpOptions(api_keys=("a key",))) as server:
        try:
            await drive(look, server.server.port)
        except AssertionError as error:
            said = error.args[0] if error.args and isinstance(error.args[0], list) else None
            assert said is not None and all(one.startswith(faults) for one in said), error


SEEN_SIZES = """() => {
  const svg = document.querySelector("#chart svg"), panel = document.getElementById("chart").getBoundingClientRect();
  const shown = [...svg.querySelectorAll("text")].map((text) => {
    const box = text.getBoundingClientRect(), scale = text.getScreenCTM().a;
    const inside = box.left < panel.right && box.right > panel.left && box.top < panel.bottom && box.bottom > panel.top;
    return {pixels: parseFloat(getComputedStyle(text).fontSize) * scale, height: box.height, inside};
  });
  const some = shown.filter((one) => one.inside);
  return [Math.min(...shown.map((one) => one.pixels)), Math.min(...shown.map((one) => one.height)), some.length];
}"""
"""Of the labels of the chart that is shown: the smallest text and its box in pixels, and how many are to be seen."""
START_SEEN = """(name) => {
  const panel = document.getElementById("chart").getBoundingClientRect();
  const titles = [...document.querySelectorAll("#chart svg .node > title")];
  const dot = titles.find((title) => title.textContent === `initial of ${name}`).parentNode.getBoundingClientRect();
  return panel.left <= dot.left && dot.right <= panel.right && panel.top <= dot.top && dot.bottom <= panel.bottom;
}"""


@pytest.mark.trio
@pytest.mark.parametrize("viewport", [{"width": 1400, "height": 950}, {"width": 420, "height": 800}])
async def test_labels_of_charts_are_legible_at_first_sight(viewport: dict[str, int]) -> None:
    """Those of the largest chart are not where all of it is shown; then buttons and keys lead back."""

    def look(address: str) -> None:
        with watched_page(address, viewport=viewport) as page:
            page.locator("#status", has_text="live").wait_for()

            def sizes() -> tuple[float, float, int]:
                until(page, "luce.charts.placed && luce.charts.scale !== null")
                pixels, height, inside = page.evaluate(SEEN_SIZES)
                return pixels, height, inside

            names = page.evaluate("[...luce.store.charts.keys()]")
            assert "request" in names
            for name in names:
                page.get_by_role("tab", name=name, exact=True).click()
                pixels, height, inside = sizes()
                assert pixels > 10.9 and height >= 10 and inside > 2, (name, pixels, height, inside)
                assert page.evaluate(START_SEEN, name), name
            page.get_by_role("tab", name="request", exact=True).click()
            shot(page, f"legible-{viewport['width']}")
            every = page.evaluate("document.querySelectorAll('#chart svg text').length")
            page.get_by_role("button", name="Whole", exact=True).click()
            pixels, _, inside = sizes()
            assert pixels < 5 and inside == every, "all of it, too small to be read"
            page.get_by_role("button", name="Larger chart").click()
            assert pixels * 1.3 < sizes()[0] < 5.5, "somebody's choice"
            page.set_viewport_size({**viewport, "height": viewport["height"] - 100})
            page.wait_for_timeout(200)
            assert sizes()[0] < 5.5, "which lasts"
            page.locator("#chart").focus()
            page.keyboard.press("1")
            assert sizes()[0] > 10.9 and page.evaluate(START_SEEN, "request")
            page.set_viewport_size(viewport)
            page.wait_for_timeout(200)
            assert 10.9 < sizes()[0] < 11.2 and page.evaluate(START_SEEN, "request"), (
                "in a panel of another size"
            )

    async with live(FakeEngine()) as server:
        await drive(look, server.server.port)


SAME_DRAWN_ANEW = """() => {
  const draw = () => {
    luce.timeline.seen = null;
    luce.timeline.draw();
    return document.getElementById("lanes").toDataURL();
  };
  const grown = draw();
  luce.timeline.strip.reset();
  luce.timeline.known = null;
  return [luce.timeline.frames, grown === draw()];
}"""
"""Is what was drawn column by column, as news came, what is drawn from all that is known?"""


@pytest.mark.trio
async def test_what_is_drawn_piece_by_piece_is_the_whole() -> None:
    """Steps, curves and lanes while requests come and go, at several zooms; held, nothing is drawn."""
    engine = FakeEngine(fake_capabilities(num_slots=4, max_context=128), times=Times(step=0.004))

    def look(address: str) -> None:
        with watched_page(address) as page:
            page.locator("#status", has_text="live").wait_for()
            page.evaluate(
                """() => { luce.asking = setInterval(() => fetch("/v1/chat/completions", {
                     method: "POST", headers: {"Content-Type": "application/json"},
                     body: JSON.stringify({messages: [{role: "user", content: "Hi"}], max_tokens: 30}),
                   }), 60); }"""
            )
            until(page, "luce.store.order.length > 5 && luce.store.steps.length > 100")
            drawn = 0
            for seconds in (20, 3, 0.4, 1.5):
                page.evaluate(f"luce.timeline.seconds = {seconds}")
                for _ in range(4):
                    until(page, f"luce.timeline.frames > {drawn + 3}")
                    drawn, same = page.evaluate(SAME_DRAWN_ANEW)
                    assert same, seconds
            page.evaluate("clearInterval(luce.asking); luce.timeline.pause()")
            until(page, "luce.store.machines.size && luce.store.board.requests.length === 0")
            held = page.evaluate("luce.timeline.frames")
            seen = page.evaluate("luce.store.now")
            until(page, f"luce.store.now > {seen + 0.6}")
            assert page.evaluate("luce.timeline.frames") == held
            assert page.evaluate(SAME_DRAWN_ANEW)[1]

    async with live(engine) as server:
        await drive(look, server.server.port)


@pytest.mark.trio
async def test_machines_that_ended_leave_the_chart_and_what_moves_is_where_it_stands() -> None:
    def look(address: str) -> None:
        with watched_page(address) as page:
            page.locator("#status", has_text="live").wait_for()
            page.get_by_role("tab", name="prefix_entry").click()

            def tell(*steps: tuple[int, str, str], after: float) -> list[list[str]]:
                """Prefix entries by number, event and state, so many seconds later; the tokens then."""
                told = [[0, "prefix_entry", number, event, 0, [state]] for number, event, state in steps]
                return page.evaluate(
                    """([steps, after]) => {
                         const now = luce.store.now + after;
                         for (const step of steps) step[0] = now;
                         luce.store.take({now, first: 0, lost: 0, steps, strips: [], illegal: []});
                         luce.charts.draw();
                         const tokens = [...document.querySelectorAll("circle.token")];
                         return tokens.map(({dataset}) => [dataset.machine, dataset.state]).sort();
                       }""",
                    [told, after],
                )

            states = page.evaluate("luce.store.charts.get('prefix_entry').states")
            other = next(one for one in states if page.locator(f"#state-{one}:not(.cluster)").count())
            assert other != "gone"
            crowd = [(900 + k, "filled", other) for k in range(5)]
            assert tell(*crowd, after=1) == [[f"prefix_entry {900 + k}", other] for k in range(5)]
            assert page.locator("text.count").all_text_contents() == ["5"]
            places = page.evaluate(
                "[...document.querySelectorAll('circle.token')].map((one) => one.outerHTML.match(/cx=.*? cy=\\S*/)[0])"
            )
            assert len(set(places)) == 5, "each has a place of its own"
            after = tell((902, "evict", "gone"), after=1)
            assert ["prefix_entry 902", "gone"] in after and len(after) == 5
            assert tell((901, "filled", other), after=2) == [
                [f"prefix_entry {900 + k}", other] for k in (0, 1, 3, 4)
            ]
            assert page.locator("text.count").all_text_contents()[0] == "4"
            assert page.evaluate("luce.store.machine('prefix_entry', 902).ended") is not None

    async with live(FakeEngine(fake_capabilities(num_slots=2))) as server:
        await drive(look, server.server.port)
