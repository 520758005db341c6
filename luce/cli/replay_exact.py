"""``luce replay exact``: the requests of a trace once more, every token compared."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import trio
from cyclopts import Group, Parameter
from rich.console import Console

from luce.cli.flags import COUNT, FILE, NAME, SIZE, ConfigFlags, whole
from luce.cli.main import EXIT_FAILED
from luce.compute.operands import Operands
from luce.errors import ConfigError, printable, quoted
from luce.replay.recorded_requests import recorded_requests
from luce.trace.reader import read_header, read_trace, trace_paths
from luce.trace.schema import Header

__all__ = ["OneTrace", "exact"]

OTHERWISE = Group("Otherwise than recorded", sort_key=1)
SHOWN = 20
"""Differences that are printed."""

OneTrace = Annotated[Path, FILE, Parameter(help="A trace file, or a directory of them.")]


def exact(
    trace: OneTrace,
    model: Annotated[
        Path | None, FILE, Parameter(help="The model that was recorded; by default the bundled one.")
    ] = None,
    /,
    *,
    mmproj: Annotated[
        Path | None, FILE, Parameter(help="Vision tower of a GGUF model; found beside it by itself.")
    ] = None,
    name: Annotated[
        str | None, NAME, Parameter(help="The model's name in the trace, where the files have another one.")
    ] = None,
    device: Annotated[
        str,
        NAME,
        Parameter(
            help="Where it runs: cpu, cuda:N, hip:N, or auto, the first GPU if it was recorded on one like it."
        ),
    ] = "auto",
    slots: Annotated[
        int | None,
        COUNT,
        Parameter(group=OTHERWISE, help="Requests that run at once; by default as recorded."),
    ] = None,
    prefill: Annotated[
        int | None, COUNT, Parameter(group=OTHERWISE, help="Prompt rows in a step; by default as recorded.")
    ] = None,
    depth: Annotated[
        int | None, whole(1, 2), Parameter(group=OTHERWISE, help="Steps in flight; by default as recorded.")
    ] = None,
    block_size: Annotated[
        int | None, COUNT, Parameter(group=OTHERWISE, help="Tokens in a KV block; by default as recorded.")
    ] = None,
    blocks: Annotated[
        int | None,
        COUNT,
        Parameter(
            group=OTHERWISE,
            help="KV blocks; by default as recorded, or enough for all slots where those are others.",
        ),
    ] = None,
    beside: Annotated[
        int | None,
        COUNT,
        Parameter(
            group=OTHERWISE, help="Requests that are asked at once; by default twice as many as slots."
        ),
    ] = None,
    max_memory: Annotated[
        int | None, SIZE, Parameter(help="Memory that the model may take, as 8GiB; by default what is free.")
    ] = None,
    config: ConfigFlags = ConfigFlags(),  # noqa: B008 - frozen
) -> int:
    """Run the requests of a trace again on a real engine, in other company, and compare every token.

    Needs a trace with content, its model, and a device like the recorded one. Ends with 1 if a token differs, or
    if a request that was answered cannot be compared.
    """
    from luce.cli.in_process import load_with_progress, opened
    from luce.engines.load_model import LoadOptions
    from luce.replay.exact import Rerun, check_repeatable, run_again
    from luce.vision.preprocess import Preprocessor

    paths, warnings = trace_paths([trace]), list[str]()
    header = read_header(paths[0]).header
    check_repeatable(header, name or header.model, header.fingerprint)  # before anything is loaded
    was = _Recorded(header)
    like, operands = _device_like(header, device)
    found = opened(
        model,
        LoadOptions(
            mmproj=mmproj,
            name=name,
            slots=slots or was.slots,
            context=was.context,
            block_size=block_size or was.block_size,
            num_blocks=blocks if blocks is not None or slots or block_size else was.blocks,
            max_memory=max_memory,
            device=like,
            operands=operands,
        ),
    )
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    loaded = load_with_progress(found, console)
    try:
        check_repeatable(header, loaded.name, loaded.fingerprint)
    except ConfigError:
        loaded.engine.shutdown()
        raise
    seats = beside or 2 * loaded.engine.capabilities.num_slots
    options = was.service_options(prefill, depth, seats)
    scale = Preprocessor(found.files.preprocessor).scale if found.files.preprocessor is not None else None

    async def run() -> Rerun:
        from luce.cli.in_process import running

        async with running(loaded, options) as service:
            return await run_again(
                service, recorded_requests(read_trace(paths, warnings)), scale, beside=seats
            )

    rerun = trio.run(run)
    for warning in warnings:
        print(f"luce: {printable(warning)}", file=sys.stderr)
    return _told(rerun)


def _device_like(header: Header, wanted: str) -> tuple[str, Operands | None]:
    """The device to load for and what its products multiply, checked before anything else of the model is."""
    from luce.engines.choose_device import AUTO, CPU, choose_device
    from luce.replay.exact import check_repeatable

    operands = Operands.of_device(header.fingerprint)
    if wanted == CPU:
        return CPU, None
    if wanted == AUTO:
        found = choose_device(AUTO)
        same = found is not None and found.fingerprint + operands.of_fingerprint == header.fingerprint
        return (AUTO, operands) if same else (CPU, None)
    found = choose_device(wanted, operands=operands)
    if found is not None:
        check_repeatable(header, header.model, found.fingerprint)
    return wanted, operands


class _Recorded:
    """What the recorded server was set to."""

    def __init__(self, header: Header) -> None:
        try:
            capabilities, self._options = header.capabilities, header.options
            self.slots = int(capabilities["num_slots"])
            self.context = int(capabilities["max_context"])
            self.block_size = int(capabilities["block_size"])
            self.blocks = int(capabilities["num_blocks"])
            if min(self.slots, self.context, self.block_size, self.blocks) < 1:
                raise ValueError("a number below 1")  # noqa: TRY301
            self.prefill, self.depth = self._options.get("prefill_budget"), self._options.get("depth", 1)
            if self.depth not in (1, 2) or not (
                self.prefill is None or (isinstance(self.prefill, int) and self.prefill > 0)
            ):
                raise ValueError(f"depth {quoted(self.depth)}, prefill_budget {quoted(self.prefill)}")  # noqa: TRY301
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"its header does not say what its engine was: {error!r}", flag="TRACE"
            ) from None

    def service_options(self, prefill: int | None, depth: int | None, seats: int) -> Any:
        from luce.actors.options import ServiceOptions

        return ServiceOptions(
            prefill_budget=prefill or self.prefill,
            depth=depth or self.depth,
            max_queued=max(seats, ServiceOptions().max_queued),
            max_queued_tokens=sys.maxsize,
            queue_timeout=float("inf"),
        )


def _told(rerun: Any) -> int:
    for other in rerun.others[:SHOWN]:
        said = f"recorded {other.recorded}, now {other.found}"
        end = f"; it failed: {other.why}" if other.why else ""
        print(printable(f"request {other.id}: token {other.place} is another one: {said}{end}"))
    if len(rerun.others) > SHOWN:
        print(f"and {len(rerun.others) - SHOWN} more requests")
    from luce.replay.exact import NO_TOKEN

    for why, count in rerun.skipped.most_common(SHOWN):
        which = "" if why == NO_TOKEN else f" (request {rerun.first_skipped[why]}{' first' * (count > 1)})"
        print(printable(f"{count:,} requests not compared: {why}{which}"))
    if rerun.others:
        print(f"{len(rerun.others):,} of {rerun.requests:,} requests have other tokens")
        return EXIT_FAILED
    if not rerun.requests:
        print("nothing was compared")
        return EXIT_FAILED
    print(f"{rerun.requests:,} requests, {rerun.tokens:,} tokens: every one is equal")
    if rerun.missed:
        print(f"of {rerun.missed:,} more that were answered nothing is known")
        return EXIT_FAILED
    return 0
