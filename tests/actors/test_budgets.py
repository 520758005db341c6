"""Host memory on top of the memory plan: what is decided when nobody says."""

from __future__ import annotations

from luce.actors.budgets import IMAGE_BYTES, image_budget, park_budget, prefix_budget, settled
from luce.actors.free_memory import FreeMemory, machine_memory
from luce.actors.options import ServiceOptions
from luce.compute.host_memory import available_bytes
from luce.engines.fake.engine import fake_capabilities

FREE = 100 << 20


def free_of(found: int | None, asked: list[str] | None = None) -> FreeMemory:
    def free(use: str) -> int | None:
        if asked is not None:
            asked.append(use)
        return found

    return free


def test_pictures_get_a_quarter_of_what_is_free_or_less() -> None:
    capabilities = fake_capabilities()
    assert image_budget(None, capabilities, free_of(FREE)) == FREE // 4
    assert image_budget(None, capabilities, free_of(8 * IMAGE_BYTES)) == IMAGE_BYTES
    assert image_budget(None, capabilities, free_of(None)) == 0, "the system does not say"
    assert (image_budget(0, capabilities), image_budget(7, capabilities)) == (0, 7)


def test_what_an_engine_cannot_do_takes_nothing() -> None:
    bare = fake_capabilities(images=False, snapshots=False, parking=False)
    asked = settled(ServiceOptions(image_bytes=5, prefix_bytes=6, park_bytes=7), bare)
    assert (asked.image_bytes, asked.prefix_bytes, park_budget(asked.park_bytes, bare)) == (0, 0, 0)


def test_settled_options_stay_as_they_are() -> None:
    capabilities = fake_capabilities(bytes_per_snapshot=1000)
    options = settled(ServiceOptions(), capabilities, free_of(FREE))
    assert options.image_bytes == FREE // 4
    assert options.prefix_bytes == 32 * (1000 + 15 * 8)
    assert options.park_bytes is None, "looked up at every save"
    assert park_budget(None, capabilities, free=free_of(FREE)) == FREE // 4
    assert settled(options, capabilities, free_of(400)) == options
    assert park_budget(None, capabilities, free=free_of(400)) == 100
    assert park_budget(300, capabilities, taken=200) == 100


def test_the_machine_is_only_asked_for_what_nobody_said() -> None:
    capabilities = fake_capabilities()
    asked: list[str] = []
    free = free_of(FREE, asked)
    for given, uses in (5, []), (None, ["park", "prefix", "image"]):
        park_budget(given, capabilities, free=free)
        prefix_budget(given, capabilities, free)
        image_budget(given, capabilities, free)
        assert asked == uses


def test_by_default_it_is_the_machine_s() -> None:
    found, now = machine_memory("park"), available_bytes()
    assert found is not None and now is not None
    assert abs(found - now) < now / 2
