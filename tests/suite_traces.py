"""Every service that a test runs, here or by `luce serve`, is recorded as `--trace` does, and its trace is checked.

Once the test is over, each of its traces is stepped again by the charts (`luce replay check`), and luce's actors are
led along it (`luce replay run`), which must do the same. The second takes as long as the test did, so one of
:data:`SHARE` traces, drawn by the test's name, and none of more than :data:`MOST` records, are led so; all of them with
``LUCE_TEST_RUN=all``, nothing with ``none``. Those of a test's own policy are not: luce's would decide otherwise.

A test that makes its own recorder, or says ``@pytest.mark.unrecorded``, is left alone.
"""

from __future__ import annotations

import inspect
import logging
import os
import shutil
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

SHARE = 12
"""One trace of so many."""
MOST = 6000
"""Records."""
WANTED = os.environ.get("LUCE_TEST_RUN", "share")
"""'share', 'all', or 'none': nothing is recorded."""
TWICE = "it starts, and has started before"
"""Two requests at once with one id, which a test may give them and no server does: `check` cannot tell them apart."""


@attrs.define
class Recorded:
    service: Any
    recorder: Any
    path: Path
    test: str


@attrs.define
class Suite:
    folder: Path = attrs.field(factory=lambda: Path(tempfile.mkdtemp(prefix="luce-traces-")))
    test: str = ""
    wanted: bool = False
    open: list[Recorded] = attrs.field(factory=list)
    made: int = 0
    counts: Counter[str] = attrs.field(factory=Counter)

    def new_folder(self) -> Path:
        self.made += 1
        return self.folder / str(self.made)

    def install(self) -> None:
        from luce.actors.service import Service

        init = Service.__init__
        signature = inspect.signature(init)

        def recorded(service: Service, *args: Any, **kwargs: Any) -> None:
            given = signature.bind(service, *args, **kwargs).arguments
            if not self.wanted or given.get("recorder") is not None or given.get("outside") is not None:
                init(service, *args, **kwargs)
                return
            from tests.trace.recording import StepRecorder

            path = self.new_folder()
            recorder = StepRecorder(path)
            given["recorder"] = recorder
            self.open.append(Recorded(service, recorder, path, self.test))
            init(*(given.pop("self"),), **given)

        Service.__init__ = recorded  # type: ignore[method-assign]

    def judge(self) -> list[str]:
        """What is wrong with traces of services that are over."""
        found = []
        for one in list(self.open):
            service = one.service
            if (
                one.recorder.files is not None
                and service.events.next_number
                and not service._stopped.is_set()
            ):
                continue  # a fixture's, which other tests go on with
            self.open.remove(one)
            one.recorder.close()
            if service.events.next_number:
                found += self.faults(one.path, one.test)
            shutil.rmtree(one.path, ignore_errors=True)
        return found

    def faults(self, folder: Path, test: str) -> list[str]:
        """What is wrong with the trace in ``folder``."""
        return [f"{test}: {said}" for said in self._faults(folder, test)]

    def _faults(self, folder: Path, test: str) -> Iterator[str]:
        from luce.errors import ConfigError
        from luce.replay.check import Checker, first_divergence
        from luce.replay.redrive.driver import drive
        from luce.replay.redrive.script import script_of
        from luce.trace.reader import read_header, read_trace, trace_paths

        paths, warnings = trace_paths([folder]), list[str]()
        checker = Checker(None)
        parted = first_divergence(read_trace(paths, warnings), checker)
        self.counts["traces checked"] += 1
        self.counts["records checked"] += checker.checked
        if parted is not None and parted.record.machine == "request" and parted.why == TWICE:
            self.counts["no further, for two requests of one id"] += 1
            return
        if parted is not None:
            yield f"luce replay check: {parted}"
            return
        drawn = zlib.crc32(test.encode()) % SHARE == 0 and checker.checked <= MOST
        if not (drawn or WANTED == "all"):
            return
        header = read_header(paths[0]).header
        logging.disable(logging.CRITICAL)  # what failed then fails again, and was logged then
        try:
            found = drive(header, script_of(read_trace(paths)), read_trace(paths))
        except ConfigError as error:
            if "with a policy of its own" not in str(error):
                yield f"luce replay run: {error}"
            self.counts["not run, of tests' policies"] += 1
            return
        finally:
            logging.disable(logging.NOTSET)
        if found.parted is not None:
            yield f"luce replay run: {found.parted}"
        self.counts["traces run"] += 1
        self.counts["records run"] += found.records


suite = Suite()


def pytest_configure(config: pytest.Config) -> None:
    suite.install()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    suite.test = item.nodeid
    suite.wanted = WANTED != "none" and item.get_closest_marker("unrecorded") is None
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[Any]:
    result = yield
    if found := suite.judge():
        pytest.fail("\n".join(found), pytrace=False)
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    shutil.rmtree(suite.folder, ignore_errors=True)
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["traces"] = dict(suite.counts)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker process of pytest-xdist has ended."""
    suite.counts.update(getattr(node, "workeroutput", {}).get("traces", {}))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if suite.counts:
        said = ", ".join(f"{count:,} {what}" for what, count in sorted(suite.counts.items()))
        terminalreporter.write_line(f"traces of services in tests: {said}")
