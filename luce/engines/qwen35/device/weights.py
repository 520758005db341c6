"""The text model's weights on a device: matrices packed in their files' formats, vectors as float32.

First everything is listed (:func:`list_weights`): what stands together in one product, its format and its bytes, from
the headers of the files alone. Then :func:`upload` allocates just that and reads the files, matrix by matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import attrs
import numpy as np
import numpy.typing as npt

from luce.compute.bf16 import round_bf16
from luce.compute.device import Array, Device
from luce.compute.device_packing import pack_into
from luce.compute.operands import Operands
from luce.compute.packing import ROW_BLOCK, packed_shape, stored_format
from luce.engines.qwen35.device.deferred import (
    MatrixRows,
    join_rows,
    matrix_format,
    matrix_rows,
    of_one_format,
)
from luce.engines.qwen35.device.experts import ExpertMatrix, Experts, Router, list_experts
from luce.engines.qwen35.device.small import SmallMatrix
from luce.engines.qwen35.device.uploads import repeat
from luce.engines.qwen35.memory_parts import ArraySpec
from luce.engines.qwen35.weights import (
    DeltaNetWeights,
    FfnWeights,
    FullAttentionWeights,
    LayerWeights,
    Qwen35Weights,
)
from luce.weights import formats

__all__ = [
    "Attention",
    "DeltaNet",
    "Dense",
    "Layer",
    "Matrix",
    "Part",
    "Table",
    "Text",
    "conversions",
    "list_weights",
    "upload",
]

F32 = npt.NDArray[np.float32]
PART = "text weights"
EMBEDDABLE = ("F32", "BF16", "F16", "Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
"""Formats that the embedding kernel reads rows of."""


@attrs.define(eq=False)
class Part:
    """Rows of a product that have one format: one launch."""

    format: str
    sources: tuple[F32, ...]
    """Arrays or stand-ins [rows, depth], one below the other."""
    interleaved: bool = False
    """Two sources, 8 rows of each in turn (gate and up)."""
    first: int = 0
    """Its first output column."""
    records: Array = None
    """Once uploaded: u8 [row-blocks, records, bytes]."""

    @property
    def rows(self) -> int:
        return sum(len(source) for source in self.sources)

    @property
    def depth(self) -> int:
        return int(self.sources[0].shape[1])

    @property
    def shape(self) -> tuple[int, int, int]:
        return packed_shape(self.format, self.rows, self.depth)


@attrs.define(eq=False)
class Matrix:
    """One product's weights, in one part or several of different formats."""

    name: str
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def depth(self) -> int:
        return self.parts[0].depth

    def arrays(self) -> Iterator[ArraySpec]:
        for number, part in enumerate(self.parts):
            yield ArraySpec(PART, f"{self.name} {number}", part.shape, "uint8")

    def held(self) -> Iterator[Array]:
        yield from (part.records for part in self.parts)

    def formats(self, operands: Operands) -> Iterator[tuple[str, str]]:
        for part in self.parts:
            held = operands.held_format(part.format)
            yield from ((matrix_format(source), held) for source in part.sources)

    def upload(self, device: Device) -> None:
        for part in self.parts:
            _upload_part(device, part)


@attrs.define(eq=False)
class Table:
    """Rows that are looked up: [rows, bytes of a row] in a format of :data:`EMBEDDABLE`."""

    name: str
    format: str
    source: F32
    row_bytes: int
    data: Array = None

    def arrays(self) -> Iterator[ArraySpec]:
        yield ArraySpec(PART, self.name, (len(self.source), self.row_bytes), "uint8")

    def held(self) -> Iterator[Array]:
        yield self.data

    def formats(self, operands: Operands) -> Iterator[tuple[str, str]]:
        yield matrix_format(self.source), self.format

    def upload(self, device: Device) -> None:
        rows = matrix_rows(self.source)
        data = rows.data if rows.format == self.format else _bf16(rows)
        self.data = device.empty((len(self.source), self.row_bytes), np.uint8)
        device.upload(self.data[: len(data)], np.ascontiguousarray(data[: len(self.source)]))
        repeat(device, self.data, len(data))


