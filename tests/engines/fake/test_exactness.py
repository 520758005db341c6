"""The fake's promise: right plans give the reference answer however they are cut, and every mix-up shows."""

from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luce.engines.fake.checks import PlanError
from luce.engines.fake.engine import FakeEngine, Mode, fake_capabilities
from luce.engines.fake.reference import reference_answer, reference_tokens
from luce.engines.seam import SlotSpec
from luce.sampling.parameters import SamplingParams
from tests.engines.fake.harness import Driver, decode, image_spec, prefill, text_spec

TEXT = text_spec([5, 6, 7, 8, 9] * 4)
IMAGES = image_spec([1, 2, 3], [b"cat", b"dog"], [4, 5])


def driver(**changes: Any) -> Driver:
    small: dict[str, Any] = {"block_size": 4, "num_slots": 4, "num_blocks": 64}
    return Driver(FakeEngine(fake_capabilities(**small | changes), mode=Mode.INLINE))


@pytest.mark.parametrize("spec", [TEXT, IMAGES], ids=["text", "images"])
@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
@pytest.mark.parametrize("chunk", [1, 2, 5, 100])
def test_no_cut_changes_the_answer(spec: SlotSpec, block_size: int, chunk: int) -> None:
    running = driver(block_size=block_size, num_blocks=128)
    running.open(2, spec)
    assert running.generate(2, spec, 12, chunk) == reference_tokens(spec, 12)


def test_the_answer_is_a_kept_value() -> None:
    """Platform and version independent: recorded traces rely on it."""
    assert reference_tokens(TEXT, 8) == [111, 236, 99, 56, 0, 208, 219, 51]
    assert reference_tokens(IMAGES, 8) == [152, 79, 86, 251, 46, 34, 233, 192]


@attrs.define
class Progress:
    spec: SlotSpec
    row: int = 0
    out: list[int | None] = attrs.field(factory=list)


@settings(deadline=None)
@given(st.data())
def test_any_batching_gives_every_request_its_own_answer(data: st.DataObject) -> None:
    """Requests of every kind come, share steps in any way, go, and leave their blocks and slots to others."""
    running = driver(num_blocks=40)
    live: dict[int, Progress] = {}
    done = 0
    for _ in range(data.draw(st.integers(1, 60), label="steps")):
        for slot in range(4):
            if slot not in live and data.draw(st.integers(0, 2), label="arrival") == 0:
                ids = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=9), label="prompt")
                kind = data.draw(st.integers(0, 2), label="kind")
                sampling = SamplingParams(seed=data.draw(st.integers(0, 3), label="seed"))
                spec = (
                    image_spec(ids, [b"cat"] * (kind == 1) + [b"dog"], ids)
                    if kind
                    else text_spec(ids, sampling)
                )
                live[slot] = Progress(spec)
                running.open(slot, spec)
        chosen = (
            data.draw(st.lists(st.sampled_from(sorted(live)), unique=True), label="lanes") if live else []
        )
        segments = []
        for slot in chosen:
            progress = live[slot]
            left = len(progress.spec.token_ids) - progress.row
            if left > 0:
                count = data.draw(st.integers(1, left), label="chunk")
                segments.append(prefill(slot, progress.row, count, sample=count == left))
            else:
                segments.append(decode(slot, progress.row))
            progress.row += segments[-1].count
        if not segments:
            continue
        for slot, token in zip(chosen, running.tokens(*segments), strict=True):
            progress = live[slot]
            progress.out += [token] if token is not None else []
            if len(progress.out) == 5:
                assert progress.out == reference_tokens(progress.spec, 5)
                running.close(slot)
                del live[slot]
                done += 1
    for progress in live.values():
        assert progress.out == reference_tokens(progress.spec, len(progress.out))


def altered(spec: SlotSpec, **fields: Any) -> SlotSpec:
    return attrs.evolve(spec, **fields)


def moved(spec: SlotSpec) -> np.ndarray[Any, np.dtype[np.int32]]:
    positions = spec.positions.copy()
    positions[1, 4] += 1
    return positions


@pytest.mark.parametrize(
    "other",
    [
        altered(IMAGES, token_ids=np.concatenate([[9], IMAGES.token_ids[1:]]).astype(np.int32)),
        altered(IMAGES, positions=moved(IMAGES)),
        altered(IMAGES, rope_delta=IMAGES.rope_delta + 1),
        altered(IMAGES, image_rows=IMAGES.image_rows[::-1]),
        altered(IMAGES, image_rows=[IMAGES.image_rows[0], IMAGES.image_rows[0]]),
        altered(IMAGES, image_rows=[IMAGES.image_rows[0], np.nextafter(IMAGES.image_rows[1], np.float32(9))]),
        altered(IMAGES, sampling=SamplingParams(seed=0)),
    ],
    ids=["token", "position", "rope delta", "images swapped", "image doubled", "one bit", "seed"],
)  # fmt: skip
def test_every_part_of_the_content_counts(other: SlotSpec) -> None:
    assert reference_tokens(IMAGES, 16) != reference_tokens(other, 16)


