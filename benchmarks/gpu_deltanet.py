"""Gated DeltaNet on a GPU: time of a layer beside what its bytes and products need at least.

``python -m benchmarks.gpu_deltanet`` prints a table; ``--shapes 27b,9b,0.8b``, ``--device 0``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from luce.compute.activations import num_values, padded_rows
from luce.compute.cupy_device import open_device
from luce.compute.device import Array, Device
from luce.engines.qwen35.config import TextConfig
from luce.engines.qwen35.device.deltanet import (
    DeltaNetConstants,
    DeltaNetLauncher,
    MixerRows,
    scratch_arrays,
    state_shapes,
)
from luce.engines.qwen35.device.descriptors import LANE, PASS, ROW, DescriptorLayout, Descriptors
from luce.engines.qwen35.weights import DeltaNetWeights

VALUE_HEADS = {"0.8b": 16, "9b": 32, "27b": 48}
LAYERS = 8
PRODUCTS = 620e12
"""mma.sync bf16, FLOP/s: what the scan can reach at most on an H200."""


def text_config(value_heads: int) -> TextConfig:
    return TextConfig(
        vocab_size=8, hidden=64, num_layers=LAYERS, ffn=8, heads=1, kv_heads=1, head_dim=256, key_heads=16,
        value_heads=value_heads, key_dim=128, value_dim=128, conv_kernel=4, full_attention=(False,) * LAYERS,
        rms_eps=1e-6, rope_theta=1e4, rotary_dim=64, mrope_section=(11, 11, 10), max_positions=1 << 18, tied=True,
    )  # fmt: skip


def random_array(device: Device, shape: tuple[int, ...], dtype: str, scale: float) -> Array:
    """Random float32, bfloat16 bits (uint16) or small negative integers (int64), a block of them repeated."""
    array = device.empty(shape, dtype)
    flat = array.reshape(-1)
    rng = np.random.default_rng(1)
    some: np.ndarray = (rng.standard_normal(min(flat.shape[0], 1 << 21)) * scale).astype(np.float32)
    if dtype == "uint16":
        some = (some.view(np.uint32) >> 16).astype(np.uint16)
    elif dtype == "int64":
        some = -np.abs(some * 2.0**40).astype(np.int64)
    block = device.array(some)
    for first in range(0, flat.shape[0], len(some)):
        part = flat[first : first + len(some)]
        device.copy(part, block[: part.shape[0]])
    return array


def seconds(device: Device, work: Callable[[], None], times: int = 20) -> float:
    """Of one replay of ``work``, captured in a graph."""
    work()
    graph = device.capture(work)
    graph.launch()
    first, last = device.event(), device.event()
    first.record()
    for _ in range(times):
        graph.launch()
    last.record()
    last.synchronize()
    return last.seconds_since(first) / times


class Layers:
    """Layers of a shape with random state, and passes over them."""

    def __init__(self, device: Device, value_heads: int, slots: int, rows: int) -> None:
        self.device, self.config = device, text_config(value_heads)
        c = self.config
        rng = np.random.default_rng(0)
        nothing = np.zeros((0, 0), np.float32)
        weights = DeltaNetWeights(
            qkv=nothing, z=nothing, b=nothing, a=nothing, out=nothing,
            conv=rng.standard_normal((c.conv_channels, 4)).astype(np.float32),
            neg_exp_a=(-np.exp(rng.uniform(-4, 0, value_heads))).astype(np.float32),
            dt_bias=rng.standard_normal(value_heads).astype(np.float32),
            gdn_norm=np.ones(128, np.float32),
        )  # fmt: skip
        self.constants = DeltaNetConstants.upload(device, weights)
        scratch = {spec.name: device.empty(spec.shape, spec.dtype) for spec in scratch_arrays(c, rows, 1)}
        self.launcher = DeltaNetLauncher(device, c, scratch)
        scales = {"s": 0.1, "k": 0.09, "u": 1.0, "g": 1.0, "conv": 1.0}
        self.states = [
            {
                name: random_array(device, (slots, *shape), dtype, scales[name])
                for name, (shape, dtype) in state_shapes(c).items()
            }
            for _ in range(LAYERS)
        ]
        self.width = c.conv_channels + value_heads * 130
        self.x = random_array(device, (rows, self.width), "float32", 1.0)
        self.out = device.empty(num_values(rows, value_heads * 128, 64), np.uint16)

    def parts(self, lanes: list[tuple[int, int, int, int, int]]) -> dict[str, Array]:
        """Descriptors of lanes (slot, start, count, base, base_after)."""
        total = sum(lane[2] for lane in lanes)
        layout = DescriptorLayout(rows=total, lanes=64, samples=1, tiles=1, lists=1)
        host = Descriptors(layout, np.zeros(layout.nbytes, np.uint8))
        host.header[0] = (total, len(lanes), 0, 0)
        row = 0
        for number, (slot, start, count, base, after) in enumerate(lanes):
            host.lanes[number] = (slot, start, count, row, base, after, 0, 0)
            for i in range(count):
                host.rows[row + i] = (slot, start + i, 0, number, 0, 0, 0, 0)
            row += count
        buffer = self.device.array(host.buffer)
        sizes = {"header": PASS.itemsize, "rows": ROW.itemsize * total, "lanes": LANE.itemsize * 64}
        return {name: buffer[layout.offsets[name] : layout.offsets[name] + n] for name, n in sizes.items()}

    def rows(self, count: int, tile: int) -> MixerRows:
        gates = self.x.reshape(-1)[self.config.conv_channels + self.config.value_heads * 128 :]
        return MixerRows(
            self.x, self.width, gates, self.width, self.out, padded_rows(count, tile) if count else 0, tile
        )


def steps(layers: Layers, copy: float) -> None:
    c = layers.config
    for rows in (1, 2, 4, 8, 16, 32, 64):
        for place, folds in ((0, False), (32, False), (63, False), (0, True)):
            if folds and rows not in (1, 64):
                continue
            at = 64000 + place
            base = 64000 - 64 * folds
            parts = layers.parts([(slot, at, 1, base, 64000) for slot in range(rows)])
            inputs = layers.rows(rows, 0)

            def work(parts: dict[str, Array] = parts, inputs: MixerRows = inputs, rows: int = rows) -> None:
                for state in layers.states:
                    layers.launcher.step(parts, rows, inputs, layers.constants, state)

            time = seconds(layers.device, work) / LAYERS
            heads, keys = c.value_heads, c.key_heads
            ring = (64 if folds else place) * (heads * 512 + keys * 256)
            per_row = (
                heads * 65536 * (1 + folds) + ring + 4 * (5 * c.conv_channels + heads * 128) + 2 * heads * 128
            )
            limit = rows * per_row / copy
            what = f"m={rows} place {place}" + (" fold" if folds else "")
            print(
                f"  step {what:<20} {time * 1e6:8.2f} us   bytes {limit * 1e6:8.2f} us   {limit / time:5.0%}"
            )


def prefill(layers: Layers, count: int, copy: float) -> None:
    c, launcher = layers.config, layers.launcher
    parts = layers.parts([(0, 0, count, 0, count - 64)])
    inputs = layers.rows(count, 64)
    state = layers.states[0]
    pieces: dict[str, Callable[[], None]] = {
        "prepare": lambda: launcher.prepare(parts, count, 1, inputs, layers.constants, state),
        "scan": lambda: launcher.scan(parts, 1, inputs, layers.constants, state),
        "finish": lambda: launcher.finish(parts, count, inputs, layers.constants, state),
        "all": lambda: launcher.chunk(parts, count, 1, inputs, layers.constants, state),
    }
    times = {name: seconds(layers.device, work, 5) for name, work in pieces.items()}
    products = 2 * 16 * 8 * 16 * (count // 64) * c.value_heads * 8 * 504
    row = 4 * (layers.width + c.value_heads * 128) + 2 * c.value_heads * 128
    listed = "   ".join(f"{name} {time * 1e6:7.1f}" for name, time in times.items())
    print(
        f"  prefill {count:5}: {listed} us   rows in and out {count * row / copy * 1e6:6.1f} us, "
        f"products of the scan at {PRODUCTS / 1e12:.0f} TFLOP/s {products / PRODUCTS * 1e6:6.1f} us"
    )


def copy_rate(device: Device) -> float:
    """Bytes a second of a large copy, reads and writes counted."""
    source, target = device.empty(1 << 30, np.uint8), device.empty(1 << 30, np.uint8)
    return 2 * (1 << 30) / seconds(device, lambda: device.copy(target, source), 5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shapes", default="27b,9b,0.8b")
    parser.add_argument("--device", type=int, default=0)
    options = parser.parse_args()
    device = open_device(options.device)
    with device.using(device.stream()):
        copy = max(copy_rate(device), 4.0e12)
        print(f"{device.fingerprint}; copy {copy / 1e12:.2f} TB/s")
        for name in options.shapes.split(","):
            layers = Layers(device, VALUE_HEADS[name], 64, 8192)
            print(f"{name}: {VALUE_HEADS[name]} value heads")
            steps(layers, copy)
            for count in (512, 2048, 8192):
                prefill(layers, count, copy)
            del layers


if __name__ == "__main__":
    main()
