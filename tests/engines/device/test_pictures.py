"""Pictures that the device engine encodes itself: near the CPU's rows, and the same bits whatever runs beside them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from luce.engines.qwen35.commands import StepTicket
from luce.engines.qwen35.device.engine import DeviceEngine
from luce.engines.qwen35.device.slices import Slices
from luce.engines.qwen35.device.vision import DeviceVision
from luce.engines.qwen35.vision import VisionTower
from luce.engines.seam import PatchImage, RowSource
from luce.errors import RequestError
from tests.engines.device.harness import bf16_model, new_device_engine
from tests.engines.harness import Driver, Rows, image_spec, random_ids, same_bits, text_spec

PATCHES = 4 * 40


@pytest.fixture(scope="module")
def engine() -> Iterator[DeviceEngine]:
    """In place of the engine that encodes on the CPU."""
    made = new_device_engine(*bf16_model(), max_patches=PATCHES, num_slots=2, num_blocks=8)
    yield made
    made.shutdown()


def picture(grid: tuple[int, int], seed: int) -> PatchImage:
    count = grid[0] * grid[1]
    values = np.random.default_rng(seed).standard_normal((count, 3 * 4 * 4)).astype(np.float32)
    return PatchImage(values, grid, b"", count // 4)


def test_rows_are_near_the_cpus_and_the_device_made_them(engine: DeviceEngine) -> None:
    config, weights = bf16_model()
    assert config.vision is not None and weights.vision is not None
    assert isinstance(engine._vision, DeviceVision) and engine.capabilities.images
    on_cpu = VisionTower(config.vision, weights.vision)
    for grid in [(2, 2), (8, 10)]:
        wanted, found = on_cpu(picture(grid, 1)), engine.encode(picture(grid, 1))
        assert found.shape == wanted.shape
        assert np.sqrt(np.mean((found - wanted) ** 2)) < 0.02 * np.sqrt(np.mean(wanted**2))
        assert not same_bits(found, wanted), "products of bfloat16 cannot be those of float32"
    with pytest.raises(RequestError, match=f"the server takes {PATCHES}"):
        engine.encode(picture((14, 12), 0))


def test_encoded_beside_steps_with_the_bits_it_has_alone(engine: DeviceEngine) -> None:
    """Pictures and graphs of steps run at the same time, on threads and streams of their own."""
    shapes = [(8, 10), (4, 4), (10, 14)]
    alone = [engine.encode(picture(grid, seed)) for seed, grid in enumerate(shapes)]
    spec = image_spec([*random_ids(9, 1), (8, 10), *random_ids(80, 2)], [alone[0]])
    right = engine.forward_all(spec)[0]
    beside: list[list[np.ndarray]] = []
    stop = threading.Event()

    def encode() -> None:
        while not stop.is_set() or not beside:
            beside.append([engine.encode(picture(grid, seed)) for seed, grid in enumerate(shapes)])

    thread = threading.Thread(target=encode)
    thread.start()
    try:
        driver = Driver(engine)
        sequence = driver.open(spec, slot=1)
        driver.prefill(
            sequence, 70, *range(71, len(spec.token_ids))
        )  # steps of one row: eager, captured, replayed
    finally:
        stop.set()
        thread.join()
    for position, row in sequence.recorder.logits.items():
        assert same_bits(row, right[position - 1]), position
    for rows in beside:
        assert all(same_bits(a, b) for a, b in zip(rows, alone, strict=True))


def test_a_picture_takes_turns_with_steps(engine: DeviceEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that are launched while a picture is encoded run between its slices, not behind all of it."""
    alone = engine.encode(picture((8, 10), 0))
    order: list[str] = []
    among, step = engine._among_steps, engine._step
    begun, stepped = threading.Event(), threading.Semaphore(0)

    def noted_slice(launch: Callable[[], None]) -> bool:
        between = among(lambda: (order.append("slice"), launch())[1])
        begun.set()
        if order.count("slice") == 1:
            stepped.acquire(timeout=60)
        return between

    def noted_step(ticket: StepTicket) -> None:
        order.append("step")
        step(ticket)
        stepped.release()

    tower = engine._vision
    assert isinstance(tower, DeviceVision)
    monkeypatch.setattr(engine, "_answering", True)
    monkeypatch.setattr("luce.engines.qwen35.device.vision.PART_BLOCKS", 1)
    monkeypatch.setattr(tower, "_parts", 2)
    monkeypatch.setattr(tower, "_run", Slices(engine.device, noted_slice).run)
    monkeypatch.setattr(engine, "_step", noted_step)
    rows: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: rows.append(engine.encode(picture((8, 10), 0))))
    driver = Driver(engine)
    sequence = driver.open(text_spec(random_ids(40, 3)), slot=0)
    thread.start()
    begun.wait(60)
    driver.step([Rows(sequence, 0, 40)])
    thread.join()
    driver.close(sequence)
    assert same_bits(rows[0], alone)
    assert order == ["slice", "step", "slice"]


def test_a_picture_does_not_wait_for_steps_without_answers(engine: DeviceEngine) -> None:
    alone = engine.encode(picture((8, 10), 0))
    driver = Driver(engine)
    sequence = driver.open(text_spec(random_ids(40, 3)), slot=0)
    encoded, held = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        assert encoded.wait(60), "the picture waited for the engine's thread"

    driver.step([Rows(sequence, 0, 40)])
    assert not engine._answering
    thread = threading.Thread(target=engine.call, args=(lambda *_: hold(),))
    thread.start()
    held.wait(60)
    rows = engine.encode(picture((8, 10), 0))
    encoded.set()
    thread.join()
    assert same_bits(rows, alone)
    driver.step([Rows(sequence, 40, 1, RowSource.LAST_SAMPLED)])
    assert engine._answering
    driver.close(sequence)


def test_no_thread_outlives_the_engine() -> None:
    before = set(threading.enumerate())
    engine = new_device_engine(*bf16_model(), max_patches=PATCHES, num_slots=2, num_blocks=8)
    engine.encode(picture((4, 4), 1))
    assert set(threading.enumerate()) > before
    engine.shutdown()
    assert set(threading.enumerate()) <= before
