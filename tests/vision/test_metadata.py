"""What is no picture in a picture file: never decoded, never a reason to refuse, at most turned by."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from luce.errors import RequestError
from luce.vision.decode import DECODE_BYTES, decode_image
from luce.vision.essentials import essentials
from luce.vision.orientation import exif_orientation
from tests.vision.pictures import encode, gradient, noise, png_chunk
from tests.vision.test_decode import TURNS
from tests.vision.test_samples import FOUR, bitstream, frame, gif, riff, vp8x

PICTURE = gradient(40, 64)


def tiff(orientation: int, order: str = "<", *, kind: int = 3, before: bytes = b"") -> bytes:
    """EXIF data of one entry, or more; ``before`` are whole entries in front of it."""
    value = struct.pack(f"{order}H", orientation) + b"\0\0"
    entry = struct.pack(f"{order}HHI", 0x0112, kind, 1) + value
    head = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HI", 42, 8)
    return head + struct.pack(f"{order}H", 1 + len(before) // 12) + before + entry + b"\0\0\0\0"


def behind_header(data: bytes, *chunks: bytes) -> bytes:
    return data[:33] + b"".join(chunks) + data[33:]


def jpeg_segment(marker: int, payload: bytes) -> bytes:
    return bytes((0xFF, marker)) + struct.pack(">H", len(payload) + 2) + payload


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("orientation", TURNS)
def test_every_place_of_the_orientation(orientation: int, order: str) -> None:
    stored = np.ascontiguousarray(TURNS[orientation](PICTURE))
    block = tiff(orientation, order)
    file = encode(stored)
    chunk = png_chunk(b"eXIf", block)
    assert np.array_equal(decode_image(behind_header(file, chunk)), PICTURE)
    assert np.array_equal(decode_image(file[:-12] + chunk + file[-12:]), PICTURE), "behind the pixels"
    height, width = stored.shape[:2]
    for prefix in (b"", b"Exif\0\0"):
        data = riff(vp8x(0x08, width, height), bitstream(stored), (b"EXIF", prefix + block))
        assert np.array_equal(decode_image(data), PICTURE)
    jpeg = encode(stored, "JPEG", quality=100, subsampling=0)
    segment = jpeg_segment(0xE1, b"Exif\0\0" + block)
    found = decode_image(
        jpeg[:2] + jpeg_segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x/>") + segment + jpeg[2:]
    )
    assert found.shape == PICTURE.shape and np.abs(found.astype(int) - PICTURE).max() <= 8


def test_orientation_is_read_and_nothing_else() -> None:
    others = b"".join(struct.pack("<HHII", tag, 2, 5, 8) for tag in range(0x100, 0x110))
    assert exif_orientation(tiff(6, before=others)) == 6
    for broken in (
        b"",
        b"II",
        b"II*\0",
        tiff(0),
        tiff(9),
        tiff(6, kind=4),
        tiff(6)[:12],
        b"MM" + tiff(6)[2:],
    ):
        assert exif_orientation(broken) == 1, broken


def test_a_directory_of_overlapping_entries_takes_no_memory() -> None:
    """Each of its entries names the whole block: a reader that fetches them takes their number times its size, as
    Pillow up to 12 does."""
    size, entries = 1 << 20, 200
    overlapping = b"".join(struct.pack("<HHII", 0x8000 + n, 7, size - 4096, 8) for n in range(entries))
    block = tiff(6, before=overlapping)
    block += b"\0" * (size - len(block))
    data = behind_header(encode(np.ascontiguousarray(TURNS[6](PICTURE))), png_chunk(b"eXIf", block))
    assert overlapping.count(struct.pack("<I", size - 4096)) * size > 1000 * len(encode(PICTURE)), "the trap"
    tracemalloc.start()
    try:
        assert np.array_equal(decode_image(data), PICTURE)
        assert tracemalloc.get_traced_memory()[1] < 8 * size
    finally:
        tracemalloc.stop()


def bomb(name: bytes) -> bytes:
    """Ten megabytes of blanks in some kilobytes."""
    body = {
        b"zTXt": b"Comment\0\0",
        b"iTXt": b"Comment\0\x01\0\0\0",
        b"iCCP": b"profile\0\0",
    }[name]
    return png_chunk(name, body + zlib.compress(b" " * (10 << 20), 9))


@pytest.mark.parametrize("name", [b"zTXt", b"iTXt", b"iCCP"])
def test_compressed_metadata_of_a_png_are_not_unpacked(name: bytes) -> None:
    """A hundred of them change neither the answer nor the memory."""
    data = behind_header(encode(PICTURE), *[bomb(name)] * 100)
    with pytest.raises(ValueError, match="too large"), Image.open(io.BytesIO(data)) as image:
        image.load()
    tracemalloc.start()
    try:
        assert np.array_equal(decode_image(data), PICTURE)
        assert tracemalloc.get_traced_memory()[1] < 5 << 20
    finally:
        tracemalloc.stop()


def broken_crc(chunk: bytes) -> bytes:
    return chunk[:-1] + bytes((chunk[-1] ^ 1,))


@pytest.mark.parametrize(
    "chunk",
    [
        png_chunk(b"iCCP", b"no profile at all"),
        png_chunk(b"zTXt", b"x\0\0not compressed"),
        png_chunk(b"pHYs", b"short"),
        png_chunk(b"cHRM", b""),
        png_chunk(b"acTL", b""),
        png_chunk(b"fcTL", b"nonsense"),
        broken_crc(png_chunk(b"tEXt", b"a\0b")),
        broken_crc(png_chunk(b"eXIf", tiff(6))),
        png_chunk(b"abCd", b"\xff" * 70_000),
    ],
    ids=lambda chunk: chunk[4:8].decode(),
)
def test_broken_metadata_of_a_png(chunk: bytes) -> None:
    assert np.array_equal(decode_image(behind_header(encode(PICTURE), chunk)), PICTURE)


def test_broken_pixels_of_a_png_are_an_error() -> None:
    for name in (b"IDAT", b"tRNS"):
        data = behind_header(encode(noise(8, 8)), broken_crc(png_chunk(name, b"\0" * 6)))
        with pytest.raises(RequestError, match="is a broken PNG"):
            decode_image(data)


def test_profiles_and_gamma_are_not_applied() -> None:
    """Values are taken as they stand, as the models' own processors do."""
    chunks = (png_chunk(b"gAMA", struct.pack(">I", 100_000)), png_chunk(b"cICP", b"\x09\x10\0\x01"))
    assert np.array_equal(decode_image(behind_header(encode(PICTURE), *chunks)), PICTURE)
    profile = b"\0" * 128
    assert np.array_equal(decode_image(encode(PICTURE, icc_profile=profile)), PICTURE)


