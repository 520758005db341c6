"""Runs one cell: a service of its own, the neighbours, the request, and what became of all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import attrs
import trio

from luce.actors.encoder import on_worker_thread
from luce.actors.options import ServiceOptions
from luce.actors.service import Service
from luce.actors.submission import Handle, Submission, prefix_keys
from luce.actors.token_buffer import Delta
from luce.compute.operands import Operands
from luce.demo.matrix.cells import Cell
from luce.demo.matrix.company import Company, Tally
from luce.demo.matrix.parking import ParkingPolicy, chosen_parkings
from luce.demo.matrix.questions import Bits, Questions, bits, faulty, named
from luce.engines.choose_device import CPU
from luce.engines.load_model import (
    LoadOptions,
    OpenedModel,
    check_free,
    demo_model,
    load_model,
    open_model,
)
from luce.engines.loaded import LoadedModel
from luce.engines.qwen35.device.engine import DeviceEngine
from luce.engines.qwen35.device.runner import Runner
from luce.engines.seam import SampledToken, StepPlan
from luce.engines.synthetic_model import open_synthetic

__all__ = ["Bench", "Report", "run_cell"]

CONTEXT, BLOCK = 384, 64
SNAPSHOTS = {"cold": 32, "hot": 32, "evicted": 3}
"""That the prefix cache has room for."""
ENOUGH = 4
"""Tokens of the answers that the request gets before it is compared: its prompt is what is cached."""


@attrs.frozen
class Report:
    """What happened in one cell."""

    cell: Cell
    tokens: int
    """Of the compared answer."""
    cached_tokens: int
    evictions: int
    saves: int
    drops: int
    redone: int
    """Rows that were computed again after a drop."""
    moved: int
    """Times that the request came back to another slot."""
    lent: int
    """Times that a neighbour got its slot while it was parked."""
    shared: int
    """Steps with rows of the request and of neighbours."""
    depth: int
    company: Tally
    difference: str | None
    """Where the answer is not the one that it is alone."""

    @property
    def wrong(self) -> list[str]:
        """Every broken promise."""
        return ([self.difference] if self.difference else []) + self.company.wrong

    @property
    def missing(self) -> list[str]:
        """What the cell is about and did not happen: then its answer says nothing."""
        cell, company = self.cell, self.company
        needs = {
            "a cached prefix": (self.cached_tokens > 0) == (cell.cache == "hot"),
            "an eviction": self.evictions > 0 or cell.cache != "evicted",
            "a save": (self.saves > 0) == cell.saves,
            "a drop": (self.drops > 0) == cell.drops,
            "rows computed again": self.redone > 0 or not cell.drops,
            "a shared step": self.shared > 0 or cell.slots == 1,
            "an answered neighbour": company.answered > 0 or cell.company != "steady",
            "a cancelled neighbour": company.cancelled > 0 or cell.company != "cancelled",
            "a neighbour that is not finite": company.not_finite > 0 or cell.company != "failing",
            "a neighbour that is not encoded": company.not_encoded > 0 or cell.company != "failing",
            "it beside the request": company.beside > 0 or cell.company == "steady" or cell.slots == 1,
        }
        return [f"{what}: not as the cell says" for what, good in needs.items() if not good]


class _KeptEngine:
    """A device's engine that outlives the services which it serves."""

    def __init__(self, engine: DeviceEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def shutdown(self) -> None:
        """A service has ended: what its prefix cache kept is nobody's."""
        engine = self._engine

        def kept(runner: Runner, _: object) -> tuple[list[int], tuple[int, ...]]:
            blocks = tuple(block for block, held in enumerate(runner.pool.held) if held)
            return list(runner.stored.states), blocks

        handles, blocks = engine.call(kept)
        for handle in handles:
            engine.discard(handle)
        engine.collect(engine.launch(StepPlan(0, (), (), freed_blocks=blocks)))

    def end(self) -> None:
        self._engine.shutdown()


class Bench:
    """What all cells share: the opened model, the questions, and the answers that each gets alone.

    Args:
        path: of a model that answers what the bundled one does (tests); None: the bundled one.
        device: where it runs, as :func:`luce.engines.choose_device.choose_device` takes it.
        operands: of a GPU's weight products; None: bf16.
        shape: of random weights instead, a name of :data:`luce.engines.synthetic_model.SHAPES`.

    Raises:
        ModelFileError, DeviceError: the model is not here, or there is no memory for it.
        ConfigError: there is no such device, or no room on it.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        device: str = CPU,
        operands: Operands | None = None,
        shape: str | None = None,
    ) -> None:
        self._path, self._device, self._shape = path or demo_model(), device, shape
        self._operands = operands
        self._opened: dict[int, OpenedModel] = {}
        self._kept: dict[int, LoadedModel] = {}
        self._alone: dict[str, Bits] = {}
        model = self.model(1)
        self.questions = Questions.build(model)
        if not self._kept:
            model.engine.shutdown()

    def opened(self, slots: int) -> OpenedModel:
        """With blocks to spare, so that nothing is parked but by the cell's will and the cache keeps its blocks."""
        if slots not in self._opened:
            options = LoadOptions(
                slots=slots,
                context=CONTEXT,
                block_size=BLOCK,
                num_blocks=(slots + 4) * CONTEXT // BLOCK,
                device=self._device,
                operands=self._operands,
            )
            if self._shape is None:
                found = open_model(self._path, options, fitting=False)
            else:
                found = open_synthetic(self._shape, options, fitting=False)
            if found.on_device is None:
                check_free(found.plan, "the exactness matrix")
            self._opened[slots] = found
        return self._opened[slots]

    def model(self, slots: int) -> LoadedModel:
        """A new one; on a GPU, where starting takes longer than a cell, the one that served other cells before."""
        if self._device == CPU:
            return load_model(self.opened(slots))
        if slots not in self._kept:
            loaded = load_model(self.opened(slots))
            assert isinstance(loaded.engine, DeviceEngine)
            self._kept[slots] = attrs.evolve(loaded, engine=_KeptEngine(loaded.engine))
        return self._kept[slots]

    def close(self) -> None:
        """End the engines that were kept."""
        for model in self._kept.values():
            assert isinstance(model.engine, _KeptEngine)
            model.engine.end()

    def probe(self, cell: Cell) -> Submission:
        return self.questions.probes[cell.images, cell.sampled]

    async def alone(self, asked: Submission) -> Bits:
        """The answer of a request by itself on a fresh service, its prompt in one piece."""
        if asked.id not in self._alone:
            async with _serving(Service(self.model(1), ServiceOptions(prefill_budget=None))) as service:
                found, error = await _read(service.submit(asked))
            assert error is None, error
            self._alone[asked.id] = found
        return self._alone[asked.id]


@asynccontextmanager
async def _serving(service: Service) -> AsyncIterator[Service]:
    """The service while the block runs. It must drain and leave nothing behind."""
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        yield service
        service.drain()
        await service.stopped()
    assert not service.requests and not service.loop.running
    service.loop.memory.check_integrity(())


async def _read(handle: Handle) -> tuple[Bits, str | None]:
    """An answer, and what it failed for."""
    tokens: list[SampledToken] = []
    while isinstance(item := await handle.next(), Delta):
        tokens += item.tokens
    return bits(tokens), str(item.error) if item.error is not None else None


async def run_cell(bench: Bench, cell: Cell) -> Report:
    """Ask the cell's request in the cell's circumstances."""
    rng = Random(cell.name)
    questions, probe = bench.questions, bench.probe(cell)
    expected = await bench.alone(probe)
    neighbours = {asked.id: await bench.alone(asked) for asked in questions.neighbours}
    model = bench.model(cell.slots)
    options = ServiceOptions(
        prefill_budget=cell.prefill_budget,
        depth=rng.choice((1, 2)),
        prefix_bytes=SNAPSHOTS[cell.cache] * model.engine.capabilities.captured_bytes(BLOCK - 1),
    )
    policy = ParkingPolicy(chosen_parkings(cell, rng, len(probe.prompt.token_ids), len(expected)))
    encode = faulty(on_worker_thread(model.engine.encode), questions)
    async with _serving(Service(model, options, encode, policy)) as service, trio.open_nursery() as nursery:
        before = await _prepare(cell, service, questions, probe, expected)
        company = Company(cell, service, policy, questions, neighbours)
        nursery.start_soon(company.run)
        await company.reach(policy.plans + rng.randrange(2, 12))
        handle = service.submit(named(probe, "probe"))
        policy.watched = max(service.requests)
        found, error = await _read(handle)
        company.leave()
    metrics = service.loop.metrics
    return Report(
        cell=cell,
        tokens=len(found),
        cached_tokens=handle.usage.cached_tokens,
        evictions=service.loop.memory.cache.index.stats.evictions,
        saves=metrics.saves,
        drops=metrics.drops,
        redone=policy.redone,
        moved=policy.moved,
        lent=policy.lent,
        shared=policy.shared,
        depth=options.depth,
        company=company.tally,
        difference=before or _difference(expected, found, error),
    )


async def _prepare(
    cell: Cell, service: Service, questions: Questions, probe: Submission, expected: Bits
) -> str | None:
    """Have the prompt's prefixes in the cache, or have had them. Returns what is wrong with the answer that it took."""
    if cell.cache == "cold":
        return None
    found, error = await _read(service.submit(named(probe, "earlier", ENOUGH)))
    if cell.cache == "evicted":
        index = service.loop.memory.cache.index
        keys = prefix_keys(probe, service.model.engine.capabilities)
        for pusher in questions.pushers:
            if index.lookup(keys) is None:
                break
            await _read(service.submit(pusher))
    wrong = _difference(expected[:ENOUGH], found, error)
    return None if wrong is None else f"asked before, {wrong}"


def _difference(expected: Bits, found: Bits, error: str | None) -> str | None:
    if error is not None:
        return f"the request failed: {error}"
    at = next((n for n, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), None)
    if at is not None:
        what = "token" if expected[at][:8] != found[at][:8] else "log-probability"
        return f"another {what} than alone at place {at} of the answer"
    if len(found) != len(expected):
        return f"the answer has {len(found)} tokens, and {len(expected)} alone"
    return None
