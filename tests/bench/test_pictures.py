"""Pictures of the load tools."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from luce.bench import pictures
from luce.bench.pictures import CELLS, png
from luce.vision.decode import decode_image


@pytest.mark.parametrize(("width", "height"), [(16, 16), (448, 64), (33, 100), (1120, 1120)])
def test_pixels_are_the_colours_of_their_cells(width: int, height: int) -> None:
    data = png(width, height, 7)
    Image.open(io.BytesIO(data)).verify()
    colours = np.random.default_rng(7).integers(0, 256, (CELLS, CELLS, 3)).astype(np.uint8)
    scaled = Image.fromarray(colours).resize((width, height), Image.Resampling.NEAREST)
    assert np.array_equal(decode_image(data), scaled)


def test_no_two_are_alike_and_each_size_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    resize = Image.Image.resize

    def noted(image: Image.Image, *args: object) -> Image.Image:
        drawn.append(args)
        return resize(image, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Image.Image, "resize", noted)
    pictures._around_palette.cache_clear()
    files = [png(64, 96, seed) for seed in range(50)] + [png(96, 64, 0)]
    assert len({decode_image(file).tobytes() for file in files}) == 51 and len(drawn) == 2
    assert png(64, 96, 3) == files[3]