def test_segments_of_a_jpeg() -> None:
    plain = encode(PICTURE, "JPEG", quality=90)
    expected = decode_image(plain)
    extras = [
        jpeg_segment(0xE2, b"ICC_PROFILE\0\x01\x05" + b"x" * 60_000),
        jpeg_segment(0xE2, b"MPF\0II*\0\x08\0\0\0garbage"),
        jpeg_segment(0xED, b"Photoshop 3.0\0" + b"8BIM" * 1000),
        jpeg_segment(0xFE, b"a comment"),
        jpeg_segment(0xE1, b"Exif\0\0" + tiff(1)) * 3000,
    ]
    for extra in extras:
        data = plain[:2] + extra + plain[2:]
        assert np.array_equal(decode_image(data), expected)
        assert essentials(data, "JPEG").data == plain


@pytest.mark.parametrize(
    ("frame", "reason"),
    [(0xC3, "lossless JPEG"), (0xC5, "hierarchical JPEG"), (0xCB, "lossless JPEG")],
)
def test_kinds_of_jpeg_that_are_refused_by_name(frame: int, reason: str) -> None:
    data = encode(PICTURE, "JPEG").replace(b"\xff\xc0", bytes((0xFF, frame)))
    with pytest.raises(RequestError, match=f"{reason} is not supported"):
        decode_image(data)


def test_jpeg_of_12_bits_is_refused_by_name() -> None:
    data = encode(PICTURE, "JPEG")
    place = data.index(b"\xff\xc0") + 4
    with pytest.raises(RequestError, match="JPEG of 12 bits a sample is not supported; use 8"):
        decode_image(data[:place] + b"\x0c" + data[place + 1 :])


def test_comments_of_a_gif_are_left_out() -> None:
    indices = np.array([[0, 1, 2], [3, 2, 1]])
    comment = b"\x21\xfe" + (b"\xff" + b"x" * 255) * 4000 + b"\0"
    data = gif(indices, FOUR, canvas=(2, 3), clear=1, before=comment + b"\x21\xff\x0bXMP DataXMP\x01a\0")
    plain = gif(indices, FOUR, canvas=(2, 3), clear=1)
    assert essentials(data, "GIF").data == plain
    assert np.array_equal(decode_image(data), decode_image(plain))


def test_chunks_of_a_webp_are_left_out() -> None:
    pixels = noise(8, 10)
    extras = [(b"ICCP", b"x" * 70_000), (b"XMP ", b"<x/>"), (b"JUNK", b"123")]
    data = riff(vp8x(0x2C, 10, 8), extras[0], bitstream(pixels), *extras[1:])
    assert np.array_equal(decode_image(data), pixels)
    assert len(essentials(data, "WebP").data) < 1000


