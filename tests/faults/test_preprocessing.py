"""Pictures of every kind through the whole server (B26, B27, B29, B31, B32, B33, B36).

Decoder and preprocessor have their own tests in tests/vision. Here a picture comes as a client sends it, and what
counts is the answer, the rows that the encoder gets, and that the next request works.
"""

from __future__ import annotations

import json
import shutil
import struct
import time
import zlib
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from PIL import Image

from luce.engines.load_model import LoadOptions, load_model, open_model
from luce.engines.loaded import LoadedModel
from luce.engines.seam import PatchImage
from luce.errors import ModelFileError, RequestError
from luce.http.openai.prepare import prepare_chat
from luce.http.options import HttpOptions
from luce.vision.preprocess import resize
from tests.faults.whole import Live, alone, ask, live, model_folder, opened, picture, url
from tests.vision.bicubic import bicubic
from tests.vision.pictures import encode, gradient, noise, png_chunk
from tests.vision.test_decode import TURNS, exif, jpeg_with_app1
from tests.vision.test_decode_limits import BOMBS


async def next_request_works(server: Live) -> None:
    response = await server.post(ask("Hi", max_tokens=2))
    assert response.status_code == 200


def prepared(data: bytes) -> PatchImage:
    return opened().prompts.prepare_image(data, field="image")


SIZES = {
    (1, 1): 200, (305, 30): 200, (237, 23): 200, (31, 31): 200, (2, 300): 200, (1, 200): 200,
    (2000, 1): 400, (1, 2000): 400, (9, 2000): 400, (2000, 9): 400, (1, 201): 400,
}  # fmt: skip
"""(height, width): status. Smaller than a patch cell grows; longer than 200 to 1 is refused by name."""


@pytest.mark.trio
async def test_b26_small_and_thin_pictures() -> None:
    async with live() as server:
        unit = server.model.preparer.preprocessor.factor  # type: ignore[attr-defined]
        assert sum(min(size) < unit for size in SIZES) >= 6, "the trap: smaller than a cell"
        for size, status in SIZES.items():
            response = await server.post(ask(url(encode(noise(*size))), "What?", max_tokens=2))
            assert response.status_code == status, (size, response.text)
            if status == 400:
                assert response.json()["error"]["param"] == "messages[0].content[0].image_url.url"
            await next_request_works(server)


@pytest.mark.parametrize("orientation", TURNS)
def test_b27_patches_are_those_of_the_upright_picture(orientation: int) -> None:
    """Rows, grid and digest; the grid of an asymmetric picture shows whether its size was read before turning."""
    upright = gradient(64, 160)
    expected = prepared(encode(upright))
    stored = np.ascontiguousarray(TURNS[orientation](upright))
    found = prepared(encode(stored, exif=exif(orientation)))
    assert found.grid == expected.grid == (8, 20)
    assert np.array_equal(found.patches, expected.patches) and found.digest == expected.digest
    if orientation != 1:
        ignored = prepared(encode(stored))
        assert ignored.digest != expected.digest, "the trap: untouched, it is another picture"
        assert (ignored.grid != expected.grid) == (orientation >= 5)


@pytest.mark.parametrize("orientation", TURNS)
def test_b27_jpeg_as_phones_write_them(orientation: int) -> None:
    """The turn of the decoded pixels, with the tag in a JPEG's first segment."""
    stored = Image.fromarray(np.ascontiguousarray(TURNS[orientation](gradient(64, 160))))
    plain = np.asarray(Image.open(_file(encode(stored, "JPEG", quality=90))).convert("RGB"))
    back = {6: 8, 8: 6}.get(orientation, orientation)
    expected = prepared(encode(np.ascontiguousarray(TURNS[back](plain))))
    found = prepared(encode(stored, "JPEG", quality=90, exif=exif(orientation)))
    assert found.grid == expected.grid == (8, 20)
    assert np.array_equal(found.patches, expected.patches)


def _file(data: bytes) -> Any:
    import io

    return io.BytesIO(data)


