"""Matrices that stay in their file until a device takes them, in the file's own format.

The modules that know the file forms put a model together from calls ``take(name, shape, convert)``. A
:class:`DeferredTake` answers with the small tensors themselves, and with stand-ins for the matrices: arrays of the
right shape without memory, which remember where their rows are. So one description of the files serves both engines.
"""

from __future__ import annotations

from typing import Any, Protocol

import attrs
import numpy as np
import numpy.typing as npt

from luce.engines.qwen35.conversions import ColumnsToGrouped, Convert
from luce.engines.qwen35.take import Loader, ProgressCallback
from luce.weights import formats
from luce.weights.tensor_file import TensorFile

__all__ = ["LEAST_COLUMNS", "DeferredTake", "DeferredTensor", "MatrixRows", "matrix_format", "matrix_rows"]

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


class DeferredTensor(np.ndarray[Any, Any]):
    """A stand-in [out, in] of zeros without memory of its own."""

    source: Source | None = None

    @classmethod
    def of(cls, source: Source, shape: tuple[int, ...]) -> DeferredTensor:
        made = np.broadcast_to(np.float32(0), shape).view(cls)
        made.source = source
        return made


@attrs.frozen(eq=False)
class MatrixRows:
    """A matrix in a file's format."""

    format: str
    """"BF16", "Q8_0", …; "F32" for arrays."""
    columns: int
    data: U8
    """[rows, bytes of a row]."""

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
        if self._headers:
            zeros = np.zeros(shape, np.float32)
            return zeros if convert is None else convert(zeros)
        return self._loader(name, shape, convert)

    def raw(self, name: str, columns: int) -> U8:
        """The rows [rows, bytes] of a matrix, mapped from its file."""
        self._loader.note(name)
        size = formats.num_bytes(self.file.tensors[name].format, (1, columns))
        return self.file.raw(name).reshape(-1, size)
