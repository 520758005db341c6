"""What is in a trace: the kinds of records beside the charts' steps, and the head of every file. Versioned.

A trace is the event stream (:class:`luce.trace.events.EventRecord`) with details between its records: what arrived,
what was planned, launched and landed. Only what is marked "Content" says what was asked or answered.

Readers take files of :data:`VERSION` and no others. A field that is added with a default, or a kind that is added,
leaves the version as it is, for readers pass over what they do not know; anything else counts it up.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

__all__ = [
    "MOST_CAPABILITIES",
    "MOST_TIME",
    "VERSION",
    "Alike",
    "Arrival",
    "Detail",
    "Encoded",
    "Failed",
    "Gap",
    "Header",
    "Illegal",
    "Landed",
    "Launched",
    "LiveMachine",
    "Picture",
    "Planned",
    "Refused",
    "Run",
    "Snapshot",
    "Unknown",
]

VERSION = 1
"""Of the files and of everything in them."""

MOST_TIME: Final = 1e12
Time = Annotated[float, msgspec.Meta(ge=-MOST_TIME, le=MOST_TIME)]
"""Seconds: on a clock, or that something took. So many that what is reckoned with them is finite."""
Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
MOST_CAPABILITIES: Final = {
    "num_slots": 1 << 16, "block_size": 1 << 20, "num_blocks": 1 << 24, "max_context": 1 << 24, "max_depth": 1 << 6,
}  # fmt: skip
"""That a header may say of an engine: memory is taken by these."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first frame of every file."""

    version: int
    run: str
    """Names one server's life: the files of one trace have the same."""
    file: int
    """Counts the files of a run, from 0."""
    first: Number
    """Number of the first record that is in the file, or would be."""
    wall: Time
    """Unix seconds when the file was begun, and…"""
    clock: Time
    """…what the clock of the records said then."""
    charts: dict[str, str]
    """Every chart's SCXML text, by name."""
    hashes: dict[str, str]
    """SHA-256 of each."""
    content: bool
    """Prompts, pictures and answers are in it."""
    model: str
    fingerprint: str | None
    """Of model and device, as ``system_fingerprint`` in answers; None where the engine has none."""
    options: dict[str, Any]
    """What the operator set, defaults filled in."""
    capabilities: dict[str, Any]
    """What the engine declared."""
    versions: dict[str, str]
    """Of luce, Python and what answers may depend on."""
    prefixes: bool = False
    """:class:`Alike` says which requests begin alike. Not in traces with content, which say it anyway, nor where the
    engine keeps no prefixes, nor in those of an earlier luce."""
    policy: str = ""
    """Name of what decided, where it was not :func:`luce.scheduling.plan.plan`: in tests."""


class LiveMachine(msgspec.Struct, frozen=True, array_like=True):
    """A machine that is under way."""

    machine: str
    id: str | int
    configuration: tuple[str, ...]


class Snapshot(msgspec.Struct, frozen=True):
    """Where everything stood before the first record of a file, so that each can be read alone."""

    machines: tuple[LiveMachine, ...]
    tables: dict[str, bytes]
    """Charts that are run as tables: the state byte of every instance."""


class Picture(msgspec.Struct, frozen=True, array_like=True):
    digest: bytes
    """Of pixels, size, mode and preprocessing: the key of the image cache."""
    tokens: int
    grid: tuple[int, int]
    """Height and width in patches."""
    start: int
    """Its first row in the prompt."""
    values: bytes | None = None
    """Content: patches, or their shades, as they went to the encoder."""
    shades: bool = False
    """``values`` are 8-bit shades, which the model's scale turns into numbers."""


class Arrival(msgspec.Struct, frozen=True, tag="arrival", omit_defaults=True):
    """A request was taken in."""

    id: str
    order: int
    """Number of its arrival, by which plans name it."""
    arrived: Time
    """When it was asked for, on the clock of the records; its preparation came after that."""
    prompt_tokens: Number
    prompt_digest: bytes
    """Of the token ids, so that equal prompts are known to be equal."""
    sampling: dict[str, Any]
    """Fields of :class:`luce.sampling.parameters.SamplingParams` that are not the default; what biases logits or
    stops by token ids is content."""
    pictures: tuple[Picture, ...] = ()
    timeout: Annotated[float, msgspec.Meta(ge=0)] | None = None
    """Seconds from ``arrived``."""
    n: int = 1
    choice: int = 0
    follows: bool = False
    """Another one computes the prompt for it."""
    constrained: bool = False
    """Its answer is held to a form: a schema, a grammar, a tool."""
    masked: bool = False
    """So is its first token already."""
    stops: int = 0
    """How many stop strings it has."""
    turn_ends: tuple[int, ...] = ()
    answer_start: int = 0
    rope_delta: int = 0
    token_ids: bytes | None = None
    """Content: int32, little-endian."""
    positions: bytes | None = None
    """Content: int32 [3, prompt tokens]."""
    stop_strings: tuple[str, ...] | None = None
    """Content."""
    thinking: bool = False
    """The prompt opened a think block."""
    salt: bytes = b""
    """Digest of its cache salt, where it has one: requests of different salts share no prefix."""
    form: dict[str, Any] | None = None
    """Content: the :class:`luce.constraints.wish.ConstraintWish` that its answer is held to."""


