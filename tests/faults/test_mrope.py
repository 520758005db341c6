"""Positions and GDN state from messages to logits (B15, B16, B20, B24, B47, B63).

The engine's own tests are in tests/engines. Here the prompts come from the template and the real picture path, and
the steps from the planner: a fault between the parts shows that neither part has by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from luce.engines.load_model import load_model
from luce.engines.loaded import LoadedModel
from luce.engines.qwen35.engine import Qwen35Engine
from luce.engines.qwen35.prompt import Prompt, PromptBuilder
from luce.engines.qwen35.slots import Greedy, Slot
from luce.engines.seam import SlotSpec
from tests.engines import oracle
from tests.faults.whole import ENGINES, SETTINGS, alone, ask, live, opened, picture, shown, turn
from tests.vision.pictures import encode, noise

F32 = npt.NDArray[np.float32]
WIDE, TALL, NARROW = (32, 160), (160, 32), (144, 16)
"""(height, width) in pixels: 20 tokens each, and 9 in one column."""
LARGE = (128, 192)
"""96 tokens."""


@pytest.fixture
def model() -> Iterator[LoadedModel]:
    loaded = load_model(opened())
    yield loaded
    loaded.engine.shutdown()


def engine_of(model: LoadedModel) -> Qwen35Engine:
    assert isinstance(model.engine, Qwen35Engine)
    return model.engine


def builder_of(model: LoadedModel) -> PromptBuilder:
    assert isinstance(model.preparer, PromptBuilder)
    return model.preparer


def prompt_of(model: LoadedModel, *sizes: tuple[int, int], tail: str = "Well?") -> Prompt:
    """A text, the pictures with a word between them, and a question."""
    builder = builder_of(model)
    images = [builder.prepare_image(encode(noise(*size, seed=i)), field="x") for i, size in enumerate(sizes)]
    parts = [part for i in range(len(sizes)) for part in (f"word {i} ", picture(0))]
    return builder.build([turn(*parts, tail)], images)


def spec_of(model: LoadedModel, prompt: Prompt, **changes: Any) -> SlotSpec:
    rows: list[F32 | None] = [model.engine.encode(image) for image in prompt.images]
    fields: dict[str, Any] = {
        "token_ids": prompt.token_ids,
        "positions": prompt.positions,
        "rope_delta": prompt.rope_delta,
        "sampling": None,
        "max_tokens": 40,
        "spans": prompt.spans,
        "image_rows": rows,
    }
    return SlotSpec(**(fields | changes))


def test_b15_every_slice_is_the_slice_of_the_whole(model: LoadedModel) -> None:
    """Every (a, b) of a prompt with two pictures and 20 generated tokens, against the oracle's table."""
    prompt = prompt_of(model, WIDE, TALL)
    length, grids = len(prompt.token_ids), [image.grid for image in prompt.images]
    pad = builder_of(model).config.image_token_id
    ids = [*prompt.token_ids.tolist(), *[1] * 20]
    whole, _ = oracle.mrope_positions(ids, pad, grids, 2)  # type: ignore[arg-type]
    assert not np.array_equal(whole[0], np.arange(len(ids))), "the trap: positions are not counts"
    assert np.array_equal(prompt.positions, whole[:, :length])
    slot = Slot(0, spec_of(model, prompt), Greedy(9), np.zeros(0, np.int64))
    for start in range(len(ids)):
        for end in range(start + 1, len(ids) + 1):
            assert np.array_equal(slot.positions(start, end), whole[:, start:end]), (start, end)


@pytest.mark.parametrize("sizes", [(WIDE,), (TALL,), (NARROW,), (WIDE, TALL), (LARGE, NARROW, WIDE)])
def test_b16_answers_after_pictures_go_on_from_the_right_place(
    model: LoadedModel, sizes: tuple[tuple[int, int], ...]
) -> None:
    """The prompt's delta: its answer's rows have the positions of the same ids given as a prompt."""
    prompt = prompt_of(model, *sizes)
    forced = [int(i) for i in np.random.default_rng(5).integers(0, 250, 20)]
    longer = builder_of(model).from_ids([*prompt.token_ids.tolist(), *forced], prompt.images)
    later = np.arange(len(prompt.token_ids), len(longer.token_ids)) + prompt.rope_delta
    assert np.array_equal(longer.positions[:, len(prompt.token_ids) :], np.tile(later, (3, 1)))
    assert (prompt.rope_delta == 0) == (sizes == (NARROW,)), "the trap: the raw count would be wrong"


