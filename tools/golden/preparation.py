"""What transformers makes of text, pictures and positions before a model sees them.

Needs torch and transformers (made with torch 2.13.0, transformers 5.23.0, pillow 13.0.0). From the repository root::

    python -m tools.golden.preparation       # tests/golden/preparation.npz and pretokens.json

    preparation.npz   sizes [N, 2] and resized [N, 2] (height, width) of the processor's size rule with the family's
                      limits; ids{i} [T], grids{i} [K, 2] in patches, positions{i} [3, T], delta{i} [1] of prompts with
                      K pictures; rgba, rgb: a picture with alpha and what the processor's loader makes of it
    pretokens.json    [text, pieces] pairs of the tokenizer's normaliser and pre-tokenizer
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import Qwen3_5Tokenizer
from transformers.image_transforms import convert_to_rgb
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from tools.golden.make import IMAGE, VARIANTS, VISION_END, VISION_START, build, raw_config

INTO = Path(__file__).parents[2] / "tests/golden"
TEXTS = (
    "Hello world",
    " don't I'LL  x",
    "a1b23 4567",
    "cafe\u0301 nai\u0308ve",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0915\u093f",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01",
    "tab\t\tx  \n\n  y\r\nz",
    "foo(bar)[0] += 3.14; // ok",
    "  leading and trailing  ",
    "\U0001f600\U0001f468\u200d\U0001f469 ok",
    "_under_score $5",
    "\u0633\u064e\u0644\u0627\u0645 \u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd",
    "\r\n\r\n \n\t \u00a0\u3000x",
)


def sizes(rng: np.random.Generator) -> dict[str, Any]:
    found = []
    while len(found) < 300:
        height, width = (int(side) for side in np.exp(rng.uniform(0, np.log(9000), 2)))
        if max(height, width) <= 200 * min(height, width):
            found.append((height, width))
    return {"sizes": found, "resized": [smart_resize(h, w, 32, 65536, 16777216) for h, w in found]}


def positions(rng: np.random.Generator) -> dict[str, Any]:
    inner = build(VARIANTS[0], raw_config(VARIANTS[0])).model
    found: dict[str, Any] = {}
    for case in range(16):
        ids = [int(index) for index in rng.integers(0, 180, rng.integers(0, 4))]
        grids = []
        for _ in range(case % 5):
            rows, columns = (int(side) for side in rng.integers(1, 7, 2))
            ids += [VISION_START, *[IMAGE] * (rows * columns), VISION_END]
            ids += [int(index) for index in rng.integers(0, 180, rng.integers(0, 4))]
            grids.append((1, 2 * rows, 2 * columns))
        ids += [7] * (not ids)
        row = torch.tensor([ids])
        kinds = (row == IMAGE).int()
        given = torch.tensor(grids) if grids else None
        place, delta = inner.get_rope_index(row, mm_token_type_ids=kinds, image_grid_thw=given)
        found[f"ids{case}"] = ids
        found[f"grids{case}"] = np.array(grids, np.int64).reshape(-1, 3)[:, 1:]
        found[f"positions{case}"] = place[:, 0].numpy()
        found[f"delta{case}"] = delta[0].numpy()
    return found


def alpha(rng: np.random.Generator) -> dict[str, Any]:
    rgba = rng.integers(0, 256, (12, 20, 4), dtype=np.uint8)
    return {"rgba": rgba, "rgb": convert_to_rgb(Image.fromarray(rgba), return_numpy=True)}


def pretokens() -> list[Any]:
    library = Qwen3_5Tokenizer()._tokenizer
    found = []
    for text in TEXTS:
        normal = library.normalizer.normalize_str(text)
        spans = library.pre_tokenizer.pre_tokenize_str(normal)
        found.append([text, [normal[begin:end] for _, (begin, end) in spans]])
    return found


def main() -> None:
    rng = np.random.default_rng(0)
    with torch.no_grad():
        results = {**sizes(rng), **positions(rng), **alpha(rng)}
    np.savez_compressed(
        INTO / "preparation.npz", **{name: np.asarray(value) for name, value in results.items()}
    )
    (INTO / "pretokens.json").write_text(json.dumps(pretokens(), indent=1) + "\n")


if __name__ == "__main__":
    main()
