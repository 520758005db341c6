"""The golden folders: checkpoint through luce's loaders, results as arrays."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from luce.engines.qwen35.config import Qwen35Config
from luce.engines.qwen35.loading import load_config, load_weights
from luce.engines.qwen35.weights import Qwen35Weights
from luce.engines.seam import PatchImage
from luce.weights.model_files import resolve_model

FOLDERS = sorted(path.parent for path in Path(__file__).parent.glob("*/config.json"))
NAMES = [folder.name for folder in FOLDERS]


@attrs.frozen(eq=False)
class Golden:
    name: str
    config: Qwen35Config
    weights: Qwen35Weights
    text: dict[str, npt.NDArray[Any]]
    image: dict[str, npt.NDArray[Any]]

    @property
    def grids(self) -> list[tuple[int, int]]:
        return [(int(gh), int(gw)) for _, gh, gw in self.image["grid_thw"]]

    def patch_images(self) -> list[PatchImage]:
        """The pictures' patches, one frame of the reference's two equal ones ([channel][frame][y][x])."""
        assert self.config.vision is not None
        patch, merge = self.config.vision.patch_size, self.config.vision.merge_size
        rows = self.image["pixel_values"].reshape(-1, 3, 2, patch, patch)
        assert np.array_equal(rows[:, :, 0], rows[:, :, 1])
        flat = np.ascontiguousarray(rows[:, :, 0].reshape(len(rows), -1))
        images, at = [], 0
        for number, (gh, gw) in enumerate(self.grids):
            patches = flat[at : at + gh * gw]
            images.append(PatchImage(patches, (gh, gw), bytes([number]), gh * gw // merge**2))
            at += gh * gw
        return images


@functools.cache
def golden(name: str) -> Golden:
    folder = Path(__file__).parent / name
    files = resolve_model(folder)
    config = load_config(files)
    weights = load_weights(files, config)
    archives = []
    for archive in ("text", "image"):
        with np.load(folder / f"{archive}.npz") as data:
            archives.append({key: data[key] for key in data})
    return Golden(name, config, weights, *archives)


@functools.cache
def reference_in_bf16() -> dict[str, tuple[float, float]]:
    """How far the reference in bfloat16 is from its own float32 (tools/golden/narrow.py): largest, mean."""
    text = (Path(__file__).parent / "reference_bf16.json").read_text()
    return {name: (largest, mean) for name, (largest, mean, _over) in json.loads(text).items()}
