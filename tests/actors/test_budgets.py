"""Host memory on top of the memory plan: what is decided when nobody says."""

from __future__ import annotations

import pytest

from luce.actors import budgets
from luce.actors.budgets import IMAGE_BYTES, image_budget, park_budget, settled
from luce.actors.options import ServiceOptions
from luce.engines.fake.engine import fake_capabilities

FREE = 100 << 20


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "available_bytes", lambda: FREE)


def test_pictures_get_a_quarter_of_what_is_free_or_less(monkeypatch: pytest.MonkeyPatch) -> None:
    capabilities = fake_capabilities()
    assert image_budget(None, capabilities) == FREE // 4
    monkeypatch.setattr(budgets, "available_bytes", lambda: 8 * IMAGE_BYTES)
    assert image_budget(None, capabilities) == IMAGE_BYTES
    monkeypatch.setattr(budgets, "available_bytes", lambda: None)
    assert image_budget(None, capabilities) == 0, "the system does not say"
    assert (image_budget(0, capabilities), image_budget(7, capabilities)) == (0, 7)


def test_what_an_engine_cannot_do_takes_nothing() -> None:
    bare = fake_capabilities(images=False, snapshots=False, parking=False)
    asked = settled(ServiceOptions(image_bytes=5, prefix_bytes=6, park_bytes=7), bare)
    assert (asked.image_bytes, asked.prefix_bytes, park_budget(asked.park_bytes, bare)) == (0, 0, 0)


def test_settled_options_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    capabilities = fake_capabilities(bytes_per_snapshot=1000)
    options = settled(ServiceOptions(), capabilities)
    assert options.image_bytes == FREE // 4
    assert options.prefix_bytes == 32 * (1000 + 15 * 8)
    assert options.park_bytes is None, "looked up at every save"
    assert park_budget(None, capabilities) == FREE // 4
    monkeypatch.setattr(budgets, "available_bytes", lambda: 400)
    assert settled(options, capabilities) == options
    assert park_budget(None, capabilities) == 100
    assert park_budget(300, capabilities, taken=200) == 100
