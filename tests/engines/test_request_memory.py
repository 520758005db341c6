"""What requests take while they run is what the memory plan says at most, and not much less."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import attrs
import numpy as np
import numpy.typing as npt
import pytest

from luce.engines.qwen35.config import Qwen35Config, VisionConfig
from luce.engines.qwen35.memory_parts import (
    ArraySpec,
    encoding_arrays,
    request_arrays,
    sampling_arrays,
)
from luce.engines.qwen35.slots import new_slot
from luce.engines.qwen35.vision import TABLE_BYTES, RecentTables, VisionTower
from luce.engines.seam import PatchImage, SlotSpec
from luce.sampling.parameters import SamplingParams
from luce.sampling.sampler import Sampler
from tests.engines.models import demo_config, random_weights, tiny_config

F32 = npt.NDArray[np.float32]


OBJECTS = 4096
"""Bytes of the objects around the arrays."""


def peak(work: Callable[[], object]) -> int:
    """Most bytes of arrays that were there at once; numpy tells tracemalloc of each."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] - OBJECTS
    finally:
        tracemalloc.stop()


def planned(arrays: list[ArraySpec]) -> int:
    return sum(spec.nbytes for spec in arrays)


def picture(vision: VisionConfig, grid: tuple[int, int]) -> PatchImage:
    count = grid[0] * grid[1]
    shades = np.random.default_rng(count).integers(0, 256, (count, 3 * vision.patch_size**2), np.uint8)
    scale = np.linspace(-1, 1, 768, dtype=np.float32).reshape(3, 256)
    return PatchImage(shades, grid, b"", count // vision.merge_size**2, scale)


SHAPES = {
    "scores are widest": VisionConfig(2, 128, 8, 256, 8, 2, 2, 12, 64),
    "the feed-forward layer is": VisionConfig(2, 128, 2, 1024, 8, 2, 2, 12, 64),
    "the rotation is": VisionConfig(2, 256, 2, 256, 8, 2, 2, 12, 64),
    "the patches are": VisionConfig(2, 32, 2, 32, 16, 2, 2, 12, 64),
    "as in the bundled model": VisionConfig(2, 192, 3, 768, 16, 2, 2, 48, 256),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(("grid", "blocks"), [((8, 10), 2), ((24, 24), 2), ((20, 160), 1)])
def test_encoding(name: str, grid: tuple[int, int], blocks: int) -> None:
    """Twice through two blocks, where tables are there already and nothing of the first block may be left; the large
    picture, next to which all that does not grow is small, once through one: that is seconds of products as it is."""
    vision = attrs.evolve(SHAPES[name], depth=blocks)
    config: Qwen35Config = attrs.evolve(tiny_config(), vision=vision)
    weights = random_weights(config).vision
    assert weights is not None
    tower, image = VisionTower(vision, weights), picture(vision, grid)
    plan = planned(list(encoding_arrays(vision, grid[0] * grid[1]))) - TABLE_BYTES
    for again in range(blocks):
        taken = peak(lambda: tower(image))
        assert taken <= plan, f"{taken / plan:.3f}"
        assert taken >= 0.85 * plan or again, f"{taken / plan:.3f}"


def test_tables_of_recent_grids_are_kept_up_to_their_bytes() -> None:
    made: list[tuple[int, int]] = []

    def make(grid: tuple[int, int]) -> tuple[F32, F32, F32]:
        made.append(grid)
        row = np.zeros(grid[0] * grid[1], np.float32)
        return row, row.copy(), row.copy()

    recent = RecentTables(make, 12 * 100)
    for grid in ((5, 10), (5, 5), (5, 10), (5, 5)):
        assert recent(grid)[0].size == grid[0] * grid[1]
    assert made == [(5, 10), (5, 5)] and recent.nbytes == 12 * 75
    recent((5, 6))
    assert recent.nbytes == 12 * 55, "(5, 10) was used longest ago"
    recent((5, 5))
    recent((5, 10))
    assert made == [(5, 10), (5, 5), (5, 6), (5, 10)] and recent.nbytes == 12 * 75
    recent((10, 11))
    recent((10, 11))
    assert made[4:] == [(10, 11), (10, 11)] and recent.nbytes == 12 * 75, "one that is too large is not kept"


def test_the_tower_keeps_no_more_tables_than_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures of many sizes, as a long life brings them."""
    monkeypatch.setattr("luce.engines.qwen35.vision.TABLE_BYTES", 100_000)
    config = tiny_config()
    assert config.vision is not None
    tower = VisionTower(config.vision, random_weights(config).vision)  # type: ignore[arg-type]
    sizes = []
    for height in range(2, 30, 2):
        tower(picture(config.vision, (height, 20)))
        sizes.append(tower._tables.nbytes)
    assert 50_000 < max(sizes) <= 100_000 and sizes[-1] > 0


FLAT = np.zeros(50_000, np.float32)
PEAKED = (np.random.default_rng(0).standard_normal(50_000) * 8).astype(np.float32)


@pytest.mark.parametrize("row", [FLAT, PEAKED], ids=["flat", "peaked"])
def test_sampling(row: F32) -> None:
    config = attrs.evolve(demo_config().text, vocab_size=len(row))
    plan = planned(list(sampling_arrays(config)))
    prompt = np.arange(4000)
    most = 0
    for changes in (
        {"temperature": 0.0},
        {},
        {"top_p": 0.95},
        {"top_p": 0.5, "logprobs": 20},
        {"top_k": len(row) - 1, "top_p": 0.999, "min_p": 1e-9},
        {"repetition_penalty": 1.1, "presence_penalty": 1.0, "frequency_penalty": 1.0, "top_p": 0.9},
        {"min_tokens": 5, "logprobs": 0},
    ):
        params = SamplingParams(**({"temperature": 1.0, "seed": 1, "eos_token_ids": (3,)} | changes))
        sampler = Sampler(params, prompt, len(row))
        most = max(most, peak(lambda: sampler.sample(row, len(prompt))))  # noqa: B023 - called at once
    assert most <= plan
    assert most >= 0.8 * plan or row is PEAKED


def test_prompts() -> None:
    """Ids, positions and ids by place, as the request and the slot hold them."""
    config, context = demo_config(), 4096
    by_name = {spec.name: spec for spec in request_arrays(config.text, config.vision, 1, context)}
    ids = np.zeros(context - 1, np.int32)
    spec = SlotSpec(ids, np.zeros((3, len(ids)), np.int32), 0, None, 1)
    slot = new_slot(0, spec, context, config.text.vocab_size, 2000)
    taken = ids.nbytes + spec.positions.nbytes + slot.ids.nbytes
    assert 0.95 * taken <= by_name["ids and positions"].nbytes <= taken * 1.05
    assert config.vision is not None
    image = picture(config.vision, (16, 24))
    assert by_name["shades"].nbytes == image.values.nbytes * context // image.num_tokens
    rows = VisionTower(config.vision, random_weights(config).vision)(image)  # type: ignore[arg-type]
    assert by_name["image rows"].nbytes == rows.nbytes * context // image.num_tokens
