"""``luce bench`` and ``luce bench compare``: speed beside the device's limits."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import attrs
from cyclopts import Group, Parameter
from rich.console import Console

from luce.bench.engine_points import PARTS, Plan
from luce.bench.report import Report, comparison_lines, head_lines, point_line, read_report
from luce.bench.running import Telling, check_room, load_options, measure, traffic_of
from luce.cli.device_defaults import prefill_rows, rows_before_picture, step_seconds
from luce.cli.flags import (
    COUNT,
    FILE,
    NAME,
    OPERANDS,
    SECONDS,
    ConfigFlags,
    ModelPath,
    OperandsName,
    chosen_operands,
    whole,
)
from luce.cli.in_process import load_with_progress
from luce.cli.outputs import check_writable, writing
from luce.cli.shapes import Form, Shape
from luce.compute.host_memory import spare_what_stays, use_one_heap
from luce.compute.interpreter_lock import take_short_turns
from luce.compute.operands import Operands
from luce.engines.choose_device import choose_device
from luce.engines.load_model import LoadOptions, OpenedModel, demo_model, open_model
from luce.engines.qwen35.device.budget import RoomError
from luce.engines.synthetic_model import open_synthetic
from luce.errors import ConfigError

__all__ = ["compare", "run"]

WHAT = Group("What is measured", sort_key=2)
HOW = Group("How", sort_key=3)

Part = Literal["all", "engine", "decode", "prefill", "mixed", "pictures", "http"]


def _list(kind: Any, text: str) -> None:
    """A list of whole numbers, or nothing."""
    _numbers(text)


def _numbers(text: str) -> tuple[int, ...]:
    """Raises ValueError."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if not part.isascii() or not part.isdigit() or not 0 < int(part) <= MOST:
            raise ValueError(
                f"{text!r}: write whole numbers from 1 to {MOST} with commas between them, as 1,4,16"
            )
        found.append(int(part))
    return tuple(sorted(set(found)))


MOST = 1_000_000
NUMBERS = Parameter(validator=_list)


@Parameter(name="*")
@attrs.frozen
class WhatFlags:
    """What is measured."""

    only: Annotated[
        Part,
        Parameter(
            group=WHAT,
            help="Measure a part: engine is all but http.",
        ),
    ] = "all"
    rows: Annotated[str, NUMBERS, Parameter(group=WHAT, help="Sequences that decode at once.")] = "1,4,16"
    contexts: Annotated[
        str, NUMBERS, Parameter(group=WHAT, help="Tokens that they have before the ones that are timed.")
    ] = "512,4096"
    prompts: Annotated[
        str, NUMBERS, Parameter(group=WHAT, help="Tokens of prompts that are computed alone.")
    ] = "4096"
    mixed: Annotated[
        str,
        NUMBERS,
        Parameter(group=WHAT, help="Prompt rows in a step beside the most sequences, at the least context."),
    ] = "64,256"
    pictures: Annotated[
        str,
        NUMBERS,
        Parameter(
            group=WHAT, help="Tokens that pictures take, about: what the model makes of them is shown."
        ),
    ] = "256,1024"
    tokens: Annotated[
        int, whole(16), Parameter(group=WHAT, help="Tokens of each answer that is asked for by HTTP.")
    ] = 128


@Parameter(name="*")
@attrs.frozen
class HowFlags:
    """How it is measured."""

    prefill: Annotated[
        int | None,
        COUNT,
        Parameter(group=HOW, help="Prompt rows in one step; by default 64, on a GPU 2048."),
    ] = None
    step_time: Annotated[
        float | None,
        SECONDS,
        Parameter(
            group=HOW,
            help="Seconds that the server's steps with answers in them are to take at most, as luce serve takes it.",
        ),
    ] = None
    depth: Annotated[int, whole(1, 2), Parameter(group=HOW, help="Steps in flight at once.")] = 1
    runs: Annotated[int, COUNT, Parameter(group=HOW, help="Runs of which the median counts.")] = 3
    seconds: Annotated[
        float,
        SECONDS,
        Parameter(group=HOW, help="Seconds of one run of decoding, which has 64 steps at most."),
    ] = 2.0
    temperature: Annotated[float, Parameter(group=HOW, help="Of all answers; 0 is greedy.")] = 1.0
    json: Annotated[
        Path | None, FILE, Parameter(group=HOW, help="File for the report, for luce bench compare.")
    ] = None


