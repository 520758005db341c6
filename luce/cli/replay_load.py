"""``luce replay load``: a trace's requests, fired at a server."""

from __future__ import annotations

import datetime
import math
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import attrs
import trio
from cyclopts import Group, Parameter
from cyclopts.validators import Number
from rich.console import Console

from luce.cli.flags import COUNT, FILE, FILES, NAME, SECONDS, ConfigFlags, whole
from luce.cli.main import EXIT_FAILED, EXIT_STOPPED
from luce.cli.outputs import check_writable, same_file, writing
from luce.errors import ConfigError, printable, reason

if TYPE_CHECKING:
    from rich.status import Status

    from luce.replay.load.report import LoadReport
    from luce.replay.load.request import LoadRequest
    from luce.replay.load.tally import Tally
    from luce.replay.load.target import Target

__all__ = ["load"]

TAKEN = Group("What is taken of the trace", sort_key=1)
SENT = Group("How it is sent", sort_key=2)
TOLD = Group("Report", sort_key=3)

Kind = Literal["luce", "mooncake", "azure", "burstgpt", "servegen", "vllm"]
MOST_KEY = 4096
SAID_WAIT = 5.0
"""Seconds without an arrival from which on a load says what it waits for."""
ABOVE = Parameter(validator=Number(gt=0, lte=1e6))


@Parameter(name="*")
@attrs.frozen
class TakenFlags:
    """What is taken of the trace."""

    trace_kind: Annotated[
        Kind | None, Parameter(group=TAKEN, help="Of the files; by default told by how they begin.")
    ] = None
    start: Annotated[
        float,
        Parameter(group=TAKEN, validator=Number(gte=0, lte=1e9), help="Seconds into the trace to begin at."),
    ] = 0.0
    seconds: Annotated[
        float | None, SECONDS, Parameter(group=TAKEN, help="Seconds of the trace; by default to its end.")
    ] = None
    requests: Annotated[int | None, COUNT, Parameter(group=TAKEN, help="Requests at most.")] = None
    lengths: Annotated[
        int,
        COUNT,
        Parameter(group=TAKEN, help="What prompts' texts are divided by, for a small model or context."),
    ] = 1
    most_tokens: Annotated[int | None, COUNT, Parameter(group=TAKEN, help="Of an answer.")] = None
    output_tokens: Annotated[
        int, COUNT, Parameter(group=TAKEN, help="Of an answer, where the trace does not say.")
    ] = 128
    picture_tokens: Annotated[
        int, COUNT, Parameter(group=TAKEN, help="Of a picture, where the trace only says that there was one.")
    ] = 256
    no_pictures: Annotated[
        bool, Parameter(group=TAKEN, negative="", help="Send text of the same length instead of pictures.")
    ] = False


@Parameter(name="*")
@attrs.frozen
class SentFlags:
    """How it is sent."""

    speed: Annotated[
        float, ABOVE, Parameter(group=SENT, help="How much faster than in the trace time goes; 0.5 is half.")
    ] = 1.0
    rate: Annotated[
        float | None,
        ABOVE,
        Parameter(group=SENT, help="Requests a second at random times, instead of the trace's times."),
    ] = None
    seed: Annotated[
        int,
        whole(0),
        Parameter(group=SENT, help="Of random times, of what is drawn, and of prompts nobody shares."),
    ] = 0
    name: Annotated[
        str | None,
        NAME,
        Parameter(group=SENT, help="The model's name at the server; by default the first that it lists."),
    ] = None
    key_file: Annotated[
        Path | None, FILE, Parameter(group=SENT, help="File whose first line is the key for the server.")
    ] = None
    timeout: Annotated[
        float,
        SECONDS,
        Parameter(group=SENT, help="Seconds that any answer may take, of a request from its arrival."),
    ] = 600.0
    max_open: Annotated[
        int,
        COUNT,
        Parameter(
            group=SENT,
            help="Requests under way at once. Those beyond are counted as not sent; none is delayed.",
        ),
    ] = 10_000


@Parameter(name="*")
@attrs.frozen
class ToldFlags:
    """Where the report goes."""

    json: Annotated[Path | None, FILE, Parameter(group=TOLD, help="File for the report as JSON.")] = None
    html: Annotated[Path | None, FILE, Parameter(group=TOLD, help="File for the report as a page.")] = None


def load(
    url: Annotated[str, NAME, Parameter(help="The server's address, as http://127.0.0.1:8000.")],
    traces: Annotated[
        tuple[Path, ...],
        FILES,
        Parameter(
            help="luce's own traces, or one of Mooncake, Azure, BurstGPT, ServeGen or vLLM's custom JSONL.",
        ),
    ],
    /,
    *,
    taken: TakenFlags = TakenFlags(),
    sent: SentFlags = SentFlags(),
    told: ToldFlags = ToldFlags(),
    config: ConfigFlags = ConfigFlags(),  # noqa: B008
) -> int:
    """Send a trace's requests at their times to any OpenAI-compatible server, and tell how it answered.

    Ends with 1 where a request got no whole answer, but for those that the trace cancels, or where the trace could not
    be read to its end.
    """
    from luce.replay.load.report import report_lines
    from luce.replay.load.target import parse_target

    for flag, path in (("--json", told.json), ("--html", told.html)):
        if path is not None:
            if any(same_file(path, source) for source in traces):
                raise ConfigError(f"{path} is the trace itself", flag=flag)
            check_writable(path, flag)
    target = parse_target(url, None if sent.key_file is None else _key(sent.key_file))
    target = attrs.evolve(target, seconds=sent.timeout)
    with Console(stderr=True, highlight=False).status("", refresh_per_second=4) as status:
        report = trio.run(partial(_run, target, traces, taken, sent, status))
    for warning in report.warnings:
        print(f"luce: {printable(warning)}", file=sys.stderr)
    for line in report_lines(report):
        print(printable(line))
    _write(report, told)
    if report.stopped:
        return EXIT_STOPPED
    if report.tally.cut:
        print(f"luce: {printable(report.tally.cut)}; what stands before was sent", file=sys.stderr)
        return EXIT_FAILED
    endings = report.tally.endings
    return EXIT_FAILED if sum(endings.values()) > endings["finished"] + endings["left"] else 0


