"""Real actors led along traces: they do the same again, and what is done otherwise is found where it happens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from luce.actors import prefix_cache
from luce.cli.main import _run as cli
from luce.engines.fake.engine import FakeEngine, Mode, deepseek_capabilities, fake_capabilities
from luce.engines.fake.reference import encoded_rows
from luce.engines.seam import PatchImage
from luce.errors import ConfigError, TraceFileError
from luce.replay.redrive.driver import drive
from luce.replay.redrive.outcome import Redrive
from luce.replay.redrive.script import script_of
from luce.scheduling import plan as policy
from luce.scheduling.state import Decision, LoopState
from luce.trace.events import EventRecord
from luce.trace.files import Limits
from luce.trace.reader import FileStart, Item, read_header, read_trace, trace_paths
from luce.trace.schema import Alike, Arrival, Gap, Landed, Launched, Planned
from tests.actors.harness import ask, read, read_all, serving
from tests.actors.test_prefix_cache import next_turn
from tests.sim import simulator, watch
from tests.sim.crowd import BROKEN, serve_crowd
from tests.sim.simulator import Faults, simulate
from tests.sim.test_mixed_traffic import OPTIONS, TIMES, mixed
from tests.trace.recording import StepRecorder, header, items_of, written

FAULTS = Faults(rows=1.0, steps=0.5, copies=0.4, pictures=BROKEN)


@pytest.fixture
def with_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "StepRecorder", lambda path: StepRecorder(path, content=True))


def again(items: list[Item]) -> Redrive:
    first = items[0]
    assert isinstance(first, FileStart)
    return drive(first.header, script_of(items), items)


@pytest.mark.usefixtures("with_content")
@pytest.mark.parametrize(("seed", "depth"), [(3, 1), (4, 2), (5, 2)])
def test_a_crowd_with_faults(seed: int, depth: int, tmp_path: Path) -> None:
    """Pictures, parks, cached prefixes, forms, choices, limits, stalls, and everything that may fail."""
    report = serve_crowd(seed, 300 if seed == 4 else 120, depth=depth, trace=tmp_path, faults=FAULTS)
    found = again(items_of(tmp_path))
    assert found.parted is None
    assert found.records == sum(report.events.values()) > 4000
    assert found.launches == report.metrics.steps and found.plans > found.launches
    for needed in (
        "request park.save", "request resume", "request cancel", "request client.full", "request step.failed",
        "request client.drained", "request client.timeout", "request mask.ready", "request lead.over",
        "request deadline.expired", "request queue.expired", "prefix_entry lock", "encoder image.failed",
    ):  # fmt: skip
        if seed == 4:
            assert report.events[needed], needed


@pytest.mark.usefixtures("with_content")
def test_staged_passes(tmp_path: Path) -> None:
    options: dict[str, Any] = OPTIONS | {"depth": 2, "staged_rows": 256}
    report = simulate(3, mixed(), deepseek_capabilities(), TIMES, Faults(), tmp_path, **options)
    assert report.events["request slice.done"]
    found = again(items_of(tmp_path))
    assert found.parted is None and found.records == sum(report.events.values())


def details(items: list[Item], kind: type) -> list[Any]:
    return [
        item[2]
        for item in items
        if not isinstance(item, EventRecord | FileStart) and isinstance(item[2], kind)
    ]


@pytest.mark.parametrize(("seed", "depth"), [(3, 1), (4, 2)])
def test_without_content(seed: int, depth: int, tmp_path: Path) -> None:
    """Which prompts and answers begin alike is all that is known of them, and all that it takes."""
    report = serve_crowd(seed, 120, depth=depth, trace=tmp_path, faults=FAULTS)
    items = items_of(tmp_path)
    assert not any(arrival.token_ids or arrival.positions for arrival in details(items, Arrival))
    assert not any(landed.sampled for landed in details(items, Landed))
    found = again(items)
    assert found.parted is None and found.records == sum(report.events.values())
    assert report.events["prefix_entry lock"] > 10 and len(details(items, Alike)) > 50
    nothing = [
        item for item in items if isinstance(item, EventRecord | FileStart) or not isinstance(item[2], Alike)
    ]
    assert again(nothing).parted is not None, "hits come of it"


@pytest.mark.trio
async def test_answers_are_alike_without_content(tmp_path: Path) -> None:
    """Blocks that equal answers fill have one name, also where the next turn brings them in its prompt."""
    engine = FakeEngine(fake_capabilities(block_size=4), mode=Mode.INLINE)
    async with serving(engine, recorder=StepRecorder(tmp_path)) as service:
        asked = ask(1, rows=9, tokens=15)
        first, *_ = await read_all(service, [asked, attrs.evolve(asked, id="r2"), ask(3, rows=9, tokens=15)])
        turn = attrs.evolve(next_turn(asked, list(first.tokens)), id="r4")
        handle = service.submit(turn)
        await read(handle)
        cached = handle.usage.cached_tokens
    items = items_of(tmp_path)
    said = details(items, Alike)
    equal = max(alike.common for alike in said if {alike.order, alike.other} == {0, 1})
    following = max(alike.common for alike in said if alike.order == 3)
    assert cached == 8 and equal > 16 and following > 16
    assert await trio.to_thread.run_sync(lambda: again(items).parted) is None


def test_without_content_where_no_prefixes_are_cached(tmp_path: Path) -> None:
    report = serve_crowd(7, 80, depth=2, trace=tmp_path, faults=FAULTS, snapshots=False)
    items = items_of(tmp_path)
    assert not details(items, Alike)
    found = again(items)
    assert found.parted is None and found.records == sum(report.events.values())


def test_two_requests_of_one_id_at_once(crowd: Path) -> None:
    items = items_of(crowd)
    first = details(items, Arrival)[0]
    arrival = next(item for item in items if not isinstance(item, FileStart) and item[2] is first)
    with pytest.raises(TraceFileError, match=r"two requests have the id r\d+ at once"):
        script_of([items[0], arrival, arrival])


def test_what_cannot_be_alike(tmp_path: Path, crowd: Path) -> None:
    start = items_of(crowd)[0]
    for nonsense in (Alike(1, 1, 3), Alike(2, 1, 3)):
        with pytest.raises(
            TraceFileError, match=f"requests {nonsense.order} and 1 cannot be alike for 3 rows"
        ):
            script_of([start, (0, 0.0, Alike(2, 0, 5)), (0, 0.0, nonsense)])


def test_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        simulator,
        "StepRecorder",
        lambda path: StepRecorder(path, Limits(1 << 30, 20_000), every=300, content=True),
    )
    report = serve_crowd(4, 100, depth=2, trace=tmp_path)
    paths = trace_paths([tmp_path])
    assert len(paths) > 2
    found = again(list(read_trace(paths)))
    assert found.parted is None and found.records == sum(report.events.values())
    with pytest.raises(TraceFileError, match="it does not begin with its server"):
        script_of(read_trace(paths[1:]))
    with pytest.raises(TraceFileError, match=r"records \d+ to \d+ are missing before it"):
        script_of(read_trace([paths[0], *paths[2:]]))


LATE: dict[str, dict[str, Any]] = {
    "window.elapsed": {},
    "queue.expired": {"queue_timeout": 0.015},
    "deadline.expired": {"request_timeout": 0.015},
    "client.timeout": {"client_timeout": 0.1, "buffer_limit": 4},
}
"""Timers that may run out while the message that stops them waits to be handled, and options with which they do."""


@pytest.mark.trio
@pytest.mark.parametrize("event", LATE)
async def test_a_timer_that_ran_out_just_before_it_was_stopped(
    event: str, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """What it says is behind what stopped it."""
    engine = FakeEngine(fake_capabilities(), mode=Mode.INLINE)
    async with serving(engine, recorder=StepRecorder(tmp_path), **LATE[event]) as service:
        handle = service.submit(ask(1, tokens=30))
        await wait_all_tasks_blocked()
        if event == "client.timeout":
            await trio.sleep(0.05)
        autojump_clock.jump(LATE[event].get("client_timeout", 0.02))
        if event == "window.elapsed":
            service.drain()
        else:
            handle.cancel()
        service.timers._fire()
        await read(handle)
    items = items_of(tmp_path)
    late = next(at for at, item in enumerate(items) if isinstance(item, EventRecord) and item.event == event)
    stopped = items[late - 1]
    assert isinstance(stopped, EventRecord) and stopped.event in ("drain", "cancel")
    assert stopped[2:4] == items[late][2:4]  # type: ignore[index]
    assert await trio.to_thread.run_sync(lambda: again(items).parted) is None

    twice = [*items[: late + 1], items[late], *items[late + 1 :]]
    parted = await trio.to_thread.run_sync(lambda: again(twice).parted)
    assert parted is not None and parted.expected is items[late]
    early = [
        item._replace(t=0.0) if isinstance(item, EventRecord) and item.seq <= stopped.seq else item
        for item in items
    ]
    parted = await trio.to_thread.run_sync(lambda: again(early).parted)
    assert parted is not None and parted.expected is items[late] and parted.why == "nobody has said so"


@pytest.mark.trio
async def test_a_server_that_is_told_to_stop_when_its_actors_have_ended(tmp_path: Path) -> None:
    """It has not said so yet: what comes in between comes in between again."""
    engine = FakeEngine(fake_capabilities(), mode=Mode.INLINE)
    async with serving(engine, recorder=StepRecorder(tmp_path)) as service:
        await read_all(service, [ask(1)])
        service.events.listen(lambda one: service.drain() if one.event == "stop" else None, "encoder")
    items = items_of(tmp_path)
    said = [one.event for one in items if isinstance(one, EventRecord) and one.machine == "server"]
    assert said[-3:] == ["drain", "drain", "drained"]
    assert await trio.to_thread.run_sync(lambda: again(items).parted) is None
    earlier = [*items[: record(items, "encoder", "stop", 0)], items[-1]]
    parted = await trio.to_thread.run_sync(lambda: again(earlier).parted)
    assert parted is not None and parted.why == "nothing sets it off"


@pytest.mark.trio
@pytest.mark.parametrize(
    ("machine", "event", "order"),
    [("loop", "plan.empty", ["image.done", "stop"]), ("encoder", "stop", ["stop", "image.done"])],
)
async def test_a_picture_that_is_encoded_at_the_end(
    machine: str, event: str, order: list[str], tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Nobody waits for it any more, and the loop has ended; the encoder may have been told to stop, or not yet."""
    engine, done = FakeEngine(fake_capabilities(), mode=Mode.MANUAL, times=TIMES), trio.Event()

    async def encode(image: PatchImage) -> Any:
        await done.wait()
        return encoded_rows(image, 8)

    engine.encode_async = encode  # type: ignore[method-assign]

    def look(one: EventRecord) -> None:
        if one.event == event and one.configuration in (("stopped",), ("stopping",)):
            done.set()

    async with serving(engine, recorder=StepRecorder(tmp_path)) as service:
        service.events.listen(look, machine)
        handle = service.submit(ask(1, images=1))
        await trio.sleep(1)
        handle.cancel()
        await read(handle)
    items = items_of(tmp_path)
    said = [one.event for one in items if isinstance(one, EventRecord) and one.machine == "encoder"]
    assert said[-2:] == order
    assert await trio.to_thread.run_sync(lambda: again(items).parted) is None