def test_seeds_differ_zero_included() -> None:
    answers = {
        tuple(reference_tokens(text_spec([1, 2], SamplingParams(seed=seed)), 12))
        for seed in (0, 1, -1, 2**40)
    }
    assert len(answers) == 4


@pytest.mark.parametrize("when", [0, 1, 2])
def test_a_wrong_block_table_shows(when: int) -> None:
    """One block taken from a neighbour, in a prompt chunk or in a decode row only, changes what follows."""
    running = driver()
    other = text_spec([8] * 20)
    running.open(0, TEXT)
    running.open(1, other)
    running.step(prefill(1, 0, 20, sample=True))
    out = list[int | None]()
    for index, segment in enumerate(
        [prefill(0, 0, 10), prefill(0, 10, 10, sample=True), *(decode(0, 20 + i) for i in range(11))]
    ):
        table = running.table(segment)
        if index == when + 1:  # read one foreign block; the blocks written are the slot's own
            table = (running.tables[1][0], *table[1:])
        outcome = running.step(segment, tables=[table]).outcomes[0]
        out += [token.token for token in outcome.tokens]
    right = reference_tokens(TEXT, 12)
    assert out != right
    assert out[: max(when - 1, 0)] == right[: max(when - 1, 0)]  # and nothing before it


def test_a_neighbour_may_not_write_into_a_block_and_if_it_did_it_would_show() -> None:
    running = driver()
    running.open(0, TEXT)
    running.open(1, text_spec([9] * 20))
    out = running.tokens(prefill(0, 0, 20, sample=True))
    with pytest.raises(PlanError, match="written by another sequence"):
        running.step(prefill(1, 0, 4), tables=[running.tables[0]])
    for damage in (0, 1):
        running.engine._model.whole[running.tables[0][2]] ^= damage
        tail = [running.tokens(decode(0, row))[0] for row in range(20 + 8 * damage, 28 + 8 * damage)]
        right = reference_tokens(TEXT, 17)[1 + 8 * damage : 9 + 8 * damage]
        assert (tail != right) == bool(damage)
    assert out == reference_tokens(TEXT, 1)


def test_a_stale_slot_or_block_is_never_seen() -> None:
    running = driver(num_blocks=10)
    for spec in (TEXT, IMAGES, TEXT, text_spec([1])):
        running.open(0, spec)
        assert running.generate(0, spec, 6, chunk=3) == reference_tokens(spec, 6)
        running.close(0)


def test_logprobs_are_made_up_but_well_formed() -> None:
    spec = text_spec([1, 2, 3], SamplingParams(temperature=0, logprobs=3))
    for token in reference_answer(spec, 20):
        assert token.logprob is not None and token.logprob <= 0
        assert token.top[0] == (token.token, token.logprob)
        values = [value for _, value in token.top]
        assert values == sorted(values, reverse=True)
        assert len({index for index, _ in token.top}) == 3
    running = driver()
    running.open(0, spec)
    first = running.step(prefill(0, 0, 3, sample=True)).outcomes[0].tokens[0]
    assert first == reference_answer(spec, 1)[0]
    assert [token.token for token in reference_answer(spec, 9)] == reference_tokens(text_spec([1, 2, 3]), 9)


def test_scripted_tokens() -> None:
    def script(spec: SlotSpec, index: int) -> int | None:
        return [65, 66, 67][index] if index < 3 else None

    engine = FakeEngine(fake_capabilities(), mode=Mode.INLINE, script=script)
    running = Driver(engine)
    running.open(0, TEXT)
    out = running.generate(0, TEXT, 6)
    assert out[:3] == [65, 66, 67]
    assert out == reference_tokens(TEXT, 6, script=script)
    assert out[3:] != reference_tokens(TEXT, 6)[3:]  # the model goes on from the scripted tokens


def test_a_resumed_request_continues() -> None:
    """Dropped and prefilled again from prompt and tokens: same continuation."""
    whole = reference_tokens(TEXT, 12)
    running = driver()
    for cut in range(1, 12):
        spec = text_spec([*TEXT.token_ids.tolist(), *whole[:cut]])
        running.open(0, spec)
        assert running.generate(0, spec, 12 - cut, chunk=7) == whole[cut:]
        running.close(0)
