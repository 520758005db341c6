"""The modules that the compile gate builds: every source with macros that its users compile it with, on each target.

What the engine's launchers ask for is taken from them, with the kernels that have to be in it. What they do not ask for
at their start stands in `_TABLE`: a new `kernels/*.cu` that takes macros needs an entry there or a call in `_ask`, the
one that exercises most of it first, since targets that are like another one compile the first alone.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from luce.compute import device_packing
from luce.compute.gemm import Epilogue as Decoded
from luce.compute.gemm import GemmScratch, WeightMatrix
from luce.compute.gemm_chain import Gates, Link, Source, launch_chain, plan_chain
from luce.compute.gemm_prefill import Epilogue, choose_tiling
from luce.compute.gemm_tower import tower_kernels
from luce.compute.kernel_sources import kernels_directory, source_path
from luce.engines.qwen35.device.attention import AttentionKernels
from luce.engines.qwen35.device.deltanet import DeltaNetLauncher, scratch_arrays
from luce.engines.qwen35.device.experts import ExpertMatrix
from luce.engines.qwen35.device.moe import DeviceMoe, MoeShape, launch_for
from luce.engines.qwen35.device.sampler import DeviceSampler
from luce.engines.qwen35.device.vision_attention import VisionAttention
from luce.engines.qwen35.shapes import released
from tests.kernels.recording import RecordingDevice

__all__ = ["SOURCES", "Module", "modules"]

Defines = Mapping[str, int | str]

SHAPES = ("qwen3.5-27b", "qwen3.5-0.8b")
RECORDS = ("Q4_K", "Q6_K", "IQ4_XS", "Q8_0", "Q4_0", "BF16", "Q5_K")
ONLY_SM90 = (
    "gemm_chain.cu",
    "gemm_wide.cu",
    "gemm_prefill.cu",
    "gemm_tower.cu",
    "attention_prefill_wgmma.cu",
    "attention_vision_wgmma.cu",
)
"""Sources with nothing in them for other GPUs, on which launchers ask for others."""
WITH_BULK = ("sm_90a", "sm_120a")
"""Bulk copies into shared memory."""
ONLY_WITH_BULK = ("gemm_decode.cu", "gemm_cluster.cu")
"""Sources with nothing in them for the others."""


@attrs.frozen
class Module:
    source: str
    defines: Defines
    kernels: frozenset[str]
    """That must be in it."""


def _each(macro: str, values: Sequence[int | str]) -> list[Defines]:
    return [{macro: value} for value in values]


def _formats(names: Sequence[str]) -> list[Defines]:
    return _each("FORMAT", [f"FORMAT_{name}" for name in names])


_TABLE: dict[str, list[Defines]] = {
    "embedding.cu": _formats([*RECORDS, "F16", "F32"]),
    "pointwise.cu": _each("FUNCTION", ["SWIGLU", "ROUND"]),
    "matvec_f32.cu": [
        {"ROWS": rows, "OUTPUTS": outputs, "BESIDE": int(rows < 8)}
        for rows, outputs in ((1, 1), (4, 1), (8, 2), (8, 8))
    ],
    "moe.cu": [{}, {"ROUTER_BF16": 1}],
    "selftest_activation.cu": _each("WIDTH", [8, 1, 2, 4, 16, 32]),
    "selftest_records.cu": _formats(RECORDS),
    "vision_rows.cu": _each("WIDTH", [1152]),
}
SOURCES = sorted(path.name for path in kernels_directory().glob("*.cu"))
_KERNELS = re.compile(r"^LUCE_KERNEL(?:_RESIDENT|_CLUSTER)?\((\w+)", re.M)


def _chain(device: RecordingDevice, name: str, rows: int) -> None:
    """What a layer of the 27B has behind its mixer."""
    norm = Source.NORM if rows == 1 else Source.ROWS
    links = [
        Link(WeightMatrix(device, name, out, depth, None), None, source, None, epilogue)
        for out, depth, source, epilogue in (
            (5120, 6144, Source.SUMMED, Decoded.ADD),
            (34816, 5120, norm, Decoded.SWIGLU),
            (5120, 17408, Source.BARE, Decoded.ADD),
            (16384, 5120, norm, Decoded.STORE),
        )
    ]
    links[-1] = attrs.evolve(links[-1], gates=Gates(None, 96, None, 96))
    shapes = tuple(link.shape for link in links)
    plan = plan_chain(name, shapes, rows, 132, device.shared_limit, 96)
    assert plan is not None
    launch_chain(device, links, rows, rows, 1e-6, GemmScratch(None, None), plan)


def _ask(device: RecordingDevice) -> None:
    """Everything that launchers compile, as an engine would have them do it."""
    for shape in SHAPES:
        text = released(shape).text
        AttentionKernels(device, text)
        AttentionKernels(device, text, wgmma=False)
        DeltaNetLauncher(device, text, {spec.name: np.empty(0) for spec in scratch_arrays(text, 64, 1)})
        vision = released(shape).vision
        assert vision is not None
        VisionAttention(device, vision)
        VisionAttention(device, vision, wgmma=False)
    DeviceSampler(device, 1000, 1, 1)
    for name in device_packing.SOURCES:
        device_packing.pack_kernel(device, name)
    for name, rows, tile in (
        ("Q4_K", 16, 0),
        ("Q6_K", 64, 64),
        ("BF16", 1, 0),
        ("Q8_0", 8, 0),
        ("IQ4_XS", 4, 0),
    ):
        _matrix(device, name).plain(None, None, rows, tile, Decoded.STORE)
    experts = DeviceMoe(device, MoeShape(hidden=128, experts=8, used=2, ffn=32), 8)
    none = np.empty(0, np.uint8)
    for name, tiles, epilogue in (
        ("Q4_K", 4, 2),
        ("Q4_K", 1, 1),
        ("BF16", 1, 2),
        ("Q6_K", 4, 0),
        ("BF16", 1, 1),
    ):
        matrix = ExpertMatrix("matrix", name, (), 64, 256, bool(epilogue), none)
        plan = launch_for(name, tiles, device.shared_limit, team=4 if name == "Q4_K" else 1)
        experts._product(matrix, 0, True, plan, none, 8, none, [none], epilogue, sums=name == "Q4_K")
    if device.arch in WITH_BULK:
        for name, rows, epilogue in (
            *(("Q4_K", 16, Decoded.SWIGLU), ("BF16", 1, Decoded.ADD), ("Q6_K", 1, Decoded.STORE)),
            *(("Q8_0", 64, Decoded.SWIGLU), ("IQ4_XS", 4, Decoded.ADD), ("Q4_0", 8, Decoded.STORE)),
        ):
            matrix = _matrix(device, name)
            if matrix.fits(rows):
                matrix.decode(None, None, rows, epilogue, GemmScratch(None, None))
            else:
                matrix.plain(None, None, rows, 0, Decoded.STORE)
    if device.arch == "sm_90a":
        for name, rows in (("Q4_K", 1), ("IQ4_XS", 4), ("Q8_0", 8)):
            _chain(device, name, rows)
        _matrix(device, "Q4_K").decode(None, None, 1, Decoded.STORE, GemmScratch(None, None), followed=True)
        for name, rows, epilogue in (("Q4_K", 64, Decoded.SWIGLU), ("BF16", 32, Decoded.ADD)):
            _matrix(device, name).wide(None, None, rows, epilogue, GemmScratch(None, None), tile=rows)
        for name, product, rows in (
            *(("Q4_K", Epilogue.SWIGLU, 4096), ("BF16", Epilogue.ADD, 4096), ("Q6_K", Epilogue.STORE, 65)),
            *(("Q8_0", Epilogue.SWIGLU, 100), ("IQ4_XS", Epilogue.ADD, 4096)),
        ):
            tiling = choose_tiling(name, product, rows, 320, device)
            device.kernel("gemm_prefill.cu", "gemm_prefill", tiling.defines(name, product))
        for source, name, macros in [*tower_kernels(device, {"HEADS": 16, "HEAD_DIM": 72})][::4]:
            device.kernel(source, name, dict(macros))


def _matrix(device: RecordingDevice, name: str) -> WeightMatrix:
    """[5120, 17408], nothing in it."""
    return WeightMatrix(device, name, 5120, 17408, np.empty(0, np.uint8))


@functools.cache
def modules(target: str) -> tuple[Module, ...]:
    """By source, those of one together."""
    device = RecordingDevice(target)
    _ask(device)
    found = [
        Module(source, dict(macros), frozenset(names)) for (source, macros), names in device.asked.items()
    ]
    asked = {module.source for module in found}
    for source in SOURCES:
        left_out = (source in ONLY_SM90 and target != "sm_90a") or (
            source in ONLY_WITH_BULK and target not in WITH_BULK
        )
        if source not in asked and not left_out:
            names = frozenset(_KERNELS.findall(source_path(source).read_text()))
            if source == "selftest.cu" and target in (
                "sm_80",
                "sm_89",
                *(t for t in (target,) if t[:3] == "gfx"),
            ):
                names -= {"selftest_bulk"}
            found += [Module(source, defines, names) for defines in _TABLE.get(source, [{}])]
    return tuple(sorted(found, key=lambda module: module.source))
