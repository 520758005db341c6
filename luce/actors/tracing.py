"""What the actors tell a recorder beside their charts' steps: `luce/trace/schema.py` says what each of it means.

Functions that make records are called later, by the recorder's thread; what they are given does not change.
"""

from __future__ import annotations

import inspect
import platform
from collections.abc import Callable, Sequence
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from typing import TYPE_CHECKING, Any

import attrs
import msgspec
import numpy as np

from luce.actors.submission import Submission
from luce.charts.interpreter import Machine
from luce.charts.loader import chart_names, chart_path, load_chart
from luce.engines.seam import Outcome, PatchImage, SlotWork
from luce.errors import IllegalEvent
from luce.sampling.parameters import SamplingParams
from luce.scheduling.block_states import BlockChanges
from luce.scheduling.plan import plan
from luce.scheduling.state import Decision, LoopState, Policy
from luce.trace.common_prefixes import Rows
from luce.trace.events import EventStream
from luce.trace.recorder import run_name
from luce.trace.schema import (
    VERSION,
    Arrival,
    Encoded,
    Failed,
    Header,
    Illegal,
    Landed,
    Launched,
    LiveMachine,
    Picture,
    Planned,
    Refused,
    Run,
    Snapshot,
)

if TYPE_CHECKING:
    from luce.actors.service import Service

__all__ = [
    "FOR_FILES",
    "arrival",
    "encoded",
    "failed",
    "illegal",
    "landed",
    "launched",
    "planned",
    "recorded_policy",
    "refused",
    "rows_of",
    "snapshot",
    "tell_further_rows",
    "tell_illegal_events",
    "tell_prompt_rows",
    "trace_header",
]

_CONTENT = frozenset({"logit_bias", "stop_token_ids"})
"""Sampling parameters that tell what is asked."""
_PACKAGES = ("luce", "numpy", "trio", "tokenizers", "llguidance", "cupy")


def recorded_policy(policy: Policy, events: EventStream) -> Policy:
    """The same, with every decision told to the recorder."""

    def decide(state: LoopState) -> Decision:
        decision = policy(state)
        if events.detailed:
            events.detail(planned, state.run_ahead, decision)
        return decision

    return decide


def planned(ahead: bool, decision: Decision) -> Planned:
    slots, kinds, starts, counts, sources, samples, layers = (
        tuple(zip(*decision.segments, strict=True)) or ((),) * 7
    )
    return Planned(
        ahead,
        tuple((grant.key, grant.slot) for grant in decision.grants),
        tuple((resume.key, resume.slot) for resume in decision.resumes),
        tuple((park.slot, park.kind.value) for park in decision.parks),
        decision.fails,
        slots,
        starts,
        _runs(kinds, counts, sources, samples, layers),
    )


def _runs(*columns: tuple[Any, ...]) -> tuple[Run, ...]:
    """Equal rows that follow each other, as one."""
    size = len(columns[0])
    if size and all(column.count(column[0]) == size for column in columns):
        return (_run(tuple([column[0] for column in columns]), size),)
    return tuple(_run(row, len(list(same))) for row, same in groupby(zip(*columns, strict=True)))


def _run(row: tuple[Any, ...], times: int) -> Run:
    kind, count, source, sample, layers = row
    return Run(times, kind.value, count, source.value, sample, layers)


def launched(number: int, lanes: int, work: Sequence[SlotWork], changes: BlockChanges) -> Launched:
    items = tuple((item.kind.value, item.slot, item.position, item.handle) for item in work)
    return Launched(number, lanes, items, changes.fresh, changes.freed)


def landed(number: int, seconds: float, outcomes: Sequence[Outcome] | None) -> Landed:
    """``outcomes``: where content is recorded."""
    if outcomes is None:
        return Landed(number, seconds)
    sampled = tuple((one.slot, tuple(token.token for token in one.tokens)) for one in outcomes)
    return Landed(number, seconds, sampled)


def failed(slot: int, what: str, message: str, position: int = 0) -> Failed:
    return Failed(slot, what, message, position)


def illegal(machine: str, event: str, configuration: tuple[str, ...]) -> Illegal:
    return Illegal(machine, event, configuration)


def tell_illegal_events(events: EventStream, error: BaseException) -> None:
    """Note every :class:`IllegalEvent` that ``error`` is, or is made of."""
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            tell_illegal_events(events, part)
    elif isinstance(error, IllegalEvent):
        events.detail(illegal, error.machine, error.event, error.configuration)


def encoded(request: str, digest: bytes, seconds: float, rows: int, nbytes: int) -> Encoded:
    return Encoded(request, digest, seconds, rows, nbytes)


def refused(submission: Submission, error: Exception) -> Refused:
    return Refused(
        submission.id, len(submission.prompt.token_ids), len(submission.images), type(error).__name__
    )


