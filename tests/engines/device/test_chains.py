"""Steps whose products go in chains: the bits of products one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from luce.compute import gemm_chain
from luce.compute.device import Device
from luce.engines.qwen35.config import Qwen35Config
from luce.engines.qwen35.device import chains
from luce.engines.qwen35.device.chains import LEAST_BYTES, find_chain
from luce.engines.qwen35.device.engine import DeviceEngine
from luce.engines.qwen35.device.synthetic import synthetic_device_weights
from luce.engines.qwen35.device.weights import Text, list_weights
from luce.engines.qwen35.shapes import released
from luce.engines.qwen35.weights import Qwen35Weights
from tests.engines.device.harness import bf16_model, new_device_engine
from tests.engines.device.test_device_engine import greedy
from tests.engines.harness import random_ids, text_spec
from tests.engines.models import demo_config


def quantised(form: str = "Q4_K") -> tuple[Qwen35Config, Qwen35Weights]:
    """Layers of the bundled model's kind with gates in another format than the rest."""
    config = demo_config(512)
    text = attrs.evolve(config.text, num_layers=4, full_attention=config.text.full_attention[:4], ffn=512)
    config = attrs.evolve(config, text=text)
    return config, synthetic_device_weights(config, form)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Every layer is worth a chain; rows and products of those that are launched."""
    found: list[int] = []
    launch = gemm_chain.launch_chain

    def counted(device: Device, links: Any, rows: int, *rest: Any) -> None:
        found.append(10 * rows + len(links))
        launch(device, links, rows, *rest)

    monkeypatch.setattr(chains, "LEAST_BYTES", 0)
    monkeypatch.setattr(chains, "launch_chain", counted)
    yield found


def answers(engine: DeviceEngine) -> list[Any]:
    specs = [text_spec(random_ids(9, index)) for index in (1, 2, 3)]
    try:
        return [greedy(engine, specs[:count], 3, 2) for count in (1, 2, 3)]
    finally:
        engine.shutdown()


@pytest.mark.parametrize("form", ["BF16", "Q4_K"])
def test_answers_are_those_of_products_one_by_one(
    form: str, launched: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains, "LEAST_ROWS", {})
    config, weights = bf16_model() if form == "BF16" else quantised(form)
    chained = answers(new_device_engine(config, weights))
    layers = config.text.num_layers
    assert {10 * rows + links for rows in (1, 2, 4) for links in (3, 4)} <= set(launched)
    assert launched.count(14) == (layers - 1) * launched.count(13), "the last layer's has no inputs behind it"
    launched.clear()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(chains, "LEAST_BYTES", LEAST_BYTES)
        assert answers(new_device_engine(config, weights)) == chained
    assert not launched


def test_without_room_for_all_blocks_products_go_one_by_one(
    launched: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of a chain wait for each other: those that never start would be waited for forever."""
    monkeypatch.setattr(chains, "LEAST_ROWS", {})
    monkeypatch.setattr(chains, "chain_runs", lambda *_: False)
    engine = new_device_engine(*bf16_model())
    try:
        assert greedy(engine, [text_spec(random_ids(9, 1))], 2, 1)
    finally:
        engine.shutdown()
    assert not launched


def listed(shape: str, form: str, layers: int = 5) -> Text:
    config = released(shape)
    text = attrs.evolve(config.text, num_layers=layers, full_attention=config.text.full_attention[:layers])
    config = attrs.evolve(config, text=text, vision=None)
    return list_weights(synthetic_device_weights(config, form))


class Hopper:
    arch = "sm_90a"
    multiprocessors = 132
    shared_limit = 232_448


@pytest.mark.parametrize(
    ("shape", "form", "warps"),
    [
        ("qwen3.5-27b", "Q4_K", {1: 15, 4: 15, 8: 15, 16: 15}),
        ("qwen3.5-27b", "Q8_0", {1: 15, 4: 15, 16: 11}),
        ("qwen3.5-27b", "Q6_K", {1: 15, 16: 12}),
        ("qwen3.5-27b", "BF16", {1: None, 8: None, 16: 12, 32: None}),
        ("qwen3.5-9b", "Q4_K", {1: 12, 4: 12, 8: 12, 16: 12}),
        ("qwen3.5-0.8b", "BF16", None),
        ("qwen3.5-35b-a3b", "BF16", None),
    ],
)
def test_large_dense_layers_have_chains(shape: str, form: str, warps: dict[int, int | None] | None) -> None:
    """As many warps multiply as were quickest, of four times as many in all."""
    text = listed(shape, form)
    device: Any = Hopper()
    made = [find_chain(device, text, number) for number in range(5)]
    assert [chain is not None for chain in made] == [warps is not None] * 5
    if warps:
        assert made[0] is not None and made[0].inputs is not None and made[4] is not None
        assert made[4].inputs is None, "no layer follows"
        gates = [chain.gates is not None for chain in made if chain is not None]
        assert gates == [form != "BF16" and behind for behind in (True, True, False, True, False)]
        plans = {rows: made[0].plan(device, rows) for rows in warps}
        assert {rows: plan and plan.form.warps for rows, plan in plans.items()} == warps
        every = [chain.plan(device, rows) for chain in made if chain is not None for rows in warps]
        assert all(plan.all_warps % 4 == 0 for plan in every if plan is not None)
    device.arch = "sm_89"
    assert find_chain(device, text, 0) is None


def test_a_matrix_of_another_format_ends_the_chain() -> None:
    text = listed("qwen3.5-27b", "Q4_K")
    device: Any = Hopper()
    next_inputs = text.layers[1].mixer.inputs
    next_inputs.parts[0].format = "Q6_K"
    chain = find_chain(device, text, 0)
    assert chain is not None and chain.inputs is None and chain.gates is None
    down = text.layers[1].ffn.down  # type: ignore[union-attr]
    down.parts[0].format = "Q6_K"
    assert find_chain(device, text, 1) is None
