"""What fits on a device, and what is said when it does not."""

from __future__ import annotations

import pytest

from luce.compute.host_device import HostDevice
from luce.compute.operands import Operands
from luce.engines.choose_device import choose_device
from luce.engines.encoder_device import vision_bytes
from luce.engines.on_device import plan_on_device
from luce.engines.qwen35.device import packed_state
from luce.engines.qwen35.device.budget import MOST_SHARES, device_memory_plan, fit_device
from luce.engines.qwen35.device.packed_state import (
    LEAST_ON_DEVICE,
    MOST_ON_DEVICE,
    packed_bytes,
    packed_on_device,
)
from luce.engines.qwen35.device.plan import DeviceSizes
from luce.engines.qwen35.device.weights import conversions, list_weights
from luce.engines.qwen35.memory import MemoryOptions, plan_memory
from luce.engines.qwen35.shapes import released
from luce.errors import ConfigError
from tests.engines.models import demo_config, random_weights

CONFIG = demo_config(512)
WEIGHTS = random_weights(CONFIG)
TEXT = list_weights(WEIGHTS)
DEVICE = HostDevice()
SIZES = DeviceSizes(num_slots=4, num_blocks=1, max_context=1000, chunk_rows=256)


def total(**changed: int) -> int:
    """Bytes with ``changed`` sizes and as few blocks as one sequence needs."""
    slots, context = changed.get("slots", 4), changed.get("context", 1000)
    sizes = DeviceSizes(slots, 1, context, 256)
    blocks = -(-(context + 1) // 64)
    return fit_device(DEVICE, CONFIG.text, TEXT, sizes, 500, 1 << 40, blocks=blocks).total


def test_blocks_take_what_is_left() -> None:
    needed = total()
    tight = fit_device(DEVICE, CONFIG.text, TEXT, SIZES, 500, needed)
    assert tight.total <= needed and tight.sizes.num_blocks == 16
    block = CONFIG.text.head_dim * 2 * 2 * 64 * 2  # two attention layers
    more = fit_device(DEVICE, CONFIG.text, TEXT, SIZES, 500, needed + 5 * block)
    assert more.sizes.num_blocks == 21 and more.total <= needed + 5 * block
    assert tight.parts["kernels and graphs"] == more.parts["kernels and graphs"] > 16 << 20
    plenty = fit_device(DEVICE, CONFIG.text, TEXT, SIZES, 500, 1 << 40)
    assert plenty.sizes.num_blocks == MOST_SHARES * 4 * 16


def test_too_little_is_refused_with_the_flag_that_helps() -> None:
    needed = total()
    with pytest.raises(
        ConfigError, match=r"need [\d,]+ bytes .* 1 more than .* --slots 3 or --context \d+ would fit"
    ):
        fit_device(DEVICE, CONFIG.text, TEXT, SIZES, 500, needed - 1)
    with pytest.raises(ConfigError, match="one slot alone need") as refused:
        fit_device(DEVICE, CONFIG.text, TEXT, SIZES, 500, 1000, flag="--max-memory")
    assert refused.value.flag == "--max-memory"


def test_formats_that_no_kernel_reads_become_bf16() -> None:
    assert conversions(TEXT, Operands.BF16)["F32", "BF16"] == len(
        [part for part in TEXT.members() if hasattr(part, "parts")]
    ) + sum(
        len(part.sources) - 1
        for matrix in TEXT.members()
        if hasattr(matrix, "parts")
        for part in matrix.parts
    )


def test_devices_by_name() -> None:
    assert choose_device("cpu") is None
    for wanted in ("tpu", "cuda:", "cuda:x", ""):
        with pytest.raises(ConfigError, match="is no device; use cpu, cuda:N, hip:N or auto") as refused:
            choose_device(wanted)
        assert refused.value.flag == "--device"


def test_without_cupy_a_gpu_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    assert choose_device("auto") is None
    with pytest.raises(ConfigError, match=r"pip install 'luce\[cuda13\]'"):
        choose_device("cuda:0")


def test_pictures_are_planned_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for the tower and the largest picture is left to it, and none on the host for encoding."""
    monkeypatch.setattr(packed_state, "MOST_ON_DEVICE", 2)  # whatever the device has
    options = MemoryOptions(4, 1000, largest_picture=400)
    assert CONFIG.vision is not None
    room = vision_bytes(CONFIG.vision, 400, beside=True)
    needed = plan_on_device(DEVICE, CONFIG, WEIGHTS, options, 1 << 40).total
    plan = plan_on_device(DEVICE, CONFIG, WEIGHTS, options, needed + room)
    assert plan.sizes.max_patches == 400 and plan.total == needed
    tighter = plan_on_device(DEVICE, CONFIG, WEIGHTS, options, needed + room - 1)
    assert tighter.sizes.num_blocks < plan.sizes.num_blocks
    host = plan_memory(CONFIG, options)
    assert "encoding" in host.request_parts
    whole = device_memory_plan(CONFIG, host, plan)
    assert "encoding" not in whole.request_parts
    assert plan.total < whole.total <= plan.total + room

    other = HostDevice()
    other.arch = "sm_80"
    on_host = plan_on_device(other, CONFIG, WEIGHTS, options, 1 << 40)
    assert on_host.sizes.max_patches == 0
    assert "encoding" in device_memory_plan(CONFIG, host, on_host).request_parts


def test_packed_states_take_little_of_a_device() -> None:
    """As many as prompts can leave in a step, on a device that hardly notices."""
    large, small = released("qwen3.5-27b").text, released("qwen3.5-0.8b").text
    assert 0.24e9 < packed_bytes(large) < 0.26e9
    assert packed_on_device(large, 17, 139 << 30) == MOST_ON_DEVICE
    assert packed_on_device(large, 17, 22 << 30) == LEAST_ON_DEVICE
    assert packed_on_device(large, 17, 70 << 30) * packed_bytes(large) <= (70 << 30) / 50
    assert packed_on_device(small, 17, 22 << 30) == MOST_ON_DEVICE
    assert packed_on_device(large, 1, 139 << 30) == 2
    options = MemoryOptions(4, 1000, largest_picture=400)
    found = plan_on_device(DEVICE, CONFIG, WEIGHTS, options, 1 << 40)
    assert found.sizes.packed == MOST_ON_DEVICE
    arrays = {spec.name: spec.shape for spec in found.arrays}
    assert arrays["packed states"][0] == arrays["pieces"][0] == MOST_ON_DEVICE
