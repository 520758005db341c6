"""`luce doctor`: what luce runs on, and whether this machine keeps its promise."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import attrs
import numpy as np
from cyclopts import Parameter
from rich.console import Console

from luce.cli.flags import FILE, NAME, OPERANDS, ConfigFlags, OperandsName, chosen_operands
from luce.cli.matrix import run_matrix
from luce.cli.shapes import Shape
from luce.compute.blas import pin_blas
from luce.compute.host_memory import available_bytes
from luce.compute.operands import Operands
from luce.compute.selfcheck import check_operators
from luce.demo.matrix.cells import Cell, all_cells, named_cell
from luce.demo.matrix.covering import covering_cells
from luce.demo.matrix.running import Bench
from luce.engines.choose_device import choose_device
from luce.engines.load_model import (
    LoadedEngine,
    LoadOptions,
    OpenedModel,
    check_free,
    demo_model,
    load_engine,
    open_model,
)
from luce.engines.qwen35.memory import format_bytes
from luce.engines.seam import RowSource, Segment, SegmentKind, SlotSpec, StepPlan
from luce.errors import ConfigError, DeviceError, LuceError, printable

__all__ = ["Finding", "alone_and_beside", "doctor"]

PACKAGES = ("numpy", "trio", "quart", "quart-trio", "hypercorn", "tokenizers", "pillow", "gguf", "msgspec")
ROWS = (7, 61, 64, 65)
"""Prompt lengths of the self-test: short, and around the DeltaNet's chunk of 64."""


@attrs.frozen
class Finding:
    name: str
    text: str
    good: bool = True


def doctor(
    model: Annotated[
        Path | None, FILE, Parameter(help="Model for the exactness self-test; by default the bundled one.")
    ] = None,
    /,
    *,
    device: Annotated[
        str,
        NAME,
        Parameter(
            help="Where the self-test and the matrix run: cpu, cuda:N, hip:N, or auto: the first GPU if there is one."
        ),
    ] = "cpu",
    operands: Annotated[OperandsName | None, OPERANDS] = None,
    matrix: Annotated[
        bool,
        Parameter(
            negative="",
            help="Also the exactness matrix: 864 combinations of cache, chunking, slots, parking, pictures and "
            "neighbours on the bundled model, each answer compared bit for bit. Takes about 15 minutes.",
        ),
    ] = False,
    sample: Annotated[
        bool,
        Parameter(
            negative="",
            help="Of the matrix only some 60 cells that hold every combination of any three levels. Takes a minute "
            "or two.",
        ),
    ] = False,
    pairs: Annotated[
        bool,
        Parameter(
            negative="",
            help="Of the matrix only some 20 cells that hold every combination of any two levels.",
        ),
    ] = False,
    synthetic: Annotated[
        Shape | None,
        Parameter(help="Run the matrix on random weights in the shape of this model, in bf16 on a GPU."),
    ] = None,
    cell: Annotated[
        str | None, NAME, Parameter(help="Of the matrix only this cell, by the name that a failure prints.")
    ] = None,
    config: ConfigFlags = ConfigFlags(),  # noqa: B008 - frozen
) -> int:
    """Check this machine: Python, memory, device, exactness.

    Exit code 1 when something is wrong.
    """
    cells = _cells(model, matrix, sample, pairs, cell)
    if synthetic is not None and not matrix:
        raise ConfigError("is what the matrix runs on; give --matrix, too", flag="--synthetic")
    console = Console(highlight=False, soft_wrap=True)
    good = True
    taken = chosen_operands(operands)
    for finding in examine(model, device, taken):
        mark = "[green]ok[/]   " if finding.good else "[red]FAIL[/] "
        console.print(mark, end="")
        console.print(f"{finding.name:<12} {printable(finding.text)}", markup=False)
        good = good and finding.good
    if cells and good:
        good = run_matrix(cells, console, partial(Bench, device=device, operands=taken, shape=synthetic))
    return 0 if good else 1


def _cells(model: Path | None, matrix: bool, sample: bool, pairs: bool, cell: str | None) -> list[Cell]:
    """Of the matrix; none without ``--matrix``.

    Raises:
        ConfigError: flags that do not go together.
    """
    choices = [flag for flag, given in (("--sample", sample), ("--pairs", pairs), ("--cell", cell)) if given]
    if choices and not matrix:
        raise ConfigError("says which cells of the matrix to run; give --matrix, too", flag=choices[0])
    if not matrix:
        return []
    if model is not None:
        raise ConfigError("asks the bundled model; leave MODEL away", flag="--matrix")
    if len(choices) > 1:
        raise ConfigError(f"chooses other cells than {choices[1]}; leave one of them away", flag=choices[0])
    if cell is not None:
        return [named_cell(cell)]
    if pairs:
        return covering_cells(strength=2)
    return covering_cells() if sample else all_cells()


