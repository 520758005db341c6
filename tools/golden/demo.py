"""What transformers computes from the bundled model, a trained one.

Needs torch and transformers as tools/golden/make.py does. From the repository root::

    python -m tools.demo_model.export hf --out DIR
    python -m tools.golden.demo DIR          # tests/golden/demo-q8-*.npz and demo-bf16-*.npz

The first ones are of the bundled files' weights (matrices in Q8_0), the others of the same model as a checkpoint in
bfloat16 holds it, which is what published ones are. An archive is one case of a task, question and right answer:
input_ids [T], image0… (uint8 pictures), pixel_values, grid_thw [K, 3], logits [R, V] of the float32 run of exactly
these weights, at rows [R], at most 96 of the T. The prompt is rendered by luce, whose templates and tokenizer other
tests hold against the reference's.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from luce.demo.tasks import make_case
from luce.engines.load_model import LoadOptions, demo_model, open_model
from tools.demo_model.check import reference

INTO = Path(__file__).parents[2] / "tests/golden"
CASES = {
    "q8": {"describe": 3, "arithmetic_think": 3},
    "bf16": {"many_which": 0, "arithmetic_think": 3, "tool_answer": 3},
}
"""Form of the weights, tasks and the number of the case."""
MOST_ROWS = 96
TYPES = ("image_processor_type", "processor_class")


@torch.no_grad()
def round_matrices(model: Any) -> None:
    """Those of the text model but the convolution's four taps, which luce keeps in float32."""
    for name, parameter in model.named_parameters():
        if "visual" not in name and parameter.ndim > 1 and parameter.shape[-1] > 4:
            parameter.copy_(parameter.bfloat16().float())


@torch.no_grad()
def run(folder: Path, model: Any, task: str, index: int) -> dict[str, Any]:
    case = make_case(task, index, test=True)
    prompts = open_model(demo_model(), LoadOptions(slots=1)).prompts
    pictures, images = case.pictures(), []
    for pixels in pictures:
        png = io.BytesIO()
        Image.fromarray(pixels).save(png, "PNG")
        images.append(prompts.prepare_image(png.getvalue(), field="picture"))
    prompt = prompts.build(
        case.messages,
        images,
        tools=case.tools,
        template_kwargs={"enable_thinking": case.enable_thinking},
        continuation=case.completion,
    )
    tokens = torch.tensor(prompt.token_ids.astype(np.int64))[None]
    kinds = (tokens == model.config.image_token_id).int()
    inputs: dict[str, Any] = {"input_ids": tokens, "mm_token_type_ids": kinds}
    if pictures:
        settings = json.loads((folder / "preprocessor_config.json").read_text())
        processor = Qwen2VLImageProcessorPil(**{k: v for k, v in settings.items() if k not in TYPES})
        features = processor(images=[Image.fromarray(pixels) for pixels in pictures], return_tensors="pt")
        inputs |= {"pixel_values": features["pixel_values"], "image_grid_thw": features["image_grid_thw"]}
    rows = np.linspace(0, len(prompt.token_ids) - 1, min(len(prompt.token_ids), MOST_ROWS)).astype(np.int64)
    return {
        **{f"image{i}": pixels for i, pixels in enumerate(pictures)},
        "input_ids": prompt.token_ids,
        "pixel_values": np.asarray(inputs.get("pixel_values", np.zeros((0, 0), np.float32))),
        "grid_thw": np.asarray(inputs.get("image_grid_thw", np.zeros((0, 3), np.int64))),
        "rows": rows,
        "logits": model(**inputs).logits[0, rows].numpy(),
    }


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    model = reference(folder)
    for form, tasks in CASES.items():
        if form == "bf16":
            round_matrices(model)
        for task, index in tasks.items():
            results = run(folder, model, task, index)
            path = INTO / f"demo-{form}-{task}.npz"
            np.savez_compressed(path, **results)
            print(f"{path.name}: {len(results['input_ids'])} rows, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
