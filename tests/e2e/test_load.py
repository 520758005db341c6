"""Crowds against a real process: nothing is lost or mixed up, and clients that leave leave nothing behind."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest
import trio

from benchmarks.crowds import POINTS, ask_all, at_rest, come_and_go, question
from tests.e2e.server import ServerProcess, serving


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with serving(None, "--slots", "4", "--queue", "12", "--log-level", "warning") as server:
        yield server


def test_a_crowd_that_streams_gets_what_each_gets_alone(server: ServerProcess) -> None:
    """40 clients on 4 slots and a queue of 12: whoever is refused comes again when it is told to."""
    questions = {number: question(number, 24) for number in range(40)}

    async def run() -> None:
        together = await ask_all(server.url, questions)
        assert together.refusals > 0, "the queue was never full"
        alone = await ask_all(server.url, questions, at_once=1)
        assert alone.refusals == 0
        assert len(set(alone.answers.values())) > 20, "the answers do not tell the clients apart"
        assert together.answers == alone.answers

    trio.run(run)


def test_clients_that_leave_anywhere_leave_nothing_behind(server: ServerProcess) -> None:
    pid = server.process.pid

    async def run() -> None:
        await come_and_go(server.url, 25, 5)
        before = await at_rest(server.url, pid, lambda now: not now.requests)
        left = await come_and_go(server.url, 300, 30)
        assert left == dict.fromkeys(POINTS, 60)
        after = await at_rest(
            server.url,
            pid,
            lambda now: not now.requests and now.files <= before.files and now.tasks <= before.tasks,
        )
        assert (after.requests, after.slots, after.blocks) == (0, 0, 0)
        assert after.files <= before.files and after.tasks <= before.tasks

    trio.run(run)


def test_there_is_one_process(server: ServerProcess) -> None:
    """Hypercorn's own way to serve starts another one, which signals and reports do not reach."""
    assert psutil.Process(server.process.pid).children(recursive=True) == []
