"""The GGUF reader: equal to the ``gguf`` package on good files, a named error on bad ones (B115, B117)."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.errors import ModelFileError
from luce.weights import formats
from luce.weights.gguf_file import open_gguf, peek_gguf
from tests.weights.blocks import random_blocks
from tests.weights.raw_gguf import GgufBytes, RawArray, small_gguf

MUTANT_SECONDS = 1.0
MUTANT_BYTES = 50e6


def write(path: Path, data: bytes | bytearray) -> Path:
    path.write_bytes(data)
    return path


def load_all(path: Path) -> dict[str, bytes]:
    file = open_gguf(path)
    return {
        name: file.load(name).tobytes()
        for name, info in file.tensors.items()
        if info.format in formats.LOADABLE
    }


def test_metadata_shapes_and_values(tmp_path: Path) -> None:
    file = open_gguf(write(tmp_path / "a.gguf", small_gguf().data))
    metadata = dict(file.metadata)
    assert metadata.pop("numbers").tolist() == [1, 2, 3]
    assert metadata.pop("floats").tolist() == [0.5, 0.25]
    assert metadata == {
        "general.architecture": "qwen35",
        "general.alignment": 32,
        "qwen35.eps": 1e-6,
        "flag": True,
        "flags": [True, False],
        "tokens": ["a", "bc", "é"],
        "merges": ["a b"],
    }
    assert {name: (info.shape, info.format, info.nbytes) for name, info in file.tensors.items()} == {
        "w": ((16, 32), "F32", 2048),
        "q": ((8, 64), "Q8_0", 544),
        "h": ((10,), "F16", 20),
    }


def test_equal_to_the_package_s_reader(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", small_gguf().data)
    ours = open_gguf(path)
    theirs = gguf.GGUFReader(path)
    assert [tensor.name for tensor in theirs.tensors] == list(ours.tensors)
    for tensor in theirs.tensors:
        assert ours.raw(tensor.name).tobytes() == np.ascontiguousarray(tensor.data).tobytes()
        assert ours.tensors[tensor.name].offset == tensor.data_offset


def test_one_tensor_of_every_type_fills_the_file_exactly(tmp_path: Path) -> None:
    """Odd numbers of blocks, offsets from the sizes: a wrong block size would overlap or overflow."""
    kinds = list(gguf.GGML_QUANT_SIZES)
    rng = np.random.default_rng(5)
    file, body = GgufBytes(), bytearray()
    file.begin(tensors=len(kinds), keys=1)
    file.pair("general.architecture", "test")
    raw = {}
    for index, kind in enumerate(kinds):
        block, size = gguf.GGML_QUANT_SIZES[kind]
        rows, columns = 3, 1 + 2 * (index % 2)
        body += b"\0" * (-len(body) % 32)
        file.tensor(kind.name, (columns * block, rows), int(kind), len(body))
        if kind.name in formats.LOADABLE and block > 1:
            raw[kind.name] = random_blocks(kind.name, rows * columns, rng).tobytes()
        else:
            raw[kind.name] = rng.integers(0, 60, rows * columns * size, dtype=np.uint8).tobytes()
        body += raw[kind.name]
    file.pad()
    path = write(tmp_path / "a.gguf", file.data + body)
    opened = open_gguf(path)
    last = list(opened.tensors.values())[-1]
    assert last.offset + last.nbytes == path.stat().st_size
    for kind in kinds:
        assert opened.raw(kind.name).tobytes() == raw[kind.name]
        if kind.name in formats.LOADABLE:
            expected = gguf.quants.dequantize(opened.raw(kind.name).reshape(3, -1), kind)
            assert opened.load(kind.name).tobytes() == expected.tobytes()
        else:
            with pytest.raises(ModelFileError, match=f"tensor '{kind.name}': format {kind.name} is not"):
                opened.load(kind.name)


def test_opening_does_not_read_the_data(tmp_path: Path) -> None:
    """A sparse file of 8 GiB opens at once and in little memory."""
    file = GgufBytes()
    file.begin(tensors=1, keys=1)
    file.pair("general.architecture", "test")
    file.tensor("big", (1 << 20, 1 << 11), 0, 0)
    file.pad()
    path = write(tmp_path / "big.gguf", file.data)
    with path.open("r+b") as sparse:
        sparse.truncate(len(file.data) + (1 << 33))
    tracemalloc.start()
    started = time.perf_counter()
    opened = open_gguf(path)
    assert time.perf_counter() - started < 1
    assert opened.raw("big")[-4:].tolist() == [0, 0, 0, 0]
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()


def field_mutants() -> list[tuple[str, bytes]]:
    file = small_gguf()
    found = []
    for what, at, size in file.fields:
        for value in (0, 1, 2**31, 2**63 - 1):
            if value.bit_length() > 8 * size:
                continue
            data = bytearray(file.data)
            data[at : at + size] = value.to_bytes(size, "little")
            found.append((f"{what} = {value}", bytes(data)))
    return found


def test_mutants_of_every_field_fail_clearly_or_load(tmp_path: Path) -> None:
    mutants = field_mutants()
    assert len(mutants) >= 200
    assert 2000 < len(small_gguf().data) < 4096
    refused = 0
    tracemalloc.start()
    for number, (what, data) in enumerate(mutants):
        path = write(tmp_path / f"{number}.gguf", data)
        tracemalloc.reset_peak()
        started = time.perf_counter()
        try:
            load_all(path)
        except ModelFileError as error:
            refused += 1
            assert str(path) in str(error) and "\n" not in str(error)
        assert time.perf_counter() - started < MUTANT_SECONDS, what
        assert tracemalloc.get_traced_memory()[1] < MUTANT_BYTES, what
    tracemalloc.stop()
    assert refused > len(mutants) / 2


def test_truncation_at_every_byte_is_refused(tmp_path: Path) -> None:
    data = bytes(small_gguf().data)
    path = tmp_path / "cut.gguf"
    load_all(write(path, data))
    for size in range(len(data)):
        path.unlink()
        started = time.perf_counter()
        with pytest.raises(ModelFileError):
            open_gguf(write(path, data[:size]))
        assert time.perf_counter() - started < MUTANT_SECONDS


@given(data=st.data())
def test_random_damage_never_escapes(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    raw = small_gguf().data
    header = len(raw) - 2700
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, header))
        junk = data.draw(st.binary(min_size=1, max_size=9))
        raw[at : at + len(junk)] = junk
    path = write(tmp_path_factory.mktemp("damaged") / "a.gguf", raw)
    try:
        load_all(path)
    except ModelFileError:
        pass


def _built(
    change: Callable[[GgufBytes], None], *, keys: int = 1, tensors: int = 0, body: int = 4096
) -> bytes:
    file = GgufBytes()
    file.begin(tensors=tensors, keys=keys)
    change(file)
    file.pad()
    return bytes(file.data) + b"\0" * body


REFUSALS: dict[str, tuple[bytes, str]] = {
    "not a GGUF": (b"PK\x03\x04" + b"\0" * 100, "does not start with 'GGUF'"),
    "version 1": (b"GGUF" + (1).to_bytes(4, "little") + b"\0" * 16, "version 1 is not supported"),
    "big-endian": (b"GGUF" + (3).to_bytes(4, "big") + b"\0" * 16, "big-endian"),
    "duplicate key": (
        _built(lambda f: (f.pair("a", 1), f.pair("a", 2))[0], keys=2),
        "key 'a' appears twice",
    ),
    "nested arrays": (_built(lambda f: f.pair("a", RawArray(9, []))), "key 'a': arrays of arrays"),
    "value type": (_built(lambda f: (f.string("k", "a"), f.field("t", 77, 4))[0]), "unknown value type 77"),
    "alignment 0": (_built(lambda f: f.pair("general.alignment", 0)), "general.alignment is 0"),
    "alignment 48": (_built(lambda f: f.pair("general.alignment", 48)), "not a power of two"),
    "alignment text": (_built(lambda f: f.pair("general.alignment", "x")), "not a power of two"),
    "nine dimensions": (
        _built(lambda f: f.tensor("w", (1,) * 9, 0, 0), keys=0, tensors=1),
        "tensor 'w': has 9 dimensions",
    ),
    "no dimensions": (_built(lambda f: f.tensor("w", (), 0, 0), keys=0, tensors=1), "has 0 dimensions"),
    "empty dimension": (_built(lambda f: f.tensor("w", (4, 0), 0, 0), keys=0, tensors=1), "are not all in"),
    "product overflows": (
        _built(lambda f: f.tensor("w", (2**40, 2**40, 4), 0, 0), keys=0, tensors=1),
        "truncated or its offset is wrong",
    ),
    "unknown type": (_built(lambda f: f.tensor("w", (4,), 4000, 0), keys=0, tensors=1), "unknown type 4000"),
    "partial block": (
        _built(lambda f: f.tensor("w", (33,), 8, 0), keys=0, tensors=1),
        "not whole blocks of 32",
    ),
    "odd offset": (
        _built(lambda f: f.tensor("w", (4,), 0, 8), keys=0, tensors=1),
        "not a multiple of the align",
    ),
    "past the end": (_built(lambda f: f.tensor("w", (4,), 0, 8192), keys=0, tensors=1), "offset is wrong"),
    "overlap": (
        _built(lambda f: (f.tensor("w", (16,), 0, 0), f.tensor("x", (4,), 0, 32))[0], keys=0, tensors=2),
        "tensor 'x': overlaps tensor 'w'",
    ),
    "twice": (
        _built(lambda f: (f.tensor("w", (8,), 0, 0), f.tensor("w", (4,), 0, 32))[0], keys=0, tensors=2),
        "tensor 'w': appears twice",
    ),
    "not UTF-8": (_built(lambda f: (f.field("l", 2), f.data.extend(b"\xff\xfe"))[0]), "is not UTF-8"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_name_the_fault(case: str, tmp_path: Path) -> None:
    data, message = REFUSALS[case]
    path = write(tmp_path / "a.gguf", data)
    with pytest.raises(ModelFileError) as caught:
        open_gguf(path)
    assert message in str(caught.value) and str(path) in str(caught.value)


def test_missing_empty_and_odd_paths(tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "none.gguf", "does not exist"),
        (write(tmp_path / "empty.gguf", b""), "is empty"),
        (tmp_path, "not a regular file"),
    ):
        with pytest.raises(ModelFileError, match=message):
            open_gguf(path)


def test_peek_stops_before_the_vocabulary(tmp_path: Path) -> None:
    file = GgufBytes()
    file.begin(tensors=0, keys=4)
    file.pair("general.architecture", "clip")
    file.pair("general.type", "mmproj")
    file.pair("clip.other", 1)
    path = write(tmp_path / "a.gguf", bytes(file.data))  # the fourth key is cut off
    assert peek_gguf(path) == {"general.architecture": "clip", "general.type": "mmproj"}
    with pytest.raises(ModelFileError):
        open_gguf(path)
