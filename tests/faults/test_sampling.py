"""Seeds, penalties, biases and extreme parameters over the whole server (B81, B83, B86, B87).

The rules themselves are tested in tests/sampling. Here a request's fields go the whole way: the body, the slot, the
sampler and the text.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

from luce.engines.load_model import load_engine, load_model
from luce.engines.qwen35.loading import load_weights
from luce.engines.seam import SlotSpec
from tests.faults.whole import SETTINGS, alone, ask, live, opened, picture, shown, text_of, token_bytes

pytestmark = pytest.mark.trio

WORDS = "Tell me a story"


def sampled(seed: Any, **fields: Any) -> dict[str, Any]:
    return ask(WORDS, temperature=1, seed=seed, **fields)


@pytest.mark.parametrize("settings", SETTINGS)
async def test_b81_zero_is_a_seed(settings: dict[str, Any]) -> None:
    """Three times the same, alone and at once; 0 and 1 differ; without a seed each request has its own."""
    seeds = [0, 0, 0, 1, -1, 2**63 - 1, -(2**63)]
    async with live(**settings) as server:
        answers = [text_of(answer) for answer in await server.all([sampled(seed) for seed in seeds])]
        assert answers[0] == answers[1] == answers[2] == text_of((await server.all([sampled(0)]))[0])
        assert len(set(answers)) == 5, "the trap: seeds matter"
        unseeded = [text_of(answer) for answer in await server.all([sampled(None)] * 4)]
        assert len(set(unseeded)) == 4 and answers[0] not in unseeded
        for seed in (2**63, -(2**63) - 1, 10**30, 0.5, "0", True):
            response = await server.post(sampled(seed))
            assert response.status_code == 400 and response.json()["error"]["param"] in ("seed", None)
        response = await server.post(sampled(0))
        assert response.headers["x-luce-seed"] == "0"


async def _first(server: Any, *parts: str, **fields: Any) -> str:
    (answer,) = await server.all([ask(*parts, **({"max_tokens": 1} | fields))])
    return token_bytes(answer).decode()


@pytest.mark.parametrize("settings", SETTINGS)
async def test_b83_presence_and_frequency_leave_prompt_tokens_alone(settings: dict[str, Any]) -> None:
    """A bias makes Z likely. It is in the prompt: only the repetition penalty may push it below X, which is not."""
    async with live(**settings) as server:
        z, x = (server.model.tokenizer.encode_text(letter)[0] for letter in "ZX")
        bias = {str(z): 60.0, str(x): 50.0}

        async def first(**fields: Any) -> str:
            return await _first(server, "ZZZ", logit_bias=bias, **fields)

        assert await first() == "Z", "the trap: without penalties it is the likeliest"
        assert await first(presence_penalty=2, frequency_penalty=2) == "Z"
        assert await first(repetition_penalty=1.5) == "X"
        longer = {"logit_bias": bias, "max_tokens": 12}
        (free,) = await server.all([ask("ZZZ", **longer)])
        assert text_of(free) == "Z" * 12
        (pushed,) = await server.all([ask("ZZZ", **longer, presence_penalty=2, frequency_penalty=2)])
        assert text_of(pushed)[0] == "Z" and "X" in text_of(pushed), "generated ones do count"
        assert await alone([ask("ZZZ", **longer, presence_penalty=2, frequency_penalty=2)]) == [pushed]


async def test_b83_pads_of_pictures_are_prompt_tokens_and_no_others() -> None:
    """A prompt with a picture: the repetition penalty sees the same text tokens as without."""
    async with live() as server:
        z, x = (server.model.tokenizer.encode_text(letter)[0] for letter in "ZX")
        bias = {str(z): 60.0, str(x): 50.0}
        for parts in (("Z",), (picture(1), "Z"), ("Z", picture(2, 64, 64))):
            assert await _first(server, *parts, logit_bias=bias) == "Z"
            assert await _first(server, *parts, logit_bias=bias, repetition_penalty=1.5) == "X"


BAD_BIASES: list[Any] = [
    {"-1": 1}, {"280": 1}, {"319": 1}, {"320": 1}, {str(10**12): 1}, {"abc": 1}, {"3.5": 1}, {"": 1}, {"1": 1e9},
    {"1": "1"}, {"1": None}, {"1": True}, {"1": [1]}, [1], "1", {"5": 1, "05": 1}, {"1": 101}, {"1": -100.5},
]  # fmt: skip


async def test_b86_bad_biases_are_400_and_the_engine_lives() -> None:
    """Ids up to 279 are the tokenizer's; the model's output has 320 rows."""
    good = ask(WORDS, logit_bias={"70": 5, "279": -5, "0": 1})
    (reference,) = await alone([good])
    async with live() as server:
        assert server.model.tokenizer.num_token_ids == 280
        assert server.model.engine.capabilities.vocab_size == 320, "the trap: there are padding rows"
        for bias in BAD_BIASES:
            response = await server.post(ask(WORDS, logit_bias=bias))
            assert response.status_code == 400, (bias, response.text)
            assert str(response.json()["error"]["param"]).startswith("logit_bias"), bias
        for value in (b"NaN", b"Infinity", b"-Infinity", b"1e999"):
            body = b'{"messages": [{"role": "user", "content": "x"}], "logit_bias": {"1": %s}}' % value
            response = await server.send(body)
            assert response.status_code == 400 and "logit_bias" in response.text
        assert await server.all([good] * 4) == [reference] * 4


@pytest.mark.parametrize("depth", [1, 2])
async def test_b86_padding_rows_are_never_sampled(depth: int) -> None:
    """The padding rows' logits are made the largest; greedy, sampled and log-probabilities leave them out."""
    found = opened()
    weights = load_weights(found.files, found.config)
    weights.head[280:] = 4 * weights.head[:40]
    model = load_model(found)
    model.engine.shutdown()
    engine = _engine_with(weights)
    prompt = model.preparer.build([{"role": "user", "content": WORDS}], [])
    spec = SlotSpec(prompt.token_ids, prompt.positions, prompt.rope_delta, None, 1)
    assert int(np.argmax(engine.forward_all(spec)[0][-1])) >= 280, "the trap: padding would win"
    async with live(model=attrs.evolve(model, engine=engine), depth=depth) as server:
        bodies = [ask(WORDS, top_logprobs=20, temperature=0.5 * n, seed=n) for n in range(6)]
        for answer in await server.all(bodies):
            assert len(shown(answer)) == 10
            for entry in shown(answer):
                assert entry["bytes"] and all(other["bytes"] for other in entry["top_logprobs"])
                assert len(entry["top_logprobs"]) == 20


