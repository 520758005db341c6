"""Charts: what is drawn is what the chart says, and the same everywhere."""

from __future__ import annotations

import hashlib
from random import Random

import numpy as np
import pytest

from luce.demo.drawing import COLOURS, INK, SIZES, UNIT, draw, is_held_out, random_chart
from luce.demo.font import CHARACTERS, text_mask, text_width
from luce.demo.words import TITLE_FIRST, TITLE_LAST

CHARTS = [random_chart(Random(seed), test=True) for seed in range(300)]


def test_pixels_are_the_same_on_every_machine() -> None:
    digest = hashlib.sha256()
    for chart in CHARTS[:50]:
        digest.update(draw(chart).tobytes())
    assert digest.hexdigest()[:16] == "a3b9b2b1e8eba9e1"


def test_every_size_kind_and_colour_occurs() -> None:
    assert {(chart.width, chart.height) for chart in CHARTS} == set(SIZES)
    assert {chart.printed for chart in CHARTS} == {True, False}
    assert {chart.title_scale for chart in CHARTS} == {1, 2}
    assert {bar.colour for chart in CHARTS for bar in chart.bars} == set(COLOURS)
    assert {len(chart.bars) for chart in CHARTS} == {2, 3, 4, 5, 6}


def test_no_preprocessing_resizes_a_chart() -> None:
    assert all(width % 32 == 0 and height % 32 == 0 for width, height in SIZES)


def test_bars_stand_where_and_as_high_as_stated() -> None:
    for chart in CHARTS:
        pixels = draw(chart)
        assert pixels.shape == (chart.height, chart.width, 3)
        for bar in chart.bars:
            column = (pixels[: chart.baseline, bar.left + bar.width // 2] == bar.fill).all(-1)
            assert column.sum() == bar.height
            assert column[-bar.height :].all()
            if not chart.printed:
                assert bar.height == UNIT * bar.value


def test_bars_do_not_touch() -> None:
    for chart in CHARTS:
        for left, right in zip(chart.bars, chart.bars[1:], strict=False):
            assert right.left - (left.left + left.width) >= 2
        assert chart.bars[-1].left + chart.bars[-1].width <= chart.width - 2


def test_the_tallest_bar_leads_by_three_pixels() -> None:
    for chart in CHARTS:
        heights = sorted(bar.height for bar in chart.bars)
        assert chart.tallest.height == heights[-1]
        assert heights[-1] - heights[-2] >= 3


@pytest.mark.parametrize("scale", [1, 2])
def test_title_and_printed_values_are_in_the_picture(scale: int) -> None:
    chart = next(c for c in CHARTS if c.printed and c.title_scale == scale)
    ink = (draw(chart) == np.array(INK)).all(-1)

    def written(text: str, left: int, top: int, scale: int) -> bool:
        mask = text_mask(text, scale)
        return bool(ink[top : top + mask.shape[0], left : left + mask.shape[1]][mask].all())

    assert written(chart.title, chart.title_left, chart.title_top, scale)
    for bar in chart.bars:
        label = str(bar.value)
        left = bar.left + (bar.width - text_width(label)) // 2
        assert written(label, left, chart.baseline - bar.height - 9, 1)


def test_the_font_has_every_character_of_every_title_and_no_two_alike() -> None:
    assert set("".join((*TITLE_FIRST, *TITLE_LAST, "0123456789"))) <= CHARACTERS
    glyphs = {text_mask(character).tobytes() for character in CHARACTERS}
    assert len(glyphs) == len(CHARACTERS)


def test_training_never_draws_a_title_that_is_held_out() -> None:
    trained = {random_chart(Random(seed), test=False).title for seed in range(2000)}
    assert not any(is_held_out(title) for title in trained)
    assert any(is_held_out(chart.title) for chart in CHARTS)