def test_frames_of_an_animation_are_not_kept() -> None:
    frames = [frame(noise(8, 8, seed=n), 0, 0) for n in range(50)]
    data = riff(vp8x(2, 8, 8), (b"ANIM", b"\0" * 6), *frames)
    assert np.array_equal(decode_image(data), noise(8, 8, seed=0))
    assert len(essentials(data, "WebP").data) < len(data) // 20


@pytest.mark.parametrize("animated", [False, True])
def test_a_webp_whose_picture_is_larger_than_its_canvas(animated: bool) -> None:
    """The canvas is what is bounded; the picture's own size must not count behind it."""
    name, data = bitstream(noise(8, 8))
    bits = struct.unpack_from("<I", data, 1)[0] & ~0xFFFFFFF | 16382 | 16382 << 14
    large = data[:1] + struct.pack("<I", bits) + data[5:]
    if animated:
        inner = name + struct.pack("<I", len(large)) + large + b"\0" * (len(large) % 2)
        part = (b"ANMF", frame(noise(8, 8), 0, 0)[1][:16] + inner)
        file = riff(vp8x(2, 8, 8), (b"ANIM", b"\0" * 6), part)
    else:
        file = riff(vp8x(0, 8, 8), (name, large))
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match="is a broken WebP"):
            decode_image(file)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["PNG", "WebP", "JPEG", "GIF"])
def test_files_of_countless_parts_are_refused(kind: str) -> None:
    count = 70_000
    file = {
        "PNG": behind_header(encode(PICTURE), png_chunk(b"teXt", b"") * count),
        "WebP": riff(vp8x(0, 8, 8), *[(b"JUNK", b"")] * count, bitstream(noise(8, 8))),
        "JPEG": encode(PICTURE, "JPEG")[:2] + jpeg_segment(0xFE, b"") * count + encode(PICTURE, "JPEG")[2:],
        "GIF": gif(np.array([[0]]), FOUR, canvas=(1, 1), before=b"\x21\xfe" + b"\x01x" * count + b"\0"),
    }[kind]
    with pytest.raises(RequestError, match="over 65536"):
        decode_image(file)


MEASURE = """
import sys
from pathlib import Path
from luce.vision.decode import DecodeLimits, decode_image

def status(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) * 1024

limits = DecodeLimits(max_bytes=1 << 30)
decode_image(Path(sys.argv[1]).read_bytes())
for path in sys.argv[2:]:
    data = Path(path).read_bytes()
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    pixels = decode_image(data, limits=limits)
    print(path, (status("VmHWM") - before - 2 * len(data)) / (pixels.shape[0] * pixels.shape[1]))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
def test_memory_of_decoding_is_what_the_plan_says(tmp_path: Path) -> None:
    """Each format's most expensive form, measured as the process sees it: no picture takes more than planned."""
    shades = gradient(1500, 2000)
    clear = np.dstack([shades, shades[..., 0]])
    turn = Image.Exif()
    turn[0x0112] = 6
    files = {
        "small.png": encode(noise(8, 8)),
        "rgba.png": encode(clear, compress_level=1, exif=turn),
        "grey16.png": encode(shades[..., 0].astype(np.uint16) * 257, compress_level=1),
        "progressive.jpg": encode(shades, "JPEG", progressive=True, subsampling=0, exif=turn),
        "cmyk.jpg": encode(Image.fromarray(shades).convert("CMYK"), "JPEG", progressive=True),
        "rgba.webp": encode(clear, "WEBP", method=0, exif=turn),
        "lossless.webp": encode(clear, "WEBP", lossless=True, quality=0, method=0),
        "moving.webp": encode(
            Image.fromarray(shades), "WEBP", save_all=True, append_images=[Image.fromarray(255 - shades)], method=0
        ),
        "palette.gif": encode(Image.fromarray(shades).convert("P"), "GIF", transparency=3),
        "alpha.bmp": encode(clear, "BMP"),
    }  # fmt: skip
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    paths = [str(tmp_path / name) for name in files]
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, *paths], capture_output=True, text=True, timeout=100, check=True
    )
    found = {Path(line.split()[0]).name: float(line.split()[1]) for line in run.stdout.splitlines()}
    assert len(found) == len(files) - 1
    slack = 8 * (1 << 20) / (1500 * 2000)
    assert {name: size for name, size in found.items() if size > DECODE_BYTES + slack} == {}, found
    assert max(found.values()) > DECODE_BYTES / 2, f"the plan is far too large: {found}"
