"""Small matrices that are float32 on a device, whatever the file has them in: the gates of the DeltaNet beside larger
matrices of another format."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np
import numpy.typing as npt

from luce.compute.activations import padded_depth
from luce.compute.device import Array, Device
from luce.compute.gemm_cluster_plan import CHUNK_DEPTH
from luce.compute.operands import Operands
from luce.engines.qwen35.device.deferred import matrix_format, matrix_rows
from luce.engines.qwen35.memory_parts import ArraySpec

__all__ = ["SmallMatrix", "launch_small"]

F32 = npt.NDArray[np.float32]

WARPS, WARPS_BESIDE = 8, 4
"""Of a block (kernels/matvec_f32.cu)."""


@attrs.define(eq=False)
class SmallMatrix:
    """[rows, depth] in float32, zeros behind the depth up to a multiple of 256."""

    name: str
    sources: tuple[F32, ...]
    """Arrays or stand-ins [rows, depth], one below the other."""
    data: Array = None

    @property
    def rows(self) -> int:
        return sum(len(source) for source in self.sources)

    @property
    def depth(self) -> int:
        return int(self.sources[0].shape[1])

    def arrays(self) -> Iterator[ArraySpec]:
        yield ArraySpec("text weights", self.name, (self.rows, padded_depth(self.depth)))

    def held(self) -> Iterator[Array]:
        yield self.data

    def formats(self, operands: Operands) -> Iterator[tuple[str, str]]:
        yield from ((matrix_format(source), "F32") for source in self.sources)

    def upload(self, device: Device) -> None:
        values = np.zeros((self.rows, padded_depth(self.depth)), np.float32)
        made = [
            np.resize(matrix_rows(source).values(), source.shape) for source in self.sources
        ]  # random ones repeat
        np.concatenate(made, out=values[:, : self.depth])
        self.data = device.array(values)


def launch_small(
    device: Device,
    matrix: SmallMatrix,
    x: Array,
    to: Array,
    *,
    rows: int,
    height: int,
    tile: int,
    beside: bool = False,
    outputs: int | None = None,
) -> None:
    """Queue ``to`` = x W^T on the current stream; a row's bits are the same whatever the launch.

    Args:
        x: activations of ``height`` rows, a bucket or a multiple of ``tile``, in the layout of ``tile`` (0: of steps).
        to: float32 [rows or more, rows of W or more].
        beside: run beside the launch before, a ``followed`` product of the same x.
        outputs: rows of W of a block, instead of the chosen number.
    """
    group = min(height, 8)
    outputs = outputs or (1 if height <= 64 else 8)
    kernel = device.kernel(
        "matvec_f32.cu", "matvec_f32", {"ROWS": group, "OUTPUTS": outputs, "BESIDE": int(beside)}
    )
    kernel(
        (-(-matrix.rows // outputs), -(-rows // group), 1),
        32 * (WARPS_BESIDE if beside else WARPS),
        [
            *(x, np.int32(height), np.int32(tile), np.int32(padded_depth(matrix.depth))),
            *(matrix.data, np.int32(matrix.rows), to, np.int32(rows), np.int32(to.shape[1])),
        ],
        shared=-(-padded_depth(matrix.depth) // CHUNK_DEPTH) * group * outputs * 4,
        early=True,
    )
