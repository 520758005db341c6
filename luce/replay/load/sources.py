"""Files of any format as requests in order of arrival, read while they are sent."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Literal, get_args

import attrs

from luce.errors import ConfigError, TraceFileError, reason
from luce.replay.load.recorded import recorded_load
from luce.replay.load.request import LoadRequest
from luce.trace.frames import MAGIC
from luce.trace.reader import trace_paths
from luce.trace.traffic.azure import read_azure
from luce.trace.traffic.burstgpt import read_burstgpt
from luce.trace.traffic.mooncake import read_mooncake
from luce.trace.traffic.request import TrafficRequest
from luce.trace.traffic.servegen import read_servegen
from luce.trace.traffic.vllm_custom import read_vllm_custom

__all__ = ["FORMATS", "Format", "Window", "format_of", "load_requests"]

Format = Literal["luce", "mooncake", "azure", "burstgpt", "servegen", "vllm"]
FORMATS = get_args(Format)
HEAD = 4096
TIMELESS = "vllm"
_DATASET = re.compile(rb'(\xef\xbb\xbf)?\s*\{\s*"[\d.]+"\s*:\s*\{')
"""ServeGen's distributions: windows by their start."""


@attrs.frozen
class Window:
    """What of a trace is taken, and at which times."""

    start: float = 0.0
    """Seconds into the trace, where the load begins."""
    seconds: float | None = None
    """Of the trace, from there on; None: to its end."""
    requests: int | None = None
    """At most."""
    rate: float | None = None
    """Requests a second, at random times (Poisson) instead of the trace's own."""
    output_tokens: int = 128
    """Of answers, where the trace does not say."""
    seed: int = 0


def format_of(path: Path) -> Format:
    """By how a file begins; a directory has luce's own traces in it.

    Raises:
        TraceFileError: it cannot be read, or begins like none.
    """
    try:
        if path.is_dir():
            return "luce"
        with path.open("rb") as file:
            start = file.read(HEAD)
    except (OSError, ValueError) as error:
        raise TraceFileError(path, f"cannot be read: {reason(error)}") from None
    line = start.split(b"\n", 1)[0].removeprefix(b"\xef\xbb\xbf").strip()
    if start.startswith(MAGIC):
        return "luce"
    if _DATASET.match(start):
        return "servegen"
    if line.startswith(b"{"):
        return "mooncake" if b'"hash_ids"' in start else "vllm"
    if line.startswith(b"TIMESTAMP,"):
        return "azure"
    if line.startswith(b"Timestamp,"):
        return "burstgpt"
    if line.count(b",") == 5 and line[:1].isdigit():
        return "servegen"
    raise TraceFileError(path, "begins like no trace that is known; say what it is with --trace-kind")


def load_requests(
    paths: tuple[Path, ...], kind: Format, window: Window, warnings: list[str]
) -> Iterator[LoadRequest]:
    """Requests of a trace, times counted from the window's start. Memory is that of who is under way.

    Args:
        paths: of luce's traces any number, of ServeGen's clients ``…trace.csv`` or both files, of others one.
        warnings: gets lines about what could not be taken, at the latest when everything is read.

    Raises:
        ConfigError: the files do not fit the format.
        TraceFileError: names the file and the row, and says what is wrong with it.
    """
    if kind == TIMELESS and window.rate is None:
        raise ConfigError("prompts of vLLM have no times; say how many a second are sent", flag="--rate")
    found = _within(_read(paths, kind, window, warnings), window)
    if window.rate is not None:
        found = _at_random(found, window.rate, window.seed)
    return islice(found, window.requests)


def _read(
    paths: tuple[Path, ...], kind: Format, window: Window, warnings: list[str]
) -> Iterator[LoadRequest]:
    if kind == "luce":
        return recorded_load(trace_paths(paths), warnings)
    if kind == "servegen":
        trace, dataset = _servegen_files(paths)
        client = read_servegen(trace, dataset)
        seconds = math.inf if window.seconds is None else window.start + window.seconds
        return _plain(client.requests(window.seed, seconds=seconds))
    if len(paths) != 1:
        raise ConfigError(f"a trace of {kind} is one file; {len(paths)} are named", flag="TRACE")
    if kind == "vllm":
        return (
            LoadRequest(TrafficRequest(0.0, 1, row.output_tokens or window.output_tokens), text=row.text)
            for row in read_vllm_custom(paths[0])
        )
    readers = {"mooncake": read_mooncake, "azure": read_azure, "burstgpt": read_burstgpt}
    return _plain(readers[kind](paths[0]))


def _servegen_files(paths: tuple[Path, ...]) -> tuple[Path, Path]:
    """The windows and the distributions: both named, or the second one beside the first."""
    tables = [path for path in paths if path.suffix == ".csv"]
    if len(tables) != 1 or len(paths) > 2:
        alone = f"{paths[0].name} has no arrivals; " if len(paths) == 1 else ""
        raise ConfigError(
            f"{alone}name the …trace.csv of one client, with or without its …dataset.json", flag="TRACE"
        )
    if len(paths) == 2:
        return tables[0], next(path for path in paths if path is not tables[0])
    name = tables[0].name
    if "trace.csv" not in name:
        raise ConfigError(f"{tables[0]}: name its …dataset.json, too", flag="TRACE")
    return tables[0], tables[0].with_name(name.replace("trace.csv", "dataset.json"))


def _plain(requests: Iterable[TrafficRequest]) -> Iterator[LoadRequest]:
    return (LoadRequest(request) for request in requests)


def _within(requests: Iterable[LoadRequest], window: Window) -> Iterator[LoadRequest]:
    end = math.inf if window.seconds is None else window.start + window.seconds
    for request in requests:
        at = request.traffic.arrival
        if at >= end:
            return
        if at >= window.start:
            yield attrs.evolve(request, traffic=attrs.evolve(request.traffic, arrival=at - window.start))


def _at_random(requests: Iterable[LoadRequest], rate: float, seed: int) -> Iterator[LoadRequest]:
    rng, now = random.Random(f"arrivals {seed}"), 0.0
    for request in requests:
        yield attrs.evolve(request, traffic=attrs.evolve(request.traffic, arrival=now))
        now += rng.expovariate(rate)