# -- what is otherwise is found --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crowd")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulator, "StepRecorder", lambda path: StepRecorder(path, content=True))
        serve_crowd(5, 60, depth=1, trace=folder)
    return folder


def test_the_command(crowd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(["replay", "run", str(crowd)]) == 0
    assert capsys.readouterr().out.endswith("launches: the actors do the same\n")


Planner = Callable[[LoopState], Decision]


def one_row_less(decide: Planner) -> Planner:
    """A policy that gives the first prompt in a plan a row less than it may have."""

    def other(state: LoopState) -> Decision:
        decision = decide(state)
        for place, segment in enumerate(decision.segments):
            if segment.kind.value == "prefill" and segment.count > 3 and not segment.sample:
                changed = segment._replace(count=segment.count - 1)
                segments = (*decision.segments[:place], changed, *decision.segments[place + 1 :])
                return attrs.evolve(decision, segments=segments)
        return decision

    return other


def test_another_policy_parts_at_its_first_other_plan(
    crowd: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("luce.replay.redrive.driver.plan", one_row_less(policy.plan))
    items = items_of(crowd)
    parted = again(items).parted
    assert parted is not None and parted.expected is not None and parted.why == "something else happens"
    assert isinstance(parted.expected[2], Planned) and parted.found is not None  # type: ignore[index]
    first = next(
        item
        for item in items
        if not isinstance(item, EventRecord | FileStart)
        and isinstance(item[2], Planned)
        and any(run.kind == "prefill" and run.count > 3 and not run.sample for run in item[2].runs)
    )
    assert parted.expected == first
    assert cli(["replay", "run", str(crowd)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"at record {first[0]}: something else happens"
    assert said[1].startswith("  in the trace  Planned(") and said[2].startswith("  now           Planned(")


def test_another_cache_parts_at_the_entry(crowd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that no plan shows at once: states are kept at one place less."""
    real = prefix_cache.capture_points
    monkeypatch.setattr(prefix_cache, "capture_points", lambda *args, **more: real(*args, **more)[1:])
    parted = again(items_of(crowd)).parted
    assert parted is not None and parted.expected is not None


def test_the_trace_may_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another policy decided there: parks, copies and blocks are as it made them."""
    with monkeypatch.context() as then:
        then.setattr(watch, "plan", one_row_less(policy.plan))
        serve_crowd(5, 60, depth=2, trace=tmp_path)
    assert cli(["replay", "run", str(tmp_path)]) == 1
    capsys.readouterr()
    assert cli(["replay", "run", str(tmp_path), "--recorded-plans"]) == 0
    assert capsys.readouterr().out.endswith("launches: the actors do the same\n")


def test_what_actors_make_of_recorded_plans_is_compared(crowd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = prefix_cache.capture_points
    monkeypatch.setattr(prefix_cache, "capture_points", lambda *args, **more: real(*args, **more)[1:])
    items = items_of(crowd)
    parted = drive(items[0].header, script_of(items), items, recorded_plans=True).parted  # type: ignore[union-attr]
    assert parted is not None and parted.expected is not None


def test_recorded_plans_of_a_trace_that_breaks_off(tmp_path: Path) -> None:
    """Where it says no more, nothing is planned."""
    serve_crowd(5, 60, depth=2, trace=tmp_path)
    items = items_of(tmp_path)
    at = record(items, "loop", "plan.rows", 40)
    for end in range(at, at + 60):
        some = items[: end + 1]
        found = drive(some[0].header, script_of(some), some, recorded_plans=True)  # type: ignore[union-attr]
        assert found.parted is None and found.plans > 30, some[-1]


Change = Callable[[list[Item]], int]
"""Changes a trace in place; the number of the record at which that must show, at the latest."""


def record(items: list[Item], machine: str, event: str, number: int = 3) -> int:
    places = [
        at
        for at, item in enumerate(items)
        if isinstance(item, EventRecord) and (item.machine, item.event) == (machine, event)
    ]
    return places[number]


def detail(items: list[Item], kind: type, number: int) -> int:
    places = [
        at
        for at, item in enumerate(items)
        if not isinstance(item, EventRecord | FileStart) and isinstance(item[2], kind)
    ]
    return places[number]


def without_a_token(items: list[Item]) -> int:
    item = items.pop(record(items, "request", "token", 40))
    return int(item[0]) + 60  # type: ignore[index,arg-type]


def a_token_twice(items: list[Item]) -> int:
    at = record(items, "request", "token", 40)
    items.insert(at, items[at])
    return int(items[at][0]) + 1  # type: ignore[index,arg-type]


def other_guards(items: list[Item]) -> int:
    at = record(items, "request", "token", 40)
    items[at] = items[at]._replace(guards=items[at].guards ^ 1)  # type: ignore[union-attr]
    return int(items[at].seq)  # type: ignore[union-attr]


def an_event_of_nobody(items: list[Item]) -> int:
    at = record(items, "request", "token", 40)
    items[at] = items[at]._replace(id="nobody")  # type: ignore[union-attr]
    return int(items[at].seq)  # type: ignore[union-attr]


def a_timer_that_is_not_set(items: list[Item]) -> int:
    at = record(items, "request", "token", 40)
    items.insert(at, items[at]._replace(event="queue.expired"))  # type: ignore[union-attr]
    return int(items[at].seq)  # type: ignore[union-attr]


def a_block_less(items: list[Item]) -> int:
    at = detail(items, Launched, 30)
    seq, t, launched = items[at]  # type: ignore[misc]
    items[at] = (seq, t, msgspec.structs.replace(launched, freed=(*launched.freed, 3)))
    return seq


def a_plan_less(items: list[Item]) -> int:
    item = items.pop(detail(items, Planned, 30))
    return int(item[0]) + 60  # type: ignore[index,arg-type]


def results_of_another_step(items: list[Item]) -> int:
    at = detail(items, Landed, 30)
    seq, t, landed = items[at]  # type: ignore[misc]
    items[at] = (seq, t, msgspec.structs.replace(landed, number=landed.number + 1))
    return seq


def without_results(items: list[Item]) -> int:
    """In the middle of a trace that breaks off."""
    del items[record(items, "loop", "plan.rows", 60) :]
    item = items.pop(detail(items, Landed, 30))
    return int(item[0])  # type: ignore[index,arg-type]


def without_its_end(items: list[Item]) -> int:
    """The server ends, and something that happened before is not there."""
    item = items.pop(record(items, "request", "retired", 50))
    return int(item[0]) + 10_000  # type: ignore[index,arg-type]


CHANGES = (
    without_a_token, a_token_twice, other_guards, an_event_of_nobody, a_timer_that_is_not_set, a_block_less,
    a_plan_less, results_of_another_step, without_results, without_its_end,
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_trace_that_was_changed_is_found(crowd: Path, change: Change) -> None:
    items = items_of(crowd)
    latest = change(items)
    parted = again(items).parted
    assert parted is not None
    assert parted.expected is None or parted.expected[0] <= latest  # type: ignore[index]


def test_a_trace_that_breaks_off_before_all_actors_have_begun(crowd: Path) -> None:
    """They begin when trio lets them, and a request may come before."""
    items = items_of(crowd)
    start = items.pop(record(items, "loop", "(start)", 0))
    items = items[: record(items, "request", "(start)", 0) + 1]
    found = again(items)
    assert found.parted is None and found.records == 5
    found = again([*items, start._replace(seq=items[-1].seq + 1)])  # type: ignore[union-attr]
    assert found.parted is None and found.records == 6


# -- what cannot be driven --------------------------------------------------------------------------------------


def test_refusals(tmp_path: Path, crowd: Path) -> None:
    head = read_header(trace_paths([crowd])[0]).header
    script = script_of(items_of(crowd))
    with pytest.raises(
        ConfigError, match=r"^TRACE: an earlier luce recorded it, without content, and its server"
    ):
        drive(msgspec.structs.replace(head, content=False), script, [])
    with pytest.raises(
        ConfigError, match=r"^TRACE: its server was a test's, with a policy of its own \(parks\)"
    ):
        drive(msgspec.structs.replace(head, policy="parks"), script, [])
    drive(msgspec.structs.replace(head, policy="parks"), script, [], recorded_plans=True)
    with pytest.raises(ConfigError, match=r"^TRACE: its header does not say what its server was: "):
        drive(header(), script, [])
    (tmp_path / "gap").mkdir()
    records = [item for item in items_of(crowd) if isinstance(item, EventRecord)][:9]
    written(tmp_path / "gap", records, [(records[4].seq, 0.0, Gap(7))])
    with pytest.raises(TraceFileError, match="7 records before 4 are missing"):
        script_of(items_of(tmp_path / "gap"))


def test_a_prompt_that_no_engine_has_room_for(crowd: Path) -> None:
    """It takes no memory."""
    items = items_of(crowd)
    place = next(
        at for at, item in enumerate(items) if isinstance(item, tuple) and isinstance(item[2], Arrival)
    )
    seq, t, arrival = items[place]  # type: ignore[misc]
    items[place] = (seq, t, msgspec.structs.replace(arrival, prompt_tokens=1 << 40))
    parted = again(items).parted
    assert parted is not None and f"{1 << 40} tokens, in a context of " in parted.why


def test_a_server_that_was_killed_is_driven_to_where_its_trace_ends(crowd: Path) -> None:
    """Wherever that is, in the middle of a turn too."""
    items = items_of(crowd)
    at = record(items, "loop", "plan.rows", 40)
    for end in range(at, at + 60):
        found = again(items[: end + 1])
        assert found.parted is None and found.launches > 30, items[end]
