"""The bundled model against the reference implementation (README.md here): the numpy engine and a device's.

Unlike random weights, which make a hundredfold of any rounding, those of a trained model keep an error small: here a
device's rounding of inputs to bfloat16 can be held to a bound at every position. Of a model in Q8_0 a device rounds the
weights as well, where they are no bfloat16 numbers.
"""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from luce.compute.operands import Operands
from luce.engines.load_model import (
    LoadedEngine,
    LoadOptions,
    OpenedModel,
    demo_model,
    load_engine,
    open_model,
)
from luce.engines.qwen35.loading import load_weights
from luce.engines.qwen35.weights import Qwen35Weights
from luce.engines.seam import PatchImage, SlotSpec
from tests.engines.device.harness import bf16_text, device_of_tests, new_device_engine
from tests.engines.harness import new_engine
from tests.golden.files import reference_in_bf16

ON_GPU = os.environ.get("LUCE_TEST_DEVICE", "host") != "host"
NUMPY = 1e-4
"""Of a position's logits, the largest error as a part of their root mean square: the reference's own float32."""
DEVICE = {("bf16", "bf16"): 3.5e-2, ("bf16", "q8"): 5e-2, ("f16", "bf16"): 3e-2, ("f16", "q8"): 3e-2}
"""By operands and form."""
USUAL = 3e-2
"""Which all but one position in fifty keep."""
NEARER = {"bf16": 0.6, "f16": 0.3}
"""Times as far as the reference in bfloat16 is from its own float32, on average over the positions."""
ON_HOST = ("bf16-arithmetic_think", "q8-describe")
"""Of the archives, where kernels are slow."""
ARCHIVES = {
    path.stem.removeprefix("demo-"): path for path in sorted(Path(__file__).parent.glob("demo-*.npz"))
}


@attrs.frozen(eq=False)
class Archive:
    name: str
    form: str
    """Of the matrices of the text model: as in the bundled files (q8), or bf16."""
    data: dict[str, npt.NDArray[Any]]


@pytest.fixture(scope="module", params=ARCHIVES)
def case(request: pytest.FixtureRequest) -> Archive:
    with np.load(ARCHIVES[request.param]) as data:
        return Archive(request.param, request.param.split("-")[0], {key: data[key] for key in data})


@functools.cache
def opened(device: str = "cpu", operands: Operands | None = None) -> OpenedModel:
    return open_model(demo_model(), LoadOptions(slots=2, context=1024, device=device, operands=operands))


@functools.cache
def weights(form: str) -> Qwen35Weights:
    found = load_weights(opened().files, opened().config, None)
    return bf16_text(found) if form == "bf16" else found


@pytest.fixture(scope="module")
def numpy_engine(case: Archive) -> Iterator[LoadedEngine]:
    engine = new_engine(opened().config, weights(case.form), block_size=64, max_context=1024)
    yield engine
    engine.shutdown()


@pytest.fixture(scope="module", params=list(Operands))
def operands(request: pytest.FixtureRequest) -> Operands:
    found: Operands = request.param
    return found


@pytest.fixture(scope="module")
def device_engine(case: Archive, operands: Operands) -> Iterator[LoadedEngine]:
    """On a GPU matrices in Q8_0 as they are served; the host build takes the same numbers as bf16."""
    if not ON_GPU and case.name not in ON_HOST:
        pytest.skip("kernels are slow on the host build: some of the archives are enough there")
    served = ON_GPU and case.form == "q8"
    engine: LoadedEngine = (
        load_engine(opened("cuda:0", operands))
        if served
        else new_device_engine(
            opened().config, weights(case.form), max_context=1024, device=device_of_tests(operands)
        )
    )
    yield engine
    engine.shutdown()


def pictures(case: Archive) -> list[PatchImage]:
    found = []
    for index in range(len(case.data["grid_thw"])):
        png = io.BytesIO()
        Image.fromarray(case.data[f"image{index}"]).save(png, "PNG")
        found.append(opened().prompts.prepare_image(png.getvalue(), field="picture"))
    return found


def errors(engine: LoadedEngine, case: Archive) -> npt.NDArray[np.float64]:
    """[R] of the largest of each position, as a part of its logits' root mean square."""
    images = pictures(case)
    prompt = opened().prompts.from_ids(case.data["input_ids"].tolist(), images)
    rows = [engine.encode(image) for image in images]
    spec = SlotSpec(prompt.token_ids, prompt.positions, prompt.rope_delta, None, 4, prompt.spans, list(rows))
    right = case.data["logits"].astype(np.float64)
    mine = engine.forward_all(spec)[0][case.data["rows"]]
    found: npt.NDArray[np.float64] = np.abs(mine - right).max(axis=-1) / np.sqrt(np.mean(right**2, axis=-1))
    print(f"{len(found)} positions, largest {found.max():.6f}, mean {found.mean():.6f}")
    return found


def test_archives_are_there() -> None:
    assert len(ARCHIVES) >= 5 and set(ON_HOST) <= set(ARCHIVES)


def test_patches_are_the_reference_s(case: Archive) -> None:
    flat = [image.patches for image in pictures(case)]
    if flat:
        frames = case.data["pixel_values"].reshape(len(case.data["pixel_values"]), 3, 2, -1)
        np.testing.assert_allclose(np.concatenate(flat), frames[:, :, 0].reshape(len(frames), -1), atol=1e-5)


def test_logits(numpy_engine: LoadedEngine, case: Archive) -> None:
    assert errors(numpy_engine, case).max() < NUMPY


def test_logits_of_the_device(device_engine: LoadedEngine, case: Archive, operands: Operands) -> None:
    found = errors(device_engine, case)
    assert found.max() < DEVICE[operands.value, case.form]
    assert np.mean(found > USUAL) <= 0.02
    largest, mean = reference_in_bf16()[f"demo-{case.name}"]
    assert found.max() < largest and found.mean() < NEARER[operands.value] * mean
