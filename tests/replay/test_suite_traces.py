"""What `tests/suite_traces.py` looks at behind every test is there, and what is wrong with it is found."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from luce.demo.matrix.parking import ParkingPolicy
from luce.engines.fake.engine import FakeEngine, Mode, fake_capabilities
from luce.scheduling import plan as policy
from luce.trace.recorder import Recorder
from tests import suite_traces
from tests.actors.harness import ask, make_service, read_all, serving
from tests.replay.test_redrive import one_row_less
from tests.sim.crowd import serve_crowd
from tests.suite_traces import Suite, suite
from tests.trace.recording import StepRecorder, records_of, written


@pytest.mark.trio
async def test_a_service_that_a_test_makes_is_recorded() -> None:
    async with serving(FakeEngine(fake_capabilities(), mode=Mode.INLINE)) as service:
        await read_all(service, [ask(1)])
    assert isinstance(service._recorder, Recorder) and service._recorder.directory.parent == suite.folder
    assert [one.service for one in suite.open if one.service is service] == [service]


@pytest.mark.trio
@pytest.mark.unrecorded
async def test_unless_it_says_otherwise() -> None:
    assert make_service(FakeEngine(fake_capabilities(), mode=Mode.INLINE))._recorder is None


def test_what_is_wrong_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_crowd(5, 20, depth=1, trace=tmp_path / "good")
    judge = Suite(tmp_path)
    assert judge.faults(tmp_path / "good", "tests/sim/mine") == []
    assert judge.counts["traces checked"] == judge.counts["traces run"] == 1
    assert judge.counts["records checked"] == judge.counts["records run"] > 300
    with monkeypatch.context() as other:
        other.setattr(suite_traces, "MOST", 200)
        assert judge.faults(tmp_path / "good", "tests/sim/mine") == []
    assert judge.counts["traces run in part"] == 1
    assert judge.faults(tmp_path / "good", "tests/sim/mine", independent=150) == []
    assert 150 <= judge.counts["steps checked by python-statemachine"] < 250  # a range of blocks goes beyond

    with monkeypatch.context() as other:
        other.setattr("luce.replay.redrive.driver.plan", one_row_less(policy.plan))
        (fault,) = judge.faults(tmp_path / "good", "tests/sim/mine")
    assert fault.startswith("tests/sim/mine: luce replay run: Parted(why='something else happens'")
    assert judge.counts["traces run with their own plans"] == 0
    with monkeypatch.context() as other:
        other.setattr("luce.replay.redrive.driver.plan", one_row_less(policy.plan))
        assert judge.faults(tmp_path / "good", "tests/sim/mine", ParkingPolicy()) == []
    assert judge.counts["traces run with their own plans"] == 1

    records = records_of(tmp_path / "good")
    at = next(at for at, one in enumerate(records) if one.event == "token")
    records[at] = records[at]._replace(configuration=("finished",))
    written(tmp_path / "bad", records)
    (fault,) = judge.faults(tmp_path / "bad", "tests/sim/mine")
    assert fault.startswith(
        f"tests/sim/mine: luce replay check: Divergence(record=EventRecord(seq={records[at].seq}, "
    )


@pytest.mark.trio
async def test_two_requests_of_one_id_at_once(tmp_path: Path) -> None:
    """An error: no server does so, and a trace cannot tell them apart. A test names its requests itself."""
    engine = FakeEngine(fake_capabilities(), mode=Mode.INLINE)
    async with serving(engine, recorder=StepRecorder(tmp_path)) as service:
        await read_all(service, [ask(2)])
        await read_all(service, [ask(1), ask(1)])
    judge = Suite(tmp_path)
    (fault,) = await trio.to_thread.run_sync(judge.faults, tmp_path, "tests/sim/mine")
    assert fault.startswith("tests/sim/mine: luce replay check: Divergence(record=EventRecord(")
    assert "it starts, and has started before" in fault
    assert judge.counts["records run"] == 0
