"""Microseconds of norms, embedding rows, the sampler and mixtures of experts, by rows.

``python -m benchmarks.gpu_misc [--device cuda:0]``. Each launch is repeated in a graph, as the engine launches it;
beside it stands how long its bytes take at the bandwidth that a copy reaches in the same run. What fits the cache is
read from there, as in an engine, where the kernel before has just written it.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from luce.compute import activations
from luce.compute.bf16 import round_bf16
from luce.compute.device import Device
from luce.compute.norms import NORM_SHARED, norm_threads
from luce.compute.packing import pack, packed_shape
from luce.engines.qwen35.device.descriptors import ADJUST, DRAWN, PASS, ROW, SAMPLE
from luce.engines.qwen35.device.experts import ExpertMatrix, Experts, Router
from luce.engines.qwen35.device.moe import DeviceMoe, MoeShape
from luce.engines.qwen35.device.sampler import DeviceSampler
from luce.engines.qwen35.device.samples import SampleTemplate
from luce.sampling.parameters import SamplingParams

ROWS = (1, 4, 16, 64)
EXPERT_ROWS = (*ROWS, 512)
VOCABULARY, WIDTH = 248_077, 248_320
KINDS = {
    "greedy": SamplingParams(temperature=0),
    "greedy, 5 logprobs": SamplingParams(temperature=0, logprobs=5),
    "temperature 1": SamplingParams(seed=1),
    "top-k 20, top-p 0.95": SamplingParams(seed=1, temperature=0.7, top_k=20, top_p=0.95),
    "top-p 0.95": SamplingParams(seed=1, top_p=0.95),
    "top-p 0.95, temperature 3": SamplingParams(seed=1, temperature=3.0, top_p=0.95),
    "min-p 0.05": SamplingParams(seed=1, min_p=0.05),
    "penalties, top-k 20": SamplingParams(seed=1, top_k=20, repetition_penalty=1.1, presence_penalty=0.5),
}


@attrs.frozen(eq=False)
class Timer:
    device: Device
    stream: Any
    repeats: int = 50

    def __call__(self, launch: Callable[[], None]) -> float:
        """Microseconds of one ``launch``, in a graph of many."""
        device = self.device
        with device.using(self.stream):
            launch()
            self.stream.synchronize()

            def record() -> None:
                for _ in range(self.repeats):
                    launch()

            graph = device.capture(record)
            graph.launch()
            times = []
            for _ in range(5):
                begin, end = device.event(), device.event()
                begin.record()
                graph.launch()
                end.record()
                end.synchronize()
                times.append(end.seconds_since(begin))
        return 1e6 * min(times) / self.repeats


def line(name: str, rows: int, found: float, nbytes: float, bandwidth: float, note: str = "") -> None:
    print(f"{name:28} {rows:5} {found:9.2f} us   bytes {1e6 * nbytes / bandwidth:8.2f} us {note}", flush=True)


def copy_bandwidth(device: Device, timer: Timer, megabytes: int) -> float:
    """Bytes read and written a second by copy_pieces."""
    source, to = (device.zeros(megabytes << 20, np.uint8) for _ in range(2))
    piece = device.array(np.array([0, 0, megabytes << 20], np.int64).view(np.uint8))
    count = device.array(np.ones(1, np.int32))
    kernel = device.kernel("copies.cu", "copy_pieces")
    return 2e6 * (megabytes << 20) / timer(lambda: kernel((2048, 1, 1), 512, [piece, count, to, source]))


def header(device: Device, rows: int) -> Any:
    made = np.zeros(1, PASS)
    made["rows"] = made["samples"] = rows
    return device.array(made.view(np.uint8))


def norms(device: Device, timer: Timer, bandwidth: float, *, early: bool) -> None:
    kernel = device.kernel("norm.cu", "rms_norm")
    for width in (1024, 5120):
        for rows, tile in [*((rows, 0) for rows in ROWS), (512, 64), (4096, 64)]:
            x = device.zeros((rows, width), np.float32)
            scale = device.zeros(width, np.float32)
            out = device.empty(activations.num_values(rows, width, tile), np.uint16)
            shape = (
                activations.padded_rows(rows, tile),
                tile,
                activations.padded_depth(width),
            )
            args = [header(device, rows), None, x, scale, np.float32(1e-6), np.int32(width), out]
            args += [np.int32(value) for value in shape]

            def launch(rows: int = rows, width: int = width, args: list[Any] = args) -> None:
                kernel((rows, 1, 1), norm_threads(width), args, shared=NORM_SHARED, early=early)

            name = f"rms norm {width}{', early' if early else ''}"
            line(name, rows, timer(launch), rows * width * 6.0, bandwidth)


def embeddings(device: Device, timer: Timer, bandwidth: float) -> None:
    width = 5120
    for name, row_bytes in (("BF16", 10240), ("Q6_K", 4200), ("Q4_K", 2880)):
        kernel = device.kernel("embedding.cu", "embedding", {"FORMAT": f"FORMAT_{name}"})
        table = device.zeros((4096, row_bytes), np.uint8)
        history = device.zeros((64, 4096), np.int32)
        for rows in (1, 16, 64, 4096):
            made = np.zeros(rows, ROW)
            made["source"] = made["position"] = np.arange(rows) % 4096
            x = device.empty((rows, width), np.float32)
            args = [
                header(device, rows),
                device.array(made.view(np.uint8)),
                table,
                np.int32(4096),
                np.int32(width),
            ]
            args += [x, history, np.int32(4096), x]

            def launch(rows: int = rows, kernel: Any = kernel, args: list[Any] = args) -> None:
                kernel((rows, 1, 1), 256, args)

            line(f"embedding {name}", rows, timer(launch), rows * (row_bytes + 4.0 * width), bandwidth)


def sampler(device: Device, timer: Timer, bandwidth: float, *, early: bool, parts: bool = False) -> None:
    most = ROWS[-1]
    draw = DeviceSampler(device, VOCABULARY, most, most)
    rng = np.random.default_rng(0)
    values = rng.normal(0, 2.5, (most, WIDTH)).astype(np.float32)
    values[:, :50] += np.float32(12)  # peaked, as a trained model's are
    logits = device.array(values)
    words = -(-VOCABULARY // 32)
    allowed = rng.integers(0, 2**32, (most, words), dtype=np.uint32)
    allowed[:, -1] = 0
    masks = device.array(allowed)
    history = device.array(rng.integers(0, 1000, (most, 1024), dtype=np.int32))
    drawn = device.empty(most * DRAWN.itemsize, np.uint8)
    kinds = {name: (params, False) for name, params in KINDS.items()}
    kinds["mask, top-k 20, top-p 0.95"] = (KINDS["top-k 20, top-p 0.95"], True)
    for name, (params, masked) in kinds.items():
        for rows in ROWS:
            samples, lists = np.zeros(rows, SAMPLE), np.zeros(64, ADJUST)
            for row in range(rows):
                SampleTemplate.of(params, 500, VOCABULARY).fill(
                    samples[row : row + 1].reshape(()),
                    lists,
                    0,
                    row=row,
                    slot=row,
                    position=800,
                    mask=row if masked else None,
                )
                draw.open(row)
            records = [device.array(part.view(np.uint8)) for part in (samples, lists)]
            head = header(device, rows)

            def launch(rows: int = rows, head: Any = head, records: list[Any] = records) -> None:
                draw.launch(head, *records, masks, history, logits[:rows], drawn, rows, early=early)

            nbytes = rows * 4.0 * WIDTH * (2 if params.penalises else 1)
            note = ""
            found = timer(launch)
            if parts:  # one kernel at a time, the others left out
                kernels = {kernel: getattr(draw, f"_{kernel}") for kernel in ("scan", "weights", "finish")}
                for kernel in kernels:
                    for other in kernels:
                        setattr(draw, f"_{other}", kernels[other] if other == kernel else _nothing)
                    note += f"  {kernel} {timer(launch):.2f}"
                for kernel, known in kernels.items():
                    setattr(draw, f"_{kernel}", known)
            line(f"{name}{', early' if early else ''}", rows, found, nbytes, bandwidth, note)


def _nothing(*_: object, **__: object) -> None:
    return


def tiled(device: Device, shape: tuple[int, ...], block: np.ndarray) -> Any:
    """Device memory full of repetitions of ``block`` (bytes)."""
    made = device.empty(shape, np.uint8)
    flat, source = made.reshape(-1), device.array(block)
    for at in range(0, flat.size, block.size):
        size = min(block.size, flat.size - at)
        device.copy(flat[at : at + size], source[:size])
    return made


def experts(device: Device, timer: Timer, bandwidth: float, layers: int = 3) -> None:
    """Feed-forwards of Qwen3.5-35B-A3B; different weights in turn, so that none is in the cache."""
    shape = MoeShape(hidden=2048, ffn=512, experts=256, used=8)
    moe = DeviceMoe(device, shape, 512)
    rng = np.random.default_rng(0)
    values = rng.standard_normal((shape.experts + 1, shape.hidden)).astype(np.float32)
    router = Router("router", (values[:-1], values[-1:]), device.array(values))
    for name in ("BF16", "Q4_K"):
        values = rng.standard_normal(1 << 24).astype(np.float32) * np.float32(0.02)
        block = round_bf16(values).view(np.uint8) if name == "BF16" else random_records(name, rng)
        made = []
        for _ in range(layers):
            gate_up = packed_shape(name, 2 * shape.ffn, shape.hidden)
            down = packed_shape(name, shape.hidden, shape.ffn)
            parts = [tiled(device, (shape.experts + 1, *part), block) for part in (gate_up, down)]
            wide = ExpertMatrix("gate and up", name, (), 2 * shape.ffn, shape.hidden, True, parts[0])
            deep = ExpertMatrix("down", name, (), shape.hidden, shape.ffn, False, parts[1])
            made.append(Experts(router, wide, deep, None, None))
        for rows in EXPERT_ROWS:
            normed = rng.standard_normal((rows, shape.hidden)).astype(np.float32)
            device.copy(moe.wide[:rows], device.array(normed))
            inputs = device.zeros(rows * shape.hidden // 16 * 17, np.uint16)
            x = device.zeros((rows, shape.hidden), np.float32)
            head, turns = header(device, rows), itertools.cycle(made)

            def launch(
                rows: int = rows, head: Any = head, inputs: Any = inputs, x: Any = x, turn: Any = turns
            ) -> None:
                moe.launch(next(turn), head, inputs, rows, x, rows)

            found = timer(launch)
            chosen = device.numpy(moe.chosen)[:rows]
            one = made[0].gate_up.records[0].nbytes + made[0].down.records[0].nbytes
            touched = len(np.unique(chosen))
            note = f"  {touched} experts"
            kept = moe._route, moe._group, moe._product
            for part in ("_route", "_group", "_product"):
                for other in ("_route", "_group", "_product"):
                    setattr(
                        moe,
                        other,
                        kept[("_route", "_group", "_product").index(other)] if other == part else _nothing,
                    )
                note += f"  {part[1:]} {timer(launch):.2f}"
            moe._route, moe._group, moe._product = kept
            line(
                f"experts {name}",
                rows,
                found,
                touched * float(one) + rows * 8192.0,
                bandwidth,
                note + " (with combine)",
            )


def random_records(name: str, rng: np.random.Generator) -> np.ndarray:
    raw = rng.integers(0, 256, (4096, 144 * 16), dtype=np.uint8)
    raw.reshape(-1, 144)[:, :4] = np.array([1e-4, 1e-4], np.float16).view(np.uint8)
    return pack(name, raw, 4096).records.reshape(-1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_misc", description=__doc__)
    parser.add_argument("--device", default="cuda:0", help="cuda:N, or host to see that it runs")
    parser.add_argument(
        "--only", default="norms,embeddings,sampler,experts", help="some of them, with commas"
    )
    arguments = parser.parse_args()
    wanted, only = arguments.device, arguments.only.split(",")
    if wanted == "host":
        from luce.compute.host_device import HostDevice

        device: Device = HostDevice()
        timer = Timer(device, device.stream(), 1)
    else:
        from luce.compute.cupy_device import open_device

        device = open_device(int(wanted.partition(":")[2] or 0))
        timer = Timer(device, device.stream())
    print(device.fingerprint)
    bandwidth = copy_bandwidth(device, timer, 512 if wanted != "host" else 1)
    print(f"copy {bandwidth / 1e12:.2f} TB/s; goal of the sampler: bytes + 10 us")
    if "norms" in only:
        norms(device, timer, bandwidth, early=True)
    if "embeddings" in only:
        embeddings(device, timer, bandwidth)
    if "sampler" in only:
        sampler(device, timer, bandwidth, early=True, parts=True)
    if "experts" in only:
        experts(device, timer, bandwidth)


if __name__ == "__main__":
    main()
