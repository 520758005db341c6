"""The vision tower on a device of its own: chosen or refused by name, planned by itself, and out of the steps' way."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from luce.cli.flags import ModelFlags
from luce.compute.device import Device
from luce.compute.host_device import HostDevice
from luce.compute.operands import Operands
from luce.engines import encoder_device, on_device
from luce.engines.encoder_device import RESERVED, Encoder, choose_encoder, vision_bytes
from luce.engines.load_model import LoadOptions, demo_model, open_model
from luce.engines.on_device import plan_on_device
from luce.engines.qwen35.device import packed_state
from luce.engines.qwen35.device.budget import device_memory_plan
from luce.engines.qwen35.device.engine import DeviceEngine
from luce.engines.qwen35.device.vision import DeviceVision
from luce.engines.qwen35.memory import MemoryOptions, plan_memory
from luce.errors import ConfigError
from tests.engines.device.harness import bf16_model, new_device_engine
from tests.engines.device.test_pictures import PATCHES, picture
from tests.engines.harness import Driver, image_spec, random_ids, same_bits
from tests.engines.models import demo_config, random_weights
from tests.kernels.conftest import open_test_device

CONFIG = demo_config(512)
WEIGHTS = random_weights(CONFIG)
OPTIONS = MemoryOptions(4, 1000, largest_picture=400)


def refused(wanted: str, text: str = "cuda:0") -> ConfigError:
    with pytest.raises(ConfigError) as found:
        choose_encoder(wanted, text, CONFIG.vision)
    assert found.value.flag == "--encoder-device"
    return found.value


def test_other_names_are_refused() -> None:
    for wanted in ("tpu", "auto", "cuda:", "cuda:x", "1", ""):
        assert f"{wanted!r} encodes no pictures; use cpu, cuda:N or hip:N" in str(refused(wanted))
    assert "give --device a GPU" in str(refused("cuda:1", "cpu"))
    with pytest.raises(ConfigError, match="takes no pictures") as found:
        choose_encoder("cuda:1", "cuda:0", None)
    assert found.value.flag == "--encoder-device"


def test_beside_the_text_model() -> None:
    assert choose_encoder(None, "cuda:0", None) is None
    for text in ("cuda", "cuda:0", "auto"):
        assert choose_encoder("cuda:0", text, CONFIG.vision) is None
    on_cpu = choose_encoder("cpu", "cuda:0", CONFIG.vision)
    assert on_cpu is not None and on_cpu.device is None


def test_without_cupy_another_gpu_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    assert "pip install 'luce[cuda13]'" in str(refused("cuda:1"))


def test_a_gpu_that_cannot_encode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = HostDevice()
    monkeypatch.setattr(encoder_device, "choose_device", lambda wanted, flag, operands: other)
    chosen = choose_encoder("cuda:1", "cuda:0", CONFIG.vision)
    assert chosen is not None and chosen.device is other and chosen.name == "cuda:1"
    other.arch = "sm_120a"
    assert "cuda:1 (sm_120a) has no warpgroup products" in str(refused("cuda:1"))


def test_each_device_is_planned_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CONFIG.vision is not None
    monkeypatch.setattr(packed_state, "MOST_ON_DEVICE", 2)  # whatever the device has
    device, other = HostDevice(), HostDevice()
    needed = plan_on_device(device, CONFIG, WEIGHTS, OPTIONS, 1 << 40).total
    plan = plan_on_device(device, CONFIG, WEIGHTS, OPTIONS, needed, Encoder("cuda:1", other))
    assert plan.total == needed and plan.sizes.max_patches == 400, "nothing is left to the tower here"
    beside = plan_on_device(device, CONFIG, WEIGHTS, OPTIONS, needed)
    assert beside.sizes.num_blocks < plan.sizes.num_blocks
    host = plan_memory(CONFIG, OPTIONS)
    whole = device_memory_plan(CONFIG, host, plan)
    assert "vision tower" not in whole.parts and "encoding" not in whole.request_parts
    tower = whole.parts["vision tower on cuda:1"]
    assert whole.total == plan.total + tower and tower <= vision_bytes(CONFIG.vision, 400)

    on_cpu = plan_on_device(device, CONFIG, WEIGHTS, OPTIONS, needed, Encoder("cpu", None))
    assert on_cpu.sizes.max_patches == 0 and on_cpu.total == needed
    assert "encoding" in device_memory_plan(CONFIG, host, on_cpu).request_parts


def test_too_little_room_for_the_tower_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CONFIG.vision is not None
    device, other = HostDevice(), HostDevice()
    room = RESERVED + vision_bytes(CONFIG.vision, 400)
    monkeypatch.setattr(other, "free_bytes", lambda: room)
    plan_on_device(device, CONFIG, WEIGHTS, OPTIONS, 1 << 40, Encoder("cuda:1", other))
    monkeypatch.setattr(other, "free_bytes", lambda: room - 1)
    with pytest.raises(
        ConfigError, match=r"of 400 patches takes [\d,]+ bytes .* 1 more than .* free on cuda:1"
    ) as found:
        plan_on_device(device, CONFIG, WEIGHTS, OPTIONS, 1 << 40, Encoder("cuda:1", other))
    assert found.value.flag == "--encoder-device"


def test_the_flag_reaches_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the command line to which devices a model is opened with."""
    options = ModelFlags(device="cuda:0", encoder_device="cuda:1", operands="f16", context=512).options()
    with pytest.raises(ConfigError) as found:
        open_model(demo_model(), LoadOptions(device="cpu", encoder_device="cuda:1"))
    assert found.value.flag == "--encoder-device"
    devices = {"cuda:0": HostDevice(), "cuda:1": HostDevice()}

    def choose(wanted: str, flag: str = "--device", operands: Operands | None = None) -> Device:
        assert operands is Operands.F16
        return devices[wanted]

    monkeypatch.setattr(on_device, "choose_device", choose)
    monkeypatch.setattr(encoder_device, "choose_device", choose)
    opened = open_model(demo_model(), options)
    assert opened.on_device is not None
    assert opened.on_device.device is devices["cuda:0"] and opened.on_device.encoder is devices["cuda:1"]
    assert "vision tower on cuda:1" in opened.plan.parts


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[DeviceEngine, DeviceEngine]]:
    """That encodes between its steps, and that has another device for it."""
    made = [
        new_device_engine(*bf16_model(), max_patches=PATCHES, num_slots=2, num_blocks=8, **more)
        for more in ({}, {"encoder": open_test_device()})
    ]
    yield made[0], made[1]
    for engine in made:
        engine.shutdown()


