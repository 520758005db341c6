"""GPUs differ in the shared memory that a block may have: every pass fits on each, and answers keep their bits."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator

import attrs
import numpy as np
import pytest

from luce.compute import activations
from luce.compute.activations import BUCKETS
from luce.compute.host_build import host_compiler
from luce.compute.host_device import HostDevice
from luce.compute.kernel_sources import Defines
from luce.engines.qwen35.config import Qwen35Config
from luce.engines.qwen35.device import products
from luce.engines.qwen35.device.compiling import Recorder
from luce.engines.qwen35.device.deferred import DeferredTensor
from luce.engines.qwen35.device.engine import DeviceEngine
from luce.engines.qwen35.device.plan import DeviceSizes
from luce.engines.qwen35.device.products import Input, Products, decode_rows, needs_gate_up, product_arrays
from luce.engines.qwen35.device.setting_up import launch_all
from luce.engines.qwen35.device.synthetic import SyntheticSource, synthetic_device_weights
from luce.engines.qwen35.device.weights import Matrix, Part, Text, list_weights
from luce.engines.qwen35.shapes import RELEASED, released
from luce.engines.seam import RowSource
from luce.errors import DeviceError
from tests.engines.device.harness import new_device_engine
from tests.engines.harness import Driver, Rows, random_ids, same_bits, text_spec
from tests.engines.models import random_weights, tiny_config
from tests.kernels.recording import SHARED, RecordingDevice

FORMATS = ("BF16", "F16", "Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
LIMITS = (65536, 101376, 166912, 232448)
SMALL, NONE = "99 KiB of shared memory", "no bulk copies and 64 KiB"


@functools.cache
def listed(shape: str, form: str) -> tuple[Qwen35Config, Text]:
    """A released model with one layer of each kind; nothing is read."""
    config = released(shape)
    text = attrs.evolve(config.text, num_layers=2, full_attention=(False, True))
    config = attrs.evolve(config, text=text, vision=None)
    return config, list_weights(synthetic_device_weights(config, form))


class Launched(Recorder):
    """Counts launches, and keeps those that no block of the device has the shared memory for."""

    def __init__(self, device: RecordingDevice) -> None:
        super().__init__(device)
        self.count = 0
        self.too_large: list[str] = []

    def kernel(self, source: str, name: str, defines: Defines | None = None) -> Callable[..., None]:
        super().kernel(source, name, defines)

        def launch(grid: object, block: int, args: object, *, shared: int = 0, early: bool = False) -> None:
            self.count += 1
            if shared > self.shared_limit:
                self.too_large.append(f"{name} {dict(defines or {})}: {shared}")

        return launch


@pytest.mark.parametrize("shape", RELEASED)
def test_every_pass_of_every_model_fits_on_every_gpu(shape: str) -> None:
    for form, arch in itertools.product(FORMATS, SHARED):
        config, text = listed(shape, form)
        device = Launched(RecordingDevice(arch))
        launch_all(device, config.text, text, DeviceSizes(1, 1, 64, 256), 1000, True)
        assert not device.too_large, (form, arch)
        assert device.count > 200


@pytest.mark.parametrize("limit", LIMITS)
def test_rows_that_are_too_many_are_the_plain_products(limit: int) -> None:
    """Up to so many there is a launch for every matrix; for more the plain one has room."""
    device = RecordingDevice("sm_120a")
    device.multiprocessors, device.shared_limit = 170, limit
    for shape, form in itertools.product(RELEASED, FORMATS):
        _, text = listed(shape, form)
        most = decode_rows(device, text)
        narrow = limit == 166912 and form == "Q5_K" and shape == "qwen3.5-0.8b"
        assert most == (32 if narrow else {65536: 16, 101376: 32}.get(limit, 64)), (shape, form)
        assert needs_gate_up(device, text)
        parts, counts = (spec.shape[0] for spec in product_arrays(device, text))
        for part, rows in itertools.product(products._parts(text), BUCKETS):
            weights = products._weights(device, part)
            if rows <= most:
                plan = weights.plan(rows)
                assert plan.shared <= limit and plan.parts <= parts and plan.counts <= counts


def test_the_host_build_has_no_more_than_it_says() -> None:
    device = host(101376)
    kernel = device.kernel("copies.cu", "check_lanes")
    with pytest.raises(
        DeviceError, match="check_lanes: 101377 bytes of shared memory, and a block may have 101376"
    ):
        kernel((1, 1, 1), 32, [], shared=101377)


def host(limit: int) -> HostDevice:
    if host_compiler() is None:
        pytest.skip("the host build of the kernels needs a C++ compiler (g++ or clang)")
    device = HostDevice()
    device.shared_limit = limit
    return device


def as_on(kind: str, patched: pytest.MonkeyPatch) -> HostDevice:
    """The host build with what GPUs of a kind have."""
    patched.setattr(products, "many_rows", lambda arch: False)
    if kind == NONE:
        patched.setattr(products, "few_rows", lambda arch: False)
    return host(65536 if kind == NONE else 101376)


@pytest.mark.parametrize("kind", [SMALL, NONE])
def test_feed_forwards_of_many_rows_have_the_bits_of_few(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the sums of 32 that this format reads."""
    form, hidden, ffn = "Q4_K", 1024, 256

    def part(rows: int, depth: int, count: int = 1) -> Part:
        source = DeferredTensor.of(SyntheticSource(form, depth), (rows, depth))
        return Part(form, (source,) * count, interleaved=count > 1)

    gate_up, down = Matrix("gate and up", (part(ffn, hidden, 2),)), Matrix("down", (part(32, ffn),))
    text = Text(None, (), None, None)  # type: ignore[arg-type]
    monkeypatch.setattr(Text, "members", lambda self: iter((gate_up, down)))
    x = np.random.default_rng(0).standard_normal((64, hidden)).astype(np.float32)

    def feed_forward(device: HostDevice, rows: int) -> np.ndarray:
        for matrix in (gate_up, down):
            matrix.upload(device)
        parts, counts = (device.empty(spec.shape, spec.dtype) for spec in product_arrays(device, text))
        wide = device.empty((64, 2 * ffn), np.float32) if needs_gate_up(device, text) else None
        made = Products(device, text, parts, counts, wide)
        middle = device.empty(activations.num_values(64, ffn, 0), np.uint16)
        out = device.array(np.zeros((rows, 32), np.float32))
        given = Input(device.array(activations.pack(x[:rows], 0, operands=device.operands)), rows, hidden)
        made.add(down, made.swiglu(gate_up, given, middle, ffn), out)
        return device.numpy(out)

    wanted = feed_forward(host(232448), 16)
    device = as_on(kind, monkeypatch)
    assert decode_rows(device, text) == (0 if kind == NONE else 32)
    for rows in (16, 33):
        assert same_bits(feed_forward(device, rows)[:16], wanted), rows


