"""Matrices that stay in their file until a device takes them, in the file's own format.

The modules that know the file forms put a model together from calls ``take(name, shape, convert)``. A
:class:`DeferredTake` answers with the small tensors themselves, and with stand-ins for the matrices: arrays of the
right shape without memory, which remember where their rows are. So one description of the files serves both engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import attrs
import numpy as np
import numpy.typing as npt

from luce.engines.qwen35.conversions import ColumnsToGrouped, Convert
from luce.engines.qwen35.take import Loader, ProgressCallback
from luce.weights import formats
from luce.weights.tensor_file import TensorFile

__all__ = [
    "LEAST_COLUMNS",
    "DeferredTake",
    "DeferredTensor",
    "MatrixRows",
    "expert_rows",
    "join_rows",
    "matrix_format",
    "matrix_rows",
    "of_one_format",
]

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]

LEAST_COLUMNS = 16
"""Two-dimensional tensors with fewer are vectors (the taps of the convolution)."""


class Source(Protocol):
    """What a stand-in stands for."""

    @property
    def format(self) -> str: ...

    def rows(self) -> MatrixRows:
        """The matrix; or fewer rows, which it repeats (random ones)."""

    def expert(self, number: int) -> MatrixRows:
        """Of matrices [experts, rows, columns] one; or fewer rows, which it repeats."""


@attrs.frozen(eq=False)
class TensorSource:
    """Where a matrix stands."""

    take: DeferredTake
    name: str
    columns: int
    convert: Convert | None
    """Of whole rows; works on their bytes."""

    @property
    def format(self) -> str:
        return self.take.file.tensors[self.name].format

    def rows(self) -> MatrixRows:
        data: Any = self.take.raw(self.name, self.columns)
        if self.convert is not None:
            data = self.convert(data.copy())
        return MatrixRows(self.format, self.columns, data)

    def expert(self, number: int) -> MatrixRows:
        assert self.convert is None, "experts are taken as they are"
        experts, count, _ = self.take.file.tensors[self.name].shape
        data = self.take.raw(self.name, self.columns, loaded=number == experts - 1)
        return MatrixRows(self.format, self.columns, data[number * count : (number + 1) * count])


@attrs.frozen(eq=False)
class StackedSource:
    """Experts whose rows stand in several tensors."""

    parts: tuple[F32, ...]
    """Matrices [rows, columns], as many in turn for each expert; or tensors [experts, rows, columns]."""
    experts: int

    @property
    def format(self) -> str:
        found = {matrix_format(part) for part in self.parts}
        return found.pop() if len(found) == 1 else "F32"

    def rows(self) -> MatrixRows:
        raise NotImplementedError("experts are read one by one")

    def expert(self, number: int) -> MatrixRows:
        if self.parts[0].ndim == 3:
            return join_rows([expert_rows(part, number) for part in self.parts])
        each = len(self.parts) // self.experts
        return join_rows([matrix_rows(part) for part in self.parts[number * each : (number + 1) * each]])


class DeferredTensor(np.ndarray[Any, Any]):
    """A stand-in [out, in] of zeros without memory of its own."""

    source: Source | None = None

    @classmethod
    def of(cls, source: Source, shape: tuple[int, ...]) -> DeferredTensor:
        made = np.broadcast_to(np.float32(0), shape).view(cls)
        made.source = source
        return made

    @classmethod
    def stacked(cls, parts: Sequence[F32], shape: tuple[int, ...]) -> DeferredTensor:
        """As :func:`luce.engines.qwen35.conversions.stack_experts`, for stand-ins."""
        return cls.of(StackedSource(tuple(parts), shape[0]), shape)


@attrs.frozen(eq=False)
class MatrixRows:
    """A matrix in a file's format."""

    format: str
    """"BF16", "Q8_0", …; "F32" for arrays."""
    columns: int
    data: U8
    """[rows, bytes of a row]."""
    repeats: bool = False
    """They stand for as many rows as the matrix has (random ones)."""

    def values(self) -> F32:
        """Decoded [rows, columns]."""
        return formats.decode(self.format, self.data.reshape(-1), (len(self.data), self.columns))


def matrix_format(matrix: F32) -> str:
    """Of a stand-in's file; "F32" for an array."""
    if isinstance(matrix, DeferredTensor) and matrix.source is not None:
        return matrix.source.format
    return "F32"


def matrix_rows(matrix: F32) -> MatrixRows:
    """The rows of an array or a stand-in; reads the latter's file.

    Raises:
        ModelFileError: the tensor cannot be read.
    """
    if not isinstance(matrix, DeferredTensor) or matrix.source is None:
        return MatrixRows("F32", matrix.shape[1], np.ascontiguousarray(matrix, np.float32).view(np.uint8))
    return matrix.source.rows()


def expert_rows(experts: F32, number: int) -> MatrixRows:
    """As :func:`matrix_rows` for one of the matrices [experts, rows, columns]."""
    if not isinstance(experts, DeferredTensor) or experts.source is None:
        return matrix_rows(experts[number])
    return experts.source.expert(number)


def of_one_format(parts: list[MatrixRows]) -> list[MatrixRows]:
    """As they are if they have the same format, else as float32."""
    if len({rows.format for rows in parts}) == 1:
        return parts
    return [MatrixRows("F32", rows.columns, rows.values().view(np.uint8)) for rows in parts]


def join_rows(parts: list[MatrixRows]) -> MatrixRows:
    """One below the other, in their format if it is the same."""
    if len(parts) == 1:
        return parts[0]
    parts = of_one_format(parts)
    return attrs.evolve(parts[0], data=np.concatenate([rows.data for rows in parts]))


class DeferredTake:
    """A :class:`luce.engines.qwen35.take.Take` for devices.

    Args:
        total: bytes to load, for ``progress``.
        now: start of the names of tensors that are loaded at once, whatever their shape.
        headers: read nothing; small tensors are zeros.
    """

    def __init__(
        self,
        file: TensorFile,
        total: int,
        progress: ProgressCallback | None = None,
        *,
        headers: bool = False,
        now: str | None = None,
    ) -> None:
        self.file = file
        self._loader = Loader(file, total, progress)
        self._headers, self._now = headers, now

    def has(self, name: str) -> bool:
        return self._loader.has(name)

    def __call__(self, name: str, shape: tuple[int, ...], convert: Convert | None = None) -> F32:
        now = self._now is not None and name.startswith(self._now)
        if len(shape) == 2 and shape[1] >= LEAST_COLUMNS and not now:
            if isinstance(convert, ColumnsToGrouped):  # kernels write the product's input in the file's order
                convert = None
            return DeferredTensor.of(TensorSource(self, name, shape[1], convert), shape)
        if len(shape) == 3 and convert is None and not now:  # experts
            return DeferredTensor.of(TensorSource(self, name, shape[2], None), shape)
        if self._headers:
            zeros = np.zeros(shape, np.float32)
            return zeros if convert is None else convert(zeros)
        return self._loader(name, shape, convert)

    def raw(self, name: str, columns: int, *, loaded: bool = True) -> U8:
        """The rows [rows, bytes] of a matrix, or of several, mapped from its file; ``loaded``: these are the last."""
        if loaded:
            self._loader.note(name)
        size = formats.num_bytes(self.file.tensors[name].format, (1, columns))
        return self.file.raw(name).reshape(-1, size)
