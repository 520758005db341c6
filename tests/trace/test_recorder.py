"""The recorder: files in turn, the bound on all of them, and what a full disk or a gap does."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from luce.errors import ConfigError, TraceFileError
from luce.trace.events import EventRecord, EventStream
from luce.trace.files import SUFFIX, Limits, TraceFiles, trace_files
from luce.trace.reader import FileStart, read_trace, trace_paths
from luce.trace.recorder import Recorder
from luce.trace.schema import (
    VERSION,
    Gap,
)
from tests.trace.recording import header, records_of
from tests.trace.sample_records import EMPTY, FLOWING


def noisy(stream: EventStream, count: int) -> None:
    for number in range(count):
        stream.observe(("request", f"request-{number}-{stream.next_number}", "token", 0, FLOWING))


def test_rotation_and_the_bound_on_all_files(tmp_path: Path) -> None:
    limits = Limits(40_000, 8_000)
    stream = EventStream(lambda: 1.0)
    (tmp_path / "not-ours.txt").write_bytes(bytes(100_000))
    recorder = Recorder(tmp_path, limits)
    recorder.attach(stream, header(charts={}, hashes={}), lambda: EMPTY)
    for _ in range(120):
        noisy(stream, 100)
        recorder.flush()
        assert sum(path.stat().st_size for path in trace_files(tmp_path)) <= limits.total + 2_000
    assert recorder.files is not None and recorder.files.total_bytes > 2 * limits.total
    recorder.close()
    paths = trace_paths([tmp_path])
    assert 2 < len(paths) < 8
    found = [item.seq for item in read_trace(paths) if isinstance(item, EventRecord)]
    assert found == list(range(found[0], stream.next_number)), "the newest ones, without a gap"
    assert (tmp_path / "not-ours.txt").exists()
    # A later run makes room among the files of an earlier one.
    again = Recorder(tmp_path, limits)
    again.attach(stream, header(charts={}, hashes={}, run="run2"), lambda: EMPTY)
    again.close()
    assert sum(path.stat().st_size for path in trace_files(tmp_path)) <= limits.total


def test_servers_in_one_directory_leave_each_others_running_files(tmp_path: Path) -> None:
    limits = Limits(40_000, 8_000)
    idle, busy = EventStream(lambda: 1.0), EventStream(lambda: 1.0)
    quiet = Recorder(tmp_path, limits)
    quiet.attach(idle, header(charts={}, hashes={}, run="idle"), lambda: EMPTY)
    noisy(idle, 5)
    quiet.flush()
    (running,) = trace_files(tmp_path)
    os.utime(running, (1, 1))  # the oldest one by far
    other = Recorder(tmp_path, limits)
    other.attach(busy, header(charts={}, hashes={}, run="busy"), lambda: EMPTY)

    def make_noise() -> None:
        for _ in range(60):
            noisy(busy, 100)
            other.flush()
        assert other.files is not None and other.files.total_bytes > limits.total
        other.files.total_bytes = 0
        assert sum(path.stat().st_size for path in trace_files(tmp_path)) <= limits.total + 4_000

    make_noise()
    assert running.exists(), "it is being written"
    noisy(idle, 5)
    quiet.close()
    assert [one.seq for one in records_of(running)] == list(range(10))
    os.utime(running, (1, 1))
    make_noise()
    assert not running.exists(), "nobody writes it any more"
    other.close()


def test_a_file_that_somebody_removes_is_told_and_the_next_one_begun(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream = EventStream(lambda: 1.0)
    recorder = Recorder(tmp_path, Limits(1 << 20))
    recorder.attach(stream, header(charts={}, hashes={}), lambda: EMPTY)
    for path in trace_files(tmp_path):
        path.unlink()
    noisy(stream, 5)
    recorder.flush()
    assert "is gone" in caplog.text
    noisy(stream, 5)
    recorder.close()
    (path,) = trace_files(tmp_path)
    assert [one.seq for one in records_of(path)] == list(range(5, 10))
    assert caplog.text.count("is gone") == 1


def test_what_is_no_file_in_a_directory_is_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"pipe{SUFFIX}")
    (tmp_path / f"nowhere{SUFFIX}").symlink_to(tmp_path / "nothing")
    (tmp_path / f"loop{SUFFIX}").symlink_to(tmp_path / f"loop{SUFFIX}")
    (tmp_path / f"folder{SUFFIX}").mkdir()
    with pytest.raises(TraceFileError, match="no trace is in this directory"):
        trace_paths([tmp_path])
    recorder = Recorder(tmp_path, Limits(1))
    recorder.attach(EventStream(lambda: 1.0), header(charts={}, hashes={}), lambda: EMPTY)
    recorder.close()
    assert [path.name for path in trace_paths([tmp_path])] == [f"run-000000{SUFFIX}"]
    assert len(list(tmp_path.iterdir())) == 5


def test_more_than_the_ring_holds_is_a_gap(tmp_path: Path) -> None:
    stream = EventStream(lambda: 1.0, keep=50)
    recorder = Recorder(tmp_path, Limits(1 << 20))
    recorder.attach(stream, header(charts={}, hashes={}), lambda: EMPTY)
    noisy(stream, 40)
    recorder.flush()
    noisy(stream, 70)
    recorder.flush()
    noisy(stream, 5)
    recorder.close()
    items = list(read_trace(trace_paths([tmp_path])))
    assert [item.seq for item in items if isinstance(item, EventRecord)] == [*range(40), *range(60, 115)]
    assert [item for item in items if isinstance(item, tuple) and len(item) == 3] == [(60, 1.0, Gap(20))]
    assert [item.header.first for item in items if isinstance(item, FileStart)] == [0, 110]


def test_a_full_disk_ends_the_trace_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream = EventStream(lambda: 1.0)
    recorder = Recorder(tmp_path, Limits(1 << 20), interval=0.01)

    async def main() -> None:
        recorder.attach(stream, header(charts={}, hashes={}), lambda: EMPTY)
        noisy(stream, 5)
        write = TraceFiles._write
        broken = OSError(errno.ENOSPC, "No space left on device")

        def full(self: TraceFiles, data: bytes) -> None:
            write(self, data[:7])
            raise broken

        monkeypatch.setattr(TraceFiles, "_write", full)
        with caplog.at_level(logging.WARNING):
            await recorder.run()  # ends by itself
        noisy(stream, 5)
        stream.detail(Gap, 3)
        assert not stream.detailed, "nobody wants details any more"
        recorder.close()

    trio.run(main)
    assert recorder.files is None
    assert caplog.text.count("the trace ends here") == 1 and "No space left on device" in caplog.text
    (path,) = trace_paths([tmp_path])
    warnings: list[str] = []
    list(read_trace([path], warnings))
    assert "breaks off" in warnings[0]


def test_what_came_is_on_disk_without_an_end(tmp_path: Path) -> None:
    """As after a crash: nothing is closed, and a reader beside the writer sees the same."""
    stream = EventStream(lambda: 1.0)
    recorder = Recorder(tmp_path, Limits(1 << 20), interval=0.25)

    async def main() -> None:
        recorder.attach(stream, header(charts={}, hashes={}), lambda: EMPTY)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(recorder.run)
            for _ in range(3):
                noisy(stream, 10)
                await trio.sleep(0.5)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(rate=2))
    assert len([item for item in read_trace(trace_paths([tmp_path])) if isinstance(item, EventRecord)]) == 30


def test_a_directory_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("nul\0")):
        with pytest.raises(ConfigError, match="--trace: "):
            Recorder(path, Limits(1))


def test_limits() -> None:
    assert attrs.evolve(Limits(100), total=40).file == 10
    assert Limits(1 << 40).file == 64 << 20
    assert VERSION == 1