def test_rows_and_answers_are_the_same(engines: tuple[DeviceEngine, DeviceEngine]) -> None:
    answers = []
    for engine in engines:
        rows = engine.encode(picture((8, 10), 1))
        spec = image_spec([*random_ids(9, 1), (8, 10), *random_ids(30, 2)], [rows])
        driver = Driver(engine)
        sequence = driver.open(spec, 0)
        driver.prefill(sequence, 20)
        answers.append((rows, sequence.recorder.logits[len(spec.token_ids)]))
        driver.close(sequence)
    assert all(same_bits(a, b) for a, b in zip(*answers, strict=True))


def test_pictures_wait_for_no_step(engines: tuple[DeviceEngine, DeviceEngine]) -> None:
    """While the engine's thread is busy: the tower, its arrays and its launches are the other device's."""
    own, apart = engines
    wanted = own.encode(picture((4, 6), 5))
    tower = apart._vision
    assert isinstance(tower, DeviceVision) and tower._device is not apart.device
    begun, go_on = threading.Event(), threading.Event()

    def busy(*_: object) -> None:
        begun.set()
        assert go_on.wait(300)

    thread = threading.Thread(target=lambda: apart.call(busy))
    thread.start()
    try:
        assert begun.wait(60)
        found: np.ndarray = apart.encode(picture((4, 6), 5))
    finally:
        go_on.set()
        thread.join()
    assert same_bits(found, wanted)
