"""Slow clients, deadlines, shutdown: in virtual time."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from luce.engines.fake.engine import FakeEngine, Mode, fake_capabilities
from luce.engines.fake.times import Times
from luce.errors import CapacityError
from tests.actors.harness import ask, expected, path_of, read, read_all, serving, settled

pytestmark = pytest.mark.trio


def slow_engine(slots: int = 2, step: float = 0.1) -> FakeEngine:
    return FakeEngine(fake_capabilities(num_slots=slots), mode=Mode.MANUAL, times=Times(step=step))


async def test_an_idle_loop_waits_20_ms_for_company(autojump_clock: MockClock) -> None:
    async with serving(slow_engine(step=0.001)) as service:
        handles = [service.submit(ask(0))]
        await trio.sleep(0.015)
        handles.append(service.submit(ask(1)))
        for handle in handles:
            await read(handle)
        assert service.loop.metrics.max_lanes == 2
        planned = [r.t for r in service.events if r.machine == "loop" and r.event == "window.elapsed"]
        admitted = [r.t for r in service.events if r.machine == "loop" and r.event == "admit"]
        assert planned[0] - admitted[0] == pytest.approx(0.020, abs=0.002)


async def test_who_waits_too_long_gets_503_and_the_others_their_answers(autojump_clock: MockClock) -> None:
    async with serving(slow_engine(slots=1), queue_timeout=5.0) as service:
        first, second = service.submit(ask(0, tokens=100)), service.submit(ask(1))
        late = await read(second)
        assert late.end.reason == "error"
        assert isinstance(late.end.error, CapacityError) and "5 s" in str(late.end.error)
        assert (await read(first)).tokens == tuple(expected(ask(0, tokens=100)))
        await settled(service)
        assert path_of(service, "r1") == ["queued", "ending_failed", "failed"]


async def test_a_client_that_stops_reading_stalls_itself_alone_and_goes_on_exactly(
    autojump_clock: MockClock,
) -> None:
    submissions = [ask(0, tokens=60), ask(1, tokens=60)]
    async with serving(slow_engine(), buffer_limit=8, client_timeout=30.0) as service:
        stalled, steady = (service.submit(s) for s in submissions)
        assert (await read(steady)).tokens == tuple(expected(submissions[1]))
        generated = service.requests[0].num_generated
        assert 8 <= generated <= 10, "no rows for a client that does not read"
        assert service.requests[0].machine.active("stalled")
        assert (await read(stalled)).tokens == tuple(expected(submissions[0]))


async def test_a_client_that_never_reads_is_cancelled_after_its_timeout(autojump_clock: MockClock) -> None:
    async with serving(slow_engine(), buffer_limit=8, client_timeout=30.0) as service:
        service.submit(ask(0, tokens=60))
        await trio.sleep(40)
        assert service.requests == {}
        assert path_of(service, "r0")[-1] == "cancelled"
        assert (await read_all(service, [ask(1)]))[0].tokens == tuple(expected(ask(1)))


async def test_first_in_first_out(autojump_clock: MockClock) -> None:
    async with serving(slow_engine(slots=1)) as service:
        await read_all(service, [ask(n, tokens=3) for n in range(6)])
        granted = [r.id for r in service.events if r.event == "slot.granted"]
        assert granted == [f"r{n}" for n in range(6)]


async def test_draining_finishes_who_runs_and_sends_away_who_waits(autojump_clock: MockClock) -> None:
    async with serving(slow_engine(slots=1), drain_timeout=60.0) as service:
        running, waiting = service.submit(ask(0, tokens=20)), service.submit(ask(1))
        await trio.sleep(0.5)
        service.drain()
        assert service.state == "draining" and not service.ready
        with pytest.raises(CapacityError, match="draining"):
            service.submit(ask(2))
        sent_away = await read(waiting)
        assert isinstance(sent_away.end.error, CapacityError)
        assert (await read(running)).tokens == tuple(expected(ask(0, tokens=20)))
        await service.stopped()
        assert service.state == "stopped"


async def test_draining_has_a_limit_and_a_second_signal_needs_no_patience(autojump_clock: MockClock) -> None:
    for signals, seconds in ((1, 2.0), (2, 0.0)):
        async with serving(slow_engine(slots=1), drain_timeout=2.0) as service:
            running = service.submit(ask(0, tokens=200))
            await trio.sleep(0.5)
            started = trio.current_time()
            for _ in range(signals):
                service.drain()
            end = (await read(running)).end
            assert isinstance(end.error, CapacityError) and "shutting down" in str(end.error)
            assert trio.current_time() - started == pytest.approx(seconds, abs=0.2)
            await service.stopped()
            assert service.state == "stopped"


async def test_cancel_frees_the_slot_within_one_step(autojump_clock: MockClock) -> None:
    async with serving(slow_engine(slots=1, step=0.1)) as service:
        handle = service.submit(ask(0, tokens=100))
        await trio.sleep(1.0)
        started = trio.current_time()
        handle.cancel()
        await settled(service)
        assert trio.current_time() - started <= 0.11


async def test_depth_two_keeps_the_device_busy(autojump_clock: MockClock) -> None:
    """At depth 2 the next step is launched before the results of the last one are read."""
    busiest = {}
    for depth in (1, 2):
        async with serving(slow_engine(), depth=depth) as service:
            most = 0

            def watch(record: object, service: object = service) -> None:
                nonlocal most
                most = max(most, len(service.loop.flights))  # type: ignore[attr-defined]

            service.events.listen(watch)
            assert (await read_all(service, [ask(0, tokens=30)]))[0].tokens == tuple(
                expected(ask(0, tokens=30))
            )
            busiest[depth] = most
    assert busiest == {1: 1, 2: 2}