@pytest.mark.trio
async def test_b29_broken_metadata_changes_no_answer() -> None:
    """A cut EXIF segment, an eXIf chunk that is no TIFF, an orientation of 99: 200 and the answer without them."""
    value_99 = b"II*\0\x08\0\0\0" + struct.pack("<HHHII", 1, 0x0112, 3, 1, 99) + b"\0\0\0\0"
    broken = [b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03", b"this is no TIFF", value_99]
    jpeg, png = encode(gradient(40, 64), "JPEG", quality=90), encode(gradient(40, 64))
    references = await alone([ask(url(jpeg, "jpeg"), "What?"), ask(url(png), "What?")])
    turned = ask(url(encode(gradient(40, 64), exif=exif(6))), "What?")
    assert (await alone([turned])) != [references[1]], "the trap: metadata that is read changes the answer"
    async with live() as server:
        for block in broken:
            files = [
                (jpeg_with_app1(b"Exif\0\0" + block), "jpeg"),
                (png[:33] + png_chunk(b"eXIf", block) + png[33:], "png"),
            ]
            assert await server.all([ask(url(*file), "What?") for file in files]) == references


def test_b31_grid_is_height_by_width_all_the_way() -> None:
    """A 640x192 picture, patch 8: grid, span length and positions agree on which side is which."""
    data = encode(gradient(96, 320))
    image = prepared(data)
    assert image.grid == (12, 40)
    prompt = opened().prompts.build([{"role": "user", "content": [{"type": "image"}]}], [image])
    (span,) = prompt.spans
    t, h, w = prompt.positions[:, span.start : span.start + span.length]
    assert span.length == 120 and len(set(t)) == 1
    assert (h.max() - h.min() + 1, w.max() - w.min() + 1) == (6, 20)
    assert prompt.rope_delta == 20 - 120
    turned = opened().prompts.build(
        [{"role": "user", "content": [{"type": "image"}]}], [prepared(encode(gradient(320, 96)))]
    )
    assert turned.rope_delta == prompt.rope_delta and turned.spans == prompt.spans
    assert not np.array_equal(turned.positions, prompt.positions), "the trap: swapped sides show"


@pytest.mark.parametrize(
    ("height", "width", "target"),
    [
        (40, 4000, (64, 3968)),
        (4000, 40, (3968, 64)),
        (33, 31, (256, 256)),
        (1, 900, (32, 8192)),
    ],
)
def test_b32_extreme_shapes_at_their_own_targets(height: int, width: int, target: tuple[int, int]) -> None:
    """Both sides change, so that the two orders of the passes give different bytes."""
    pixels = noise(height, width, seed=height + width)
    found = resize(pixels, *target)
    assert np.array_equal(found, bicubic(pixels, *target))
    other = bicubic(pixels.transpose(1, 0, 2), target[1], target[0]).transpose(1, 0, 2)
    assert height == 1 or not np.array_equal(found, other), "the trap: the order of the passes shows"


@pytest.mark.trio
@pytest.mark.parametrize("name", BOMBS)
async def test_b33_bombs_are_400_at_once(name: str) -> None:
    async with live() as server:
        started = time.monotonic()
        response = await server.post(ask(url(BOMBS[name]), "What?"))
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == "messages[0].content[0].image_url.url"
        assert time.monotonic() - started < 2
        await next_request_works(server)


@pytest.mark.trio
async def test_b33_forty_pictures_are_refused_before_any_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    prepare = type(opened().prompts).prepare_image

    def counted(self: Any, data: bytes, *, field: str) -> PatchImage:
        decoded.append(field)
        return prepare(self, data, field=field)

    monkeypatch.setattr("luce.engines.qwen35.prompt.PromptBuilder.prepare_image", counted)
    async with live() as server:
        response = await server.post(ask(*[picture(n, 16, 16) for n in range(40)], "Compare"))
        assert response.status_code == 400 and response.json()["error"]["code"] == "too_many_images"
        assert decoded == []
        response = await server.post(ask(picture(1, 16, 16), "What?", max_tokens=2))
        assert response.status_code == 200 and len(decoded) == 1, "the trap: it counts"


def blank(side: int) -> bytes:
    """A valid picture of one shade, a few hundred bytes."""
    rows = zlib.compress((b"\0" * (1 + side // 8)) * side, 9)
    head = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
    return head + png_chunk(b"IDAT", rows) + png_chunk(b"IEND", b"")


@attrs.define
class CountingPreparer:
    """The real one; counts the bytes of patches it made."""

    inner: Any
    made: int = 0

    def prepare_image(self, data: bytes, *, field: str) -> PatchImage:
        image: PatchImage = self.inner.prepare_image(data, field=field)
        self.made += image.values.nbytes
        return image

    def image_tokens(self, data: bytes, *, field: str) -> int:
        count: int = self.inner.image_tokens(data, field=field)
        return count

    def build(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner.build(*args, **kwargs)


def test_b33_small_files_whose_patches_cannot_fit_the_context_are_not_all_expanded() -> None:
    """Sixteen files of some hundred bytes with the most pixels that the model takes: far over the context."""
    model = load_model(opened(1, 256))
    try:
        preparer = CountingPreparer(model.preparer)
        counting: LoadedModel = attrs.evolve(model, preparer=preparer)
        file = blank(256)
        one = model.preparer.prepare_image(file, field="x")
        assert one.num_tokens == 144 and one.values.nbytes > 50 * len(file), "the trap: it grows"
        body = json.dumps(ask(*[url(file)] * 16, "Compare")).encode()
        with pytest.raises(RequestError, match="context"):
            prepare_chat(body, counting, HttpOptions())
        assert preparer.made <= 3 * one.values.nbytes, f"{preparer.made} bytes from {16 * len(file)}"
    finally:
        model.engine.shutdown()


@pytest.mark.parametrize("size", [(32, 48), (1, 1), (160, 32), (31, 257), (700, 300), (2, 300)])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF"])
def test_b33_rows_counted_from_the_header_are_those_of_the_picture(kind: str, size: tuple[int, int]) -> None:
    """Also of a picture that its tag turns: a count that is too low would let it through, one too high refuse it."""
    plain = encode(Image.fromarray(noise(*size)).convert("P" if kind == "GIF" else "RGB"), kind)
    turned = encode(noise(*size), kind, exif=exif(6)) if kind in ("PNG", "JPEG", "WEBP") else plain
    for data in (plain, turned):
        assert opened().prompts.image_tokens(data, field="x") == prepared(data).num_tokens


def repacked(folder: Path, pad_id: int | None) -> Path:
    """The tiny model with the image pad in tokenizer_config.json alone, there under ``pad_id``."""
    shutil.copytree(model_folder(), folder)
    path, config_path = folder / "tokenizer.json", folder / "tokenizer_config.json"
    tokenizer, config = json.loads(path.read_text()), json.loads(config_path.read_text())
    pad = next(token for token in tokenizer["added_tokens"] if token["content"] == "<|image_pad|>")
    if pad_id is None:
        tokenizer["added_tokens"].remove(pad)
    else:
        entry = config["added_tokens_decoder"].pop(str(pad["id"]))
        config["added_tokens_decoder"][str(pad_id)] = entry
    path.write_text(json.dumps(tokenizer))
    config_path.write_text(json.dumps(config))
    return folder


@pytest.mark.trio
async def test_b36_a_pad_token_in_the_config_alone_serves_pictures(tmp_path: Path) -> None:
    body = ask(picture(1), "What?")
    (reference,) = await alone([body])
    folder = repacked(tmp_path / "repacked", None)
    found = open_model(folder, LoadOptions(slots=2, context=512, block_size=16, name="tiny"))
    assert found.tokenizer is not None
    assert '"<|image_pad|>"' not in (folder / "tokenizer.json").read_text(), "the trap"
    pad = found.tokenizer.special_ids["<|image_pad|>"]
    assert pad == found.config.image_token_id and found.tokenizer.decode([pad], False) == "<|image_pad|>"
    async with live(model=load_model(found)) as server:
        assert await server.all([body]) == [reference]


def test_b36_conflicting_ids_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="image_pad"):
        open_model(repacked(tmp_path / "moved", 300), LoadOptions(slots=1, context=64))
