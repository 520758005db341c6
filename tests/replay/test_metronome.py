"""The process that sends requests at their times, and the connections that wait for it."""

from __future__ import annotations

import errno
import gc
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs
import psutil
import pytest
import trio

from luce.replay.load import metronome as metronomes
from luce.replay.load.bodies import Writer
from luce.replay.load.fire import Limits, fire
from luce.replay.load.metronome import Metronome, metronome
from luce.replay.load.probe import probe
from luce.replay.load.request import LoadRequest
from luce.replay.load.target import parse_target
from luce.trace.traffic.request import TrafficRequest
from tests.http.peers import client_side, server_side
from tests.replay.scripted_server import Scripted, scripted

HOUR = 3600.0


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a connection, of which the first does not block."""
    mine, other = socket.socketpair()
    with mine, other:
        mine.setblocking(False)
        yield mine, other


def descriptors(process: int | str = "self") -> int:
    return len(list(Path(f"/proc/{process}/fd").iterdir()))


def senders() -> list[psutil.Process]:
    """Those of this process; it may have other children, servers of tests before."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # it has just ended
            if "luce.replay.load.sender" in child.cmdline():
                found.append(child)
    return found


def test_what_is_due_first_goes_first_and_never_too_early() -> None:
    async def both() -> list[tuple[float, float, int]]:
        found = []
        async with metronome() as beat, trio.open_nursery() as nursery:
            start = trio.current_time() + 0.1

            async def one(number: int) -> None:
                at = start + 0.02 * number
                with pair() as (mine, other):
                    when, taken = await beat.send(mine.fileno(), b"x" * (number + 1), at)
                    assert other.recv(100) == b"x" * taken
                found.append((at, when, taken))

            for number in (3, 0, 4, 1, 2):
                nursery.start_soon(one, number)
        return found

    found = trio.run(both)
    assert [taken for _, _, taken in found] == [1, 2, 3, 4, 5]
    assert all(when >= at for at, when, _ in found)


def test_more_than_the_system_takes_is_left_to_the_caller() -> None:
    async def ask() -> int:
        async with metronome() as beat:
            with pair() as (mine, _):
                _, first = await beat.send(mine.fileno(), b"x" * 10_000_000, trio.current_time())
                _, second = await beat.send(mine.fileno(), b"x", trio.current_time())
        assert second == 0, "full"
        return first

    assert 0 < trio.run(ask) < 10_000_000


def test_a_connection_that_is_gone_is_an_error_of_its_own() -> None:
    async def ask() -> None:
        async with metronome() as beat:
            with pair() as (mine, other):
                other.close()
                with pytest.raises(BrokenPipeError):
                    await beat.send(mine.fileno(), b"x", trio.current_time())
            with pair() as (mine, _):
                assert (await beat.send(mine.fileno(), b"x", trio.current_time()))[1] == 1

    trio.run(ask)


def test_without_descriptors_that_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(data: bytes) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def ask() -> None:
        async with metronome() as beat:
            with pair() as (mine, _):
                with monkeypatch.context() as full:
                    full.setattr(metronomes, "_in_memory", none)
                    with pytest.raises(OSError, match="Too many open files"):
                        await beat.send(mine.fileno(), b"x", trio.current_time())
                assert (await beat.send(mine.fileno(), b"x", trio.current_time()))[1] == 1

    trio.run(ask)


def test_where_the_sender_has_no_descriptors_that_one_fails() -> None:
    """It has room for two requests, and three come."""

    async def ask() -> list[str]:
        said = []
        async with metronome() as beat:
            (sender,) = senders()
            most = descriptors(sender.pid) + 4
            sender.rlimit(psutil.RLIMIT_NOFILE, (most, most))
            with pair() as (mine, other):

                async def one() -> None:
                    try:
                        await beat.send(mine.fileno(), b"x", trio.current_time() + 0.2)
                    except OSError as error:
                        said.append(str(error))

                async with trio.open_nursery() as nursery:
                    for _ in range(3):
                        nursery.start_soon(one)
                assert other.recv(10) == b"xx"
        return said

    assert trio.run(ask) == ["[Errno 24] Too many open files"]


def test_a_sender_that_dies_fails_all_that_waits_and_all_that_comes() -> None:
    async def ask() -> list[str]:
        said = []
        async with metronome() as beat:
            with pair() as (mine, _):
                async with trio.open_nursery() as nursery:

                    async def wait() -> None:
                        with pytest.raises(ProcessLookupError) as caught:
                            await beat.send(mine.fileno(), b"x", trio.current_time() + HOUR)
                        said.append(str(caught.value))

                    nursery.start_soon(wait)
                    nursery.start_soon(wait)
                    await trio.testing.wait_all_tasks_blocked(0.05)
                    senders()[0].kill()
                await wait()
        return said

    said = trio.run(ask)
    assert len(said) == 3 and all("the process that sends" in one for one in said)


def test_a_cancel_ends_it_at_once_and_leaves_nothing() -> None:
    async def ask() -> None:
        with trio.move_on_after(0.3) as scope:
            async with metronome() as beat, trio.open_nursery() as nursery:
                with pair() as (mine, _):
                    assert os.getsid(senders()[0].pid) != os.getsid(0), "not Ctrl-C's"
                    for _ in range(5):
                        nursery.start_soon(beat.send, mine.fileno(), b"x", trio.current_time() + HOUR)
                    await trio.sleep_forever()
        assert scope.cancelled_caught

    before = descriptors()
    trio.run(ask)
    assert descriptors() == before and not senders()


def load(server: Scripted, requests: list[LoadRequest], *, tls: bool = False) -> None:
    async def both() -> None:
        async with scripted(server, server_side() if tls else None):
            target = parse_target(server.url)
            if tls:
                target = attrs.evolve(target, tls=client_side())
            writer = Writer(await probe(target, None), 0, 256)
            tally = await fire(target, iter(requests), writer, Limits())
            assert tally.endings == {"finished": len(requests)}
            assert tally.late.count == len(requests)

    trio.run(both)


@pytest.mark.parametrize("tls", [False, True])
def test_every_request_goes_by_the_sender(monkeypatch: pytest.MonkeyPatch, tls: bool) -> None:
    sent: list[bytes] = []
    send = Metronome.send

    async def noted(beat: Metronome, where: int, data: bytes, at: float) -> tuple[float, int]:
        sent.append(data)
        return await send(beat, where, data, at)

    monkeypatch.setattr(Metronome, "send", noted)
    long = 200_000
    load(Scripted(), [LoadRequest(TrafficRequest(0.01 * n, (60, long)[n % 2], 2)) for n in range(4)], tls=tls)
    assert len(sent) == 4
    assert {one[:1] for one in sent} == {b"\x17" if tls else b"P"}, "application data, or POST"
    assert sum(len(one) > long for one in sent) == 2, "whole"


def test_a_load_leaves_the_interpreter_as_it_was() -> None:
    before = gc.get_freeze_count(), sys.getswitchinterval()
    load(Scripted(), [LoadRequest(TrafficRequest(0.0, 60, 2))])
    assert (gc.get_freeze_count(), sys.getswitchinterval()) == before
