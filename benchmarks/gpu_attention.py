"""``python -m benchmarks.gpu_attention``: attention kernels on a GPU beside the limits from bytes and FLOPs.

Every figure is one layer's, from CUDA graphs of as many layers (pools of their own) as leave the L2 cold. ``copy`` is a
device-to-device copy measured in the same run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import attrs
import numpy as np

from luce.compute.activations import num_values, padded_depth, padded_rows
from luce.compute.cupy_device import CupyDevice, open_device
from luce.compute.device import Array
from luce.compute.gemm_prefill import prefill_rows
from luce.engines.qwen35.config import TextConfig, VisionConfig
from luce.engines.qwen35.device.attention import AttentionKernels, KvArrays, PassArrays, rope_table
from luce.engines.qwen35.device.descriptors import BLOCK_ROWS, LANE, PASS, ROW, TILE
from luce.engines.qwen35.device.vision_attention import VisionAttention, tile_values

TERAFLOPS = 790.0
"""Dense bf16 limit of an H200 in practice."""
SHAPES = {"27b": (24, 4, 256), "9b": (16, 4, 256), "0.8b": (8, 2, 256), "35b-a3b": (16, 2, 256)}
KV_BYTES = 24 << 30
"""Most bytes of keys and values of a case; at least COLD of them rotate."""
COLD = 256 << 20


def config_of(name: str) -> TextConfig:
    heads, kv_heads, dim = SHAPES[name]
    return TextConfig(
        vocab_size=16, hidden=64, num_layers=1, ffn=64, heads=heads, kv_heads=kv_heads, head_dim=dim, key_heads=1,
        value_heads=1, key_dim=32, value_dim=32, conv_kernel=4, full_attention=(True,), rms_eps=1e-6,
        rope_theta=1e7, rotary_dim=64, mrope_section=(11, 11, 10), max_positions=1 << 18, tied=True,
    )  # fmt: skip


@attrs.frozen
class Case:
    """Lanes that end at ``context`` tokens, each with its last ``count`` rows in the pass."""

    lanes: int
    context: int
    count: int


class Bench:
    def __init__(self, device: CupyDevice, name: str) -> None:
        self.device, self.config = device, config_of(name)
        self.kernels = AttentionKernels(device, self.config)
        self.rope = device.array(rope_table(self.config, 1 << 16))
        self.random = device.cupy.random.default_rng(1)

    def normal(self, *shape: int) -> Array:
        return self.random.standard_normal(shape, dtype=np.float32)

    def bits(self, *shape: int) -> Array:
        """Random bf16 numbers of about 1."""
        made = self.device.empty(shape, np.uint16)
        flat, size = made.reshape(-1), 1 << 27
        for at in range(0, flat.size, size):
            part = flat[at : at + size]
            part[...] = (self.normal(part.size).view(np.uint32) >> 16).astype(np.uint16)
        return made

    def time(self, launch: Callable[[int], None], layers: int) -> float:
        """Seconds of one layer, the median of repeated graphs of all layers."""
        device = self.device
        stream = device.stream()
        with device.using(stream):
            launch(0)
            graph = device.capture(lambda: [launch(layer) for layer in range(layers)] and None)
            graph.launch()
            times = []
            for _ in range(7):
                start, end = device.event(), device.event()
                start.record()
                graph.launch()
                end.record()
                end.synchronize()
                times.append(end.seconds_since(start) / layers)
        return sorted(times)[len(times) // 2]

    def case(self, case: Case, step: bool) -> dict[str, float]:
        device, config, kernels = self.device, self.config, self.kernels
        rows = case.lanes * case.count
        blocks = -(-case.context // BLOCK_ROWS)
        tile_bytes = BLOCK_ROWS * config.head_dim * config.kv_heads * 2
        layer_bytes = 2 * case.lanes * blocks * tile_bytes
        layers = max(2, min(16, -(-COLD // layer_bytes), KV_BYTES // layer_bytes))
        kvs = [
            KvArrays(
                *(self.bits(case.lanes * blocks, config.kv_heads, BLOCK_ROWS * config.head_dim) for _ in "kv")
            )
            for _ in range(layers)
        ]
        table = np.random.default_rng(0).permutation(case.lanes * blocks).astype(np.int32)
        header, row_array, lanes = np.zeros(1, PASS), np.zeros(rows, ROW), np.zeros(case.lanes, LANE)
        start, tiles = case.context - case.count, []
        for lane in range(case.lanes):
            lanes[lane] = (lane, start, case.count, lane * case.count, 0, 0, lane * blocks, 0)
            tiles += [(lane, first) for first in range(0, case.count, kernels.query_tile)]
            position = np.arange(start, case.context)
            part = row_array[lane * case.count : (lane + 1) * case.count]
            part["slot"], part["position"], part["lane"] = lane, position, lane
            part["t"] = part["h"] = part["w"] = position
            part["kv"] = table[lane * blocks + position // BLOCK_ROWS] * BLOCK_ROWS + position % BLOCK_ROWS
        header[0] = (rows, case.lanes, 0, len(tiles))
        parts = (header, row_array, lanes, np.array(tiles, TILE))
        batch = PassArrays(*(device.array(part.view(np.uint8)) for part in parts), device.array(table))
        x = self.normal(rows, 2 * config.head_dim * (config.heads + config.kv_heads))
        norm = device.array(np.ones(config.head_dim, np.float32))
        q = device.empty((rows, config.heads, config.head_dim), np.uint16)
        kind = 0 if step else 128
        out_rows = padded_rows(rows, kind)
        y = device.empty(num_values(out_rows, config.heads * config.head_dim, kind), np.uint16)
        scratch = kernels.split_arrays(device, case.lanes, case.context) if step else None

        def inputs(layer: int) -> None:
            kernels.inputs(batch, rows, x, norm, norm, self.rope, q, kvs[layer])

        def mix(layer: int) -> None:
            if scratch is not None:
                kernels.step(batch, rows, x, q, kvs[layer], scratch, y, out_rows)
            else:
                kernels.chunks(batch, len(tiles), x, q, kvs[layer], y, out_rows, kind)

        def both(layer: int) -> None:
            inputs(layer)
            mix(layer)

        device.synchronize()
        halves = {}
        if scratch is not None:
            halves["splits"] = self.time(lambda layer: kernels.splits(batch, q, kvs[layer], scratch), layers)
            halves["merge"] = self.time(
                lambda layer: kernels.merge(batch, rows, x, kvs[layer], scratch, y, out_rows), layers
            )
        pairs = case.lanes * (case.count * start + case.count * (case.count + 1) // 2)
        return {
            **halves,
            "all": self.time(both, layers),
            "inputs": self.time(inputs, layers),
            "attention": self.time(mix, layers),
            "bytes": float(case.lanes * case.context * config.kv_heads * config.head_dim * 4),
            "flops": float(pairs * config.heads * config.head_dim * 4),
        }


def copy_rate(device: CupyDevice) -> float:
    """Bytes a second, reads and writes counted."""
    source, target = (device.empty(1 << 30, np.uint8) for _ in range(2))
    times = []
    for _ in range(9):
        start, end = device.event(), device.event()
        start.record()
        device.copy(target, source)
        end.record()
        end.synchronize()
        times.append(end.seconds_since(start))
    return 2 * (1 << 30) / sorted(times)[4]


def steps(bench: Bench, copy: float, contexts: Sequence[int], batches: Sequence[int]) -> None:
    print("decode: one layer, us; share of the copy's bandwidth by bytes of keys and values")
    print(
        f"{'context':>8} {'m':>3} {'limit':>8} {'attention':>10} {'share':>6} {'inputs':>7} {'all':>8} {'share':>6}"
    )
    for context in contexts:
        for lanes in batches:
            if lanes * context * bench.config.kv_heads * bench.config.head_dim * 4 * 2 > KV_BYTES * 2:
                continue
            got = bench.case(Case(lanes, context, 1), step=True)
            limit = got["bytes"] / copy
            times = [got["splits"], got["merge"], got["attention"]]
            cells = [f"{time * 1e6:8.1f}" for time in times] + [f"{limit / got['attention']:8.2f}"]
            cells += [f"{got['inputs'] * 1e6:8.1f}", f"{got['all'] * 1e6:8.1f}", f"{limit / got['all']:8.2f}"]
            print(f"{context:8} {lanes:3} {limit * 1e6:8.1f} " + " ".join(cells), flush=True)


def chunks(bench: Bench, cases: Sequence[Case]) -> None:
    print(f"prefill: one layer, us; share of {TERAFLOPS:.0f} TFLOP/s")
    names = (
        f"{'context':>8} {'rows':>6} {'lanes':>5} {'limit':>8} {'attention':>10} {'TFLOP/s':>8}",
        "share",
        "inputs",
    )
    print("{} {:>6} {:>7}".format(*names))
    for case in cases:
        got = bench.case(case, step=False)
        rate = got["flops"] / got["attention"] / 1e12
        print(
            f"{case.context:8} {case.count:6} {case.lanes:5} {got['flops'] / TERAFLOPS / 1e6:8.1f} "
            f"{got['attention'] * 1e6:10.1f} {rate:8.1f} {rate / TERAFLOPS:6.2f} {got['inputs'] * 1e6:7.1f}",
            flush=True,
        )


def pictures(bench: Bench, sides: Sequence[int], heads: int = 16, dim: int = 72) -> None:
    """Of the tower of 27B: one block."""
    print(f"vision: one block of {heads} heads of {dim}, us; share of {TERAFLOPS:.0f} TFLOP/s")
    print(f"{'patches':>8} {'limit':>8} {'attention':>10} {'TFLOP/s':>8}  share")
    device = bench.device
    config = VisionConfig(
        depth=1, hidden=heads * dim, heads=heads, ffn=64, patch_size=16, temporal_patch_size=2, merge_size=2,
        grid_side=48, out_hidden=64,
    )  # fmt: skip
    kernels = VisionAttention(device, config)
    for side in sides:
        attention = picture(bench, kernels, config, side)
        flops = 4.0 * side**4 * config.hidden
        rate = flops / attention / 1e12
        print(
            f"{side * side:8} {flops / TERAFLOPS / 1e6:8.1f} {attention * 1e6:10.1f} {rate:8.1f} "
            f"{rate / TERAFLOPS:6.2f}",
            flush=True,
        )


def picture(bench: Bench, kernels: VisionAttention, config: VisionConfig, side: int) -> float:
    """Seconds of the attention of one block."""
    device, count = bench.device, side * side
    rows, depth = prefill_rows(count), padded_depth(config.hidden)
    y = device.empty(num_values(rows, depth, rows), np.uint16)
    tiles = [bench.bits(tile_values(config, count)) for _ in range(4)]
    device.synchronize()
    return bench.time(lambda layer: kernels.attend(count, tiles[layer], y, rows, depth), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="27b")
    parser.add_argument("--contexts", type=int, nargs="*", default=[4096, 32768])
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--skip", choices=["decode", "prefill", "vision"], nargs="*", default=[])
    arguments = parser.parse_args()
    device = open_device(0)
    copy = copy_rate(device)
    print(f"{device.fingerprint}; copy {copy / 1e12:.2f} TB/s; {arguments.shape}")
    bench = Bench(device, arguments.shape)
    if "decode" not in arguments.skip:
        steps(bench, copy, arguments.contexts, arguments.batches)
    if "prefill" not in arguments.skip:
        chunks(
            bench,
            [
                Case(1, 8192, 8192),
                Case(1, 8192, 512),
                Case(1, 32768, 2048),
                Case(8, 1024, 1024),
                Case(16, 4096, 8),
            ],
        )
    if "vision" not in arguments.skip:
        pictures(bench, [16, 32, 64])


if __name__ == "__main__":
    main()