def run(
    model: ModelPath = None,
    /,
    *,
    synthetic: Annotated[
        Shape | None, Parameter(help="Random weights in the shape of this model, instead of MODEL.")
    ] = None,
    format: Annotated[  # noqa: A002 - the flag's name
        Form | None, Parameter(help="Format of random weights, on a GPU; bf16 by default.")
    ] = None,
    device: Annotated[
        str,
        NAME,
        Parameter(help="Where the text model runs: cpu, cuda:N, hip:N, or auto, as luce serve takes it."),
    ] = "auto",
    operands: Annotated[OperandsName | None, OPERANDS] = None,
    what: WhatFlags = WhatFlags(),
    how: HowFlags = HowFlags(),
    config: ConfigFlags = ConfigFlags(),  # noqa: B008
) -> int:
    """Measure speed beside what memory and arithmetic allow, through the engine's seam and through HTTP."""
    if how.json is not None:
        check_writable(how.json, "--json")
    if synthetic is not None and model is not None:
        raise ConfigError("is instead of a MODEL; leave one of them away", flag="--synthetic")
    if format is not None and synthetic is None:
        raise ConfigError("is of random weights; give --synthetic, too", flag="--format")
    taken = chosen_operands(operands)
    on_gpu = choose_device(device, operands=taken) is not None
    if format is not None and not on_gpu:
        raise ConfigError("the CPU engine holds weights in float32; leave it away", flag="--format")
    plan = _plan(what, how, on_gpu)
    use_one_heap()
    take_short_turns()
    begun: list[Report] = []
    try:
        _measure(model, synthetic, (format or "bf16").upper(), device, taken, plan, what.tokens, begun.append)
    finally:  # a run that breaks off leaves what was measured before
        if how.json is not None and begun:
            with writing(how.json, "--json"):
                how.json.write_text(begun[0].json(), encoding="utf-8")
    return 0


def _measure(
    model: Path | None,
    synthetic: Shape | None,
    form: str,
    device: str,
    operands: Operands | None,
    plan: Plan,
    tokens: int,
    begun: Callable[[Report], None],
) -> None:
    """Args:
    begun: is told the report, which points come to.
    """
    console = Console(highlight=False, soft_wrap=True)
    progress = Console(stderr=True, highlight=False)
    small = _opened(model, synthetic, form, LoadOptions(slots=1))
    traffic = traffic_of(plan, tokens, small)
    try:
        opened = _opened(model, synthetic, form, load_options(plan, traffic, small, device, operands))
    except RoomError as error:
        raise ConfigError(f"{error.shortage}; fewer --rows or smaller --contexts need less") from None
    check_room(opened)
    gpu = opened.on_device.device if opened.on_device is not None else None
    free = gpu.free_bytes() if gpu is not None else 0
    started = time.perf_counter()
    loaded = load_with_progress(opened, progress)
    memory = {}
    if gpu is not None:
        planned = sum(spec.nbytes for spec in opened.plan.arrays)
        memory = {"planned": planned, "taken": free - gpu.free_bytes()}
    startup = {"load": time.perf_counter() - started}
    spare_what_stays()

    def begin(report: Report) -> None:
        begun(report)
        console.print("\n".join(head_lines(report)), markup=False)

    try:
        with progress.status("", refresh_per_second=4) as status:
            tell = Telling(
                doing=lambda what: status.update(f"measuring: {what}"),
                begun=begin,
                measured=lambda point: console.print(point_line(point), markup=False),
            )
            measure(
                opened,
                loaded,
                plan,
                traffic,
                tell,
                shape=synthetic,
                startup=startup,
                form=form,
                memory=memory,
            )
    finally:
        loaded.engine.shutdown()


def _opened(model: Path | None, synthetic: Shape | None, form: str, options: LoadOptions) -> OpenedModel:
    if synthetic is not None:
        return open_synthetic(synthetic, options, form=form, fitting=False)
    return open_model(demo_model() if model is None else model, options, fitting=False)


def compare(
    one: Annotated[Path, FILE, Parameter(help="A report that luce bench --json has written.")],
    other: Annotated[Path, FILE, Parameter(help="Another one.")],
    /,
    *,
    config: ConfigFlags = ConfigFlags(),  # noqa: B008 - frozen
) -> int:
    """Show two reports side by side: how much faster the second one is, point by point."""
    console = Console(highlight=False, soft_wrap=True)
    for line in comparison_lines(read_report(one), read_report(other)):
        console.print(line, markup=False)
    return 0


def _plan(what: WhatFlags, how: HowFlags, on_gpu: bool) -> Plan:
    parts = {"all": PARTS, "engine": PARTS[:-1]}.get(what.only, (what.only,))
    rows, contexts = _numbers(what.rows), _numbers(what.contexts)
    for numbers, flag in ((rows, "--rows"), (contexts, "--contexts")):
        if not numbers:
            raise ConfigError("must not be empty; leave parts away with --only", flag=flag)
    return Plan(
        rows=rows,
        contexts=contexts,
        prompts=_numbers(what.prompts),
        mixed=_numbers(what.mixed),
        pictures=_numbers(what.pictures),
        piece=prefill_rows(how.prefill, on_gpu=on_gpu),
        step_seconds=step_seconds(how.step_time, on_gpu=on_gpu),
        rows_before_picture=rows_before_picture(on_gpu=on_gpu),
        depth=how.depth,
        runs=how.runs,
        seconds=how.seconds,
        temperature=how.temperature,
        parts=frozenset(parts),
    )