def arrival(
    submission: Submission, order: int, arrived: float, follows: bool, masked: bool, content: bool
) -> Arrival:
    prompt = submission.prompt
    ids = prompt.token_ids.astype("<i4")
    starts = {span.image: span.start for span in prompt.spans}
    return Arrival(
        id=submission.id,
        order=order,
        arrived=arrived,
        prompt_tokens=len(ids),
        prompt_digest=blake2b(ids.tobytes(), digest_size=16).digest(),
        sampling=_sampling(submission.params, content),
        pictures=tuple(
            _picture(image, starts.get(index, -1), content) for index, image in enumerate(submission.images)
        ),
        timeout=submission.timeout,
        n=submission.n,
        choice=submission.choice,
        follows=follows,
        constrained=submission.constraint is not None,
        masked=masked,
        stops=len(submission.stop),
        turn_ends=tuple(prompt.turn_ends),
        answer_start=prompt.answer_start,
        rope_delta=prompt.rope_delta,
        token_ids=ids.tobytes() if content else None,
        positions=prompt.positions.astype("<i4").tobytes() if content else None,
        stop_strings=submission.stop if content else None,
        thinking=prompt.starts_in_thinking,
        salt=blake2b(submission.cache_salt, digest_size=16).digest() if submission.cache_salt else b"",
        form=msgspec.to_builtins(submission.form) if content and submission.form is not None else None,
    )


def tell_prompt_rows(events: EventStream, order: int, submission: Submission) -> None:
    """Note a prompt that may begin like another one, unless it is recorded anyway."""
    if events.detailed and not events.content:
        events.detail(_prompt_rows, order, submission)


def tell_further_rows(events: EventStream, order: int, start: int, tokens: list[int]) -> None:
    """Note rows of an answer that may be those of another one, too, unless they are recorded anyway."""
    if events.detailed and not events.content:
        events.detail(_further_rows, order, start, tokens)


def rows_of(decision: Decision) -> int:
    """:attr:`Planned.rows`, without the rest of it."""
    return sum([count for _, _, _, count, _, _, layers in decision.segments if layers is None])


def _prompt_rows(order: int, submission: Submission) -> Rows:
    prompt = submission.prompt
    elements = prompt.token_ids.astype(np.int32)
    for span in prompt.spans:
        name = blake2b(submission.images[span.image].digest, digest_size=4).digest()
        mixed = int.from_bytes(name, "little") + 0x9E3779B1 * np.arange(span.length, dtype=np.int64)
        elements[span.start : span.start + span.length] = -1 - mixed % (1 << 31)
    return Rows(order, 0, elements)


def _further_rows(order: int, start: int, tokens: list[int]) -> Rows:
    return Rows(order, start, np.array(tokens, np.int32))


FOR_FILES: frozenset[Callable[..., object]] = frozenset({_prompt_rows, _further_rows})
"""Makers of details that mean something in a file alone."""


def _picture(image: PatchImage, start: int, content: bool) -> Picture:
    values = image.values.tobytes() if content else None
    return Picture(image.digest, image.num_tokens, image.grid, start, values, image.scale is not None)


def _sampling(params: SamplingParams, content: bool) -> dict[str, Any]:
    given = {
        field.name: value
        for field in attrs.fields(SamplingParams)
        if (value := getattr(params, field.name)) != field.default and (content or field.name not in _CONTENT)
    }
    plain: dict[str, Any] = msgspec.to_builtins(given, enc_hook=lambda value: type(value).__name__)
    return plain


def trace_header(service: Service, content: bool) -> Header:
    """Of a service's trace."""
    model = service.model
    # What was decided once, from memory that was free then, as numbers.
    settled = attrs.evolve(
        service.options,
        prefix_bytes=service.loop.memory.cache.budget,
        image_bytes=service.encoder.cache.budget,
    )
    charts = {name: load_chart(name) for name in chart_names()}
    return Header(
        version=VERSION,
        run=run_name(),
        file=0,
        first=0,
        wall=0.0,
        clock=0.0,
        charts={name: chart_path(name).read_text() for name in charts},
        hashes={name: chart.sha256 for name, chart in charts.items()},
        content=content,
        model=model.name,
        fingerprint=model.fingerprint,
        options=_builtins(settled),
        capabilities=_builtins(model.engine.capabilities),
        versions={"python": platform.python_version(), **_versions()},
        policy=_policy_name(service.loop.policy),
        prefixes=model.engine.capabilities.snapshots and not content,
    )


def _policy_name(policy: Policy) -> str:
    if inspect.unwrap(policy) is plan:
        return ""
    return getattr(policy, "__qualname__", type(policy).__qualname__)


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _builtins(options: Any) -> dict[str, Any]:
    found = attrs.asdict(options)
    plain: dict[str, Any] = msgspec.to_builtins(found, enc_hook=str)
    return plain


def snapshot(service: Service) -> Snapshot:
    """How every machine of a service stands now."""
    loop, memory = service.loop, service.loop.memory
    machines = [service.machine, loop.machine, service.encoder.machine]
    machines += [request.machine for request in service.requests.values()]
    live = [_live(machine) for machine in machines if machine.configuration and not machine.finished]
    live += [
        LiveMachine("prefix_entry", number, states) for number, states in memory.cache.index.configurations()
    ]
    return Snapshot(tuple(live), {"block": memory.pool.state_bytes()})


def _live(machine: Machine) -> LiveMachine:
    return LiveMachine(machine.chart.name, machine.id, machine.configuration)
