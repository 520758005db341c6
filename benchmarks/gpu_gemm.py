"""Weight GEMMs of steps: microseconds of a product beside the limits of bytes and FLOPs, and of cuBLAS where torch is.

``python -m benchmarks.gpu_gemm [--device cuda:0] [--formats Q4_K,BF16] [--rows 1,16,64] [--shapes 34816x5120]
[--wide]``. Each product is repeated in a graph over several copies of the matrix that together are ten times the
cache, each launch allowed to start while the one before it ends, as the engine launches it. Bytes are those of the
file's format, the bandwidth is what a copy reaches in the same run, FLOPs are taken at 790 TFLOP/s.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from luce.compute import activations
from luce.compute.device import Device
from luce.compute.gemm import Epilogue, WeightMatrix, scratch_for
from luce.compute.operands import DEFAULT_OPERANDS, Operands
from luce.compute.packing import RECORD_BYTES, packed_shape
from luce.weights import formats

FORMATS = "BF16,Q8_0,Q6_K,Q4_K,IQ4_XS"
SHAPES = "34816x5120,5120x17408,16384x5120,5120x6144,7168x1024,1024x3584"
"""Of the 27B: gate and up, down, DeltaNet inputs, outputs; of the 0.8B: gate and up, down."""
TITLES = ("us", "bytes, us", "FLOPs, us", "% of limit", "cuBLAS bf16")
FLOPS = 790e12
CACHE_BYTES = 500e6
SCALE_BYTES = {"Q8_0": 256, "Q4_0": 256, "Q6_K": 32, "IQ4_XS": 32, "Q4_K": 64, "Q5_K": 64}
"""At the end of a record: f16 scales, which have to be numbers."""


def random_records(name: str, rows: int, depth: int, operands: Operands) -> np.ndarray:
    """Records of random weights: a small run of them, repeated."""
    blocks, count, size = packed_shape(name, rows, depth)
    rng = np.random.default_rng(rows)
    some = rng.integers(0, 256, (64, size), dtype=np.uint8)
    if name == "BF16":
        some = operands.hold_weights((rng.standard_normal((64, size // 2)) * 0.02).astype(np.float32)).view(
            np.uint8
        )
    else:
        scales = rng.uniform(2e-5, 8e-5, (64, SCALE_BYTES[name] // 2)).astype(np.float16)
        some[:, -SCALE_BYTES[name] :] = scales.view(np.uint8)
    return np.resize(some, (blocks, count, size))


def seconds(device: Device, launches: list[Callable[[], None]]) -> float:
    """Of one launch, the best of several replays of all of them."""
    stream = device.stream()
    with device.using(stream):
        launches[0]()
        stream.synchronize()

        def record() -> None:
            for launch in launches:
                launch()

        graph = device.capture(record)
        graph.launch()
        times = []
        for _ in range(7):
            begin, end = device.event(), device.event()
            begin.record()
            graph.launch()
            end.record()
            end.synchronize()
            times.append(end.seconds_since(begin))
    return sorted(times)[len(times) // 2] / len(launches)


def copy_bandwidth(device: Device, megabytes: int) -> float:
    """Bytes read and written a second by copy_pieces."""
    source, to = (device.zeros(megabytes << 20, np.uint8) for _ in range(2))
    piece = device.array(np.array([0, 0, megabytes << 20], np.int64).view(np.uint8))
    kernel = device.kernel("copies.cu", "copy_pieces")
    one = device.array(np.ones(1, np.int32))
    blocks = 8 * device.multiprocessors
    taken = seconds(device, [lambda: kernel((blocks, 1, 1), 256, [piece, one, to, source])] * 3)
    return 2 * (megabytes << 20) / taken


def cublas(rows: int, out: int, depth: int) -> float | None:
    """Seconds of torch's bf16 product; None without torch."""
    try:
        import torch
    except ImportError:
        return None
    copies = max(2, int(CACHE_BYTES / (2 * out * depth)) + 1)
    weights = [torch.randn(out, depth, device="cuda", dtype=torch.bfloat16) * 0.02 for _ in range(copies)]
    x = torch.randn(rows, depth, device="cuda", dtype=torch.bfloat16)
    y = torch.empty(rows, out, device="cuda", dtype=torch.bfloat16)
    for weight in weights:
        torch.mm(x, weight.T, out=y)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for weight in 2 * weights:
            torch.mm(x, weight.T, out=y)
    times = []
    for _ in range(7):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return float(sorted(times)[3]) / (2 * copies)


def measure(
    device: Device, name: str, out: int, depth: int, rows: int, records: list[Any], *, wide: bool = False
) -> float:
    """Seconds of a product, through the kernel for a bucket of up to 64 rows or through gemm_wide."""
    tile = (32 if rows <= 32 else -(-rows // 64) * 64) if wide else 0
    matrices = [WeightMatrix(device, name, out, depth, one) for one in records]
    x = np.random.default_rng(0).standard_normal((rows, depth)).astype(np.float32)
    packed, y = (
        device.array(activations.pack(x, tile, operands=device.operands)),
        device.empty((rows, out), np.float32),
    )
    plan = matrices[0].wide_plan(min(tile, 64)) if wide else matrices[0].plan(rows)
    scratch = scratch_for(device, [plan], tiles=-(-rows // 64))

    def launch(matrix: WeightMatrix) -> Callable[[], None]:
        if wide:
            return lambda: matrix.wide(packed, y, rows, Epilogue.STORE, scratch, tile=tile)
        return lambda: matrix.decode(packed, y, rows, Epilogue.STORE, scratch)

    return seconds(device, [launch(matrix) for matrix in 2 * matrices])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--rows", default="1,4,16,64")
    parser.add_argument("--wide", action="store_true", help="more than 16 rows through gemm_wide.cu")
    parser.add_argument("--operands", choices=[one.value for one in Operands], default=DEFAULT_OPERANDS.value)
    given = parser.parse_args()
    from luce.compute.cupy_device import open_device

    device: Device = open_device(int(given.device.partition(":")[2] or 0), operands=Operands(given.operands))
    bandwidth = copy_bandwidth(device, 2048)
    print(f"{device.fingerprint}; copy {bandwidth / 1e12:.2f} TB/s")
    print("format   rows   N x K      ", *(f"{title:>12}" for title in TITLES))
    counts = [int(rows) for rows in given.rows.split(",")]
    for shape in given.shapes.split(","):
        out, depth = (int(size) for size in shape.split("x"))
        beside = {rows: cublas(rows, out, depth) for rows in counts}
        for name in given.formats.split(","):
            base = random_records(name, out, depth, device.operands)
            copies = max(2, int(CACHE_BYTES / base.nbytes) + 1)
            records = [device.array(base) for _ in range(copies)]
            nbytes = formats.num_bytes(name, (out, depth))
            for rows in counts:
                wide = given.wide and rows > 16
                taken = measure(device, name, out, depth, rows, records, wide=wide)
                by_bytes, by_flops = nbytes / bandwidth, 2 * rows * out * depth / FLOPS
                other = beside[rows]
                share = 100 * max(by_bytes, by_flops) / taken
                cells = [f"{1e6 * value:12.1f}" for value in (taken, by_bytes, by_flops)]
                cells += [f"{share:12.0f}", f"{'-':>12}" if other is None else f"{1e6 * other:12.1f}"]
                print(f"{name:8} {rows:4}   {shape:12}", *cells, flush=True)


assert set(SCALE_BYTES) | {"BF16"} == set(RECORD_BYTES)

if __name__ == "__main__":
    main()
