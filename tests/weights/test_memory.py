"""The memory plan equals the arrays to the byte, and refuses with shortfall and fix (B128, B129)."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.compute.host_memory import available_bytes
from luce.engines.qwen35.config import MoeConfig, Qwen35Config, TextConfig, VisionConfig
from luce.engines.qwen35.engine import Qwen35Engine
from luce.engines.qwen35.loading import load_config, load_weights
from luce.engines.qwen35.memory import MemoryOptions, check_budget, format_bytes, plan_memory
from luce.errors import ConfigError
from luce.weights.model_files import resolve_model
from tests.weights.arrays import owned_floats
from tests.weights.writers import MOE_SHAPE, TinyShape, random_model, write_hf

SHAPES = [
    TinyShape(),
    TinyShape(tied=True, ratio=1, mtp=False),
    TinyShape(vision=False, ratio=3, key_dim=8, value_dim=24, hidden=32),
    TinyShape(interval=1, num_layers=2, vision_depth=3, patch_size=4),
    MOE_SHAPE,
    TinyShape(experts=2, used=1, expert_ffn=80, shared_ffn=24, hidden=48, ratio=3, vision=False, mtp=False),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("slots", "context"), [(1, 64), (4, 1000), (300, 20)])
def test_plan_equals_the_engine_s_arrays(shape: TinyShape, slots: int, context: int, tmp_path: Path) -> None:
    files = resolve_model(write_hf(tmp_path, random_model(shape)))
    config = load_config(files)
    weights = load_weights(files, config)
    options = MemoryOptions(slots, context, block_size=16, num_blocks=40)
    plan = plan_memory(config, options)
    engine = Qwen35Engine(config, weights, num_slots=slots, num_blocks=40, block_size=16, max_context=context)
    try:
        text = owned_floats(engine._runner.model.weights)
        vision = owned_floats(engine._vision)
        pool = owned_floats(engine.pool)
        everything = owned_floats([engine._runner, engine._vision, engine.pool])
    finally:
        engine.shutdown()
    assert plan.parts["text weights"] == sum(text.values())
    assert plan.parts.get("vision weights", 0) == sum(vision.values())
    assert plan.parts["KV blocks"] + plan.parts.get("recurrent state", 0) == sum(pool.values())
    assert plan.total == sum(everything.values())
    assert plan.bytes_per_token == engine.capabilities.bytes_per_token
    assert plan.bytes_per_slot == engine.capabilities.bytes_per_slot
    loaded = owned_floats(weights)
    assert plan.peak - plan.total == sum((loaded | everything).values()) - sum(everything.values())


def released(
    hidden: int,
    layers: int,
    ffn: int | MoeConfig,
    heads: int,
    kv: int,
    hv: int,
    tied: bool,
    vision: VisionConfig,
) -> Qwen35Config:
    text = TextConfig(
        vocab_size=248320, hidden=hidden, num_layers=layers, ffn=ffn if isinstance(ffn, int) else 0,
        moe=None if isinstance(ffn, int) else ffn, heads=heads, kv_heads=kv, head_dim=256,
        key_heads=16, value_heads=hv, key_dim=128, value_dim=128, conv_kernel=4,
        full_attention=tuple((i + 1) % 4 == 0 for i in range(layers)), rms_eps=1e-6, rope_theta=1e7,
        rotary_dim=64, mrope_section=(11, 11, 10), max_positions=262144, tied=tied, num_mtp_layers=1,
    )  # fmt: skip
    return Qwen35Config(
        text, attrs.evolve(vision, out_hidden=hidden), 248056, 248053, 248054, (248044, 248046)
    )


SMALL = VisionConfig(12, 768, 12, 3072, 16, 2, 2, 48, 0)
MIDDLE = VisionConfig(24, 1024, 16, 4096, 16, 2, 2, 48, 0)
LARGE = VisionConfig(27, 1152, 16, 4304, 16, 2, 2, 48, 0)
RELEASED = {
    "0.8B": (released(1024, 24, 3584, 8, 2, 16, True, SMALL), 873_438_784, 12_288, 18),
    "2B": (released(2048, 24, 6144, 8, 2, 16, True, MIDDLE), 2_274_069_824, 12_288, 18),
    "4B": (released(2560, 32, 9216, 16, 4, 32, True, MIDDLE), 4_659_865_088, 32_768, 48),
    "9B": (released(4096, 32, 12288, 16, 4, 32, False, LARGE), 9_653_104_368, 32_768, 48),
    "27B": (released(5120, 64, 17408, 24, 4, 48, False, LARGE), 27_781_427_952, 65_536, 144),
    "35B-A3B": (
        released(2048, 40, MoeConfig(256, 8, 512, 512), 16, 2, 32, False, LARGE),
        35_951_822_704,
        20_480,
        60,
    ),
}


@pytest.mark.parametrize("name", RELEASED)
def test_released_models(name: str) -> None:
    """Parameter totals of spec §1.2 (both temporal slices of the patch embedding count there, one sum here)."""
    config, parameters, kv_bf16, state_mib = RELEASED[name]
    plan = plan_memory(config, MemoryOptions(slots=4, context=4096))
    assert config.vision is not None
    loaded = sum(spec.nbytes for spec in plan.released)
    kept = {"embedding", "decay and dt bias", "positions", "vectors"}
    loaded += sum(spec.nbytes for spec in plan.arrays if spec.name in kept)
    folded = config.vision.hidden * 3 * 256
    assert loaded == 4 * (parameters - folded)
    assert plan.bytes_per_token == 2 * kv_bf16
    state = next(spec for spec in plan.arrays if spec.name == "s")
    assert state.nbytes == 4 * state_mib * 2**20


def test_only_attention_layers_keep_keys_and_head_size_is_its_own() -> None:
    """B128: hidden / heads is 128 here, the head size 256, one layer in four attends."""
    config = RELEASED["0.8B"][0]
    plan = plan_memory(config, MemoryOptions(slots=1, context=1000, block_size=16))
    keys = next(spec for spec in plan.arrays if spec.name == "keys")
    assert keys.shape == (6, 63 * 16, 2, 256)
    assert keys.zeros().nbytes == keys.nbytes


OPTIONS = st.builds(
    MemoryOptions,
    slots=st.integers(1, 64),
    context=st.integers(1, 5000),
    block_size=st.sampled_from([1, 16, 64]),
    num_blocks=st.one_of(st.none(), st.integers(1, 500)),
)


@given(options=OPTIONS)
def test_arrays_add_up(options: MemoryOptions) -> None:
    """B129: state counts per slot, and nothing is counted twice or left out."""
    plan = plan_memory(RELEASED["4B"][0], options)
    assert plan.total == sum(plan.parts.values()) == sum(spec.nbytes for spec in plan.arrays)
    assert plan.serving == plan.total + sum(plan.request_parts.values())
    assert plan.needed == max(plan.peak, plan.serving)
    assert plan.parts["recurrent state"] == plan.bytes_per_slot * options.slots
    assert plan.parts["KV blocks"] == plan.bytes_per_token * options.blocks * options.block_size
    if options.num_blocks is None:
        assert options.blocks * options.block_size >= options.slots * options.context


@given(options=OPTIONS, part=st.floats(0.01, 1.2))
def test_advice_is_right(options: MemoryOptions, part: float) -> None:
    config = RELEASED["0.8B"][0]
    plan = plan_memory(config, options)
    budget = int(plan.needed * part)
    if budget >= plan.needed:
        check_budget(config, plan, budget)
        return
    with pytest.raises(ConfigError) as caught:
        check_budget(config, plan, budget)
    message = str(caught.value)
    assert (
        message.startswith("--max-memory: ")
        and f"{plan.needed - budget:,} more than the {budget:,}" in message
    )
    words = message.split()
    for flag, name in (("--slots", "slots"), ("--context", "context")):
        if flag in words:
            value = int(words[words.index(flag) + 1])
            assert plan_memory(config, attrs.evolve(options, **{name: value})).needed <= budget
            assert plan_memory(config, attrs.evolve(options, **{name: value + 1})).needed > budget


def test_budget_for_three_slots_names_three() -> None:
    config = RELEASED["0.8B"][0]
    asked = MemoryOptions(slots=64, context=4096)
    three = plan_memory(config, attrs.evolve(asked, slots=3)).needed
    with pytest.raises(ConfigError, match=r"; --slots 3 would fit"):
        check_budget(config, plan_memory(config, asked), three)
    with pytest.raises(ConfigError, match="the model and one slot alone need"):
        check_budget(config, plan_memory(config, asked), 1000)
    with pytest.raises(ConfigError, match=r"^64 slots of .* more than the 1,000 free; ") as caught:
        check_budget(config, plan_memory(config, asked), 1000, free=True)
    assert caught.value.flag is None, "nobody gave one"


def test_printed_plan_has_every_part_and_the_total() -> None:
    plan = plan_memory(RELEASED["0.8B"][0], MemoryOptions(slots=2, context=100))
    lines = plan.lines()
    rows = [*plan.parts.items(), ("total", plan.total), ("while loading", plan.peak)]
    rows += [*plan.request_parts.items(), ("with requests", plan.serving)]
    assert {"prompts", "patches", "image rows", "encoding", "sampling"} == set(plan.request_parts)
    for line, (name, size) in zip(lines, rows, strict=True):
        assert line.startswith(name) and f"{size:,} bytes" in line
    assert [format_bytes(size) for size in (0, 1023, 1536, 5 * 2**30)] == [
        "0 B",
        "1023 B",
        "1.50 KiB",
        "5.00 GiB",
    ]


def test_available_memory_is_the_container_s_when_lower(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    8 kB\n")
    assert available_bytes(tmp_path) == 8192
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("5000\n")
    (group / "memory.current").write_text("2000\n")
    (group / "memory.stat").write_text("anon 1500\ninactive_file 500\n")
    assert available_bytes(tmp_path) == 3500
    (group / "memory.max").write_text("max\n")
    assert available_bytes(tmp_path) == 8192
    assert (available_bytes() or 0) > 0