class Alike(msgspec.Struct, frozen=True, tag="alike"):
    """A request has more in common with another one than was known: of its prompt, which stands before this, or of its
    answer as far as it is in whole KV blocks. Nothing before it said of any other one that it had more."""

    order: int
    other: int
    """Number of the other one's arrival."""
    common: int
    """Rows from the first on, of prompt and answer, that are the same tokens and the same pictures. The next one of the
    two is not, where both have one."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """A request was not taken in. It has no machine."""

    id: str
    prompt_tokens: int
    pictures: int
    kind: str
    """The error's class, as ``CapacityError``."""


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Segments of a plan that follow each other and are alike but for slot and start; what they say stands in
    :class:`luce.engines.seam.Segment`."""

    times: int
    kind: str
    count: int
    source: str
    sample: bool
    layers: tuple[int, int] | None


class Planned(msgspec.Struct, frozen=True, tag="plan", omit_defaults=True):
    """A decision of the policy."""

    ahead: bool
    """Made behind a launch, before its results."""
    grants: tuple[tuple[int, int], ...] = ()
    """(order, slot)."""
    resumes: tuple[tuple[int, int], ...] = ()
    """(order, slot)."""
    parks: tuple[tuple[int, str], ...] = ()
    """(slot, event of the request's chart)."""
    fails: tuple[int, ...] = ()
    """Slots."""
    slots: tuple[int, ...] = ()
    """Of each segment…"""
    starts: tuple[int, ...] = ()
    """…its first row…"""
    runs: tuple[Run, ...] = ()
    """…and all else, as many as there are slots in all."""

    def check(self) -> None:
        """Raises ValueError where it does not say of each segment what it needs."""
        if any(run.times < 0 or run.count < 0 for run in self.runs):
            raise ValueError("a plan has a negative number of segments or rows")
        if not len(self.slots) == len(self.starts) == sum(run.times for run in self.runs):
            raise ValueError("a plan has other numbers of segments, slots and first rows")

    @property
    def rows(self) -> int:
        """Of the shared batch; those of staged passes apart."""
        return sum(run.times * run.count for run in self.runs if run.layers is None)


class Launched(msgspec.Struct, frozen=True, tag="launch", omit_defaults=True):
    """A step went to the engine; its segments are those of the plan before."""

    number: int
    lanes: int
    work: tuple[tuple[str, int, int, int], ...] = ()
    """(kind, slot, position, handle)."""
    fresh: tuple[int, ...] = ()
    freed: tuple[int, ...] = ()
    """Blocks."""


class Landed(msgspec.Struct, frozen=True, tag="result", omit_defaults=True):
    """The results of a step were taken up. What failed of it follows."""

    number: int
    seconds: Time
    """On the device."""
    sampled: tuple[tuple[int, tuple[int, ...]], ...] | None = None
    """Content: (slot, token ids)."""


class Failed(msgspec.Struct, frozen=True, tag="failed", omit_defaults=True):
    """A row or a copy of the step whose result was taken up last."""

    slot: int
    what: str
    """'row', or the kind of work."""
    message: str
    position: int = 0
    """Of a copy: a step may make several of one slot. 0 in older traces."""


class Encoded(msgspec.Struct, frozen=True, tag="encode"):
    """A picture went through the encoder. The record of its end follows."""

    request: str
    """One of those who wait for it."""
    digest: bytes
    seconds: Time
    rows: int
    """0 if it failed."""
    nbytes: int = 0
    """That they take."""


class Gap(msgspec.Struct, frozen=True, tag="gap"):
    """Records are missing: more came at once than the ring holds."""

    lost: int


class Illegal(msgspec.Struct, frozen=True, tag="illegal"):
    """A machine was fed an event that its chart forbids where it stood; it did not change. The server ends by it."""

    machine: str
    """Chart and id, with a blank between."""
    event: str
    configuration: tuple[str, ...]


class Unknown(msgspec.Struct, frozen=True):
    """A kind that came with a later luce."""

    tag: str


Detail = Arrival | Alike | Refused | Planned | Launched | Landed | Failed | Encoded | Gap | Illegal
