"""Model files, whole: equal answers from both forms, hostile lengths, what is not offered (B113, B115, B120, B122).

The rows of small files (B115, B117, B118, B123, B124, B126) are tested in tests/weights and tests/text.
"""

from __future__ import annotations

import re
import time
import tracemalloc
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from luce.cli.flags import ModelFlags
from luce.cli.main import main
from luce.cli.serve import HttpFlags, SchedulingFlags
from luce.engines.load_model import LoadOptions, load_model, open_model
from luce.engines.qwen35.engine import Qwen35Engine
from luce.errors import ModelFileError
from luce.weights.gguf_file import open_gguf
from tests.faults.whole import ask, live, picture
from tests.weights.raw_gguf import GgufBytes, RawArray
from tests.weights.writers import TinyShape, random_model, write_gguf, write_hf

OPTIONS = LoadOptions(slots=2, context=256, block_size=16, name="m")


@pytest.mark.trio
@pytest.mark.parametrize("shape", [TinyShape(ratio=3), TinyShape(tied=True, key_dim=8, value_dim=24)])
async def test_b113_both_file_forms_give_the_same_answers(shape: TinyShape, tmp_path: Path) -> None:
    """Convolution taps, decays, dt bias, gates, norms, head order: one of them wrong and the answers differ."""
    model = random_model(shape, seed=3)
    body = ask("Hello there, what is this?", picture(1), max_tokens=8)
    answers = []
    for path in (write_hf(tmp_path / "hf", model), write_gguf(tmp_path / "gguf", model)):
        async with live(model=load_model(open_model(path, OPTIONS))) as server:
            answers += await server.all([body])
    assert answers[0] == answers[1]


ALTERED = {
    "conv1d.weight": lambda w: w[..., ::-1],
    "A_log": lambda w: -np.exp(w),
    "dt_bias": lambda w: w[::-1],
    "in_proj_a.weight": lambda w: w[::-1],
    "in_proj_b.weight": lambda w: w[::-1],
    "linear_attn.norm.weight": lambda w: w + 1,
    "input_layernorm.weight": lambda w: w - 1,
    "in_proj_z.weight": lambda w: np.concatenate([w[16:], w[:16]]),
}


@pytest.mark.trio
@pytest.mark.parametrize("name", ALTERED)
async def test_b113_a_wrong_layout_would_show(name: str, tmp_path: Path) -> None:
    """Arms the test above: each of these mistakes changes the answer's log-probabilities."""
    body = ask("Hello there, what is this?", max_tokens=4)
    answers = []
    for change in (lambda w: w, ALTERED[name]):
        model = random_model(TinyShape(vision=False), seed=3)
        for tensor in model.tensors:
            if tensor.endswith(name) and ".layers.0." in tensor:
                model.tensors[tensor] = np.ascontiguousarray(change(model.tensors[tensor]))
        folder = write_hf(tmp_path / str(len(answers)), model, dtype="F32")
        async with live(model=load_model(open_model(folder, OPTIONS))) as server:
            answers += await server.all([body])
    assert answers[0] != answers[1]


LENGTHS: dict[str, tuple[str, Any]] = {
    "key": ("key general.architecture length", None),
    "string": ("general.architecture value length", None),
    "numbers": ("numbers count", RawArray(4, [1, 2, 3])),
    "floats": ("floats count", RawArray(6, [0.5])),
    "bools": ("flags count", RawArray(7, [True])),
    "strings": ("tokens count", RawArray(8, ["a", "b"])),
    "string of a list": ("tokens value length", RawArray(8, ["a", "b"])),
    "tensor name": ("tensor w length", None),
}


@pytest.mark.parametrize("what", LENGTHS)
def test_b115_lengths_that_a_large_file_could_hold_are_bounded(what: str, tmp_path: Path) -> None:
    """A length of 2^31 or 2^28 in a sparse file of 8 GiB: past the file it is caught anyway, within it by its limit."""
    wanted, array = LENGTHS[what]
    file = GgufBytes()
    file.begin(tensors=1, keys=1 + (array is not None))
    file.pair("general.architecture", "qwen35")
    if array is not None:
        file.pair(wanted.split()[0], array)
    file.tensor("w", (4, 4), 0, 0)
    file.pad()
    at, size = next((at, size) for name, at, size in file.fields if name == wanted)
    for value in (2**31, 2**28):
        data = bytearray(file.data)
        data[at : at + size] = value.to_bytes(size, "little")
        path = tmp_path / f"{value}.gguf"
        path.write_bytes(data)
        with path.open("r+b") as sparse:
            sparse.truncate(1 << 33)
        assert value * 8 < path.stat().st_size or value == 2**31, "the trap: the file is long enough"
        tracemalloc.start()
        started = time.perf_counter()
        with pytest.raises(ModelFileError) as refused:
            open_gguf(path)
        seconds, peak = time.perf_counter() - started, tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert str(path) in str(refused.value) and seconds < 1 and peak < 50e6, (seconds, peak)


@pytest.mark.parametrize(
    "arguments",
    [["--kv-cache-dtype", "q8_0"], ["--cache-type-k", "q8_0"], ["--kv-bits", "8"], ["--kv-dtype", "int8"]],
)
def test_b120_key_value_quantisation_is_not_offered(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--port", "0", *arguments])
    assert ended.value.code not in (0, None)
    said = capsys.readouterr()
    assert arguments[0] in said.out + said.err


def test_b120_no_flag_speaks_of_it_and_keys_are_float32(tmp_path: Path) -> None:
    groups: list[Any] = [ModelFlags, HttpFlags, SchedulingFlags, LoadOptions]
    names = [field.name for group in groups for field in attrs.fields(group)]
    assert "block_size" in names, "the trap: the flags are found"
    assert not [name for name in names if re.search(r"quant|dtype|bits|cache_type|kv", name)]
    folder = write_hf(tmp_path, random_model(TinyShape(vision=False)))
    engine = load_model(open_model(folder, OPTIONS)).engine
    assert isinstance(engine, Qwen35Engine)
    assert {layer.k.dtype for layer in engine.pool.kv} | {layer.v.dtype for layer in engine.pool.kv} == {
        np.dtype(np.float32)
    }
    engine.shutdown()


@pytest.mark.trio
@pytest.mark.parametrize("shards", [1, 3])
async def test_b122_a_tied_head_is_the_embedding_in_the_answers(shards: int, tmp_path: Path) -> None:
    """A file without a head, tied: the answers of the same file with the embedding as its head."""
    tied = random_model(TinyShape(tied=True, vision=False), seed=5)
    given = random_model(TinyShape(tied=True, vision=False), seed=5)
    embedding = given.tensors["model.language_model.embed_tokens.weight"]
    given.tensors["lm_head.weight"] = embedding.copy()
    other = random_model(TinyShape(tied=True, vision=False), seed=5)
    other.tensors["lm_head.weight"] = embedding[::-1].copy()
    answers = []
    for number, model in enumerate((tied, given, other)):
        folder = write_hf(tmp_path / str(number), model, shards=shards)
        async with live(model=load_model(open_model(folder, OPTIONS))) as server:
            answers += await server.all([ask("Hello", max_tokens=6)])
    assert answers[0] == answers[1] != answers[2], "the trap: another head shows"


def test_b122_untied_without_a_head_is_refused(tmp_path: Path) -> None:
    model = random_model(TinyShape(vision=False))
    del model.tensors["lm_head.weight"]
    with pytest.raises(ModelFileError, match=r"lm_head\.weight.*missing"):
        open_model(write_hf(tmp_path, model), OPTIONS)