@attrs.define(eq=False)
class Vector:
    """Small values, float32."""

    name: str
    values: F32
    data: Array = None

    def arrays(self) -> Iterator[ArraySpec]:
        yield ArraySpec(PART, self.name, self.values.shape)

    def held(self) -> Iterator[Array]:
        yield self.data

    def formats(self, operands: Operands) -> Iterator[tuple[str, str]]:
        return iter(())

    def upload(self, device: Device) -> None:
        self.data = device.array(np.ascontiguousarray(self.values, np.float32))


class Member(Protocol):
    """One array on the device, or some that stand together."""

    def arrays(self) -> Iterator[ArraySpec]:
        """What it takes there."""

    def held(self) -> Iterator[Array]:
        """Its arrays, once uploaded."""

    def formats(self, operands: Operands) -> Iterator[tuple[str, str]]:
        """(file's format, held format) of its matrices on a device of such operands."""

    def upload(self, device: Device) -> None:
        """Allocate and fill them."""


@attrs.define(eq=False)
class DeltaNet:
    inputs: Matrix
    """q | k | v | z, and b | a behind them where they are held in the same format."""
    gates: SmallMatrix | None
    """b | a by themselves."""
    taps: Vector
    """[4, channels], last = current row."""
    neg_exp_a: Vector
    dt_bias: Vector
    norm: Vector
    out: Matrix


@attrs.define(eq=False)
class Attention:
    inputs: Matrix
    """(query, gate) of each head | k | v."""
    q_norm: Vector
    k_norm: Vector
    out: Matrix


@attrs.define(eq=False)
class Dense:
    """A feed-forward that every row goes through."""

    gate_up: Matrix
    down: Matrix


@attrs.define(eq=False)
class Layer:
    input_norm: Vector
    mixer: DeltaNet | Attention
    post_norm: Vector
    ffn: Dense | Experts


@attrs.define(eq=False)
class Text:
    embed: Table
    layers: tuple[Layer, ...]
    final_norm: Vector
    head: Matrix

    def members(self) -> Iterator[Member]:
        """Everything, in the order in which it is read."""
        yield self.embed
        for layer in self.layers:
            yield from _members(layer)
        yield from (self.final_norm, self.head)

    def held(self) -> Iterator[Array]:
        """The arrays on the device."""
        for member in self.members():
            yield from member.held()

    def arrays(self) -> Iterator[ArraySpec]:
        """What it takes on the device."""
        for member in self.members():
            yield from member.arrays()


def _members(value: Any) -> Iterator[Member]:
    for field in attrs.fields(type(value)):
        member = getattr(value, field.name)
        if isinstance(member, Matrix | Vector | Router | ExpertMatrix | SmallMatrix):
            yield member
        elif member is not None:
            yield from _members(member)


def _held(matrix: F32) -> str:
    """Format in which a device holds the matrix."""
    return stored_format(matrix_format(matrix))


def _matrix(name: str, *sources: F32) -> Matrix:
    """One below the other; neighbours of one format share a part. A product writes whole row-blocks, so that only the
    last part may end within one."""
    groups: list[list[F32]] = []
    for source in sources:
        if groups and _held(groups[-1][0]) == _held(source):
            groups[-1].append(source)
        else:
            groups.append([source])
    parts, first = [], 0
    for group in groups:
        assert first % ROW_BLOCK == 0, f"{name}: rows of different formats have to be whole row-blocks"
        parts.append(Part(_held(group[0]), tuple(group), first=first))
        first += parts[-1].rows
    return Matrix(name, tuple(parts))


def _table(name: str, matrix: F32) -> Table:
    held = matrix_format(matrix)
    held = held if held in EMBEDDABLE else "BF16"
    return Table(name, held, matrix, formats.num_bytes(held, (1, matrix.shape[1])))


