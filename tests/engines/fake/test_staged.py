"""Staged passes on the fake engine: slices, shared passes, the copy into blocks, and plans that must be refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from luce.engines.fake.checks import PlanError
from luce.engines.fake.engine import FakeEngine, Mode, deepseek_capabilities
from luce.engines.fake.reference import reference_tokens
from luce.engines.fake.times import Times
from luce.engines.seam import (
    NO_HANDLE,
    RowSource,
    Segment,
    SegmentKind,
    SlotSpec,
    SlotWork,
    StepPlan,
    WorkKind,
)
from tests.engines.fake.harness import Driver, decode, image_spec, prefill, text_spec

LAYERS = 43
ONE = image_spec(range(6), [b"a"], range(30, 39))  # pictures of 4 rows: [6, 10)
TWO = image_spec(range(9), [b"b", b"c"], range(50, 62))  # [9, 13), [13, 17)
TEXT = text_spec(range(70, 90))


def driver(mode: Mode = Mode.INLINE, times: Times | None = None, **changes: Any) -> Driver:
    return Driver(
        FakeEngine(
            deepseek_capabilities(**({"block_size": 4, "max_context": 200} | changes)), mode=mode, times=times
        )
    )


def staged(slot: int, start: int, count: int, layers: tuple[int, int] = (0, LAYERS)) -> Segment:
    return Segment(slot, SegmentKind.STAGED, start, count, RowSource.PROMPT, sample=False, layers=layers)


def run(running: Driver, segments: Sequence[Segment], work: Sequence[SlotWork] = ()) -> Any:
    tables = [() if segment.layers else running.table(segment) for segment in segments]
    return running.step(*segments, tables=tables, work=work)


def do_import(running: Driver, slot: int, spec: SlotSpec) -> SlotWork:
    rows = len(spec.token_ids) - 1
    running.tables[slot] = running.take(-(-rows // running.engine.capabilities.block_size))
    return SlotWork(WorkKind.IMPORT, slot, rows, NO_HANDLE, running.tables[slot])


def last_row(slot: int, spec: SlotSpec) -> Segment:
    return Segment(slot, SegmentKind.DECODE, len(spec.token_ids) - 1, 1, RowSource.PROMPT, sample=True)


def answer(running: Driver, slot: int, spec: SlotSpec, count: int) -> list[int | None]:
    """Import and generate."""
    outcome = run(running, [], [do_import(running, slot, spec)]).work[0]
    assert outcome.error is None
    out = running.tokens(last_row(slot, spec))
    for index in range(count - 1):
        out += running.tokens(decode(slot, len(spec.token_ids) + index))
    return out


def slices(size: int) -> list[tuple[int, int]]:
    return [(at, min(at + size, LAYERS)) for at in range(0, LAYERS, size)]


@pytest.mark.parametrize("mode", [Mode.INLINE, Mode.THREAD])
@pytest.mark.parametrize("size", [LAYERS, 6, 1])
@pytest.mark.parametrize("chunks", [(18,), (10, 8), (6, 12), (5, 5, 8)])
def test_a_sliced_pass_is_the_whole_pass(chunks: tuple[int, ...], size: int, mode: Mode) -> None:
    """Byte for byte, in one chunk or several, beside a text that decodes."""
    running = driver(mode)
    running.open(0, ONE)
    running.open(3, TEXT)
    text = running.tokens(prefill(3, 0, 20, sample=True))
    start, position = 0, 20
    for count in chunks:
        for layers in slices(size):
            result = run(running, [decode(3, position), staged(0, start, count, layers)])
            text.append(result.outcomes[0].tokens[0].token)
            assert result.outcomes[1].kept == count and result.outcomes[1].error is None
            position += 1
        start += count
    assert answer(running, 0, ONE, 10) == reference_tokens(ONE, 10)
    assert text == reference_tokens(TEXT, len(text))
    assert running.engine.audit(0) == []
    running.engine.shutdown()


def test_several_share_a_pass_and_one_that_is_closed_drops_out() -> None:
    running = driver()
    specs = {0: ONE, 2: TWO, 4: image_spec(range(5), [b"d"], range(9))}
    for slot, spec in specs.items():
        running.open(slot, spec)
    rows = {slot: len(spec.token_ids) - 1 for slot, spec in specs.items()}
    for layers in slices(6)[:3]:
        run(running, [staged(slot, 0, rows[slot], layers) for slot in specs])
    running.close(2)
    running.open(2, attrs.evolve(TWO))  # the next owner begins anew, and is not in the pass
    for layers in slices(6)[3:]:
        run(running, [staged(slot, 0, rows[slot], layers) for slot in (0, 4)])
    assert answer(running, 0, ONE, 6) == reference_tokens(ONE, 6)
    assert answer(running, 4, specs[4], 6) == reference_tokens(specs[4], 6)
    run(running, [staged(2, 0, rows[2])])
    assert answer(running, 2, TWO, 6) == reference_tokens(TWO, 6)


def test_staging_caches_are_there_from_the_start_and_stay() -> None:
    running = driver()
    kept = running.engine._staging
    before = (kept.states.ctypes.data, kept.sums.ctypes.data, kept.states.shape)
    for slot in range(6):
        running.open(slot, attrs.evolve(ONE))
        run(running, [staged(slot, 0, 18)])
        answer(running, slot, ONE, 2)
    assert before == (kept.states.ctypes.data, kept.sums.ctypes.data, kept.states.shape)
    capabilities = running.engine.capabilities
    assert kept.states.shape == (capabilities.num_slots, capabilities.max_context)
    assert driver(whole_image_blocks=False).engine._staging.states.size == 0


def test_wrong_layers_would_show() -> None:
    """The trap is set: behind the checks' back, a slice that is left out gives other tokens."""
    running = driver()
    running.open(0, ONE)
    for layers in [(0, 20), (21, LAYERS)]:
        running.engine._staging.run(staged(0, 0, 18, layers))
    running.engine._staging.copy_out(do_import(running, 0, ONE), running.engine._model.lanes[0])
    outcome = running.engine._model.run(last_row(0, ONE), (*running.tables[0],))
    assert outcome.tokens[0].token != reference_tokens(ONE, 1)[0]


