"""A mixture of experts' weights on a device: the router, and the matrices of all experts one after the other.

The shared expert is the last of them, or stands apart where its format is another one. All have the width of the widest
one; what is narrower is filled up with rows and columns that are zero.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np
import numpy.typing as npt

from luce.compute.bf16 import round_bf16
from luce.compute.device import Array, Device
from luce.compute.device_packing import pack_into
from luce.compute.operands import Operands
from luce.compute.packing import ROW_BLOCK, packed_shape, stored_format
from luce.engines.qwen35.config import MoeConfig
from luce.engines.qwen35.device.deferred import MatrixRows, expert_rows, join_rows, matrix_format, matrix_rows
from luce.engines.qwen35.device.uploads import repeat
from luce.engines.qwen35.memory_parts import ArraySpec
from luce.engines.qwen35.weights import MoeWeights
from luce.errors import ConfigError

__all__ = ["MAX_EXPERTS", "MAX_USED", "ExpertMatrix", "Experts", "Router", "list_experts"]

F32 = npt.NDArray[np.float32]
PART = "text weights"
MAX_EXPERTS, MAX_USED = 512, 15


@attrs.define(eq=False)
class Router:
    """[experts + 1, hidden]; the last row is the shared expert's gate. bf16 where the file has it so, else float32."""

    name: str
    sources: tuple[F32, F32]
    data: Array = None

    @property
    def format(self) -> str:
        return "BF16" if {matrix_format(source) for source in self.sources} == {"BF16"} else "F32"

    def arrays(self) -> Iterator[ArraySpec]:
        shape = sum(len(source) for source in self.sources), int(self.sources[0].shape[1])
        yield ArraySpec(PART, self.name, shape, "uint16" if self.format == "BF16" else "float32")

    def held(self) -> Iterator[Array]:
        yield self.data

    def formats(self, operands: Operands) -> Iterator[tuple[str, str]]:
        """(file's, held) of each matrix."""
        return iter(())

    def upload(self, device: Device) -> None:
        values = np.concatenate([matrix_rows(source).values() for source in self.sources])
        self.data = device.array(round_bf16(values) if self.format == "BF16" else values)


@attrs.define(eq=False)
class ExpertMatrix:
    """One product's weights of some experts: u8 [experts, row-blocks, records, bytes]."""

    name: str
    format: str
    sources: tuple[tuple[F32, ...], ...]
    """Of each run of experts: one array or stand-in [experts, rows, columns], or matrices [rows, columns] of one expert
    that stand one below the other."""
    rows: int
    """Of one expert."""
    depth: int
    interleaved: bool = False
    """The upper half are gate rows, the lower half up rows; they are held 8 rows of each in turn."""
    records: Array = None

    @property
    def experts(self) -> int:
        return sum(len(run[0]) if run[0].ndim == 3 else 1 for run in self.sources)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (self.experts, *packed_shape(self.format, self.rows, self.depth))

    def arrays(self) -> Iterator[ArraySpec]:
        yield ArraySpec(PART, self.name, self.shape, "uint8")

    def held(self) -> Iterator[Array]:
        yield self.records

    def formats(self, operands: Operands) -> Iterator[tuple[str, str]]:
        for run in self.sources:
            for source in run:
                yield matrix_format(source), operands.held_format(self.format)

    def upload(self, device: Device) -> None:
        self.records = device.empty(self.shape, np.uint8)
        for number, rows in enumerate(self._each()):
            made = len(rows.data) // ROW_BLOCK if rows.repeats else self.shape[1]
            made = min(made, self.shape[1])
            to = self.records[number, :made]
            if self.interleaved:
                gate, up = np.split(rows.data, 2)
                pack_into(device, to, rows.format, gate, rows.columns, up)
            else:
                pack_into(device, to, rows.format, rows.data, rows.columns)
            if rows.repeats:
                repeat(device, self.records.reshape(-1, *self.shape[2:]), made)
                return

    def _each(self) -> Iterator[MatrixRows]:
        for run in self.sources:
            if run[0].ndim == 3:
                for number in range(len(run[0])):
                    yield expert_rows(run[0], number)
            else:
                yield join_rows([matrix_rows(part) for part in run])


@attrs.define(eq=False)
class Experts:
    """One layer's feed-forward."""

    router: Router
    gate_up: ExpertMatrix
    down: ExpertMatrix
    shared_gate_up: ExpertMatrix | None
    shared_down: ExpertMatrix | None


def list_experts(name: str, w: MoeWeights) -> Experts:
    """What a layer takes; nothing is read or allocated.

    Raises:
        ConfigError: there are more experts than the kernels can choose from.
    """
    experts, both, hidden = w.gate_up.shape
    _check(MoeConfig(experts, 1, both // 2, len(w.shared.gate)))
    ffn = max(both // 2, len(w.shared.gate))

    def matrices(
        what: str, routed: F32, shared: tuple[F32, ...], rows: int, depth: int, interleaved: bool
    ) -> tuple[ExpertMatrix, ExpertMatrix | None]:
        held = [stored_format(matrix_format(routed)), stored_format(_common(shared))]
        runs: list[tuple[F32, ...]] = [(routed,), shared]
        made = [
            ExpertMatrix(f"{name} {what}{which}", form, sources, rows, depth, interleaved)
            for which, form, sources in [
                (" of experts", held[0], tuple(runs if held[0] == held[1] else runs[:1])),
                (" of the shared expert", held[1], tuple(runs[1:])),
            ]
        ]
        return made[0], None if held[0] == held[1] else made[1]

    wide = matrices("gate and up", w.gate_up, (w.shared.gate, w.shared.up), 2 * ffn, hidden, True)
    deep = matrices("down", w.down, (w.shared.down,), hidden, ffn, False)
    return Experts(Router(f"{name} router", (w.router, w.shared_gate)), wide[0], deep[0], wide[1], deep[1])


def _check(moe: MoeConfig) -> None:
    if moe.experts > MAX_EXPERTS or moe.ffn % 8 or moe.shared_ffn % 8:
        raise ConfigError(
            f"mixtures of up to {MAX_EXPERTS} experts of widths that 8 divides are served on a GPU, not of "
            f"{moe.experts} of {moe.ffn} and a shared one of {moe.shared_ffn}; use --device cpu",
            flag="--device",
        )


def _common(parts: tuple[F32, ...]) -> str:
    """Format of rows that stand one below the other."""
    found = {matrix_format(part) for part in parts}
    return found.pop() if len(found) == 1 else "F32"
