"""Modelled times: on a thread, and on trio's clock without any real sleep. Encoding."""

import time

import numpy as np
import pytest
import trio
import trio.testing

from luce.engines.fake.checks import PlanError
from luce.engines.fake.engine import FakeEngine, Mode, fake_capabilities
from luce.engines.fake.pictures import make_picture
from luce.engines.fake.reference import encoded_rows, reference_tokens
from luce.engines.fake.times import Times
from luce.errors import DeviceError
from tests.engines.fake.harness import Driver, decode, prefill, text_spec

SPEC = text_spec([1, 2, 3])
SLOW = Times(step=10.0, row=1.0, patch=0.5)


def test_virtual_time() -> None:
    """Hours of modelled time at depth 2, in no time."""

    async def main() -> None:
        running = Driver(FakeEngine(mode=Mode.MANUAL, times=Times(step=3600.0, row=10.0)))
        running.open(0, SPEC)
        tokens, ends = [], []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.engine.drive)
            flights = [running.launch(prefill(0, 0, 3, sample=True)), running.launch(decode(0, 3))]
            for row in range(4, 8):
                ticket = flights.pop(0)
                await trio.lowlevel.wait_readable(ticket.fd)
                result = running.engine.collect(ticket)
                tokens.append(result.outcomes[0].tokens[0].token)
                ends.append((trio.current_time(), result.seconds))
                flights.append(running.launch(decode(0, row)))
            nursery.cancel_scope.cancel()
        assert tokens == reference_tokens(SPEC, 4)
        assert ends == [(3630, 3630), (7240, 3610), (10850, 3610), (14460, 3610)]

    started = time.monotonic()
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert time.monotonic() - started < 60


def test_virtual_time_of_encoding() -> None:
    async def main() -> None:
        engine = FakeEngine(mode=Mode.MANUAL, times=SLOW)
        started = trio.current_time()
        rows = await trio.to_thread.run_sync(engine.encode, make_picture(b"cat", (4, 6)))
        assert rows.shape == (6, 8)
        assert trio.current_time() - started == 12.0
        again = await engine.encode_async(make_picture(b"cat", (4, 6)))
        assert np.array_equal(rows, again)
        assert trio.current_time() - started == 24.0

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.01))


def test_real_time_on_the_thread() -> None:
    running = Driver(FakeEngine(mode=Mode.THREAD, times=Times(step=0.02, patch=0.001)))
    running.open(0, SPEC)
    started = time.monotonic()
    ticket = running.launch(prefill(0, 0, 3, sample=True))
    assert not ticket.done  # launch did not wait
    assert running.engine.in_flight == 1
    while not ticket.done:
        time.sleep(0.001)
    assert time.monotonic() - started >= 0.02
    assert running.engine.collect(ticket).seconds == 0.02
    running.engine.encode(make_picture(b"cat"))
    running.engine.shutdown()


def test_inline_is_done_at_once_whatever_the_times() -> None:
    running = Driver(FakeEngine(mode=Mode.INLINE, times=SLOW))
    running.open(0, SPEC)
    ticket = running.launch(prefill(0, 0, 3, sample=True))
    assert ticket.done
    assert running.engine.collect(ticket).seconds == 13.0
    running.engine.encode(make_picture(b"cat"))


def test_many_steps_on_the_thread_equal_the_reference() -> None:
    running = Driver(FakeEngine(mode=Mode.THREAD))
    running.open(0, SPEC)
    assert running.generate(0, SPEC, 200) == reference_tokens(SPEC, 200)
    running.engine.shutdown()


def test_encoding_is_a_function_of_the_digest() -> None:
    engine = FakeEngine(fake_capabilities(), mode=Mode.INLINE, hidden=5)
    rows = engine.encode(make_picture(b"cat", (4, 6)))
    assert rows.shape == (6, 5)
    assert rows.dtype == np.float32
    assert np.abs(rows).max() <= 1
    assert rows.std() > 0.3
    assert np.array_equal(rows, encoded_rows(make_picture(b"cat", (6, 4)), 5))
    names = [b"cat", b"dog", b"", b"a long name that ends in 1", b"a long name that ends in 2"]
    assert len({engine.encode(make_picture(name)).tobytes() for name in names}) == 5


def test_injected_encoding_failure() -> None:
    engine = FakeEngine(mode=Mode.INLINE)
    engine.fail_encode(b"cat", "no such luck")
    for _ in range(2):
        with pytest.raises(DeviceError, match="no such luck"):
            engine.encode(make_picture(b"cat"))
    engine.encode(make_picture(b"dog"))


def test_a_grid_that_is_not_the_patches() -> None:
    picture = make_picture(b"cat")
    with pytest.raises(PlanError, match="grid"):
        FakeEngine(mode=Mode.INLINE).encode(type(picture)(picture.patches, (4, 5), b"cat", 4))
