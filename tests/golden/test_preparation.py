"""Sizes, positions, alpha, patches and pre-tokenizer splits against the reference implementation."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tokenizers import Tokenizer as Library

from luce.engines.qwen35.positions import mrope_positions
from luce.engines.seam import ImageSpan
from luce.text.vocabulary import read_vocabulary
from luce.vision.decode import decode_image
from luce.vision.preprocess import Preprocessor, smart_resize
from luce.weights.model_files import resolve_model
from tests.golden.files import FOLDERS
from tests.text.small import small_lists
from tests.vision.pictures import encode

HERE = Path(__file__).parent
IMAGE = 192
CASES = 16


@pytest.fixture(scope="module")
def golden() -> dict[str, npt.NDArray[Any]]:
    with np.load(HERE / "preparation.npz") as data:
        return {name: data[name] for name in data}


def test_sizes(golden: dict[str, npt.NDArray[Any]]) -> None:
    found = [smart_resize(int(h), int(w), 32, 65536, 16777216) for h, w in golden["sizes"]]
    assert np.array_equal(found, golden["resized"])


@pytest.mark.parametrize("case", range(CASES))
def test_positions(golden: dict[str, npt.NDArray[Any]], case: int) -> None:
    ids, grids = golden[f"ids{case}"], [(int(h), int(w)) for h, w in golden[f"grids{case}"]]
    pads = np.flatnonzero(ids == IMAGE)
    spans, at = [], 0
    for number, (h, w) in enumerate(grids):
        spans.append(ImageSpan(int(pads[at]), h * w // 4, number))
        at += h * w // 4
    found, delta = mrope_positions(len(ids), spans, grids, 2)
    assert np.array_equal(found, golden[f"positions{case}"])
    assert delta == int(golden[f"delta{case}"][0]) and found.dtype == np.int32


def test_alpha(golden: dict[str, npt.NDArray[Any]]) -> None:
    assert np.array_equal(decode_image(encode(golden["rgba"])), golden["rgb"])


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_patches(folder: Path) -> None:
    """Every golden picture, one frame of the reference's two equal ones."""
    source = resolve_model(folder).preprocessor
    assert source is not None
    preprocessor = Preprocessor(source)
    with np.load(folder / "image.npz") as data:
        rows = data["pixel_values"]
        at = 0
        for number, (_, gh, gw) in enumerate(data["grid_thw"]):
            prepared = preprocessor(data[f"image{number}"])
            expected = rows[at : at + gh * gw].reshape(gh * gw, 3, 2, -1)
            at += gh * gw
            assert prepared.grid == (gh, gw)
            doubled = np.repeat(prepared.patches.reshape(gh * gw, 3, 1, -1), 2, axis=2)
            assert np.abs(doubled - expected).max() < 1e-6
    assert at == len(rows)


@pytest.mark.parametrize(
    ("text", "pieces"), json.loads((HERE / "pretokens.json").read_text()), ids=lambda value: str(value)[:20]
)
def test_pretokenizer_splits(text: str, pieces: list[str]) -> None:
    library = Library.from_str(json.dumps(read_vocabulary(small_lists()).spec))
    assert library.pre_tokenizer is not None and library.normalizer is not None
    normal = library.normalizer.normalize_str(text)
    assert normal == unicodedata.normalize("NFC", text)
    assert [normal[begin:end] for _, (begin, end) in library.pre_tokenizer.pre_tokenize_str(normal)] == pieces
