"""``python -m benchmarks.gpu_vision``: pictures encoded by a vision tower on a GPU, random weights.

Wall time of a whole call, patches in and rows out, and the device's part of it; ``--shape``, ``--sides`` in patches.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from luce.compute.cupy_device import CupyDevice, open_device
from luce.engines.qwen35.config import VisionConfig
from luce.engines.qwen35.device.vision import DeviceVision
from luce.engines.qwen35.shapes import released
from luce.engines.qwen35.weights import VisionBlockWeights, VisionWeights
from luce.engines.seam import PatchImage

TERAFLOPS = 790.0
"""Dense bf16 limit of an H200 in practice."""


def random_weights(config: VisionConfig) -> VisionWeights:
    """Every block the same numbers, which are stored for each."""
    rng = np.random.default_rng(0)
    d, merged = config.hidden, config.hidden * config.merge_size**2
    some = rng.standard_normal(1 << 20).astype(np.float32)

    def matrix(rows: int, depth: int) -> np.ndarray:
        return np.resize(some, (rows, depth)) / np.float32(depth**0.5)

    def vector(size: int, around: float = 0.0) -> np.ndarray:
        return (around + 0.1 * rng.standard_normal(size)).astype(np.float32)

    block = VisionBlockWeights(
        norm1=vector(d, 1), norm1_bias=vector(d), qkv=matrix(3 * d, d), qkv_bias=vector(3 * d), proj=matrix(d, d),
        proj_bias=vector(d), norm2=vector(d, 1), norm2_bias=vector(d), fc1=matrix(config.ffn, d),
        fc1_bias=vector(config.ffn), fc2=matrix(d, config.ffn), fc2_bias=vector(d),
    )  # fmt: skip
    return VisionWeights(
        patch=matrix(d, config.in_channels * config.patch_size**2), patch_bias=vector(d),
        positions=matrix(config.grid_side**2, d), blocks=(block,) * config.depth, merger_norm=vector(d, 1),
        merger_norm_bias=vector(d), merger_fc1=matrix(merged, merged), merger_fc1_bias=vector(merged),
        merger_fc2=matrix(config.out_hidden, merged), merger_fc2_bias=vector(config.out_hidden),
    )  # fmt: skip


def flops(config: VisionConfig, patches: int) -> float:
    """Of products and attention."""
    d, merged = config.hidden, config.hidden * config.merge_size**2
    block = 2 * patches * d * (4 * d + 2 * config.ffn) + 4 * patches**2 * d
    ends = 2 * patches * config.in_channels * config.patch_size**2 * d
    merger = 2 * patches // config.merge_size**2 * merged * (merged + config.out_hidden)
    return float(config.depth * block + ends + merger)


def encode(device: CupyDevice, tower: DeviceVision, side: int, times: int = 12) -> tuple[float, float]:
    """Seconds by the wall and on the device of one picture, not one of the first two of its size."""
    config, count = tower.config, side * side
    rng = np.random.default_rng(1)
    shades = rng.integers(0, 256, (count, 3 * config.patch_size**2), np.uint8)
    scale = np.linspace(-2, 2, 3 * 256, dtype=np.float32).reshape(3, 256)
    image = PatchImage(shades, (side, side), b"", count // config.merge_size**2, scale)
    wall = []
    for _ in range(times + 2):
        start = time.perf_counter()
        tower(image)
        wall.append(time.perf_counter() - start)
    on_device = []
    with device.using(tower.stream):
        for _ in range(times):
            first, last = device.event(), device.event()
            first.record()
            for part in range(tower._parts):
                tower._launch(count, part)
            last.record()
            last.synchronize()
            on_device.append(last.seconds_since(first))
    return statistics.median(wall[2:]), statistics.median(on_device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="qwen3.5-27b")
    parser.add_argument("--sides", type=int, nargs="*", default=[16, 32, 64])
    arguments = parser.parse_args()
    config = released(arguments.shape).vision
    assert config is not None
    device = open_device(0)
    tower = DeviceVision(device, config, random_weights(config), max(arguments.sides) ** 2)
    print(f"{device.fingerprint}; the tower of {arguments.shape}; ms; limit: {TERAFLOPS:.0f} TFLOP/s")
    print(f"{'patches':>8} {'limit':>7} {'device':>7} {'wall':>7}")
    for side in arguments.sides:
        wall, seconds = encode(device, tower, side)
        limit = flops(config, side * side) / TERAFLOPS / 1e12
        print(f"{side * side:8} {limit * 1e3:7.2f} {seconds * 1e3:7.2f} {wall * 1e3:7.2f}", flush=True)


if __name__ == "__main__":
    main()
