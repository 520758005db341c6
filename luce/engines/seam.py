"""The seam between policy (scheduling, actors) and mechanism (engines). It imports nothing else of luce.

An engine owns key/value blocks, recurrent state, the batched forward pass and sampling. It does not know who is
waiting. Policy hands it immutable :class:`StepPlan` values; every lane of a plan submits ``m >= 1`` rows and keeps
``c <= m`` of them afterwards: a prefill chunk keeps all, plain decoding is ``m = c = 1``, speculation keeps the
accepted prefix. **The start position of a slot's next segment is the commit**: everything at or past it is void, so
there is no rollback call (design §5).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Protocol

import attrs
import numpy as np
import numpy.typing as npt

__all__ = [
    "Capabilities",
    "Engine",
    "ImageSpan",
    "Outcome",
    "PatchImage",
    "RowSource",
    "SampledToken",
    "Segment",
    "SegmentKind",
    "SlotSpec",
    "StepPlan",
    "StepResult",
    "Ticket",
]


class SegmentKind(enum.Enum):
    """What a lane does in a step."""

    PREFILL = "prefill"
    DECODE = "decode"
    VERIFY = "verify"
    """Speculation: ``m`` drafted rows are checked. Has its place; no engine serves it yet."""
    STAGED = "staged"
    """A layer slice of a shared whole-block pass. Has its place; no engine serves it yet."""


class RowSource(enum.Enum):
    """Where the input rows of a segment come from."""

    PROMPT = "prompt"
    """Token ids and encoded image rows of :class:`SlotSpec`, by position."""
    LAST_SAMPLED = "last sampled"
    """The token that the slot's previous segment sampled; it never leaves the device in between."""


@attrs.frozen
class ImageSpan:
    """Where one image stands in a prompt: ``length`` rows from ``start`` (positions in tokens)."""

    start: int
    length: int
    image: int
    """Index into :attr:`SlotSpec.image_rows`."""


@attrs.frozen(eq=False)
class PatchImage:
    """One preprocessed picture, ready for the vision tower."""

    patches: npt.NDArray[np.float32]
    """[N, 3 * patch * patch], rows in merge-block order, values [channel][y][x] of one frame (spec qwen35 §11)."""
    grid: tuple[int, int]
    """(gh, gw) in patches."""
    digest: bytes
    """Digest of the decoded pixels, size, mode and every preprocessing option (design §7)."""
    num_tokens: int
    """Merged rows that the picture takes in the prompt: gh * gw / merge²."""


@attrs.define(eq=False)
class SlotSpec:
    """What a slot is opened with. Owned by the request and read by the engine; only ``image_rows`` fills in later.

    The request's task puts encoded rows into ``image_rows`` before any plan names a position inside their span.
    """

    token_ids: npt.NDArray[np.int32]
    """[T] ids to prefill; inside image spans the image pad id. After a recompute the last ``num_generated`` of them
    are the answer so far."""
    positions: npt.NDArray[np.int32]
    """[3, T] M-RoPE positions (t, h, w) of the prompt."""
    rope_delta: int
    """Added to the token count for positions of generated tokens (spec qwen35 §10)."""
    sampling: Any
    """:class:`luce.sampling.parameters.SamplingParams` with its seed resolved; opaque to policy."""
    max_tokens: int
    """Upper bound of generated tokens; the engine sizes per-slot buffers with it, the request enforces it."""
    spans: tuple[ImageSpan, ...] = ()
    image_rows: list[npt.NDArray[np.float32] | None] = attrs.field(factory=list)
    """Per image [length, hidden] or None while not encoded."""
    num_generated: int = 0
    """How many of ``token_ids`` are generated tokens (they count as such for penalties and ``min_tokens``)."""


@attrs.frozen
class Segment:
    """One lane of a step: ``count`` rows of ``slot`` from absolute position ``start``."""

    slot: int
    kind: SegmentKind
    start: int
    count: int
    source: RowSource
    sample: bool
    """Sample a token from the last row (the last chunk of a prompt, and every decode row)."""
    layers: tuple[int, int] | None = None
    """Layer range of a staged slice; None is all layers."""


@attrs.frozen
class StepPlan:
    """One step, immutable. ``block_tables[i]`` belongs to ``segments[i]`` and covers all rows up to its end."""

    number: int
    segments: tuple[Segment, ...]
    block_tables: tuple[tuple[int, ...], ...]

    @property
    def num_rows(self) -> int:
        return sum(segment.count for segment in self.segments)


@attrs.frozen
class SampledToken:
    """One generated token with its log-probability (log-softmax of the unprocessed float32 logits)."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    """The most likely (token id, logprob), best first, as many as the sampling parameters ask for."""


@attrs.frozen
class Outcome:
    """What became of one segment. Exactly one per segment of the plan, in its order."""

    slot: int
    kept: int
    """Rows kept, c <= m."""
    tokens: tuple[SampledToken, ...] = ()
    error: str | None = None
    """Set when this row alone failed; its slot must be retired. Other rows are untouched."""


@attrs.frozen
class StepResult:
    number: int
    outcomes: tuple[Outcome, ...]
    seconds: float
    """Time on the device, for logs, metrics and device models."""


@attrs.frozen
class Capabilities:
    """What an engine can do. Declared, never overridden; options it cannot serve are refused before weights load."""

    num_slots: int
    block_size: int
    """Tokens in a KV block."""
    num_blocks: int
    max_context: int
    """Longest sequence (prompt and answer) in tokens."""
    vocab_size: int
    images: bool
    recomputable: bool
    """May a slot be dropped and prefilled again from its prompt and tokens?"""
    whole_image_blocks: bool
    """Must an image's rows enter one prefill chunk together?"""
    layer_slicing: bool
    num_layers: int
    max_depth: int
    """Steps that may be in flight at once (1 or 2)."""
    speculation: tuple[str, ...] = ()
    bytes_per_token: int = 0
    bytes_per_slot: int = 0
    bytes_per_snapshot: int = 0


class Ticket(Protocol):
    """A launched step. ``fd``, an eventfd, becomes readable when it is done; :meth:`Engine.collect` reads it empty."""

    @property
    def number(self) -> int: ...

    @property
    def fd(self) -> int: ...


class Engine(Protocol):
    """What policy may ask of an engine. Only ``encode`` blocks; it is called on the encoder actor's own thread."""

    @property
    def capabilities(self) -> Capabilities: ...

    def open(self, slot: int, spec: SlotSpec) -> None:
        """Claim a slot. No compute."""

    def close(self, slot: int) -> None:
        """Free a slot. No row of it may be in flight. Its state must not be seen by the next owner."""

    def encode(self, image: PatchImage) -> npt.NDArray[np.float32]:
        """Rows [num_tokens, hidden] of one picture. Runs on the caller's thread."""

    def launch(self, plan: StepPlan) -> Ticket:
        """Start a step and return at once. At most ``max_depth`` tickets may be uncollected."""

    def collect(self, ticket: Ticket) -> StepResult:
        """The result of a finished step; tickets are collected in launch order."""

    def shutdown(self) -> None:
        """Stop the engine thread and release memory. Idempotent."""


class SavesSlots(Protocol):
    """Seam for parking (host memory) and the prefix cache; engines that offer it implement these too."""

    def save(self, slot: int) -> object: ...

    def restore(self, slot: int, handle: object) -> None: ...

    def capture(self, slot: int, position: int) -> object: ...

    def adopt(self, slot: int, snapshot: object, blocks: Sequence[int]) -> None: ...
