"""`luce serve --trace`: what a real server records, also when it is killed, is checked and shown."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from luce.replay.check import Checker, first_divergence
from luce.trace.events import EventRecord
from luce.trace.reader import FileStart, read_header, read_trace, trace_paths
from luce.trace.schema import Arrival, Encoded, Landed, Planned, Refused
from tests.e2e.server import LUCE, ServerProcess, serving, until
from tests.e2e.test_serve import body, picture, post, url

SECRET = "Nobody may read this in a trace"


def use(server: ServerProcess) -> None:
    """Pictures, a cached prefix, a client that goes away, one that is refused."""
    post(server, body(SECRET, url(picture(32, 32)), max_tokens=5)).raise_for_status()
    post(server, body(SECRET, url(picture(32, 32)), max_tokens=6)).raise_for_status()
    assert post(server, body("Hi", max_tokens=100_000)).status_code == 400

    def leave() -> None:
        with server.http() as client:
            request = body("Tell me", max_tokens=400, stream=True)
            with client.stream("POST", "/v1/chat/completions", json=request) as answer:
                next(answer.iter_bytes())

    tasks = [threading.Thread(target=leave) for _ in range(4)]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()


def read(path: Path) -> tuple[Checker, Counter[str], Counter[type]]:
    checker, events, details = Checker(), Counter[str](), Counter[type]()
    paths = trace_paths([path])
    assert first_divergence(read_trace(paths, []), checker) is None
    for item in read_trace(paths, []):
        if isinstance(item, EventRecord):
            events[f"{item.machine} {item.event}"] += 1
        elif not isinstance(item, FileStart):
            details[type(item[2])] += 1
    return checker, events, details


def test_a_server_that_ends_in_order(tiny_model: Path, tmp_path: Path) -> None:
    with serving(tiny_model, "--slots", "2", "--context", "1024", "--trace", str(tmp_path)) as server:
        use(server)
        server.signal()
        assert server.wait(30) == 0
    checker, events, details = read(tmp_path)
    assert events["server drained"] == 1, "to the very end"
    assert (
        events["request cancel"] >= 1 and events["request (start)"] == 6 and events["prefix_entry lock"] >= 1
    )
    assert details[Arrival] == 6 and details[Encoded] >= 1 and details[Planned] and details[Landed]
    assert checker.by_machine["block"] >= 2
    start = read_header(trace_paths([tmp_path])[0])
    assert start.header.fingerprint and start.header.versions["luce"] and not start.header.content
    assert start.header.options["depth"] == 1 and start.header.capabilities["num_slots"] == 2
    said = subprocess.run(
        [*LUCE, "replay", "check", str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert said.returncode == 0 and "records follow from their charts" in said.stdout and not said.stderr


def test_a_server_that_is_killed(tiny_model: Path, tmp_path: Path) -> None:
    """What was written a second before is there."""
    with serving(tiny_model, "--slots", "2", "--context", "1024", "--trace", str(tmp_path)) as server:
        post(server, body("Hi", max_tokens=5)).raise_for_status()
        until(lambda: read(tmp_path)[1]["request retired"] == 1, 20)  # while it is written
        use(server)
        until(lambda: read(tmp_path)[1]["request retired"] == 7, 20)
        server.signal(signal.SIGKILL)
        server.wait(10)
    _, events, details = read(tmp_path)
    assert events["request (start)"] == details[Arrival] == 7 and events["server drained"] == 0


def replay(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*LUCE, "replay", *arguments], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("end", ["in order", "killed"])
def test_what_was_recorded_with_content_happens_again(end: str, tiny_model: Path, tmp_path: Path) -> None:
    """The actors do the same, and the engine says the same, in another company."""
    flags = ("--slots", "2", "--context", "1024", "--depth", "2", "--trace", str(tmp_path), "--trace-content")
    with serving(tiny_model, *flags) as server:
        use(server)
        until(lambda: read(tmp_path)[1]["request retired"] == 6, 20)
        server.signal(signal.SIGTERM if end == "in order" else signal.SIGKILL)
        server.wait(30)
    said = replay("run", str(tmp_path))
    assert said.returncode == 0 and said.stdout.endswith("launches: the actors do the same\n"), said
    said = replay("exact", str(tmp_path), str(tiny_model), "--slots", "3", "--prefill", "5")
    assert said.returncode == 0 and said.stdout.endswith("tokens: every one is equal\n"), said


def test_without_content_the_actors_do_the_same_and_no_token_is_compared(
    tiny_model: Path, tmp_path: Path
) -> None:
    with serving(tiny_model, "--slots", "2", "--context", "1024", "--trace", str(tmp_path)) as server:
        use(server)
        server.signal()
        server.wait(30)
    assert read(tmp_path)[1]["prefix_entry lock"], "which prompts begin alike matters"
    said = replay("run", str(tmp_path))
    assert said.returncode == 0 and said.stdout.endswith("launches: the actors do the same\n"), said
    said = replay("exact", str(tmp_path))
    assert said.returncode == 2 and "TRACE: it has no content" in said.stderr, said


def test_content_is_recorded_when_it_is_asked_for(tiny_model: Path, tmp_path: Path) -> None:
    flags = ("--slots", "2", "--context", "1024", "--trace")
    found: dict[str, list[Arrival]] = {}
    for name, more in (("without", ()), ("with", ("--trace-content",))):
        with serving(tiny_model, *flags, str(tmp_path / name), *more) as server:
            usage = post(server, body(SECRET, url(picture(32, 32)), max_tokens=5, stop="zzz")).json()["usage"]
            server.signal()
            server.wait(30)
        items = list(read_trace(trace_paths([tmp_path / name])))
        details = [item[2] for item in items if not isinstance(item, EventRecord | FileStart)]
        found[name] = [one for one in details if isinstance(one, Arrival)]
        sampled = [one.sampled for one in details if isinstance(one, Landed)]
        assert not any(isinstance(one, Refused) for one in details)
        assert all(one is None for one in sampled) == (name == "without")
        if name == "with":
            assert (
                sum(len(tokens) for step in sampled for _, tokens in step or ()) == usage["completion_tokens"]
            )
    (bare,), (full,) = found["without"], found["with"]
    assert (bare.prompt_digest, bare.prompt_tokens) == (full.prompt_digest, full.prompt_tokens)
    assert bare.token_ids is None and bare.pictures[0].values is None and bare.stops == full.stops == 1
    assert full.token_ids is not None and full.stop_strings == ("zzz",)
    assert len(np.frombuffer(full.token_ids, "<i4")) == full.prompt_tokens == usage["prompt_tokens"]
    assert full.pictures[0].values and full.pictures[0].digest == bare.pictures[0].digest