@pytest.mark.trio
@pytest.mark.parametrize("settings", SETTINGS)
async def test_b16_served_answers_equal_one_whole_prefill(settings: dict[str, Any]) -> None:
    """Twelve greedy tokens after a wide picture: the log-probabilities of a prefill of prompt and answer at once."""
    model = load_model(opened(settings["slots"]))
    prompt = prompt_of(model, WIDE)
    body = ask("word 0 ", picture(0, *WIDE), "Well?", max_tokens=12, logit_bias={"70": 3.0, "75": 3.0})
    async with live(model=model, **settings) as server:
        (answer,) = await server.all([body])
        ids = _ids_of(model, answer)
        longer = builder_of(model).from_ids([*prompt.token_ids.tolist(), *ids], prompt.images)
        logits, _ = engine_of(model).forward_all(spec_of(model, longer))
        wrong = longer.positions.copy()
        wrong[:, len(prompt.token_ids) :] -= prompt.rope_delta
        raw, _ = engine_of(model).forward_all(spec_of(model, longer, positions=wrong))
    first = len(prompt.token_ids) - 1
    for place, (token, entry) in enumerate(zip(ids, shown(answer), strict=True)):
        assert entry["logprob"] == pytest.approx(_logprob(logits[first + place], token), abs=1e-5)
    differences = [
        abs(_logprob(raw[first + n], t) - _logprob(logits[first + n], t)) for n, t in enumerate(ids)
    ]
    assert max(differences) > 1e-3, "the trap: the raw count would show"


def _logprob(row: F32, token: int) -> float:
    values = row[:280].astype(np.float64)
    return float(values[token] - values.max() - np.log(np.exp(values - values.max()).sum()))


def _ids_of(model: LoadedModel, answer: dict[str, Any]) -> list[int]:
    """Every id of the tiny vocabulary has bytes of its own."""
    by_bytes = {model.tokenizer.token_bytes(i): i for i in range(model.tokenizer.num_token_ids)}
    return [by_bytes[bytes(entry["bytes"])] for entry in shown(answer)]


@pytest.mark.trio
@pytest.mark.parametrize("depth", [1, 2])
async def test_b20_any_prefill_budget_for_a_large_picture(depth: int) -> None:
    """96 tokens, split by budgets on, before and after its edges, alone and beside three others."""
    body = ask("See", picture(1, *LARGE), "Well?", max_tokens=4)
    others = [ask(f"Other {n}", picture(n, *WIDE), max_tokens=8) for n in range(3)]
    references = await alone([body, *others])
    assert references[0]["usage"]["prompt_tokens"] > 96 + 10, "the trap: the picture is that large"
    for budget in (16, 32, 95, 96, 97, 256):
        async with live(prefill_budget=budget, depth=depth) as server:
            assert await server.all([body]) == references[:1]
            assert await server.all([body, *others]) == references


@pytest.mark.trio
@pytest.mark.parametrize("settings", SETTINGS)
async def test_b24_rows_beside_each_other_see_their_own_pictures(settings: dict[str, Any]) -> None:
    """Four requests that differ in their picture alone, in one batch, with a text request between them."""
    bodies = [ask("Same", picture(seed, *WIDE), "words") for seed in range(3)]
    bodies.insert(1, ask("Same words"))
    references = await alone(bodies)
    assert len({str(reference["choices"]) for reference in references}) == 4, "the trap: pictures show"
    async with live(**settings) as server:
        assert await server.all(bodies) == references
        if settings["slots"] > 1:
            assert server.service.loop.metrics.max_lanes > 1, "the trap: they share steps"


@pytest.mark.trio
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("depth", [1, 2])
async def test_b47_state_carries_over_between_chunks(engine: str, depth: int) -> None:
    """A prompt of over 200 tokens and no picture by chunks of 1, 50, 64, 65 and all."""
    body = ask("".join(chr(97 + n * 7 % 26) for n in range(200)), max_tokens=6)
    (reference,) = await alone([body], engine)
    text = body["messages"][0]["content"][0]["text"]
    (shorter,) = await alone([ask(text[64:], max_tokens=6)], engine)
    assert reference["usage"]["prompt_tokens"] > 200
    assert reference["choices"] != shorter["choices"], "the trap: what was dropped would show"
    for budget in (1, 50, 64, 65, None):
        async with live(engine=engine, prefill_budget=budget, depth=depth) as server:
            assert await server.all([body]) == [reference]


@pytest.mark.trio
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("depth", [1, 2])
async def test_b63_positions_are_per_sequence(engine: str, depth: int) -> None:
    """Answers of different lengths behind prompts of different lengths, with and without pictures, interleaved."""
    bodies = [
        ask("a" * 3, max_tokens=30),
        ask("b" * 90, max_tokens=12),
        ask(picture(1, *WIDE), "c", max_tokens=20),
        ask(picture(2, *TALL), picture(3, *WIDE), "d" * 30, max_tokens=25),
    ]
    references = await alone(bodies, engine)
    assert len({reference["usage"]["prompt_tokens"] for reference in references}) == 4, "the trap"
    async with live(engine=engine, prefill_budget=16, depth=depth) as server:
        assert await server.all(bodies) == references
        assert await server.all(bodies[::-1]) == references[::-1]
