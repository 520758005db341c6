"""The pictures of a request that has ended are free memory at once, not at the garbage collector's next full round; so
are their rows, but for those that the image cache keeps."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from luce.actors.service import Service
from luce.engines.fake.engine import FakeEngine
from luce.errors import DeviceError
from tests.actors.harness import ask, read, serving, settled

pytestmark = [pytest.mark.trio, pytest.mark.unrecorded]  # a recorder holds on to them for a while


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def answered(service: Service, until: int | None) -> list[weakref.ref[Any]]:
    """A request with two pictures, read to its end; references to the large things it held."""
    submission = ask(3, tokens=6, images=2)
    held: list[weakref.ref[Any]] = [weakref.ref(image) for image in submission.images]
    held += [weakref.ref(image.values) for image in submission.images]
    handle = service.submit(submission)
    (request,) = service.requests.values()
    del submission
    spec = request.spec
    del request
    failed = (await read(handle, until)).end.error is not None
    rows = [row for row in spec.image_rows if row is not None]
    assert len(rows) == 2 or failed
    held += map(weakref.ref, rows)
    del rows, handle, spec
    await settled(service)
    return held


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("image_bytes", [0, 1 << 20])
@pytest.mark.parametrize("end", ["finished", "cancelled", "failed"])
async def test_pictures_are_let_go(end: str, image_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    if end == "failed":

        def fail(image: object) -> None:
            raise DeviceError("no such picture")

        monkeypatch.setattr(engine, "encode", fail)
    async with serving(engine, image_bytes=image_bytes) as service:
        held = await answered(service, 2 if end == "cancelled" else None)
        rows = 0 if end == "failed" else 2
        assert len(held) == 4 + rows
        kept = rows if image_bytes else 0
        assert [one() is None for one in held] == [True] * (len(held) - kept) + [False] * kept
