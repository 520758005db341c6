"""The memory plan of a model as it is opened and served (B128, B129); tests/weights compares it array by array."""

from __future__ import annotations

from pathlib import Path

import pytest

from luce.cli.main import main
from luce.engines.fake.engine import FakeEngine
from luce.engines.load_model import LoadOptions, load_engine, open_model
from luce.engines.qwen35.engine import Qwen35Engine
from luce.engines.seam import Engine
from luce.errors import ConfigError
from luce.trace.events import EventRecord
from tests.faults.whole import ENGINES, ask, live, prefix_room
from tests.weights.writers import TinyShape, random_model, write_hf

OWN_HEAD = TinyShape(hidden=64, heads=4, head_dim=32, num_layers=8, vision=False, mtp=False)
"""hidden / heads is 16 and the head size 32; one layer in four attends."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_hf(tmp_path / "m", random_model(OWN_HEAD))


@pytest.mark.parametrize("slots", [1, 4, 64])
@pytest.mark.parametrize("blocks", [None, 40])
def test_b128_b129_the_opened_plan_is_what_the_engine_allocates(
    slots: int, blocks: int | None, folder: Path
) -> None:
    found = open_model(folder, LoadOptions(slots=slots, context=100, block_size=16, num_blocks=blocks))
    engine = load_engine(found)
    try:
        keys = sum(layer.k.nbytes + layer.v.nbytes for layer in engine.pool.kv)
        states = sum(array.nbytes for layer in engine.pool.deltanet for array in layer.arrays())
    finally:
        engine.shutdown()
    count = blocks or slots * 7
    assert found.plan.parts["KV blocks"] == keys == 2 * count * 16 * 2 * (2 * 32) * 4
    assert found.plan.parts["recurrent state"] == states == slots * found.plan.bytes_per_slot
    wrong = 8 * count * 16 * 2 * (2 * 16) * 4
    assert keys != wrong, "the trap: all layers and hidden / heads give another number"


def test_b129_a_budget_for_three_slots_names_three(folder: Path) -> None:
    """64 asked, 3 fit: the error says so before any weight is read, and 3 do fit."""
    options = {"context": 512, "block_size": 16}
    three = open_model(folder, LoadOptions(slots=3, **options)).plan.peak  # type: ignore[arg-type]
    four = open_model(folder, LoadOptions(slots=4, **options)).plan.peak  # type: ignore[arg-type]
    assert three < four, "the trap: slots cost memory"
    for budget in (three, four - 1):
        with pytest.raises(
            ConfigError, match=r"--max-memory: 64 slots.*; --slots 3 or --context \d+ would fit|--slots 3 "
        ):
            open_model(folder, LoadOptions(slots=64, max_memory=budget, **options))  # type: ignore[arg-type]
        open_model(folder, LoadOptions(slots=3, max_memory=budget, **options))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="--max-memory"):
        open_model(folder, LoadOptions(slots=3, max_memory=three - 1, **options))  # type: ignore[arg-type]


def test_b129_the_command_says_it_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    three = open_model(folder, LoadOptions(slots=3, context=512)).plan.peak
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "serve",
                str(folder),
                "--port",
                "0",
                "--slots",
                "64",
                "--context",
                "512",
                "--max-memory",
                str(three),
            ]
        )
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.count("\n") == 1
    assert "--slots 3" in error and "more than" in error


@pytest.mark.trio
@pytest.mark.parametrize("engine", ENGINES)
async def test_b129_stored_states_are_what_was_counted(engine: str) -> None:
    """Saved requests and snapshots of prefixes: after every step the engine holds, to the byte, what the budgets count
    as taken; never more than they allow."""
    bodies = [ask(f"{n}: tell me", max_tokens=60, temperature=1, seed=n) for n in range(6)]
    parked = captured = 0
    async with live(engine=engine, context=192, blocks=16, park_bytes=1 << 30, snapshots=3) as server:
        loop, memory = server.service.loop, server.service.loop.memory
        most = prefix_room(server.model, 3)

        def look(record: EventRecord) -> None:
            nonlocal parked, captured
            if (record.machine, record.event) != ("loop", "step.done"):
                return
            counted = memory.saved_bytes + memory.cache.index.device_bytes
            assert len(loop.flights) == 1 and memory.cache.index.device_bytes <= most
            assert stored_bytes(server.model.engine) <= counted
            if not memory.work:
                assert stored_bytes(server.model.engine) == counted
                parked += memory.saved_bytes > 0
                captured += memory.cache.index.device_bytes > 0

        server.service.events.listen(look)
        await server.all(bodies)
        assert memory.saved_bytes == 0
        assert stored_bytes(server.model.engine) == memory.cache.index.device_bytes > 0
    assert parked > 10 and captured > 10, "the trap: there are both"


def stored_bytes(engine: Engine) -> int:
    if isinstance(engine, FakeEngine):
        return engine.stored_bytes
    assert isinstance(engine, Qwen35Engine)
    return engine.call(lambda runner, _: runner.stored.nbytes)
