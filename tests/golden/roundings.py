"""Which roundings make how much of a device's error, simulated by the oracle on the bundled model.

From the repository root (minutes)::

    python -m tests.golden.roundings         # a case of each task, question and right answer; --cases for more

Every line rounds at some places and says of all positions the largest error of a position's logits as a part of their
root mean square: the largest of them, their mean, their 99th percentile, and how many are over 0.03, the goal. The
weights of the text model are those of the bundled files (Q8_0, which a device rounds to bfloat16 as well) or these
rounded to bfloat16, as a checkpoint holds them. f16 everywhere is what kernels do not do.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator

import attrs
import numpy as np
import numpy.typing as npt
from PIL import Image

from luce.compute.bf16 import round_bf16, widen_bf16
from luce.demo.tasks import TASKS, make_case
from luce.engines.load_model import LoadOptions, OpenedModel, demo_model, open_model
from luce.engines.qwen35.loading import load_weights
from luce.engines.qwen35.weights import Qwen35Weights
from tests.engines.device.harness import bf16_text, rounded_text
from tests.engines.oracle import PLACES, Narrow, bf16, exact, f16, of_products, only, run_request, run_vision

F64 = npt.NDArray[np.float64]
LONGEST = 700
GOAL = 0.03


@attrs.frozen(eq=False)
class Prompt:
    ids: list[int]
    grids: list[tuple[int, int]]
    spans: list[tuple[int, npt.NDArray[np.float32]]]
    """Where the exact rows of each picture stand."""


def prompts(model: OpenedModel, weights: Qwen35Weights, cases: int) -> Iterator[Prompt]:
    assert model.config.vision is not None and weights.vision is not None
    for case in (make_case(task, index, test=True) for task in TASKS for index in range(cases)):
        images = []
        for pixels in case.pictures():
            png = io.BytesIO()
            Image.fromarray(pixels).save(png, "PNG")
            images.append(model.prompts.prepare_image(png.getvalue(), field="picture"))
        prompt = model.prompts.build(
            case.messages,
            images,
            tools=case.tools,
            template_kwargs={"enable_thinking": case.enable_thinking},
            continuation=case.completion,
        )
        if len(prompt.token_ids) > LONGEST:
            continue
        grids = [(int(image.grid[0]), int(image.grid[1])) for image in images]
        rows = [
            run_vision(model.config.vision, weights.vision, image.patches, grid).astype(np.float32)
            for image, grid in zip(images, grids, strict=True)
        ]
        starts = [span.start for span in prompt.spans]
        yield Prompt(prompt.token_ids.tolist(), grids, list(zip(starts, rows, strict=True)))


def logits(model: OpenedModel, weights: Qwen35Weights, prompt: Prompt, narrow: Narrow = exact) -> F64:
    return run_request(model.config, weights, prompt.ids, prompt.grids, prompt.spans, narrow).logits


def settings(weights: Qwen35Weights, form: str) -> Iterator[tuple[str, Narrow, Qwen35Weights]]:
    """What a line is called, where it rounds, and the weights it takes."""
    served, half = (
        attrs.evolve(rounded_text(weights, rounding), embed=weights.embed)
        for rounding in (lambda matrix: widen_bf16(round_bf16(matrix)), half_precision)
    )
    yield "as a device", bf16, served
    if form == "q8":
        yield "only the weights", exact, served
        yield "all but the weights", bf16, weights
    else:
        for place, what in PLACES.items():
            yield f"only {what}", only([place]), served
        for place, what in PLACES.items():
            yield f"all but {what}", only(set(PLACES) - {place}), served
    for places in (["delta_out", "head"], ["delta_in", "delta_out", "attention_in", "head"]):
        yield f"all but these: {', '.join(places)}", only(set(PLACES) - set(places)), served
    yield "f16 for inputs of products with weights, as a device with --operands f16", of_products, half
    yield "f16 everywhere", f16, half


def half_precision(matrix: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return matrix.astype(np.float16).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", type=int, default=1)
    model = open_model(demo_model(), LoadOptions(slots=1, context=1024))
    bundled = load_weights(model.files, model.config, None)
    found = list(prompts(model, bundled, parser.parse_args().cases))
    for form, weights in (("bf16", bf16_text(bundled)), ("q8", bundled)):
        right = [logits(model, weights, prompt) for prompt in found]
        print(
            f"{form}: {sum(map(len, right)):,} positions of {len(right)} prompts; largest, mean, 99 %, over {GOAL}"
        )
        for name, narrow, taken in settings(weights, form):
            errors = np.concatenate(
                [
                    np.abs(logits(model, taken, prompt, narrow) - exactly).max(axis=-1)
                    / np.sqrt(np.mean(exactly**2, axis=-1))
                    for prompt, exactly in zip(found, right, strict=True)
                ]
            )
            over = int((errors > GOAL).sum())
            high = np.quantile(errors, 0.99)
            print(f"{errors.max():.4f} {errors.mean():.4f} {high:.4f} {over:3d}  {name}", flush=True)


if __name__ == "__main__":
    main()
