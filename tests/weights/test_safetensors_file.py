"""The safetensors reader: equal to the library on good files, a named error on bad ones (B115 for safetensors)."""

from __future__ import annotations

import json
import re
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from luce.errors import ModelFileError
from luce.weights.safetensors_file import open_safetensors
from tests.weights.tiny_model import to_bf16
from tests.weights.writers import write_safetensors


def small() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "a": rng.standard_normal((8, 16), dtype=np.float32),
        "b.weight": rng.standard_normal((3, 1, 4), dtype=np.float32),
        "c": rng.standard_normal(5, dtype=np.float32),
    }


def raw_file(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def load_all(path: Path) -> dict[str, np.ndarray]:
    file = open_safetensors(path)
    return {name: file.load(name) for name in file.tensors}


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_equal_to_the_library(kind: type, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file(
        {name: values.astype(kind) for name, values in small().items()}, path, metadata={"format": "np"}
    )
    file = open_safetensors(path)
    assert file.metadata == {"format": "np"}
    expected = load_file(path)
    assert set(file.tensors) == set(expected)
    for name, values in expected.items():
        loaded = file.load(name)
        assert loaded.dtype == np.float32 and loaded.flags.c_contiguous and loaded.flags.writeable
        assert loaded.tobytes() == values.astype(np.float32).tobytes()
        assert file.raw(name).tobytes() == values.tobytes()
        assert not file.raw(name).flags.writeable


def test_bf16(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    values = {name: to_bf16(tensor) for name, tensor in small().items()}
    write_safetensors(path, values, "BF16")
    assert {name: found.tobytes() for name, found in load_all(path).items()} == {
        name: tensor.tobytes() for name, tensor in values.items()
    }


def test_unsupported_dtypes_are_listed_but_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"ids": np.arange(4, dtype=np.int64)}, path)
    file = open_safetensors(path)
    assert file.tensors["ids"].format == "I64"
    with pytest.raises(ModelFileError, match="tensor 'ids': format I64 is not supported"):
        file.load("ids")
    with pytest.raises(ModelFileError, match="tensor 'none': missing"):
        file.load("none")


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
REFUSALS: dict[str, tuple[bytes, str]] = {
    "seven bytes": (b"1234567", "the header length alone takes 8"),
    "huge header": (raw_file({}, length=2**63 - 1), "over the limit"),
    "header past the end": (raw_file({}, length=1000), "is truncated: the header has 1000 bytes"),
    "not JSON": (raw_file(b"{nope}"), "not valid JSON"),
    "not UTF-8": (raw_file(b'{"\xff": 1}'), "not valid JSON"),
    "deep": (raw_file(b"[" * 100_000), "nested too deeply"),
    "huge number": (raw_file(b'{"a":' + b"9" * 5000 + b"}"), "not valid JSON"),
    "a list": (raw_file([]), "not a JSON object"),
    "named twice": (
        raw_file(b'{"a":%s,"a":%s}' % ((json.dumps(ENTRY).encode(),) * 2), b"\0" * 8),
        "names 'a' twice",
    ),
    "entry": (raw_file({"a": 5}), "tensor 'a': the header entry"),
    "extra field": (raw_file({"a": {**ENTRY, "x": 1}}, b"\0" * 8), "tensor 'a': the header entry"),
    "dtype": (raw_file({"a": {**ENTRY, "dtype": "F31"}}, b"\0" * 8), "unknown dtype 'F31'"),
    "block dtype": (raw_file({"a": {**ENTRY, "dtype": "Q8_0"}}, b"\0" * 8), "unknown dtype 'Q8_0'"),
    "negative": (raw_file({"a": {**ENTRY, "shape": [-2]}}, b"\0" * 8), "is not a list of at most"),
    "bool size": (raw_file({"a": {**ENTRY, "shape": [True]}}, b"\0" * 8), "is not a list of at most"),
    "float size": (raw_file({"a": {**ENTRY, "shape": [2.0]}}, b"\0" * 8), "is not a list of at most"),
    "nine sizes": (raw_file({"a": {**ENTRY, "shape": [1] * 9}}, b"\0" * 8), "is not a list of at most"),
    "size mismatch": (
        raw_file({"a": {**ENTRY, "shape": [3]}}, b"\0" * 8),
        "span 8 bytes, but F32 [3] takes 12",
    ),
    "product": (raw_file({"a": {**ENTRY, "shape": [2**40, 2**40]}}, b"\0" * 8), "span 8 bytes"),
    "backwards": (raw_file({"a": {**ENTRY, "data_offsets": [8, 0]}}, b"\0" * 8), "span -8 bytes"),
    "past the end": (raw_file({"a": ENTRY}, b"\0" * 4), "tensor 'a': is truncated: data ends at byte"),
    "hole": (raw_file({"a": {**ENTRY, "data_offsets": [8, 16]}}, b"\0" * 16), "leaves a hole"),
    "overlap": (raw_file({"a": ENTRY, "b": ENTRY}, b"\0" * 8), "overlaps the tensor before it"),
    "trailing": (raw_file({"a": ENTRY}, b"\0" * 12), "has 4 bytes after the last tensor"),
    "metadata": (raw_file({"__metadata__": {"a": 1}}), "__metadata__ is not an object of strings"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_name_the_fault(case: str, tmp_path: Path) -> None:
    data, message = REFUSALS[case]
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    with pytest.raises(ModelFileError) as caught:
        open_safetensors(path)
    assert message in str(caught.value) and str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_mutants_and_truncations_fail_clearly_or_load(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_safetensors(path, small(), "F32")
    good = path.read_bytes()
    load_all(path)
    mutants = [good[:size] for size in range(len(good))]
    mutants += [value.to_bytes(8, "little") + good[8:] for value in (0, 1, 2**31, 2**63 - 1)]
    header = good[8 : 8 + int.from_bytes(good[:8], "little")]
    for found in re.finditer(rb"\d+", header):
        for value in (0, 1, 2**31, 2**63 - 1, -1, 10**400):
            changed = header[: found.start()] + str(value).encode() + header[found.end() :]
            mutants.append(len(changed).to_bytes(8, "little") + changed + good[8 + len(header) :])
    assert len(mutants) > 200
    tracemalloc.start()
    for data in mutants:
        path.unlink()
        path.write_bytes(data)
        tracemalloc.reset_peak()
        started = time.perf_counter()
        try:
            load_all(path)
        except ModelFileError as error:
            assert str(path) in str(error)
        else:
            assert data == good or len(data) == len(good)
        assert time.perf_counter() - started < 1
        assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()


@given(data=st.data())
def test_random_damage_never_escapes(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("damaged") / "a.safetensors"
    write_safetensors(path, small(), "F32")
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, 300))
        junk = data.draw(st.binary(min_size=1, max_size=6))
        raw[at : at + len(junk)] = junk
    path.write_bytes(raw)
    try:
        load_all(path)
    except ModelFileError:
        pass