def _layer(name: str, w: LayerWeights) -> Layer:
    mixer: DeltaNet | Attention
    m = w.mixer
    if isinstance(m, DeltaNetWeights):
        together = len({_held(matrix) for matrix in (m.qkv, m.z, m.b, m.a)}) == 1
        mixer = DeltaNet(
            _matrix(f"{name} inputs", m.qkv, m.z, *((m.b, m.a) if together else ())),
            None if together else SmallMatrix(f"{name} gates", (m.b, m.a)),
            Vector(f"{name} taps", np.ascontiguousarray(m.conv.T)),
            Vector(f"{name} decay", m.neg_exp_a),
            Vector(f"{name} dt bias", m.dt_bias),
            Vector(f"{name} output norm", m.gdn_norm),
            _matrix(f"{name} out", m.out),
        )
    else:
        assert isinstance(m, FullAttentionWeights)
        mixer = Attention(
            _matrix(f"{name} inputs", m.q, m.k, m.v),
            Vector(f"{name} q norm", m.q_norm),
            Vector(f"{name} k norm", m.k_norm),
            _matrix(f"{name} out", m.o),
        )
    return Layer(
        Vector(f"{name} input norm", w.input_norm),
        mixer,
        Vector(f"{name} post norm", w.post_norm),
        _dense(name, w.ffn) if isinstance(w.ffn, FfnWeights) else list_experts(name, w.ffn),
    )


def _dense(name: str, w: FfnWeights) -> Dense:
    held = _held(w.gate) if matrix_format(w.gate) == matrix_format(w.up) else "BF16"
    gate_up = Matrix(f"{name} gate and up", (Part(held, (w.gate, w.up), interleaved=True),))
    return Dense(gate_up, _matrix(f"{name} down", w.down))


def list_weights(weights: Qwen35Weights) -> Text:
    """What the text model takes; nothing is read or allocated.

    Raises:
        ConfigError: a mixture of experts is of a kind that is not served on devices.
    """
    return Text(
        _table("embedding", weights.embed),
        tuple(_layer(f"layer {number}", layer) for number, layer in enumerate(weights.layers)),
        Vector("final norm", weights.final_norm),
        _matrix("head", weights.head),
    )


def conversions(text: Text, operands: Operands) -> dict[tuple[str, str], int]:
    """Matrices that are held in another format than their file's, by (file's, held)."""
    found: dict[tuple[str, str], int] = {}
    for member in text.members():
        for pair in member.formats(operands):
            if pair[0] != pair[1]:
                found[pair] = found.get(pair, 0) + 1
    return found


def upload(device: Device, text: Text) -> None:
    """Allocate and fill everything.

    Raises:
        ModelFileError: a tensor cannot be read.
        DeviceError: the device's memory is used up.
    """
    for member in text.members():
        member.upload(device)


def _upload_part(device: Device, part: Part) -> None:
    part.records = device.empty(part.shape, np.uint8)
    if part.interleaved:
        gate, up = of_one_format([matrix_rows(source) for source in part.sources])
        made = -(-2 * len(gate.data) // ROW_BLOCK)
        pack_into(device, part.records[:made], gate.format, gate.data, gate.columns, up.data)
    else:
        made = 0
        for rows in _sources(part):
            first, made = made, made - (-len(rows.data) // ROW_BLOCK)
            pack_into(device, part.records[first:made], rows.format, rows.data, rows.columns)
    repeat(device, part.records, made)


def _sources(part: Part) -> list[MatrixRows]:
    found = list(map(matrix_rows, part.sources))
    if any(len(rows.data) % ROW_BLOCK for rows in found[:-1]):  # row-blocks that two sources share
        return [join_rows(found)]
    return found


def _bf16(rows: MatrixRows) -> npt.NDArray[np.uint8]:
    return round_bf16(rows.values()).view(np.uint8)
