"""Bar charts drawn from a seed, with the facts that can be read off them.

A chart is a value; `draw` turns it into pixels with integer arithmetic and our own font, so the same chart
has the same bytes everywhere.  A value is either printed above its bar (1 to 99) or read off the axis, where
one unit is 4 pixels and a line marks every fifth unit.
"""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from luce.demo.font import GLYPH_HEIGHT, text_mask, text_width
from luce.demo.words import TITLE_FIRST, TITLE_LAST

Pixels = NDArray[np.uint8]
Colour = tuple[int, int, int]
T = TypeVar("T")

# Width and height in pixels.  Multiples of 32, so that no preprocessing resizes them: 21 to 40 merged tokens.
SIZES = (
    (192, 128),
    (128, 192),
    (256, 128),
    (128, 256),
    (160, 160),
    (224, 96),
    (96, 224),
    (256, 160),
    (160, 256),
    (320, 128),
)
COLOURS: dict[str, Colour] = {
    "red": (214, 40, 40),
    "green": (44, 160, 44),
    "blue": (40, 80, 205),
    "yellow": (245, 212, 40),
    "orange": (245, 130, 30),
    "purple": (130, 60, 170),
    "pink": (246, 150, 190),
    "brown": (128, 80, 40),
    "black": (28, 28, 28),
    "cyan": (60, 200, 220),
}
BACKGROUNDS: tuple[Colour, ...] = (
    (255, 255, 255),
    (238, 238, 238),
    (255, 250, 225),
    (228, 241, 255),
    (233, 250, 233),
    (250, 234, 240),
)
INK: Colour = (25, 25, 25)
UNIT = 4  # pixels of one value step on charts without printed values
GRID = 5  # value steps from one grid line to the next
MAX_BARS = 6
MAX_AXIS_VALUE = 40
MAX_PRINTED_VALUE = 99
_SLOT = 18  # least width of a bar with the gap beside it


@attrs.frozen
class Bar:
    colour: str
    value: int
    left: int
    width: int
    height: int
    fill: Colour


@attrs.frozen
class Chart:
    """A bar chart and its layout, all lengths in pixels."""

    width: int
    height: int
    title: str
    bars: tuple[Bar, ...]
    printed: bool
    background: Colour
    baseline: int
    left: int
    title_left: int
    title_top: int
    title_scale: int

    @property
    def tallest(self) -> Bar:
        return max(self.bars, key=lambda bar: bar.value)


def is_held_out(title: str) -> bool:
    """Whether this two-word title is kept out of training: one pair in eight."""
    words = title.split()
    if len(words) != 2:
        return False
    return (TITLE_FIRST.index(words[0]) + 3 * TITLE_LAST.index(words[1])) % 8 == 0


def random_title(rng: Random, most: int, test: bool) -> str:
    """One or two words of at most `most` characters; titles that are held out are drawn only if `test`."""
    while True:
        title = pick(rng, TITLE_LAST)
        if rng.random() < 0.8:
            title = f"{pick(rng, TITLE_FIRST)} {title}"
        if len(title) <= most and (test or not is_held_out(title)):
            return title


def pick(rng: Random, items: Sequence[T]) -> T:
    """One of the items; the same draw on every Python version."""
    return items[rng.randrange(len(items))]


def _values(rng: Random, count: int, most: int, margin: int) -> list[int]:
    """Values of which the greatest leads by at least `margin`, so that the tallest bar can be seen."""
    while True:
        values = [1 + rng.randrange(most) for _ in range(count)]
        first, second = sorted(values, reverse=True)[:2]
        if first - second >= margin:
            return values


def random_chart(rng: Random, *, test: bool, title: str | None = None) -> Chart:
    """A chart drawn from `rng`.  `title` fixes the title and the picture is then made wide enough for it."""
    fitting = [size for size in SIZES if title is None or text_width(title) <= size[0] - 4]
    width, height = pick(rng, fitting)
    if title is None:
        title = random_title(rng, (width - 4) // 6, test)
    scale = 2 if text_width(title, 2) <= width - 4 and rng.random() < 0.5 else 1
    room = width - 4 - text_width(title, scale)
    title_left = 2 + pick(rng, (0, room // 2, room)) if rng.random() < 0.7 else 2 + rng.randrange(room + 1)
    title_top = 2 + rng.randrange(5)
    printed = rng.random() < 0.5
    left = 3 + rng.randrange(6) if printed else 17
    baseline = height - 4 - rng.randrange(8)
    room = baseline - (title_top + GLYPH_HEIGHT * scale + 4) - (10 if printed else 0)
    if printed:
        most, margin = MAX_PRINTED_VALUE, 6
    else:
        most, margin = min(MAX_AXIS_VALUE, room // UNIT), 1
    slots = min(MAX_BARS, (width - left - 3) // _SLOT)
    count = 2 + rng.randrange(slots - 1)
    slot = (width - left - 3) // count
    bars = []
    colours = list(COLOURS)
    widest = min(slot - 4, 34)
    bar_width = 12 + rng.randrange(widest - 11)
    for index, value in enumerate(_values(rng, count, most, margin)):
        colour = colours.pop(rng.randrange(len(colours)))
        red, green, blue = (min(255, max(0, c + rng.randrange(-10, 11))) for c in COLOURS[colour])
        bars.append(
            Bar(
                colour=colour,
                value=value,
                left=left + index * slot + 1 + rng.randrange(slot - bar_width - 2),
                width=bar_width,
                height=3 + (room - 3) * value // MAX_PRINTED_VALUE if printed else UNIT * value,
                fill=(red, green, blue),
            )
        )
    return Chart(
        width=width,
        height=height,
        title=title,
        bars=tuple(bars),
        printed=printed,
        background=pick(rng, BACKGROUNDS),
        baseline=baseline,
        left=left,
        title_left=title_left,
        title_top=title_top,
        title_scale=scale,
    )


def _write(canvas: Pixels, text: str, left: int, top: int, scale: int = 1) -> None:
    mask = text_mask(text, scale)
    canvas[top : top + mask.shape[0], left : left + mask.shape[1]][mask] = INK


def draw(chart: Chart) -> Pixels:
    """RGB pixels (height, width, 3) uint8."""
    canvas = np.empty((chart.height, chart.width, 3), np.uint8)
    canvas[:] = chart.background
    _write(canvas, chart.title, chart.title_left, chart.title_top, chart.title_scale)
    plot_top = chart.title_top + GLYPH_HEIGHT * chart.title_scale + 3
    if not chart.printed:
        line = np.array(chart.background, np.int16) - 45
        highest = min(MAX_AXIS_VALUE, (chart.baseline - plot_top) // UNIT)
        for value in range(GRID, highest + 1, GRID):
            row = chart.baseline - UNIT * value
            canvas[row, chart.left - 2 : -2] = line.astype(np.uint8)
            if value % 10 == 0 and row - 3 >= plot_top:
                label = str(value)
                _write(canvas, label, chart.left - 4 - text_width(label), row - 3)
        canvas[plot_top : chart.baseline, chart.left - 2] = INK
    for bar in chart.bars:
        top = chart.baseline - bar.height
        canvas[top : chart.baseline, bar.left : bar.left + bar.width] = bar.fill
        if chart.printed:
            label = str(bar.value)
            _write(canvas, label, bar.left + (bar.width - text_width(label)) // 2, top - 9)
    canvas[chart.baseline, max(2, chart.left - 2) : -2] = INK
    return canvas