def test_failures_fail_the_row_or_the_copy() -> None:
    running = driver()
    running.open(0, ONE)
    running.open(1, TWO)
    run(running, [staged(0, 0, 18, (0, 6)), staged(1, 0, 28, (0, 6))])
    running.engine.fail_row(0, "no luck")
    outcomes = run(running, [staged(0, 0, 18, (6, 43)), staged(1, 0, 28, (6, 43))]).outcomes
    assert [outcome.error for outcome in outcomes] == ["no luck", None]
    running.close(0)
    running.engine.fail_work(WorkKind.IMPORT, "no memory")
    assert run(running, [], [do_import(running, 1, TWO)]).work[0].error == "no memory"
    running.close(1)
    running.open(1, attrs.evolve(TWO))
    run(running, [staged(1, 0, 28)])
    assert answer(running, 1, TWO, 4) == reference_tokens(TWO, 4)


def test_modelled_times_of_slices_and_copies() -> None:
    times = Times(step=1.0, row=0.1, layer=0.01, imported=0.5)
    running = driver()
    running.open(0, ONE)
    slice_alone = StepPlan(1, (staged(0, 0, 18, (0, 6)),), ((),))
    assert times.of_step(slice_alone) == pytest.approx(0.06)
    beside = StepPlan(2, (decode(3, 20), staged(0, 0, 18, (6, 43))), ((), ()))
    assert times.of_step(beside) == pytest.approx(1.0 + 0.1 + 0.37)
    work = do_import(running, 0, ONE)
    assert times.of_step(StepPlan(3, (), (), (work,))) == pytest.approx(1.0 + 0.5)


# -- what must be refused ---------------------------------------------------------------------------------------------

MISSING = attrs.evolve(TWO, image_rows=[TWO.image_rows[0], None])
BAD = {
    "layers": ([staged(0, 0, 18, (6, 12))], "under way is at layer 0"),
    "no layers": ([staged(0, 0, 18)._replace(layers=None)], "not of a staged pass"),
    "too many layers": ([staged(0, 0, 18, (0, 44))], "layers"),
    "different layers": ([staged(0, 0, 18, (0, 6)), staged(1, 0, 28, (0, 7))], "different layers"),
    "cuts a picture": ([staged(0, 0, 8)], "splits"),
    "cuts the second": ([staged(1, 0, 15)], "splits"),
    "stub behind": ([staged(0, 0, 16)], "shorter than 5"),
    "too short": ([staged(1, 0, 4)], "shorter than 5"),
    "the last row": ([staged(0, 0, 19)], "shorter than 5"),
    "a gap": ([staged(0, 6, 12)], "0 rows are staged"),
    "text": ([staged(2, 0, 19)], "without pictures"),
    "sampling": ([staged(0, 0, 18)._replace(sample=True)], "sample nothing"),
    "a picture that is not there": ([staged(3, 0, 28)], "image 1 is not there"),
}


