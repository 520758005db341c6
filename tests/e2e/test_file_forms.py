"""One model, several file forms: the logits of a picture prompt are equal bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from luce.demo.case import Case
from luce.demo.submissions import png
from luce.demo.tasks import make_case
from luce.engines.load_model import LoadOptions, demo_model, load_engine, open_model
from luce.engines.seam import SlotSpec
from luce.weights.gguf_file import open_gguf
from tests.weights.gguf_writers import gguf_metadata, mmproj_metadata, mmproj_tensors, write_gguf_file
from tests.weights.writers import K_QUANT_SHAPE, TinyShape, random_model, write_gguf, write_hf
from tools.demo_model.export import write_hf as export_hf


def logits(path: Path, pixels: npt.NDArray[np.uint8], text: str) -> npt.NDArray[np.float32]:
    """[T, V] of one picture and one question through files, tokenizer, template, tower and text model."""
    opened = open_model(path, LoadOptions(slots=1, context=512))
    image = opened.prompts.prepare_image(png(pixels), field="messages")
    content = [{"type": "image"}, {"type": "text", "text": text}]
    prompt = opened.prompts.build([{"role": "user", "content": content}], [image])
    engine = load_engine(opened)
    try:
        rows = [engine.encode(image)]
        spec = SlotSpec(prompt.token_ids, prompt.positions, prompt.rope_delta, None, 1, prompt.spans, rows)
        return engine.forward_all(spec)[0]
    finally:
        engine.shutdown()


PICTURE = np.random.default_rng(5).integers(0, 256, (64, 96, 3), np.uint8)


@pytest.mark.parametrize("shape", [TinyShape(ratio=1, tied=True), TinyShape(ratio=2), TinyShape(ratio=3)])
def test_a_directory_and_a_gguf_of_one_model_give_equal_logits(shape: TinyShape, tmp_path: Path) -> None:
    model, other = random_model(shape, seed=1), random_model(shape, seed=2)
    expected = logits(write_hf(tmp_path / "hf", model), PICTURE, "What is it?")
    assert np.isfinite(expected).all() and np.ptp(expected) > 1
    assert logits(write_gguf(tmp_path / "gguf", model, quant="F32"), PICTURE, "What is it?").tobytes() == (
        expected.tobytes()
    )
    assert logits(write_gguf(tmp_path / "other", other, quant="F32"), PICTURE, "What is it?").tobytes() != (
        expected.tobytes()
    )


@pytest.mark.parametrize("quant", ["Q8_0", "Q4_K", "IQ4_XS"])
def test_a_quantised_file_gives_what_its_dequantised_weights_give(quant: str, tmp_path: Path) -> None:
    """The twin is written in F32 from the values that the quantised file holds."""
    model = random_model(K_QUANT_SHAPE, seed=3)
    path = write_gguf(tmp_path / "quantised", model, quant=quant)
    held = open_gguf(path)
    plain = {name: held.load(name) for name in held.tensors}
    twin = tmp_path / "twin" / "model.gguf"
    twin.parent.mkdir()
    write_gguf_file(twin, gguf_metadata(model), plain)
    write_gguf_file(twin.with_name("mmproj.gguf"), mmproj_metadata(model), mmproj_tensors(model))
    assert logits(path, PICTURE, "And this?").tobytes() == logits(twin, PICTURE, "And this?").tobytes()
    exact = write_gguf(tmp_path / "exact", model, quant="F32")
    assert logits(path, PICTURE, "And this?").tobytes() != logits(exact, PICTURE, "And this?").tobytes()


def test_the_bundled_pair_and_its_exported_directory_give_equal_logits(tmp_path: Path) -> None:
    export_hf(demo_model(), tmp_path / "hf")
    case: Case = make_case("describe", 4, test=True)
    pixels = case.pictures()[0]
    assert Image.fromarray(pixels).size[0] % 32 == 0
    expected = logits(demo_model(), pixels, "Describe the chart.")
    assert logits(tmp_path / "hf", pixels, "Describe the chart.").tobytes() == expected.tobytes()
