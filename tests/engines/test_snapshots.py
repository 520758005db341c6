"""Capture and adopt: a prefix that is shared, and everybody who starts from it, have the bits of computing it (§6).

Every engine here holds NaN in what belongs to nobody.
"""

from __future__ import annotations

import attrs
import pytest

from luce.engines.qwen35.engine import Qwen35Engine
from luce.engines.seam import SlotSpec, SlotWork
from luce.errors import DeviceError
from tests.engines.harness import Driver, Rows, random_ids, same_bits, text_spec
from tests.engines.requests import Request, adopted, alone, capture, do, image_rows, prompt, step

EDGES = (1, 2, 3, 15, 16, 17, 31, 34, 58, 63, 64, 65, 80, 127, 128, 129, 149)
"""Ends of both pictures, block edges, chunk edges, the last position of a prompt of 150."""


@pytest.mark.parametrize("position", EDGES)
def test_capture_adopt_and_go_on(driver: Driver, position: int) -> None:
    """The source goes on, ends and loses its blocks; the adopter starts at ``position``, twice."""
    engine, spec = driver.engine, prompt(0)
    source = Request(driver, spec, 0)
    source.advance(position)
    taken = capture(source)
    (outcome,) = do(driver, taken)
    limits = engine.capabilities
    assert outcome.nbytes == limits.captured_bytes(position)
    assert outcome.nbytes == limits.bytes_per_snapshot + position % limits.block_size * limits.bytes_per_token
    assert engine.audit_stored(taken.handle, spec) == [] and engine.audit(0) == []
    source.finish()
    source.check()
    blocks = list(source.opened.blocks)
    kept = tuple(blocks[: position // limits.block_size])
    source.shared = kept
    source.close()
    for slot in (3, 1):
        other = Request(driver, spec, slot)
        do(driver, adopted(other, taken, blocks))
        assert engine.audit(slot) == [], "before its first row"
        other.advance(37)
        assert other.row == min(position + 37, 150)
        other.finish()
        other.check()
        assert min(other.logits) == 150, "the prompt before it was never run again"
        assert engine.audit(slot) == [] and engine.audit_stored(taken.handle, spec) == []
        assert engine.audit_blocks(spec, kept, position // limits.block_size * limits.block_size) == []
        other.close()
    driver.free(kept)


def test_pictures_below_an_adopted_position_need_no_rows(driver: Driver) -> None:
    """Nothing is encoded again for a prefix that is there; a picture after it is waited for as ever."""
    spec = prompt(0)
    source = Request(driver, spec, 0)
    source.advance(40)
    taken = capture(source)
    do(driver, taken)
    bare = attrs.evolve(spec, image_rows=[None, None])
    other = Request(driver, bare, 1)
    do(driver, adopted(other, taken, source.opened.blocks))
    other.advance(15)
    (early,) = driver.step([Rows(other.opened, 55, 10, sample=False)])
    assert early.error == "image 1 has no rows for its 3 positions yet"
    bare.image_rows[1] = spec.image_rows[1]
    other.finish()
    tokens, logits = alone(spec)
    assert other.tokens == tokens
    assert all(same_bits(row, logits[position]) for position, row in other.logits.items())


def test_capture_in_an_answer_and_adopt_in_the_next_turn(driver: Driver) -> None:
    """The next turn's prompt begins with the last one's prompt and answer, generated positions included."""
    source = Request(driver, prompt(2), 2)
    source.finish()
    source.advance()  # the last token is fed, too
    taken = capture(source)
    do(driver, taken)
    assert taken.position == 210 and driver.engine.audit_stored(taken.handle, source.so_far) == []
    turn = source.so_far.with_generated(random_ids(40, 77))
    turn.num_generated = 0
    turn.max_tokens = 20
    other = Request(driver, turn, 0)
    do(driver, adopted(other, taken, source.opened.blocks))
    source.shared = other.shared
    source.close()
    other.finish()
    other.check()
    assert driver.engine.audit(0) == []


def both_finish(driver: Driver, source: Request, taken: SlotWork, spec: SlotSpec) -> None:
    """The slot a snapshot was taken of, and another one that begins with it."""
    other = Request(driver, spec, 1)
    do(driver, adopted(other, taken, source.opened.blocks))
    for sequence in (source, other):
        sequence.finish()
        sequence.check()
    assert driver.engine.audit(0) == [] and driver.engine.audit(1) == []


@pytest.mark.parametrize(("end", "position"), [(60, 50), (64, 64), (90, 64), (90, 63), (110, 100), (113, 66)])
def test_rows_past_a_captured_position_do_not_count(driver: Driver, end: int, position: int) -> None:
    """Rows that were computed past it, even wrong ones, across a multiple of 64 too."""
    engine, spec = driver.engine, prompt(2)
    source = Request(driver, spec, 0)
    source.advance(50)
    wrong = source.content.token_ids.copy()
    source.content.token_ids[position:] = 9  # what is fed past the position
    driver.step([Rows(source.opened, 50, end - 50, sample=False)])
    source.content.token_ids[:] = wrong
    taken = capture(source, position)
    do(driver, taken)
    assert engine.audit_stored(taken.handle, spec) == []
    (early,) = driver.step([Rows(source.opened, position - 1, 1, sample=False)])
    assert early.error is not None and "committed" in early.error, "what is shared may not be written again"
    source.row = position
    both_finish(driver, source, taken, spec)


@pytest.mark.parametrize(
    ("rows", "position"), [((90, 1, 1), 90), ((90, 1, 1), 70), ((90, 30), 64), ((60, 3, 40), 61)]
)
def test_a_snapshot_may_come_late(driver: Driver, rows: tuple[int, ...], position: int) -> None:
    """Rows past it are committed already; the slot goes on from these, and its snapshot from its own place."""
    engine, spec = driver.engine, prompt(2)
    source = Request(driver, spec, 0)
    for count in rows:
        source.advance(count)
    taken = capture(source, position)
    do(driver, taken)
    assert engine.audit_stored(taken.handle, spec) == []
    (early,) = driver.step([Rows(source.opened, source.row - rows[-1] - 1, 1, sample=False)])
    assert early.error is not None and "committed" in early.error, "it goes on from where it was"
    both_finish(driver, source, taken, spec)


def test_a_snapshot_may_not_come_too_late(driver: Driver) -> None:
    """Its chunk has gone into the state, or too many rows follow it."""
    source = Request(driver, prompt(2), 0)
    source.advance(64)
    source.advance(1)  # from 64: what is before it is folded
    for position in (63, 1):
        (outcome,) = driver.run(work=[capture(source, position)]).work
        assert outcome.error is not None and f"position {position} cannot be stored" in outcome.error
    source.advance(63)
    source.advance(2)
    (outcome,) = driver.run(work=[capture(source, 65)]).work
    assert outcome.error is not None and "position 65 cannot be stored" in outcome.error
    source.finish()
    source.check()


def test_a_snapshot_is_a_copy(driver: Driver) -> None:
    """Neither the source nor an adopter that goes another way changes it."""
    engine, spec = driver.engine, prompt(3)
    source = Request(driver, spec, 0)
    source.advance(70)
    taken = capture(source)
    do(driver, taken)
    states = engine.call(lambda runner, _: runner.stored.states)
    before = [array.tobytes() for array in states[taken.handle].snapshot.arrays()]
    assert not any(array.flags.writeable for array in states[taken.handle].snapshot.arrays())
    other_ids = spec.token_ids.copy()
    other_ids[70:] = random_ids(len(other_ids) - 70, 5)
    branch = Request(driver, attrs.evolve(spec, token_ids=other_ids), 1)
    do(driver, adopted(branch, taken, source.opened.blocks))
    step(driver, [source, branch], [20, 30])
    branch.finish()
    branch.check()
    source.finish()
    source.check()
    assert [array.tobytes() for array in states[taken.handle].snapshot.arrays()] == before
    assert branch.logits.keys() == source.logits.keys()
    assert not same_bits(branch.logits[131], source.logits[131]), "the trap: they did go other ways"


def flip(engine: Qwen35Engine, handle: int, part: str) -> None:
    """One bit of a stored state."""

    def change(runner: object, _: object) -> None:
        snapshot = runner.stored.states[handle].snapshot  # type: ignore[attr-defined]
        array = {
            "S": lambda: snapshot.layers[1].s[0, 1, 3],
            "ring k": lambda: snapshot.layers[0].k[1, 2],
            "ring u": lambda: snapshot.layers[2].u[0, 1, 5],
            "ring G": lambda: snapshot.layers[0].g[1, 3:4],
            "convolution rows": lambda: snapshot.layers[2].conv[1, :2],
            "keys": lambda: snapshot.kv[0].k[-1, 0],
            "values": lambda: snapshot.kv[0].v[0, 1],
        }[part]()
        array.base.setflags(write=True) if array.base is not None else None
        array.setflags(write=True)
        array.view(f"u{array.itemsize}")[-1] ^= 1 << (array.itemsize * 8 - 2)  # a high bit of the exponent

    engine.call(change)


@pytest.mark.parametrize(
    ("part", "place"),
    [
        ("S", "DeltaNet layer 1: S, element (0, 1, 3, 31)"),
        ("ring k", "DeltaNet layer 0: ring k, position 66"),
        ("ring u", "DeltaNet layer 2: ring u, position 69"),
        ("ring G", "DeltaNet layer 0: ring G, position 67"),
        ("convolution rows", "DeltaNet layer 2: convolution rows, position 68"),
        ("keys", "attention layer 0: keys, position 69"),
        ("values", "attention layer 0: values, position 64"),
    ],
)
def test_a_corrupted_snapshot_is_found_and_changes_the_answer(driver: Driver, part: str, place: str) -> None:
    """Arms every comparison here: one bit in any array, and both the audit and the logits tell."""
    engine, spec = driver.engine, prompt(3)
    source = Request(driver, spec, 0)
    source.advance(70)
    taken = capture(source)
    do(driver, taken)
    assert engine.audit_stored(taken.handle, spec) == []
    flip(engine, taken.handle, part)
    assert engine.audit_stored(taken.handle, spec) == [place]
    other = Request(driver, spec, 1)
    do(driver, adopted(other, taken, source.opened.blocks))
    assert engine.audit(1) == [place]
    _, right = alone(spec)
    rows = Rows(other.opened, 70, 61)
    (outcome,) = driver.step([rows])
    assert outcome.error is not None or not same_bits(other.logits[131], right[131])
    source.finish()
    source.check()  # and nobody else


def test_audits_name_content_that_is_not_the_states(driver: Driver) -> None:
    engine, spec = driver.engine, prompt(0)
    source = Request(driver, spec, 0)
    source.advance(70)
    taken = capture(source)
    do(driver, taken)
    ids = spec.token_ids.copy()
    ids[69] += 1
    found = engine.audit_stored(taken.handle, attrs.evolve(spec, token_ids=ids))
    assert "DeltaNet layer 0: ring k, position 69" in found and "token ids" in found[-1]
    pictures = attrs.evolve(spec, image_rows=[spec.image_rows[0], image_rows(3, 99)])
    found = engine.audit_stored(taken.handle, pictures)
    assert found[0].startswith("DeltaNet layer 0: S"), "the second picture stands in the first chunk"
    missing = attrs.evolve(spec, image_rows=[None, None])
    with pytest.raises(DeviceError, match="image 0 has no rows"):
        engine.audit_stored(taken.handle, missing)
    with pytest.raises(DeviceError, match="70 rows, the content given 60"):
        engine.audit_stored(taken.handle, text_spec(random_ids(60, 1)))
    blocks = list(source.opened.blocks)
    assert engine.audit_blocks(spec, blocks, 70) == []
    assert engine.audit_blocks(attrs.evolve(spec, token_ids=ids), blocks, 70) == [
        "attention layer 0: keys, position 69",
        "attention layer 0: values, position 69",
    ]