def opened() -> Driver:
    running = driver()
    for slot, spec in enumerate((ONE, TWO, TEXT, MISSING)):
        running.open(slot, attrs.evolve(spec))
    return running


@pytest.mark.parametrize("case", BAD)
def test_bad_slices(case: str) -> None:
    segments, message = BAD[case]
    with pytest.raises(PlanError, match=message):
        run(opened(), segments)


def test_a_picture_that_is_missing_does_not_stop_the_rows_before_it() -> None:
    running = opened()
    run(running, [staged(3, 0, 13)])
    with pytest.raises(PlanError, match="13 rows are staged"):
        run(running, [staged(3, 8, 5)])


def test_bad_steps_of_a_pass_under_way() -> None:
    def begun() -> Driver:
        running = opened()
        run(running, [staged(0, 0, 18, (0, 6)), staged(1, 0, 28, (0, 6))])
        return running

    for segments, message in [
        ([staged(3, 0, 13, (6, 12))], r"slots \[0, 1\] are in the pass, and \[3\] go on"),
        (
            [staged(0, 0, 18, (0, 6)), staged(1, 0, 28, (0, 6))],
            r"slots \[0, 1\] go on, which a pass has left out",
        ),
        ([staged(0, 0, 18, (7, 12)), staged(1, 0, 28, (7, 12))], "under way is at layer 6"),
        ([staged(0, 0, 10, (6, 12)), staged(1, 0, 28, (6, 12))], "its pass holds 18 rows from 0"),
        ([prefill(0, 0, 6)], "in staged passes"),
    ]:
        with pytest.raises(PlanError, match=message):
            run(begun(), segments)
    with pytest.raises(PlanError, match="in staged passes"):
        running = begun()
        run(running, [], [SlotWork(WorkKind.SAVE, 0, 6, 1)])
    with pytest.raises(PlanError, match="or a pass is under way"):
        running = begun()
        run(running, [], [do_import(running, 0, ONE)])


def test_who_is_left_out_of_a_pass_can_only_be_closed() -> None:
    running = opened()
    run(running, [staged(0, 0, 18, (0, 6)), staged(1, 0, 28, (0, 6))])
    run(running, [staged(0, 0, 18, (6, 12))])
    for layers in [(12, 18), (0, 6)]:
        with pytest.raises(PlanError, match=r"and \[1\] go on|slots \[1\] go on"):
            run(running, [staged(1, 0, 28, layers)])
    running.number += 10
    run(running, [staged(3, 0, 13)])  # and now the whole pass is given up
    with pytest.raises(PlanError, match="a pass has left out"):
        run(running, [staged(0, 0, 18)])
    running.close(0)
    running.open(0, attrs.evolve(ONE))
    run(running, [staged(0, 0, 18)])
    assert answer(running, 0, ONE, 3) == reference_tokens(ONE, 3)


def test_bad_imports() -> None:
    running = opened()
    run(running, [staged(0, 0, 10)])
    with pytest.raises(PlanError, match="10 of 18 rows are staged"):
        run(running, [], [do_import(running, 0, ONE)])
    ordinary = driver(whole_image_blocks=False)
    ordinary.open(0, ONE)
    with pytest.raises(PlanError, match="this engine does not do that"):
        run(ordinary, [], [do_import(ordinary, 0, ONE)])
    twice = opened()
    run(twice, [staged(0, 0, 18)])
    run(twice, [], [do_import(twice, 0, ONE)])
    with pytest.raises(PlanError, match="0 of 18 rows"):
        run(twice, [], [do_import(twice, 0, ONE)])
    with pytest.raises(PlanError, match="has 18 rows outside of passes"):
        run(twice, [staged(0, 0, 18)])


def test_a_sequence_with_pictures_is_staged_once() -> None:
    running = driver()
    spec = attrs.evolve(ONE)
    running.open(0, spec)
    run(running, [staged(0, 0, 18)])
    running.close(0)
    running.open(0, spec)
    with pytest.raises(PlanError, match="cannot be computed again"):
        run(running, [staged(0, 0, 18)])