def _write(report: LoadReport, told: ToldFlags) -> None:
    from luce.replay.load.page import html

    if told.json is not None:
        with writing(told.json, "--json"):
            told.json.write_text(report.json(), encoding="utf-8")
    if told.html is not None:
        with writing(told.html, "--html"):
            told.html.write_text(html(report), encoding="utf-8")


@attrs.frozen
class _Progress:
    """How far it is, whenever it is drawn."""

    tally: Tally
    clock: trio.abc.Clock
    """Of the run: it is drawn in another thread."""

    def __rich__(self) -> str:
        endings = self.tally.endings
        wrong = sum(endings.values()) - endings["finished"] - endings["left"]
        return (
            f"{self.tally.late.count:,} sent, {self.tally.open:,} under way, {endings['finished']:,} answered whole, "
            f"{wrong:,} errors{self._waits()}"
        )

    def _waits(self) -> str:
        due = self.tally.next_due
        seconds = 0.0 if due is None else self.tally.start + due - self.clock.current_time()
        return f", the next is due in {seconds:,.0f} s" if seconds >= SAID_WAIT else ""


async def _run(
    target: Target, traces: tuple[Path, ...], taken: TakenFlags, sent: SentFlags, status: Status
) -> LoadReport:
    from luce.http.descriptors import room_for
    from luce.replay.load.bodies import Writer
    from luce.replay.load.fire import Limits, fire
    from luce.replay.load.probe import probe
    from luce.replay.load.report import LoadReport
    from luce.replay.load.server_metrics import compared, metrics, settled_metrics
    from luce.replay.load.sources import Window, format_of, load_requests
    from luce.replay.load.tally import Tally
    from luce.replay.load.target import resolved

    kind = taken.trace_kind or format_of(traces[0])
    window = Window(taken.start, taken.seconds, taken.requests, sent.rate, taken.output_tokens, sent.seed)
    warnings: list[str] = []
    tell = partial(status.console.print, markup=False, soft_wrap=True)
    requests = _scaled(load_requests(traces, kind, window, warnings), taken, sent, tell)
    target = await resolved(target)
    status.update("asking the server what words and pictures cost")
    traits = await probe(target, sent.name)
    if not traits.extras:
        warnings.append("the server knows no ignore_eos: answers may be shorter than in the trace")
    writer = Writer(traits, sent.seed, taken.picture_tokens, taken.no_pictures)
    before = await metrics(target)
    tally, clock = Tally(0.0), trio.lowlevel.current_clock()
    stopped_after: float | None = None

    def begun(made: Tally) -> None:
        nonlocal tally
        tally = made
        status.update(_Progress(made, clock))

    async with trio.open_nursery() as nursery:

        async def watch_signals() -> None:
            nonlocal stopped_after
            with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for _ in signals:
                    begin = tally.start or math.inf  # nothing has begun yet
                    stopped_after = max(trio.current_time() - begin, 0.0)
                    run.cancel()

        run = trio.CancelScope()
        nursery.start_soon(watch_signals)
        with run:
            await fire(target, requests, writer, Limits(sent.timeout, room_for(sent.max_open)), begun)
        nursery.cancel_scope.cancel()
    if not tally.endings and stopped_after is None:
        warnings.append("no request of the trace lies in what is taken (--start, --seconds)")
    after = await settled_metrics(target, before, tally)
    if before is not None and after is None:
        warnings.append(f"{target}/metrics could not be read behind the load, so nothing of it is told")
    return LoadReport(
        when=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        luce=_version(),
        url=str(target),
        model=traits.model,
        trace=f"{kind}: {', '.join(path.name for path in traces)}",
        options=attrs.asdict(taken)
        | {name: value for name, value in attrs.asdict(sent).items() if name != "key_file"}
        | {"tokens_counted_by": traits.counted},
        tally=tally,
        server=tuple(compared(before, after, tally)) if before is not None and after is not None else (),
        stopped_after=stopped_after,
        warnings=tuple(warnings),
    )


def _scaled(
    requests: Iterator[LoadRequest], taken: TakenFlags, sent: SentFlags, tell: Callable[[str], None]
) -> Iterator[LoadRequest]:
    """Tells where the first one is long in coming. Raises ConfigError where blocks of a trace cannot be divided so."""
    time = 1.0 if sent.rate is not None else 1 / sent.speed
    for index, request in enumerate(requests):
        first = request.traffic.arrival
        if not index and first * time >= SAID_WAIT:
            start = math.floor(taken.start + first)
            tell(f"luce: the first request is due in {first * time:,.0f} s; --start {start} begins there")
        try:
            yield request.scaled(taken.lengths, time, taken.most_tokens)
        except ValueError as error:
            raise ConfigError(str(error), flag="--lengths") from None


def _key(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            key = file.readline(MOST_KEY).strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {reason(error)}", flag="--key-file") from None
    if not key or not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{path}: its first line is no key", flag="--key-file")
    return key


def _version() -> str:
    try:
        return version("luce")
    except PackageNotFoundError:
        return "unknown (not installed)"
