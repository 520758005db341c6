"""Attention on a device: values against float64; the same bits however a prompt is cut and whoever stands beside it."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import pytest

from luce.compute.device import Device
from tests.kernels.attention_case import Layer, Run, Tokens, reference, sequence, shape

ON_GPU = os.environ.get("LUCE_TEST_DEVICE", "host") != "host"
SMALL = (4, 2, 64)
SHAPES = [SMALL, (6, 1, 32), (3, 3, 64), (16, 1, 32)]
if ON_GPU:
    SHAPES += [(24, 4, 256), (16, 2, 256), (8, 2, 256), (16, 4, 256), (12, 4, 128), (32, 2, 256)]


def whole(layer: Layer, rows: Tokens, table: Sequence[int]) -> np.ndarray:
    return layer.run({0: rows}, [Run(0, 0, len(rows.x))], {0: table})[0]


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return bool((a.view(np.uint32) == b.view(np.uint32)).all())


@pytest.mark.parametrize("heads, kv_heads, dim", SHAPES)
def test_values_and_decode_equals_prefill(device: Device, heads: int, kv_heads: int, dim: int) -> None:
    config = shape(heads, kv_heads, dim)
    rows = sequence(config, 300, seed=dim)
    layer = Layer(device, config, 16)
    expected = reference(config, rows, layer.norms)
    got = whole(layer, rows, [3, 9, 1, 15, 4])
    error = np.abs(got - expected)
    rounding = np.abs(expected) / 256  # of the output to bf16, at most
    assert ((error - rounding) / np.sqrt((expected**2).mean(-1, keepdims=True))).max() < 1.5e-2
    assert np.sqrt((error**2).mean() / (expected**2).mean()) < 2.5e-3
    again = Layer(device, config, 8)
    table, done = {0: [5, 2, 7, 0, 6]}, 0
    for position in range(250, 300) if ON_GPU else (250, 255, 256, 257, 299):
        if position > done:
            again.run({0: rows}, [Run(0, done, position - done)], table)
        (row,) = again.run({0: rows}, [Run(0, position, 1)], table, step=True, pad=0)
        assert same(row[0], got[position]), position
        done = position + 1


def random_cuts(rng: np.random.Generator, tokens: int) -> list[int]:
    pieces = int(rng.integers(1, 9))
    cuts = np.unique(rng.integers(1, tokens, pieces))
    if rng.random() < 0.5:
        cuts = np.unique(np.concatenate([cuts, cuts[:2] + 1]))
    return [0, *(int(cut) for cut in cuts if cut < tokens), tokens]


@pytest.mark.parametrize("heads, kv_heads, dim", [(2, 1, 128), (24, 4, 256)] if ON_GPU else [(2, 1, 128)])
def test_warpgroup_products_give_the_same_bits(device: Device, heads: int, kv_heads: int, dim: int) -> None:
    if device.arch not in ("host", "sm_90a"):
        pytest.skip(f"{device.arch} has no warpgroup products")
    config = shape(heads, kv_heads, dim)
    rows = sequence(config, 600 if ON_GPU else 260, seed=3)
    total = len(rows.x)
    table = [3, 9, 1, 15, 4, 0, 2, 5, 6, 7]
    expected = whole(Layer(device, config, 16, wgmma=False), rows, table)
    layer = Layer(device, config, 16, wgmma=True)
    assert layer.kernels.wgmma
    assert same(whole(layer, rows, table), expected)
    for cut in (1, 64, 129, 200):
        fresh = Layer(device, config, 16, wgmma=True)
        parts = [Run(0, 0, cut), Run(0, cut, total - cut)]
        found = [fresh.run({0: rows}, [part], {0: table})[0] for part in parts]
        assert same(np.concatenate(found), expected), cut


def test_every_cut_of_a_prompt_gives_the_same_bits(device: Device) -> None:
    """300 tokens in random pieces, beside other lanes, in other blocks, in passes of both kinds."""
    config = shape(*SMALL)
    rows = {of: sequence(config, 300, seed=of) for of in range(3)}
    expected = {of: whole(Layer(device, config, 5), rows[of], range(5)) for of in range(3)}
    rng = np.random.default_rng(5)
    for _ in range(200 if ON_GPU else 6):
        blocks = rng.permutation(16)
        layer = Layer(device, config, 16)
        tables = {of: [int(b) for b in blocks[5 * of : 5 * of + 5]] for of in range(3)}
        cuts = {of: random_cuts(rng, 300) for of in range(3)}
        while pending := [of for of in range(3) if len(cuts[of]) > 1]:
            chosen = [of for of in pending if rng.random() < 0.7] or pending[:1]
            rng.shuffle(chosen)
            runs = [Run(of, cuts[of][0], cuts[of][1] - cuts[of][0]) for of in chosen]
            step = all(run.count == 1 for run in runs)
            tile = int(rng.choice([8, 64, 128]))
            found = layer.run(rows, runs, tables, step=step, pad=int(rng.integers(0, 4)), tile=tile)
            for run, got in zip(runs, found, strict=True):
                assert same(got, expected[run.of][run.start : run.start + run.count]), (run, tables)
                del cuts[run.of][0]


def test_steps_of_many_lanes(device: Device) -> None:
    """Lanes of every length beside each other, some not finite: each row keeps the bits it has alone."""
    config = shape(*SMALL)
    lengths = [1, 2, 63, 64, 65, 129, 256, 257, 300] * (7 if ON_GPU else 1)
    rows = {of: sequence(config, length + 1, seed=of) for of, length in enumerate(lengths)}
    tables = {of: list(range(of * 5, of * 5 + 5)) for of in rows}
    alone = Layer(device, config, 5 * len(lengths))
    expected = {}
    for of, length in enumerate(lengths):
        alone.run(rows, [Run(of, 0, length)], tables)
        expected[of] = alone.run(rows, [Run(of, length, 1)], tables, step=True, pad=0)[0]
    runs = [Run(of, length, 1) for of, length in enumerate(lengths)]
    together = alone.run(rows, runs, tables, step=True, pad=1)
    for of in rows:
        assert same(together[of], expected[of])
    poisoned = dict(rows)
    for of in range(0, len(lengths), 2):
        poisoned[of] = Tokens(np.full_like(rows[of].x, np.nan), rows[of].places)
    beside = alone.run(poisoned, runs, tables, step=True, pad=1)
    for of in range(1, len(lengths), 2):
        assert same(beside[of], expected[of])
    for of in range(0, len(lengths), 2):
        assert np.isnan(beside[of]).any(), "a row that is not finite stays so"


def test_long_context(device: Device) -> None:
    """More splits than the merge takes at once, in the bits of one row of a prefill; lanes of other lengths beside."""
    config = shape(6, 1, 32)
    blocks, lengths = 300, (9000, 4096, 4095, 1)
    layer = Layer(device, config, blocks, context=9216)
    rng = np.random.default_rng(8)
    for pool in (layer.kv.keys, layer.kv.values):
        stored = rng.standard_normal(pool.shape, np.float32)
        device.copy(pool, device.array((stored.view(np.uint32) >> 16).astype(np.uint16)))
    width = 2 * config.head_dim * (config.heads + config.kv_heads)
    rows, tables = {}, {}
    for of, length in enumerate(lengths):
        x = np.zeros((length, width), np.float32)
        x[-1] = rng.standard_normal(width)
        rows[of] = Tokens(x, np.arange(length)[None].repeat(3, 0) % 2000)
        tables[of] = [int(block) for block in rng.permutation(blocks)[: -(-length // 64)]]
    tables[1][-1], tables[2][-1] = (
        tables[0][-1] ^ 1,
        tables[0][-1] ^ 2,
    )  # what a lane writes no other one reads
    for of in range(3):
        taken = {tables[other][-1] for other in range(4)}
        tables[of][:-1] = [0 if block in taken else block for block in tables[of][:-1]]
    assert 0 not in {table[-1] for table in tables.values()}
    runs = [Run(of, length - 1, 1) for of, length in enumerate(lengths)]
    steps = layer.run(rows, runs, tables, step=True)
    chunks = layer.run(rows, runs, tables)
    for got, expected in zip(steps, chunks, strict=True):
        assert np.isfinite(got).all() and same(got, expected)


@pytest.mark.parametrize("step", [False, True])
@pytest.mark.parametrize("bad", [-1, 5, 1 << 30])
def test_block_ids_outside_the_pool_are_caught(device: Device, step: bool, bad: int) -> None:
    """The lane's rows become NaN; others keep their bits and nothing is read or written outside the pool."""
    config = shape(*SMALL)
    rows = {of: sequence(config, 130, seed=of) for of in range(2)}
    layer = Layer(device, config, 5)
    good = {0: [0, 1, 2], 1: [3, 4, 3]}
    whole_rows = layer.run(rows, [Run(0, 0, 129), Run(1, 0, 100)], good)
    last = layer.run(rows, [Run(0, 129, 1), Run(1, 100, 1)], good, step=step)
    assert np.isfinite(whole_rows[0]).all() and np.isfinite(last[0]).all()
    tables = {0: [0, bad, 2], 1: good[1]}
    found = layer.run(rows, [Run(0, 129, 1), Run(1, 100, 1)], tables, step=step)
    assert np.isnan(found[0]).all()
    assert same(found[1], last[1])
    place = bad * 64 if bad < 1 << 24 else 1 << 30
    found = layer.run(rows, [Run(0, 129, 1), Run(1, 100, 1)], good, step=step, kv_rows={0: place})
    assert np.isnan(found[0]).all()
    assert same(found[1], last[1])