def _engine_with(weights: Any) -> Any:
    from unittest.mock import patch

    with patch("luce.engines.load_model.load_weights", lambda *_: weights):
        return load_engine(opened())


GREEDY: list[dict[str, Any]] = [
    {"temperature": 1e-4}, {"temperature": 1e-6}, {"temperature": 1e-30}, {"temperature": 5e-324},
    {"temperature": 1, "top_p": 1e-9}, {"temperature": 1, "top_p": 5e-324}, {"temperature": 1, "top_k": 1},
    {"temperature": 0, "top_k": 10**9}, {"temperature": 1, "min_p": 1}, {"temperature": 100, "top_k": 1},
]  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS[1:3])
async def test_b87_extreme_parameters_tend_to_greedy(settings: dict[str, Any]) -> None:
    async with live(**settings) as server:
        (greedy,) = await server.all([ask(WORDS)])
        assert (await server.all([sampled(3)]))[0]["choices"] != greedy["choices"], "the trap: noise shows"
        bodies = [ask(WORDS, **fields, seed=3) for fields in GREEDY]
        for fields, answer in zip(GREEDY, await server.all(bodies), strict=True):
            assert answer["choices"] == greedy["choices"], fields
        hot = {"temperature": 100, "logit_bias": {"70": 100, "71": -100}, "repetition_penalty": 100}
        low = {"temperature": 2, "presence_penalty": -2, "frequency_penalty": -2, "repetition_penalty": 0.01}
        wild = [ask(WORDS, seed=n, **(hot if n % 2 else low)) for n in range(6)]
        for answer in await server.all(wild):
            values = [o["logprob"] for entry in shown(answer) for o in (entry, *entry["top_logprobs"])]
            assert np.isfinite(values).all() and len(shown(answer)) == 10
