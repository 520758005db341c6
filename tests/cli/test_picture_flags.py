"""Flags about pictures: what they become, what is refused, and what the memory plan makes of them."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from luce.cli.picture_flags import PictureFlags
from luce.engines import load_model as loading
from luce.engines.load_model import LoadOptions, OpenedModel, demo_model, open_model
from luce.errors import ConfigError
from luce.http.image_sources.hosts import HostRule
from luce.http.image_sources.options import ImageSourceOptions
from luce.http.options import HttpOptions
from luce.vision.decode import DECODE_BYTES, MAX_PIXELS


def test_without_flags_nothing_changes() -> None:
    """And nothing is fetched."""
    options = PictureFlags().http(HttpOptions())
    assert options == HttpOptions() and options.image_sources == ImageSourceOptions()
    assert options.image_sources.hosts == () and options.image_sources.folder is None


def test_what_flags_become(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pictures").mkdir()
    flags = PictureFlags(
        max_images=3,
        max_image=1000,
        max_total_image=2000,
        max_total_pixels=5,
        fetch_images=True,
        image_host=("Example.org", "*.example.net:8443", "example.org"),
        fetch_private=True,
        fetch_timeout=2.5,
        image_folder=Path("pictures"),
    )
    found = flags.http(HttpOptions(port=7))
    assert (found.port, found.max_images, found.max_image_bytes, found.max_total_pixels) == (7, 3, 1000, 5)
    assert found.image_sources == ImageSourceOptions(
        hosts=(HostRule("example.org"), HostRule("*.example.net", 8443)),
        private=True,
        timeout=2.5,
        folder=tmp_path / "pictures",
        max_total_bytes=2000,
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fetch_images": True}, "--fetch-images: name the hosts"),
        ({"image_host": ("example.org",)}, "--image-host: nothing is fetched without --fetch-images"),
        ({"fetch_private": True}, "--fetch-private: nothing is fetched without --fetch-images"),
        (
            {"fetch_images": True, "image_host": ("https://x.org/",)},
            "--image-host: 'https://x.org/' is no host; write",
        ),
        ({"image_folder": Path("/none/here")}, "--image-folder: /none/here is no folder"),
        ({"image_folder": Path(__file__)}, "--image-folder: .* is no folder"),
        ({"max_total_image": 999, "max_image": 1000}, "--max-total-image: 999 bytes do not hold"),
    ],
)
def test_what_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{said}"):
        attrs.evolve(PictureFlags(), **changes).http(HttpOptions())  # type: ignore[arg-type]


def opened(free: int | None, monkeypatch: pytest.MonkeyPatch, **options: object) -> OpenedModel:
    monkeypatch.setattr(loading, "available_bytes", lambda: free)
    given = LoadOptions(slots=1, context=256, **options)  # type: ignore[arg-type]
    return open_model(demo_model(), given, fitting=False)


def test_decoding_is_in_the_memory_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    before = opened(None, monkeypatch)
    assert "decoding" not in before.plan.request_parts
    for workers, pixels in ((2, None), (3, 12_345_678)):
        found = opened(None, monkeypatch, decoding_workers=workers, max_image_pixels=pixels)
        most = pixels or MAX_PIXELS
        assert found.decode_limits.max_pixels == found.prompts.limits.max_pixels == most
        assert found.plan.serving - before.plan.serving == workers * most * DECODE_BYTES
        assert any(line.startswith("decoding ") for line in found.plan.lines())


def test_the_default_is_what_the_machine_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    GB = 1 << 30
    plan = opened(None, monkeypatch).plan
    for free, pixels in (
        (64 * GB, MAX_PIXELS),
        (4 * GB, GB // (2 * DECODE_BYTES)),
        (plan.serving + 40_000_000, 40_000_000 // (2 * DECODE_BYTES)),
        (1000, 1_000_000),
    ):
        assert opened(free, monkeypatch, decoding_workers=2).decode_limits.max_pixels == pixels, free
    allowed = opened(64 * GB, monkeypatch, decoding_workers=2, max_memory=plan.serving + 40_000_000)
    assert allowed.decode_limits.max_pixels == 1_250_000
    loading.check_fits(allowed.config, allowed.plan, plan.serving + 40_000_000)
    asked = opened(64 * GB, monkeypatch, decoding_workers=2, max_image_pixels=MAX_PIXELS)
    assert asked.decode_limits.max_pixels == MAX_PIXELS
    with pytest.raises(ConfigError, match="--max-memory"):
        loading.check_fits(asked.config, asked.plan, plan.serving + 40_000_000)


def test_the_largest_file_is_the_decoders_too(monkeypatch: pytest.MonkeyPatch) -> None:
    options = PictureFlags(max_image=99_000_000, max_total_image=99_000_000).load(LoadOptions(), 2)
    assert options.max_image_bytes == 99_000_000 and options.decoding_workers == 2
    assert opened(None, monkeypatch, max_image_bytes=99_000_000).prompts.limits.max_bytes == 99_000_000
