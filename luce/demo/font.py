"""A 5 by 7 pixel font held in code, so that a picture has the same bytes on every machine."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

GLYPH_WIDTH = 5
GLYPH_HEIGHT = 7
ADVANCE = 6

# One glyph is five columns from left to right; bit 0 of a column is its top pixel.
_COLUMNS = """
A 7E1111117E B 7F49494936 C 3E41414122 D 7F4141221C E 7F49494941 F 7F09090901 G 3E4149497A H 7F0808087F
I 00417F4100 J 2040413F01 K 7F08142241 L 7F40404040 M 7F020C027F N 7F0408107F O 3E4141413E P 7F09090906
Q 3E4151215E R 7F09192946 S 4649494931 T 01017F0101 U 3F4040403F V 1F2040201F W 3F4038403F X 6314081463
Y 0708700807 Z 6151494543
a 2054545478 b 7F48444438 c 3844444420 d 384444487F e 3854545418 f 087E090102 g 0C5252523E h 7F08040478
i 00447D4000 j 2040443D00 k 7F10284400 l 00417F4000 m 7C04180478 n 7C08040478 o 3844444438 p 7C14141408
q 081414187C r 7C08040408 s 4854545420 t 043F444020 u 3C4040207C v 1C2040201C w 3C4030403C x 4428102844
y 0C5050503C z 4464544C44
0 3E5149453E 1 00427F4000 2 4261514946 3 2141454B31 4 1814127F10 5 2745454539 6 3C4A494930 7 0171090503
8 3649494936 9 064949291E
"""


def _parse() -> dict[str, NDArray[np.bool_]]:
    fields = _COLUMNS.split()
    glyphs = {" ": np.zeros((GLYPH_HEIGHT, GLYPH_WIDTH), bool)}
    for name, code in zip(fields[::2], fields[1::2], strict=True):
        columns = np.frombuffer(bytes.fromhex(code), np.uint8)
        glyphs[name] = (columns[None, :] >> np.arange(GLYPH_HEIGHT)[:, None] & 1).astype(bool)
    return glyphs


_GLYPHS = _parse()
CHARACTERS = frozenset(_GLYPHS)


def text_width(text: str, scale: int = 1) -> int:
    """Pixels from the left of the first glyph to the right of the last one."""
    return max(0, (ADVANCE * len(text) - 1) * scale)


@lru_cache(maxsize=4096)
def text_mask(text: str, scale: int = 1) -> NDArray[np.bool_]:
    """Mask (7 * scale, text_width) of the pixels to ink.  Raises KeyError on a character the font lacks."""
    gap = np.zeros((GLYPH_HEIGHT, 1), bool)
    columns = [part for char in text for part in (_GLYPHS[char], gap)]
    mask = np.concatenate(columns[:-1], axis=1)
    return mask.repeat(scale, axis=0).repeat(scale, axis=1)
