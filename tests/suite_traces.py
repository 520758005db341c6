"""Every service that a test runs, here or by `luce serve`, is recorded as `--trace` does, and its trace is checked.

Once the test is over, each of its traces is stepped again by the charts (`luce replay check`), and luce's actors are
led along it (`luce replay run`), which must do the same. The second takes as long as the test did, so it ends behind
:data:`MOST` records; with ``LUCE_TEST_RUN=all`` it goes to the end of each (`make test-traces`), and with ``none``
nothing is recorded at all. Where a test has a policy of its own, that one decides again, or the trace, if it depends on
more than it was given.

What is not led is counted, with its reason; the counts stand at the end of what pytest says.

A test that makes its own recorder, or says ``@pytest.mark.unrecorded``, is left alone. Of a test that says
``@pytest.mark.independent(STEPS)``, so many steps of each trace are asked of python-statemachine too.
"""

from __future__ import annotations

import copy
import inspect
import logging
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest

if TYPE_CHECKING:
    from luce.trace.reader import Item

MOST = 4000
"""Records of each trace that actors are led along, unless all are wanted."""
WANTED = os.environ.get("LUCE_TEST_RUN", "some")
"""'some', 'all', or 'none': nothing is recorded."""


@attrs.define
class Recorded:
    service: Any
    recorder: Any
    path: Path
    test: str
    policy: Any
    """As it was before it decided anything."""
    independent: int
    """Steps that python-statemachine is asked about."""


@attrs.define
class Suite:
    folder: Path = attrs.field(factory=lambda: Path(tempfile.mkdtemp(prefix="luce-traces-")))
    test: str = ""
    wanted: bool = False
    independent: int = 0
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
            policy = copy.deepcopy(given.get("policy"))
            self.open.append(Recorded(service, recorder, path, self.test, policy, self.independent))
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
                found += self.faults(one.path, one.test, one.policy, one.independent)
            shutil.rmtree(one.path, ignore_errors=True)
        return found

    def faults(self, folder: Path, test: str, policy: Any = None, independent: int = 0) -> list[str]:
        """What is wrong with the trace in ``folder``.

        Args:
            policy: what decided in its server, if that was not luce's.
            independent: steps that python-statemachine is asked about too.
        """
        return [f"{test}: {said}" for said in self._faults(folder, test, policy, independent)]

    def _faults(self, folder: Path, test: str, policy: Any, independent: int) -> Iterator[str]:
        from luce.demo.matrix.parking import ParkingPolicy
        from luce.errors import ConfigError
        from luce.replay.check import Checker, first_divergence
        from luce.replay.independent import Voice
        from luce.replay.redrive.driver import drive
        from luce.replay.redrive.script import script_of
        from luce.trace.reader import read_header, read_trace, trace_paths

        paths = trace_paths([folder])
        kept: list[Item] = []
        header = read_header(paths[0]).header
        voice = Voice(header.charts, independent, whole=False) if independent else None
        checker = Checker(voice)
        parted = first_divergence(_keeping(read_trace(paths), kept), checker)
        self.counts["traces checked"] += 1
        self.counts["records checked"] += checker.checked
        if voice is not None:
            self.counts["steps checked by python-statemachine"] += voice.checked
        if parted is not None:
            yield f"luce replay check: {parted}"
            return
        told = isinstance(
            policy, ParkingPolicy
        )  # from outside, which request it is about; no trace holds that
        if told:
            self.counts["traces run with their own plans"] += 1
        logging.disable(logging.CRITICAL)  # what failed then fails again, and was logged then
        try:
            theirs = policy if header.policy and not told else None
            found = drive(header, script_of(kept), kept, theirs, recorded_plans=told)
        except ConfigError as error:
            yield f"luce replay run: {error}"
            return
        finally:
            logging.disable(logging.NOTSET)
        if found.parted is not None:
            yield f"luce replay run: {found.parted}"
        self.counts["traces run" if found.records == checker.checked else "traces run in part"] += 1
        self.counts["records run"] += found.records


def _keeping(items: Iterable[Item], kept: list[Item]) -> Iterator[Item]:
    """The same items; those that actors are led along are put into ``kept`` too, and read once so."""
    from luce.trace.events import EventRecord

    records = 0
    for item in items:
        if WANTED == "all" or records < MOST:
            kept.append(item)
            records += isinstance(item, EventRecord)
        yield item


suite = Suite()


def pytest_configure(config: pytest.Config) -> None:
    suite.install()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    suite.test = item.nodeid
    suite.wanted = WANTED != "none" and item.get_closest_marker("unrecorded") is None
    marker = item.get_closest_marker("independent")
    suite.independent = 0 if marker is None else marker.args[0]
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