@pytest.fixture
def engines() -> Iterator[tuple[DeviceEngine, DeviceEngine]]:
    """With the shared memory of an H200 and of a smaller GPU; as wide as the smallest released model, and its heads."""
    config = tiny_config(layers=2)
    text = attrs.evolve(
        config.text, hidden=1024, ffn=128, heads=2, kv_heads=1, head_dim=256, key_heads=1, value_heads=2,
        key_dim=128, value_dim=128, full_attention=(False, True), rotary_dim=32, mrope_section=(6, 5, 5),
    )  # fmt: skip
    config = attrs.evolve(config, text=text, vision=None)
    weights = random_weights(config)
    made = functools.partial(new_device_engine, config, weights, num_slots=34, num_blocks=70, max_context=128)
    large = made(device=host(232448))
    with pytest.MonkeyPatch.context() as patched:
        small = made(device=as_on(SMALL, patched))
    yield large, small
    large.shutdown()
    small.shutdown()


@pytest.mark.timeout(600)  # most of it compiling
def test_answers_have_the_same_bits(engines: tuple[DeviceEngine, DeviceEngine]) -> None:
    """A prompt of 50 rows, then steps of 34 lanes and of one."""
    answers = []
    for engine in engines:
        driver = Driver(engine)
        first = driver.open(text_spec(random_ids(50, 1)), 0)
        driver.prefill(first)
        others = [driver.open(text_spec(random_ids(2, seed)), seed) for seed in range(1, 34)]
        driver.step([Rows(other, 0, 2) for other in others])
        for lanes in ([first, *others], [first]):
            outcomes = driver.step([Rows(lane, lane.high, 1, RowSource.LAST_SAMPLED) for lane in lanes])
            assert all(outcome.error is None for outcome in outcomes)
        answers.append([sequence.recorder.logits for sequence in (first, *others)])
    assert len(answers[0][0]) == 3
    for large, small in zip(*answers, strict=True):
        assert large.keys() == small.keys()
        for position in large:
            assert same_bits(large[position], small[position]), position
