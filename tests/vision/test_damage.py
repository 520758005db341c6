"""Files of every kind of sample, damaged: pixels, or a refusal of one line."""

from __future__ import annotations

import warnings

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from luce.errors import RequestError
from luce.vision.decode import DecodeLimits, decode_image
from tests.vision.pictures import encode, gradient, noise, png_chunk
from tests.vision.test_metadata import tiff
from tests.vision.test_samples import (
    FOUR,
    bitstream,
    bmp_of,
    cmyk_jpeg,
    frame,
    gif,
    png_of,
    riff,
    samples,
    vp8x,
)

_PICTURE = gradient(12, 20)
_COLOURS = noise(1, 16)[0].tobytes()
SEEDS = [
    encode(_PICTURE),
    encode(_PICTURE, "JPEG", progressive=True),
    encode(Image.fromarray(_PICTURE).convert("L"), "JPEG"),
    cmyk_jpeg(2),
    encode(np.dstack([_PICTURE, _PICTURE[..., 0]]), "WEBP"),
    png_of(samples(9, 13, 4, 16), 16, 6, png_chunk(b"eXIf", tiff(6)), interlaced=True),
    png_of(samples(9, 13, 3, 16), 16, 2, png_chunk(b"tRNS", b"\0\1\0\2\0\3")),
    png_of(samples(9, 13, 2, 16), 16, 4),
    png_of(samples(9, 13, 1, 2), 2, 0, png_chunk(b"tRNS", b"\0\1")),
    png_of(samples(9, 13, 1, 4), 4, 3, png_chunk(b"PLTE", _COLOURS), png_chunk(b"tRNS", b"\0\xff\x80")),
    gif(np.array([[0, 1, 2], [3, 2, 1]]), FOUR, canvas=(4, 6), at=(1, 1), clear=2, before=b"\x21\xfe\x01a\0"),
    riff(vp8x(2, 8, 8), (b"ANIM", b"\0" * 6), frame(noise(4, 6), 2, 4), frame(noise(8, 8), 0, 0)),
    riff(vp8x(0x18, 13, 9), bitstream(noise(9, 13, channels=4)), (b"EXIF", tiff(5))),
    bmp_of(
        5, 2, 8, bytes([3, 7, 2, 9, 0, 0, 0, 5, 1, 2, 3, 4, 5, 0, 0, 1]), b"\1\2\3\0" * 256, compression=1
    ),
    bmp_of(16, 4, 4, b"\x12" * 32, b"".join(bytes((i, i, i, 0)) for i in range(16))),
]
_BYTES = st.one_of(
    st.sampled_from([b"", b"\0", b"\xff", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"]), st.binary(max_size=9)
)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_damaged_files_decode_or_are_refused(data: st.DataObject) -> None:
    file = data.draw(st.sampled_from(SEEDS))
    decode_image(file)
    for _ in range(data.draw(st.integers(1, 5))):
        start = data.draw(st.integers(0, len(file)))
        end = min(start + data.draw(st.integers(0, 8)), len(file))
        file = file[:start] + data.draw(_BYTES) + file[end:]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            pixels = decode_image(file, limits=DecodeLimits(max_pixels=1_000_000))
        except RequestError as error:
            assert len(error.message) < 400 and error.message.isprintable()
            return
    assert pixels.ndim == 3 and pixels.shape[2] == 3 and pixels.dtype == np.uint8
