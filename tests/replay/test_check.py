"""`luce replay check` finds the record at which a trace stops following from its charts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from luce.charts.interpreter import outcomes
from luce.charts.loader import load_chart
from luce.errors import TraceFileError
from luce.replay.check import CONTEXT, Checker, charts_of, first_divergence
from luce.replay.independent import Voice
from luce.trace.events import ANY, EventRecord, Range
from luce.trace.files import Limits
from luce.trace.reader import FileStart, Item
from luce.trace.schema import Gap, LiveMachine, Snapshot
from tests.sim import simulator
from tests.sim.crowd import serve_crowd
from tests.trace.recording import StepRecorder, header, items_of


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> list[Item]:
    """A small crowd, in one file."""
    path = tmp_path_factory.mktemp("trace")
    serve_crowd(3, 15, depth=2, trace=path)
    return items_of(path)


def numbered(trace: list[Item]) -> list[int]:
    return [place for place, item in enumerate(trace) if isinstance(item, EventRecord)]


def record_at(trace: list[Item], place: int) -> EventRecord:
    item = trace[place]
    assert isinstance(item, EventRecord)
    return item


def test_a_whole_trace_follows(trace: list[Item]) -> None:
    checker = Checker()
    assert first_divergence(trace, checker) is None
    assert checker.checked == len(numbered(trace)) > 900
    assert set(checker.by_machine) == {"request", "loop", "encoder", "server", "block", "prefix_entry"}


@given(data=st.data(), kind=st.sampled_from(["removed", "swapped", "doubled"]))
@settings(max_examples=200, deadline=None)
def test_records_that_are_not_in_their_order(trace: list[Item], data: st.DataObject, kind: str) -> None:
    places = numbered(trace)
    number = data.draw(st.integers(0, len(places) - 2))
    place, following = places[number], places[number + 1]
    changed = list(trace)
    if kind == "removed":
        del changed[place]
        caught = record_at(trace, following)
    elif kind == "swapped":
        changed[place], changed[following] = changed[following], changed[place]
        caught = record_at(trace, following)
    else:
        changed.insert(following, changed[place])
        caught = record_at(trace, place)
    found = first_divergence(changed, Checker())
    assert found is not None and found.record == caught


ALTERED: dict[str, Callable[[EventRecord, st.DataObject], EventRecord]] = {
    "event": lambda one, data: one._replace(
        event=data.draw(st.sampled_from(sorted(load_chart(one.machine).events - {one.event})))
    ),
    "guards": lambda one, data: one._replace(
        guards=one.guards ^ 1 << data.draw(st.integers(0, len(load_chart(one.machine).guard_order)))
    ),
    "configuration": lambda one, data: one._replace(
        configuration=one.configuration[:-1]
        if data.draw(st.booleans())
        else (*one.configuration, data.draw(st.sampled_from(load_chart(one.machine).states)))
    ),
    "id": lambda one, data: one._replace(id="nobody"),
    "machine": lambda one, data: one._replace(machine="nothing"),
}


@given(data=st.data(), kind=st.sampled_from(sorted(ALTERED)))
@settings(max_examples=400, deadline=None)
def test_records_that_were_altered(trace: list[Item], data: st.DataObject, kind: str) -> None:
    """At the record. Not what leads to the same place either way: that no chart can tell, only the check values in the
    file (tests/trace/test_tampered_traces.py)."""
    places = [
        place
        for place in numbered(trace)
        if record_at(trace, place).machine in ("request", "loop", "encoder", "server")
        and record_at(trace, place).event != "(start)"
    ]
    place = data.draw(st.sampled_from(places))
    good = record_at(trace, place)
    bad = ALTERED[kind](good, data)
    assume(bad != good)
    found = first_divergence([*trace[:place], bad, *trace[place + 1 :]], Checker())
    if kind in ("id", "machine", "configuration"):
        assert found is not None and found.record == bad
        return
    if found is None:
        # Then the chart allows it here, and it leads to the same place.
        checker = Checker()
        assert first_divergence(trace[:place], checker) is None
        here = checker._live[good.machine, good.id].here
        ways = [outcome.then for _, outcome in outcomes(here, bad.event) if outcome.then is not None]
        assert good.configuration in [then.states for then in ways]
        assert kind == "event" or len(ways) > 1, "a bit that no guard asks for"
    else:
        assert found.record == bad, "nothing before it was wrong, and it led where the trace goes on"


def test_altered_ranges_and_entries(trace: list[Item]) -> None:
    ranges = [place for place in numbered(trace) if record_at(trace, place).id == ANY]
    entries = [place for place in numbered(trace) if record_at(trace, place).machine == "prefix_entry"]
    assert len(ranges) > 50 and len(entries) > 20
    for place in ranges[::7]:
        good = record_at(trace, place)
        ids, bits, after = good.value
        wrong = after.copy()
        wrong[-1] = (wrong[-1] + 1) % 5
        for bad in (
            good._replace(value=Range(ids, bits, wrong)),
            good._replace(value=Range(ids + 10_000, bits, after)),
            good._replace(event="evict" if good.event != "evict" else "alloc"),
            good._replace(event="nonsense"),
            good._replace(value=None),
        ):
            found = first_divergence([*trace[:place], bad, *trace[place + 1 :]], Checker())
            assert found is not None and found.record.seq == bad.seq
    for place in entries[::5]:
        good = record_at(trace, place)
        bad = good._replace(event="filled" if good.event != "filled" else "unlock")
        found = first_divergence([*trace[:place], bad, *trace[place + 1 :]], Checker())
        assert found is not None and found.record == bad


def test_the_context_is_of_the_same_machine(trace: list[Item]) -> None:
    mine = [place for place in numbered(trace) if record_at(trace, place).id == "r3"]
    place = mine[CONTEXT + 1]
    bad = record_at(trace, place)._replace(event="encode.failed")
    found = first_divergence([*trace[:place], bad, *trace[place + 1 :]], Checker())
    assert found is not None and found.record == bad and "encode.failed" in found.why
    assert list(found.before) == [record_at(trace, one) for one in mine[1 : CONTEXT + 1]]
    assert list(found.after) == [record_at(trace, one) for one in mine[CONTEXT + 2 : 2 * CONTEXT + 2]]


def test_a_start_again_and_a_step_after_the_end(trace: list[Item]) -> None:
    mine = [place for place in numbered(trace) if record_at(trace, place).id == "r3"]
    again = record_at(trace, mine[0])._replace(seq=record_at(trace, mine[2]).seq + 1)
    found = first_divergence([*trace[: mine[2] + 1], again], Checker())
    assert found is not None and found.why == "it starts, and has started before"
    last = record_at(trace, numbered(trace)[-1])
    ended = EventRecord(last.seq + 1, last.t, "request", "r3", "cancel", 0, ("cancelled",))
    found = first_divergence([*trace, ended], Checker())
    assert found is not None and found.why == "it has not started, or has ended before"


def test_python_statemachine_is_asked(trace: list[Item]) -> None:
    """A chart that luce's interpreter follows and python-statemachine is told otherwise about."""
    start = trace[0]
    assert isinstance(start, FileStart)
    voice = Voice(start.header.charts, 300)
    assert first_divergence(trace, Checker(voice)) is None
    assert voice.checked >= 300
    other = dict(start.header.charts)
    other["loop"] = other["loop"].replace('event="admit"', 'event="admitted"')
    assert other["loop"] != start.header.charts["loop"]
    found = first_divergence(trace, Checker(Voice(other, 300)))
    assert found is not None and found.record.machine == "loop"
    assert found.why == "python-statemachine goes to running, admission, open, work, idle by admit"