def examine(model: Path | None, device: str = "cpu", operands: Operands | None = None) -> Iterator[Finding]:
    """All findings, cheap ones first."""
    yield Finding("python", f"{sys.version.split()[0]} on {platform.platform()}")
    yield Finding("packages", ", ".join(f"{name} {_version(name)}" for name in PACKAGES))
    free = available_bytes()
    yield Finding("memory", "unknown" if free is None else f"{format_bytes(free)} free")
    yield _checked("device", lambda: str(pin_blas()))
    if device != "cpu" or operands is not None:
        yield _checked("GPU", lambda: _gpu(device, operands))
    yield _checked("operators", _operators)
    opened: list[OpenedModel] = []
    yield _checked("model", lambda: _open(model, opened, device, operands))
    if opened:
        yield _checked("exactness", lambda: _exactness(opened[0]))


def _checked(name: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(name, check())
    except LuceError as error:
        return Finding(name, str(error), good=False)


def _operators() -> str:
    check_operators()
    return "numpy's element functions and sums give each row the same bits anywhere"


def _gpu(device: str, operands: Operands | None) -> str:
    found = choose_device(device, operands=operands)
    if found is None:
        return "none; the CPU is used"
    return f"{found.fingerprint}, {format_bytes(found.free_bytes())} free"


def _open(path: Path | None, opened: list[OpenedModel], device: str, operands: Operands | None) -> str:
    options = LoadOptions(slots=len(ROWS), context=max(ROWS) + 8, device=device, operands=operands)
    found = open_model(path or demo_model(), options, chat=False, fitting=False)
    if found.on_device is None:
        check_free(found.plan, "the self-test of this model")
    opened.append(found)
    return f"{found.name} from {found.files.path}"


def _exactness(opened: OpenedModel) -> str:
    engine = load_engine(opened)
    try:
        different = alone_and_beside(engine)
    finally:
        engine.shutdown()
    if different:
        raise DeviceError(
            f"{opened.name}: prompts of {different} rows got other tokens or log-probabilities beside others than "
            "alone"
        )
    same = "the same tokens and log-probabilities alone, and together in pieces"
    return f"{opened.name}: {len(ROWS)} prompts gave {same}"


def alone_and_beside(engine: LoadedEngine, tokens: int = 6) -> list[int]:
    """Greedy answers to prompts alone in one piece, then to all of them at once in small pieces.

    Returns:
        Lengths of the prompts whose answers, or any bits of whose log-probabilities, differ.
    """
    specs = [_spec(rows, engine.capabilities.vocab_size, tokens) for rows in ROWS]
    alone = [_run(engine, [spec], tokens, piece=10**6)[0] for spec in specs]
    together = _run(engine, specs, tokens, piece=13)
    return [rows for rows, one, other in zip(ROWS, alone, together, strict=True) if one != other]


Answer = list[tuple[int, float | None]]


def _spec(rows: int, vocab: int, tokens: int) -> SlotSpec:
    from luce.sampling.parameters import SamplingParams

    ids = (np.random.default_rng(rows).integers(0, vocab // 2, rows)).astype(np.int32)
    positions = np.tile(np.arange(rows, dtype=np.int32), (3, 1))
    return SlotSpec(ids, positions, 0, SamplingParams(temperature=0.0, seed=0, logprobs=0), tokens)


def _run(engine: LoadedEngine, specs: list[SlotSpec], tokens: int, piece: int) -> list[Answer]:
    block = engine.capabilities.block_size
    need = -(-(max(len(spec.token_ids) for spec in specs) + tokens) // block)
    tables = [tuple(range(slot * need, (slot + 1) * need)) for slot in range(len(specs))]
    answers: list[Answer] = [[] for _ in specs]
    done = [0] * len(specs)
    for slot, spec in enumerate(specs):
        engine.open(slot, spec)
    number = 0
    blocks = fresh = tuple(range(len(specs) * need))
    while any(len(answer) < tokens for answer in answers):
        segments = [
            _segment(slot, done[slot], len(spec.token_ids), piece)
            for slot, spec in enumerate(specs)
            if len(answers[slot]) < tokens
        ]
        covered = tuple(tables[part.slot][: -(-(part.start + part.count) // block)] for part in segments)
        step = StepPlan(number, tuple(segments), covered, fresh_blocks=fresh)
        result = engine.collect(engine.launch(step))
        fresh = ()
        for part, outcome in zip(segments, result.outcomes, strict=True):
            if outcome.error is not None:
                raise DeviceError(outcome.error)
            done[part.slot] += outcome.kept
            answers[part.slot] += [(token.token, token.logprob) for token in outcome.tokens]
        number += 1
    for slot in range(len(specs)):
        engine.close(slot)
    engine.collect(engine.launch(StepPlan(number, (), (), freed_blocks=blocks)))
    return answers


def _segment(slot: int, start: int, prompt: int, piece: int) -> Segment:
    if start >= prompt:
        return Segment(slot, SegmentKind.DECODE, start, 1, RowSource.LAST_SAMPLED, sample=True)
    count = min(piece, prompt - start)
    return Segment(slot, SegmentKind.PREFILL, start, count, RowSource.PROMPT, sample=start + count == prompt)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"
