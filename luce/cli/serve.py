"""`luce serve`: load a model and answer HTTP until a signal."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, cast

import attrs
import trio
from cyclopts import Group, Parameter
from rich.console import Console

from luce.actors.budgets import settled
from luce.actors.options import ServiceOptions
from luce.cli.access import origins, read_keys
from luce.cli.connection_flags import ConnectionFlags
from luce.cli.device_defaults import prefill_rows, rows_before_picture, step_seconds
from luce.cli.flags import (
    COUNT,
    FILE,
    NAME,
    ROOM,
    SECONDS,
    SIZE,
    ConfigFlags,
    LogFlags,
    ModelFlags,
    ModelPath,
    whole,
)
from luce.cli.in_process import load_with_progress, opened
from luce.cli.logs import LogForm, LogLines, logs
from luce.cli.main import EXIT_FAILED, EXIT_STOPPED, meant
from luce.cli.picture_flags import PictureFlags
from luce.cli.sampling_flags import SamplingFlags
from luce.cli.serve_lines import describe, describe_budgets, greeting
from luce.cli.supervisor import notify, tell_of_stopping
from luce.cli.telemetry import telemetry
from luce.cli.trace_flags import TraceFlags
from luce.compute.host_memory import spare_what_stays, use_one_heap
from luce.compute.interpreter_lock import take_short_turns
from luce.engines.load_model import LoadOptions
from luce.errors import ConfigError
from luce.http.options import HttpOptions
from luce.http.server import listen, run_server
from luce.trace.recorder import Recorder

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from luce.actors.service import Service
    from luce.http.asgi import App

__all__ = ["HttpFlags", "SchedulingFlags", "serve"]

HTTP = Group("HTTP", sort_key=2)
SCHEDULING = Group("Scheduling", sort_key=3)

HTTP_DEFAULTS = HttpOptions()
SERVICE_DEFAULTS = ServiceOptions()


@Parameter(name="*")
@attrs.frozen
class HttpFlags:
    host: Annotated[str, NAME, Parameter(group=HTTP, help="Address to listen on; 0.0.0.0 is every one.")] = (
        HTTP_DEFAULTS.host
    )
    port: Annotated[int, whole(0, 65535), Parameter(group=HTTP, help="Port; 0 takes a free one.")] = (
        HTTP_DEFAULTS.port
    )
    alias: Annotated[
        tuple[str, ...],
        NAME,
        Parameter(group=HTTP, negative="", help="Another model name that requests may use; can be repeated."),
    ] = ()
    api_key: Annotated[
        tuple[str, ...],
        Parameter(
            group=HTTP,
            negative="",
            show_default=False,
            help="Key of which every request but /health and /ready must show one; can be repeated. Others see it in "
            "the list of processes: a file or the environment is better.",
        ),
    ] = ()
    api_key_file: Annotated[
        Path | None,
        FILE,
        Parameter(
            group=HTTP,
            help="File with one such key a line; blank lines and lines that begin with # do not count.",
        ),
    ] = None
    cors_origin: Annotated[
        tuple[str, ...],
        NAME,
        Parameter(
            group=HTTP,
            negative="",
            help="Origin of web pages that may ask, as https://chat.example.org, or * for all; can be repeated.",
        ),
    ] = ()
    ui: Annotated[
        bool, Parameter(group=HTTP, help="Serve the page that shows charts, slots and a timeline, at /ui.")
    ] = HTTP_DEFAULTS.ui
    max_body: Annotated[int, SIZE, Parameter(group=HTTP, help="Largest request body.")] = (
        HTTP_DEFAULTS.max_body_bytes
    )
    max_buffered_bodies: Annotated[
        int, SIZE, Parameter(group=HTTP, help="Request bodies held in memory at once; more get 503.")
    ] = HTTP_DEFAULTS.max_buffered_bytes
    max_choices: Annotated[int, COUNT, Parameter(group=HTTP, help="Answers in one request, its n.")] = (
        HTTP_DEFAULTS.max_choices
    )
    body_timeout: Annotated[
        float,
        SECONDS,
        Parameter(group=HTTP, help="Seconds that a request body may take to arrive."),
    ] = HTTP_DEFAULTS.body_timeout
    keep_alive: Annotated[
        float,
        SECONDS,
        Parameter(group=HTTP, help="Seconds of silence before a stream gets a comment line."),
    ] = HTTP_DEFAULTS.keep_alive
    idle_timeout: Annotated[
        float, SECONDS, Parameter(group=HTTP, help="Seconds that an idle connection is kept.")
    ] = HTTP_DEFAULTS.idle_timeout
    client_timeout: Annotated[
        float,
        SECONDS,
        Parameter(group=HTTP, help="Seconds that a client may leave its answer unread."),
    ] = SERVICE_DEFAULTS.client_timeout
    preparing: Annotated[
        int,
        COUNT,
        Parameter(group=HTTP, help="Requests whose pictures and prompts are prepared at once."),
    ] = HTTP_DEFAULTS.preparing

    def options(self) -> HttpOptions:
        """Raises ConfigError when a body that is allowed could never be held, and for what is no key and no origin."""
        if self.max_buffered_bodies < self.max_body:
            raise ConfigError(
                f"{self.max_buffered_bodies} bytes do not hold the largest body; "
                f"give at least --max-body, {self.max_body}, or lower that",
                flag="--max-buffered-bodies",
            )
        return HttpOptions(
            host=self.host,
            port=self.port,
            aliases=self.alias,
            api_keys=read_keys(self.api_key, self.api_key_file),
            ui=self.ui,
            cors_origins=origins(self.cors_origin),
            max_body_bytes=self.max_body,
            max_buffered_bytes=self.max_buffered_bodies,
            max_choices=self.max_choices,
            body_timeout=self.body_timeout,
            keep_alive=self.keep_alive,
            idle_timeout=self.idle_timeout,
            stalled_timeout=self.client_timeout,
            preparing=self.preparing,
        )


@Parameter(name="*")
@attrs.frozen
class SchedulingFlags:
    prefill: Annotated[
        int | None,
        COUNT,
        Parameter(
            group=SCHEDULING,
            help="Prompt rows in one step, over all requests; by default 64, on a GPU 2048.",
        ),
    ] = None
    step_time: Annotated[
        float | None,
        SECONDS,
        Parameter(
            group=SCHEDULING,
            help="Seconds that a step with answers in it is to take at most: prompts get as many rows beside them as "
            "measured times allow; by default 0.04 on a GPU, and on the CPU whatever --prefill takes.",
        ),
    ] = None
    queue: Annotated[
        int,
        COUNT,
        Parameter(group=SCHEDULING, help="Requests that may wait; one more gets 503."),
    ] = SERVICE_DEFAULTS.max_queued
    queue_tokens: Annotated[
        int | None,
        COUNT,
        Parameter(
            group=SCHEDULING,
            help="Prompt tokens, pictures included, of all that wait together; more get 503; by default 16 contexts.",
        ),
    ] = SERVICE_DEFAULTS.max_queued_tokens
    queue_timeout: Annotated[
        float,
        SECONDS,
        Parameter(group=SCHEDULING, help="Seconds that a request may wait for a slot."),
    ] = SERVICE_DEFAULTS.queue_timeout
    request_timeout: Annotated[
        float | None,
        SECONDS,
        Parameter(
            group=SCHEDULING,
            help="Seconds that a request may take until its answer is complete, then 504; a request's own timeout may "
            "be shorter; by default as long as it takes.",
        ),
    ] = SERVICE_DEFAULTS.request_timeout
    prefix_memory: Annotated[
        int | None,
        ROOM,
        Parameter(
            group=SCHEDULING,
            help="Host memory for states of prompts and answers that later requests may begin with, as 2GiB; 0 to "
            "begin every request from nothing; by default room for 32, if a quarter of what is free has it.",
        ),
    ] = SERVICE_DEFAULTS.prefix_bytes
    image_memory: Annotated[
        int | None,
        ROOM,
        Parameter(
            group=SCHEDULING,
            help="Host memory for encoded pictures that no running request needs, for later ones that show them again, "
            "as 2GiB; 0 to keep none; by default 64MiB, or a quarter of what is free if that is less.",
        ),
    ] = SERVICE_DEFAULTS.image_bytes
    park_memory: Annotated[
        int | None,
        ROOM,
        Parameter(
            group=SCHEDULING,
            help="Host memory for requests that give way when key/value memory runs out, as 2GiB; 0 to have them "
            "computed again instead; by default a quarter of what is free.",
        ),
    ] = SERVICE_DEFAULTS.park_bytes
    depth: Annotated[int, whole(1, 2), Parameter(group=SCHEDULING, help="Steps in flight at once.")] = (
        SERVICE_DEFAULTS.depth
    )
    drain_timeout: Annotated[
        float,
        SECONDS,
        Parameter(
            group=SCHEDULING,
            help="Seconds for running answers after the first stop signal.",
        ),
    ] = SERVICE_DEFAULTS.drain_timeout

    def options(self, client_timeout: float, *, on_gpu: bool) -> ServiceOptions:
        return ServiceOptions(
            prefill_budget=prefill_rows(self.prefill, on_gpu=on_gpu),
            step_seconds=step_seconds(self.step_time, on_gpu=on_gpu),
            rows_before_picture=rows_before_picture(on_gpu=on_gpu),
            max_queued=self.queue,
            max_queued_tokens=self.queue_tokens,
            queue_timeout=self.queue_timeout,
            request_timeout=self.request_timeout,
            client_timeout=client_timeout,
            prefix_bytes=self.prefix_memory,
            image_bytes=self.image_memory,
            park_bytes=self.park_memory,
            depth=self.depth,
            drain_timeout=self.drain_timeout,
        )


def serve(
    model: ModelPath = None,
    /,
    *,
    model_flags: ModelFlags = ModelFlags(),  # noqa: B008 - frozen
    http: HttpFlags = HttpFlags(),
    connections: ConnectionFlags = ConnectionFlags(),  # noqa: B008
    pictures: PictureFlags = PictureFlags(),  # noqa: B008
    scheduling: SchedulingFlags = SchedulingFlags(),
    sampling: SamplingFlags = SamplingFlags(),  # noqa: B008 - frozen
    trace: TraceFlags = TraceFlags(),  # noqa: B008 - frozen
    log: LogFlags = LogFlags(),  # noqa: B008
    config: ConfigFlags = ConfigFlags(),  # noqa: B008
) -> int:
    """Serve a model over HTTP, with OpenAI's chat completions API.

    The first SIGINT or SIGTERM lets running answers finish, the second ends them with an error.
    """
    with logs(log.log_level, log.log_format), telemetry(log.otel) as tracer:
        http_options = pictures.http(connections.onto(http.options()))
        load = pictures.load(model_flags.options(sampling.given()), http.preparing)
        options = partial(scheduling.options, http.client_timeout)
        return _serve(model, load, http_options, options, _console(log.log_format), tracer, trace.recorder())


def _console(form: LogForm) -> Console:
    """Where what is served is told: to people on standard output, or in the log for machines."""
    file = LogLines("luce.serve") if form == "json" else None
    return Console(file=cast(IO[str] | None, file), soft_wrap=True, highlight=False)


def _serve(
    model: Path | None,
    load: LoadOptions,
    http_options: HttpOptions,
    wanted: Callable[..., ServiceOptions],
    console: Console,
    tracer: Tracer | None,
    recorder: Recorder | None,
) -> int:
    use_one_heap()
    take_short_turns()
    found = opened(model, load)
    listener = listen(http_options)
    try:
        for line in describe(found):
            console.print(line, markup=False)
        started = time.perf_counter()
        loaded = load_with_progress(found, console)
        spare_what_stays()
        console.print(f"loaded in {time.perf_counter() - started:.1f} s", markup=False)
        options = settled(wanted(on_gpu=found.on_device is not None), loaded.engine.capabilities)
        for line in describe_budgets(options, loaded.engine.capabilities):
            console.print(line, markup=False)
    except BaseException:
        listener.close()
        raise

    def announce(address: tuple[str, int]) -> None:
        for line in greeting(found, address, len(http_options.api_keys), secure=http_options.tls is not None):
            console.print(line, markup=False)
        notify("READY=1")

    def observe(service: Service, app: App) -> None:
        tell_of_stopping(service)
        if tracer is not None:
            from luce.http.request_spans import RequestSpans

            RequestSpans(service, app, tracer, loaded.name)

    try:
        orderly = trio.run(
            partial(run_server, loaded, options, http_options, listener, announce, _cut, observe, recorder)
        )
    except Exception as error:
        if meant(error):
            raise
        logging.getLogger("luce.serve").critical("the server has ended by a fault of its own", exc_info=error)
        return EXIT_FAILED
    return 0 if orderly else EXIT_STOPPED


def _cut() -> None:
    """The end that nothing holds up; files need no more than the system does for every process."""
    os.write(2, b"luce: cut while a step or a picture was being computed\n")
    os._exit(EXIT_STOPPED)