def test_behind_a_gap_machines_are_taken_where_they_are(trace: list[Item]) -> None:
    places = numbered(trace)
    cut, on = places[len(places) // 2], places[len(places) // 2 + 150]
    gap: Item = (record_at(trace, on).seq, 0.0, Gap(150))
    checker = Checker()
    assert first_divergence([*trace[:cut], gap, *trace[on:]], checker) is None
    assert checker.lost == 150
    # Without the gap they are missing.
    assert first_divergence([*trace[:cut], *trace[on:]], Checker()) is not None
    # And it goes on checking: a machine that was seen again is held to its chart.
    loop = next(place for place in places if place > on + 300 and record_at(trace, place).machine == "loop")
    bad = record_at(trace, loop)._replace(event="nonsense")
    found = first_divergence([*trace[:cut], gap, *trace[on:loop], bad], Checker())
    assert found is not None and found.record == bad


def test_a_file_that_begins_elsewhere_than_the_last_one_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        simulator, "StepRecorder", lambda path: StepRecorder(path, Limits(1 << 30, 6000), every=300)
    )
    serve_crowd(4, 80, depth=2, trace=tmp_path)
    items = items_of(tmp_path)
    assert first_divergence(items, Checker()) is None
    second = [place for place, item in enumerate(items) if isinstance(item, FileStart)][3]
    start = items[second]
    assert isinstance(start, FileStart)
    loop = next(one for one in start.snapshot.machines if one.machine == "loop")
    others = tuple(one for one in start.snapshot.machines if one is not loop)
    tables = {"block": bytes(len(start.snapshot.tables["block"]))}
    wrong = LiveMachine("loop", 0, ("running", "admission", "open", "work", "coalescing"))
    for snapshot, said in (
        (Snapshot(others, start.snapshot.tables), "the file before left it in"),
        (Snapshot((*others, wrong), start.snapshot.tables), "the file before left it in"),
        (Snapshot(start.snapshot.machines, tables), "left its instances in other states"),
    ):
        bad = attrs.evolve(start, snapshot=snapshot)
        found = first_divergence([*items[:second], bad, *items[second + 1 :]], Checker())
        assert found is not None and said in found.why and found.record.event == "(snapshot)"
    nowhere = Snapshot((LiveMachine("loop", 0, ("open", "ajar")),), {})
    with pytest.raises(TraceFileError, match="where no chart leads"):
        first_divergence([attrs.evolve(start, snapshot=nowhere)], Checker())


def test_charts_of_a_header_are_checked() -> None:
    assert set(charts_of(header())) == {"request", "loop", "encoder", "server", "block", "prefix_entry"}
    head = header()
    changed = msgspec.structs.replace(head, charts={**head.charts, "loop": head.charts["loop"] + " "})
    with pytest.raises(TraceFileError, match="'loop' in its header has another SHA-256"):
        charts_of(changed)
    import hashlib

    hashes = {"loop": hashlib.sha256(b"<scxml/>").hexdigest()}
    with pytest.raises(TraceFileError, match="the chart 'loop' in its header: "):
        charts_of(msgspec.structs.replace(head, charts={"loop": "<scxml/>"}, hashes=hashes))


def test_a_record_of_no_chart(trace: list[Item]) -> None:
    place = numbered(trace)[5]
    bad = record_at(trace, place)._replace(machine="nothing")
    found = first_divergence([*trace[:place], bad], Checker())
    assert found is not None and "no chart of this name" in found.why
