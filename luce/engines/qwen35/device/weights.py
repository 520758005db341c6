"""The text model's weights on a device: matrices packed in their files' formats, vectors as float32.

First everything is listed (:func:`list_weights`): what stands together in one product, its format and its bytes, from
the headers of the files alone. Then :func:`upload` allocates just that and reads the files, matrix by matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from luce.compute.bf16 import round_bf16
from luce.compute.device import Array, Device
from luce.compute.packing import ROW_BLOCK, interleave, pack_rows, packed_shape, stored_format
from luce.engines.qwen35.device.deferred import MatrixRows, matrix_format, matrix_rows
from luce.engines.qwen35.memory_parts import ArraySpec
from luce.engines.qwen35.weights import (
    DeltaNetWeights,
    FfnWeights,
    FullAttentionWeights,
    LayerWeights,
    Qwen35Weights,
)
from luce.errors import ConfigError
from luce.weights import formats

__all__ = [
    "Attention",
    "DeltaNet",
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


@attrs.define(eq=False)
class Table:
    """Rows that are looked up: [rows, bytes of a row] in a format of :data:`EMBEDDABLE`."""

    name: str
    format: str
    source: F32
    row_bytes: int
    data: Array = None


@attrs.define(eq=False)
class Vector:
    """Small values, float32."""

    name: str
    values: F32
    data: Array = None


@attrs.define(eq=False)
class DeltaNet:
    inputs: Matrix
    """q | k | v | z, and b | a behind them where they are held in the same format."""
    gates: Matrix | None
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
class Layer:
    input_norm: Vector
    mixer: DeltaNet | Attention
    post_norm: Vector
    gate_up: Matrix
    down: Matrix


@attrs.define(eq=False)
class Text:
    embed: Table
    layers: tuple[Layer, ...]
    final_norm: Vector
    head: Matrix

    def members(self) -> Iterator[Matrix | Table | Vector]:
        """Everything, in the order in which it is read."""
        yield self.embed
        for layer in self.layers:
            yield from _members(layer)
        yield from (self.final_norm, self.head)

    def held(self) -> Iterator[Array]:
        """The arrays on the device."""
        for member in self.members():
            if isinstance(member, Matrix):
                yield from (part.records for part in member.parts)
            else:
                yield member.data

    def arrays(self) -> Iterator[ArraySpec]:
        """What it takes on the device."""
        for member in self.members():
            if isinstance(member, Matrix):
                for number, part in enumerate(member.parts):
                    yield ArraySpec(PART, f"{member.name} {number}", part.shape, "uint8")
            elif isinstance(member, Table):
                yield ArraySpec(PART, member.name, (len(member.source), member.row_bytes), "uint8")
            else:
                yield ArraySpec(PART, member.name, member.values.shape)


def _members(value: Any) -> Iterator[Matrix | Table | Vector]:
    for field in attrs.fields(type(value)):
        member = getattr(value, field.name)
        if isinstance(member, Matrix | Vector):
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
    if not isinstance(w.ffn, FfnWeights):
        raise ConfigError(
            "mixtures of experts are not served on a GPU yet; use --device cpu", flag="--device"
        )
    mixer: DeltaNet | Attention
    m = w.mixer
    if isinstance(m, DeltaNetWeights):
        together = len({_held(matrix) for matrix in (m.qkv, m.z, m.b, m.a)}) == 1
        mixer = DeltaNet(
            _matrix(f"{name} inputs", m.qkv, m.z, *((m.b, m.a) if together else ())),
            None if together else _matrix(f"{name} gates", m.b, m.a),
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
    gate, up = w.ffn.gate, w.ffn.up
    held = _held(gate) if matrix_format(gate) == matrix_format(up) else "BF16"
    return Layer(
        Vector(f"{name} input norm", w.input_norm),
        mixer,
        Vector(f"{name} post norm", w.post_norm),
        Matrix(f"{name} gate and up", (Part(held, (gate, up), interleaved=True),)),
        _matrix(f"{name} down", w.ffn.down),
    )


def list_weights(weights: Qwen35Weights) -> Text:
    """What the text model takes; nothing is read or allocated.

    Raises:
        ConfigError: the model is of a kind that is not served on devices.
    """
    return Text(
        _table("embedding", weights.embed),
        tuple(_layer(f"layer {number}", layer) for number, layer in enumerate(weights.layers)),
        Vector("final norm", weights.final_norm),
        _matrix("head", weights.head),
    )


def conversions(text: Text) -> dict[tuple[str, str], int]:
    """Matrices that are held in another format than their file's, by (file's, held)."""
    found: dict[tuple[str, str], int] = {}
    for member in text.members():
        pairs: list[tuple[str, str]] = []
        if isinstance(member, Matrix):
            pairs = [(matrix_format(s), part.format) for part in member.parts for s in part.sources]
        elif isinstance(member, Table):
            pairs = [(matrix_format(member.source), member.format)]
        for pair in pairs:
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
        if isinstance(member, Matrix):
            for part in member.parts:
                _upload_part(device, part)
        elif isinstance(member, Table):
            rows = matrix_rows(member.source)
            data = rows.data if rows.format == member.format else _bf16(rows)
            member.data = device.empty((len(member.source), member.row_bytes), np.uint8)
            device.upload(member.data[: len(data)], np.ascontiguousarray(data[: len(member.source)]))
            _repeat(device, member.data, len(data))
        else:
            member.data = device.array(np.ascontiguousarray(member.values, np.float32))


def _upload_part(device: Device, part: Part) -> None:
    part.records = device.empty(part.shape, np.uint8)
    at = 0
    for rows in _sources(part):
        for first, records in pack_rows(rows.format, rows.data, rows.columns):
            to = part.records[at + first : at + first + len(records)]
            device.upload(to, np.ascontiguousarray(records[: len(to)]))
        at += -(-len(rows.data) // ROW_BLOCK)
    _repeat(device, part.records, at)


def _repeat(device: Device, array: Array, made: int) -> None:
    """Fill the rest of ``array`` with its first ``made`` entries, over and over (random matrices alone need it)."""
    while made < len(array):
        count = min(made, len(array) - made)
        device.copy(array[made : made + count], array[:count])
        made += count


def _sources(part: Part) -> Iterator[MatrixRows]:
    if not part.interleaved:
        found = list(map(matrix_rows, part.sources))
        if any(len(rows.data) % ROW_BLOCK for rows in found[:-1]):  # row-blocks that two sources share
            found = [_joined(found)]
        yield from found
        return
    gate, up = map(matrix_rows, part.sources)
    if gate.format != up.format:
        gate, up = (MatrixRows("F32", rows.columns, rows.values().view(np.uint8)) for rows in (gate, up))
    yield MatrixRows(gate.format, gate.columns, interleave(gate.data, up.data))


def _joined(parts: list[MatrixRows]) -> MatrixRows:
    """One below the other, in their format if it is the same."""
    if len({rows.format for rows in parts}) > 1:
        parts = [MatrixRows("F32", rows.columns, rows.values().view(np.uint8)) for rows in parts]
    return MatrixRows(parts[0].format, parts[0].columns, np.concatenate([rows.data for rows in parts]))


def _bf16(rows: MatrixRows) -> npt.NDArray[np.uint8]:
    return round_bf16(rows.values()).view(np.uint8)
