"""Pictures on a device of the text model's own: when they are encoded, and what waits for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import numpy.typing as npt
import pytest
import trio

from luce.actors.request import Request
from luce.engines.fake.engine import FakeTicket, fake_capabilities
from luce.engines.fake.times import Times
from luce.engines.seam import PatchImage, SegmentKind, StepPlan
from luce.replay.redrive.driver import drive
from luce.replay.redrive.script import script_of
from luce.trace.reader import FileStart
from tests.sim import requests, simulator
from tests.sim.requests import make_submission, picture_of, prompt_of, text_of
from tests.sim.simulator import Client, Faults, Report, check_results, simulate
from tests.sim.test_mixed_traffic import text
from tests.sim.watch import WatchedEngine
from tests.trace.recording import items_of

TIMES = Times(step=0.006, row=98e-6, piece=0.004, picture=0.0156, work=0.0045)
"""About those of a model of 27B and of pictures of a megapixel on a large GPU."""
OPTIONS: dict[str, Any] = {
    "park_bytes": 0,
    "image_bytes": 0,
    "prefix_bytes": 1 << 30,
    "prefill_budget": 2048,
    "step_seconds": 0.04,
    "rows_before_picture": 128,
}
PICTURE = 1024
WINDOW = 0.020


class Noting(WatchedEngine):
    """Notes when what is begun."""

    encodes: list[float]
    """When each picture is."""
    prompts: list[tuple[float, int]]
    """When each step with more than one row of prompts is, and how many it has."""

    answers: list[int]
    """Rows of answers in each step that has some."""

    def launch(self, plan: StepPlan) -> FakeTicket:
        if rows := sum(one.kind is SegmentKind.DECODE for one in plan.segments):
            self.answers.append(rows)
        rows = sum(one.count for one in plan.segments if one.kind is SegmentKind.PREFILL)
        if rows > 1:
            self.prompts.append((trio.current_time(), rows))
        return super().launch(plan)

    async def encode_async(self, image: PatchImage) -> npt.NDArray[Any]:
        self.encodes.append(trio.current_time())
        return await super().encode_async(image)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> type[Noting]:
    Noting.encodes, Noting.prompts, Noting.answers = [], [], []
    monkeypatch.setattr(simulator, "WatchedEngine", Noting)
    return Noting


def shown(name: str, at: float, tokens: int = 4, rows: int = 20) -> Client:
    """A question about a picture of its own."""
    images = [picture_of(f"{name}/0", PICTURE)]
    prompt = prompt_of(text_of(name, rows), images, answer_start=rows - 7)
    return Client(at, make_submission(name, prompt, images, tokens, seed=len(name)))


def serve(clients: list[Client], depth: int, trace: Path | None = None, **changes: Any) -> Report:
    shape = fake_capabilities(num_slots=10, num_blocks=4000, max_context=8000)
    first = text("first", 4, rows=1000)  # something is measured
    options = OPTIONS | {"depth": depth} | changes
    report = simulate(3, [first, *clients], shape, TIMES, Faults(), trace, **options)
    assert check_results(report.results, Faults()) == 1 + len(clients)
    return report


@pytest.mark.parametrize("depth", [1, 2])
def test_a_picture_is_encoded_while_an_idle_server_waits_for_others(depth: int, noted: type[Noting]) -> None:
    serve([shown("one", 1.0), shown("two", 1.005)], depth)
    assert noted.encodes == pytest.approx([1.0, 1.0 + TIMES.picture])
    assert noted.prompts[1][0] == pytest.approx(1.0 + WINDOW), "the window is for prompts"


@pytest.mark.parametrize("depth", [1, 2])
def test_a_picture_is_encoded_while_a_long_step_runs(
    depth: int, noted: type[Noting], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the encoder would rest until that prompt is through, and then the device until it is encoded."""
    clients = [text("long", 4, at=1.0, rows=1000), shown("one", 1.06)]
    serve(clients, depth)
    assert noted.encodes == pytest.approx([1.06])
    monkeypatch.setattr("luce.actors.step_loop.StepLoop._between", lambda loop: False)
    serve(clients, depth)
    assert noted.encodes[1] > 1.12, "the trap is set"


