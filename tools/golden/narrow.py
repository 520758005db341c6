"""How far the reference implementation in bfloat16 is from its own float32, on the golden files' inputs.

Needs torch and transformers as tools/golden/make.py does. From the repository root::

    python -m tools.demo_model.export hf --out DIR
    python -m tools.golden.narrow DIR        # tests/golden/reference_bf16.json

Every parameter is rounded to bfloat16 first, of both, so that what is measured is the computation alone. The file has
for every archive, the largest error of a position's logits as a part of their root mean square: the largest of all
positions, their mean, and how many of them are over 0.03.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from tools.demo_model.check import reference
from tools.golden.demo import CASES
from tools.golden.make import MODELS, VARIANTS

INTO = Path(__file__).parents[2] / "tests/golden"
GOAL = 0.03


def checkpoint(folder: Path) -> Any:
    """The model of a golden checkpoint, in float32."""
    raw = json.loads((folder / "config.json").read_text())
    config_class, model_class = MODELS[raw["model_type"]]
    config = config_class(**raw)
    config._attn_implementation = "eager"
    model = model_class(config).float().eval()
    state: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        state |= load_file(file)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model


def in_bf16(model: Any) -> Any:
    """The same parameters, all computation in bfloat16 where the implementation does not widen it by itself.

    What is no parameter, the rotary frequencies, stays as from_pretrained(dtype=…) leaves it: in float32.
    """
    narrow = copy.deepcopy(model).to(torch.bfloat16)
    for mine, theirs in zip(narrow.modules(), model.modules(), strict=True):
        for name, buffer in theirs.named_buffers(recurse=False):
            setattr(mine, name, buffer.clone())
    return narrow


@torch.no_grad()
def logits(model: Any, data: dict[str, Any]) -> Any:
    ids = torch.tensor(data["input_ids"].astype(np.int64))[None]
    inputs = {"input_ids": ids, "mm_token_type_ids": (ids == model.config.image_token_id).int()}
    if len(data.get("pixel_values", ())):
        patches = torch.tensor(data["pixel_values"])
        inputs["pixel_values"] = patches.to(next(model.parameters()).dtype)
        inputs["image_grid_thw"] = torch.tensor(data["grid_thw"].astype(np.int64))
    found = model(**inputs).logits[0].double().numpy()
    return found[data["rows"]] if "rows" in data else found


@torch.no_grad()
def distances(model: Any, paths: dict[str, Path]) -> dict[str, list[float]]:
    for parameter in model.parameters():
        parameter.copy_(parameter.bfloat16().float())
    narrow, found = in_bf16(model), {}
    for name, path in paths.items():
        with np.load(path) as archive:
            data = {key: archive[key] for key in archive}
        right, mine = logits(model, data), logits(narrow, data)
        errors = np.abs(mine - right).max(axis=-1) / np.sqrt(np.mean(right**2, axis=-1))
        found[name] = [
            round(float(errors.max()), 4),
            round(float(errors.mean()), 4),
            int((errors > GOAL).sum()),
        ]
        print(
            f"{name}: largest {found[name][0]}, mean {found[name][1]}, {found[name][2]} of {len(errors)} over {GOAL}"
        )
    return found


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    found: dict[str, list[float]] = {}
    for variant in VARIANTS:
        path = INTO / variant.name
        archives = {f"{variant.name}/{name}": path / f"{name}.npz" for name in ("text", "image")}
        found |= distances(checkpoint(path), archives)
    names = [f"demo-{form}-{task}" for form, tasks in CASES.items() for task in tasks]
    found |= distances(reference(folder), {name: INTO / f"{name}.npz" for name in names})
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(numbers)}" for name, numbers in found.items())
    (INTO / "reference_bf16.json").write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
