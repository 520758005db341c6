"""``python -m benchmarks.gpu_prefill``: the weight GEMM for many rows on a GPU, beside cuBLAS and the limits.

First bits: the rows of products of up to 4,096 rows, repeated, against the GEMM for few rows. Then times: random
weights in records, inputs in prefill layout; TFLOP/s and the share of the lower of the FLOP limit and the byte limit.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from luce.compute.activations import bucket, num_values, pack, padded_depth
from luce.compute.cupy_device import CupyDevice, open_device
from luce.compute.gemm import Epilogue, WeightMatrix, scratch_for
from luce.compute.gemm_prefill import choose_tiling, launch_gemm_prefill, prefill_rows
from luce.compute.packing import RECORD_BYTES

TERAFLOPS, TERABYTES = 790.0, 4.2
"""Dense bf16 and copying limits of an H200 in practice."""
SHAPES = ((34816, 5120), (5120, 17408), (16384, 5120), (5120, 6144))
"""N x K of the 27B model: gate and up, down, DeltaNet inputs, outputs."""
TAIL = {"Q8_0": 256, "Q4_0": 256, "Q4_K": 64, "Q5_K": 64, "Q6_K": 32, "IQ4_XS": 32}
"""Bytes of a record's f16 scales, at its end."""


def random_matrix(device: CupyDevice, name: str, rows: int, depth: int) -> WeightMatrix:
    """Any codes, small scales."""
    cupy = device.cupy
    count, size = -(-rows // 16) * (padded_depth(depth) // 256), RECORD_BYTES[name]
    if name == "BF16":
        values = cupy.random.standard_normal((count, size // 2), dtype=np.float32) * np.float32(0.02)
        records = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    else:
        records = cupy.random.randint(0, 256, (count, size), dtype=np.uint8)
        scales = cupy.random.random((count, TAIL[name] // 2), dtype=np.float32) * np.float32(1e-4)
        records[:, -TAIL[name] :] = scales.astype(np.float16).view(np.uint8)
        if name in ("Q4_K", "Q5_K"):
            records[:, -320:-64] &= 63
        elif name == "IQ4_XS":
            records[:, -160:-32] &= 63
    return WeightMatrix(device, name, rows, depth, records)


def seconds(device: CupyDevice, launch: Callable[[], object], repeats: int) -> float:
    """Of one launch: the median of five runs of ``repeats``."""
    launch()
    times = []
    for _ in range(5):
        start, end = device.event(), device.event()
        start.record()
        for _ in range(repeats):
            launch()
        end.record()
        end.synchronize()
        times.append(end.seconds_since(start) / repeats)
    return sorted(times)[2]


def prefill(matrix: WeightMatrix, x: Any, out: Any, rows: int, epilogue: Epilogue) -> None:
    out_depth = padded_depth(matrix.rows // 2) if epilogue is Epilogue.SWIGLU else 0
    launch_gemm_prefill(
        matrix.device, matrix.format, matrix.records, x, out, live=rows, rows=prefill_rows(rows), n=matrix.rows,
        depth=matrix.depth, epilogue=epilogue, out_depth=out_depth,
    )  # fmt: skip


def check_bits(device: CupyDevice, name: str, repeats: int) -> None:
    """Raises AssertionError unless every row has the bits that the GEMM for few rows gives it."""
    rng = np.random.default_rng(0)
    matrix = random_matrix(device, name, 2064, 5120)
    x = rng.standard_normal((4096, 5120)).astype(np.float32) * 2.0 ** rng.integers(-6, 7, (4096, 1))
    wanted = device.empty((4096, 2064), np.float32)
    scratch = scratch_for(device, [matrix.plan(64)])
    for first in range(0, 4096, 64):
        step = device.array(pack(x[first : first + 64], 0))
        matrix.decode(step, wanted[first : first + 64], bucket(64), Epilogue.STORE, scratch)
    for rows in (65, 128, 331, 1000, 4096):
        packed, out = device.array(pack(x[:rows], prefill_rows(rows))), device.empty((rows, 2064), np.float32)
        for _ in range(repeats):
            device.fill(out, 0xFF)
            prefill(matrix, packed, out, rows, Epilogue.STORE)
            found = (out.view(np.uint32) != wanted[:rows].view(np.uint32)).sum()
            assert int(found) == 0, f"{name}: {int(found)} of {out.size} values differ at {rows} rows"


def cublas(device: CupyDevice, n: int, depth: int, rows: int) -> float | None:
    """Seconds of torch's bf16 product, None without torch."""
    try:
        import torch
    except ImportError:
        return None
    a = torch.randn(rows, depth, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(n, depth, device="cuda", dtype=torch.bfloat16)
    with device.cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
        return seconds(device, lambda: torch.mm(a, b.t()), 4)


def time_shape(device: CupyDevice, name: str, n: int, depth: int, counts: Sequence[int]) -> None:
    matrix = random_matrix(device, name, n, depth)
    for rows in counts:
        held = prefill_rows(rows)
        bits = device.cupy.random.standard_normal(num_values(held, depth, held), dtype=np.float32).view(
            np.uint32
        )
        x = (bits >> 16).astype(np.uint16)
        flops = 2.0 * n * depth * rows
        limit = max(flops / TERAFLOPS, matrix.nbytes / TERABYTES) / 1e12
        texts = []
        for epilogue in Epilogue if n > 2 * depth else (Epilogue.STORE, Epilogue.ADD):
            swiglu = epilogue is Epilogue.SWIGLU
            shape = num_values(held, n // 2, held) if swiglu else (rows, n)
            out = device.zeros(shape, np.uint16 if swiglu else np.float32)
            time = seconds(device, functools.partial(prefill, matrix, x, out, rows, epilogue), 3)
            share = f"{time * 1e6:7.0f} us {flops / time / 1e12:4.0f} TFLOP/s {100 * limit / time:3.0f} %"
            texts.append(f"{epilogue.name.lower()} {share}")
        tile = choose_tiling(name, Epilogue.STORE, rows, -(-n // 16), device)
        tokens = f"{tile.tokens}x{16 * tile.blocks}{' split' if tile.split else ''}"
        print(f"{name:7} {n:6}x{depth:<6} R {rows:5}  {' | '.join(texts)}  (tile {tokens})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--formats", nargs="+", default=["BF16", "Q8_0", "Q6_K", "Q4_K"], choices=list(RECORD_BYTES)
    )
    parser.add_argument("--rows", nargs="+", type=int, default=[65, 128, 256, 512, 1024, 4096, 8192])
    parser.add_argument("--repeats", type=int, default=20, help="of every product whose bits are checked")
    options = parser.parse_args()
    device = open_device()
    print(device.fingerprint)
    for name in options.formats:
        check_bits(device, name, options.repeats)
        print(
            f"{name}: bits of 65 to 4,096 rows are those of steps, {options.repeats} times each", flush=True
        )
    for n, depth in SHAPES:
        times = {rows: cublas(device, n, depth, rows) for rows in options.rows}
        texts = [f"R {r}: {2e-12 * n * depth * r / t:.0f}" for r, t in times.items() if t is not None]
        print(f"cuBLAS  {n:6}x{depth:<6} TFLOP/s  {'  '.join(texts) or 'no torch here'}", flush=True)
        for name in options.formats:
            time_shape(device, name, n, depth, options.rows)


if __name__ == "__main__":
    main()