@pytest.mark.unrecorded
def test_answers_that_begin_together_stay_together(
    noted: type[Noting], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Depth 2: the step that is launched behind the last prompts goes on with all of them, although the states that
    some leave are not copied yet."""
    clients = [shown(f"picture {number}", 1.0, tokens=12) for number in range(4)]
    serve(clients, 2)
    assert [rows for rows in noted.answers if rows > 1] == [4] * 11

    def awaits(request: Request) -> bool:
        first, row = request.computed_rows, request.next_row
        return any(first < point <= row for point in request.capture_points)

    noted.answers.clear()
    monkeypatch.setattr("luce.actors.freeze.awaits_capture", awaits)
    serve(clients, 2)
    found = [rows for rows in noted.answers if rows > 1]
    assert min(found) < 4, "the trap is set"


@pytest.mark.parametrize("depth", [1, 2])
def test_not_while_a_state_is_copied_that_it_may_go_on_from(depth: int, noted: type[Noting]) -> None:
    """The same question again, just when what the first one leaves is being copied."""
    first = shown("one", 1.0, tokens=1)
    end = serve([first], depth).results[1].times[-1]
    again = Client(end + TIMES.work / 2, attrs.evolve(first.submission, id="again"))
    report = serve([first, again], depth)
    assert report.results[2].cached >= PICTURE


@pytest.mark.parametrize("depth", [1, 2])
def test_a_little_text_is_no_step_of_its_own(depth: int, noted: type[Noting]) -> None:
    soon = serve([shown("one", 1.0)], depth).results[1].times[0]
    assert [rows for _, rows in noted.prompts[1:]] == [PICTURE + 20]
    noted.prompts.clear()
    late = serve([shown("one", 1.0)], depth, rows_before_picture=1, coalesce=0.0).results[1].times[0]
    assert [rows for _, rows in noted.prompts[1:]] == [2, PICTURE + 18], "the trap is set"
    assert soon < late + WINDOW


@pytest.mark.parametrize("depth", [1, 2])
def test_four_questions_begin_sooner(
    depth: int, noted: type[Noting], monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [shown(f"picture {number}", 1.0 + 0.01 * number, tokens=64) for number in range(4)]

    def last_first(**changes: Any) -> float:
        noted.prompts.clear()
        return max(result.times[0] for result in serve(clients, depth, **changes).results[1:]) - 1.0

    soon = last_first()
    assert [rows for _, rows in noted.prompts[1:]] == pytest.approx([PICTURE, 2 * PICTURE, PICTURE], abs=64)
    assert soon < WINDOW + 4 * (PICTURE + 20) * TIMES.row + 3 * (TIMES.step + TIMES.piece) + 6 * TIMES.work
    monkeypatch.setattr("luce.actors.step_loop.StepLoop._between", lambda loop: False)
    late = last_first(rows_before_picture=1)
    print(f"\ndepth {depth}: first tokens after {soon:.3f} s; before {late:.3f} s")
    assert soon < late - 0.015


@pytest.mark.parametrize("depth", [1, 2])
def test_much_text_goes_ahead(depth: int, noted: type[Noting], monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder is busy with the others' pictures."""
    monkeypatch.setattr(requests, "GAP", 128)
    clients = [shown(f"picture {number}", 1.0, rows=140) for number in range(3)]
    serve(clients, depth)
    assert noted.prompts[1][1] == pytest.approx(PICTURE + 140 + 2 * 128, abs=2)
    noted.prompts.clear()
    serve(clients, depth, rows_before_picture=129)
    assert noted.prompts[1][1] == pytest.approx(PICTURE + 140, abs=2), "the trap is set"


def test_a_failing_picture_takes_nobody_along(noted: type[Noting]) -> None:
    clients = [shown(f"picture {number}", 1.0) for number in range(3)]
    faults = Faults(pictures=frozenset([clients[1].submission.images[0].digest]))
    shape = fake_capabilities(num_slots=10, num_blocks=4000, max_context=8000)
    report = simulate(3, clients, shape, TIMES, faults, depth=2, **OPTIONS)
    check_results(report.results, faults)
    assert [result.end is not None and result.end.reason for result in report.results] == [
        "length",
        "error",
        "length",
    ]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_trace_leads_to_the_same_plans(depth: int, tmp_path: Path) -> None:
    late = [shown(f"late {number}", 1.15 + 0.09 * number, tokens=40) for number in range(4)]
    report = serve(
        [shown("one", 1.0), shown("two", 1.01), text("long", 9, at=1.02, rows=900), *late], depth, tmp_path
    )
    items = items_of(tmp_path)
    first = items[0]
    assert isinstance(first, FileStart) and first.header.options["rows_before_picture"] == 128
    found = drive(first.header, script_of(items), items)
    assert found.parted is None and found.launches == report.metrics.steps


@pytest.mark.unrecorded
@pytest.mark.parametrize("depth", [1, 2])
def test_a_trace_from_before_leads_to_the_same_plans(
    depth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a server that let nobody in between plans, and computed any text in front of a picture by itself."""
    late = [shown(f"late {number}", 1.15 + 0.09 * number, tokens=40) for number in range(4)]
    with monkeypatch.context() as before:
        before.setattr("luce.actors.step_loop.StepLoop._between", lambda loop: False)
        clients = [shown("one", 1.0), shown("two", 1.01), *late]
        report = serve(clients, depth, tmp_path, rows_before_picture=1)
    items = items_of(tmp_path)
    first = items[0]
    assert isinstance(first, FileStart)
    del first.header.options["rows_before_picture"]
    found = drive(first.header, script_of(items), items)
    assert found.parted is None and found.launches == report.metrics.steps
