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
from typing import Any, NamedTuple, Protocol

import attrs
import numpy as np
import numpy.typing as npt

__all__ = [
    "MAX_VOID_ROWS",
    "NO_HANDLE",
    "Capabilities",
    "Engine",
    "ImageSpan",
    "Mask",
    "Outcome",
    "PatchImage",
    "RowSource",
    "SampledToken",
    "Segment",
    "SegmentKind",
    "SlotSpec",
    "SlotWork",
    "StepPlan",
    "StepResult",
    "StoresStates",
    "Ticket",
    "WorkKind",
    "WorkOutcome",
]

MAX_VOID_ROWS = 64
"""Most rows at the end of a slot that may turn out to be void, in every engine."""

Mask = npt.NDArray[np.uint32]
"""Ids that may be sampled: [ceil(ids / 32)], bit i % 32 of word i // 32 for id i, at least one set. Read-only."""


class SegmentKind(enum.Enum):
    """What a lane does in a step."""

    PREFILL = "prefill"
    DECODE = "decode"
    VERIFY = "verify"
    """Speculation: ``m`` drafted rows are checked. Has its place; no engine serves it yet."""
    STAGED = "staged"
    """A layer slice of a staged pass, for engines that take a picture's rows whole (``whole_image_blocks``)."""


class RowSource(enum.Enum):
    """Where the input rows of a segment come from."""

    PROMPT = "prompt"
    """Token ids and encoded image rows of :class:`SlotSpec`, by position."""
    LAST_SAMPLED = "last sampled"
    """The token that was sampled for the segment's start; it never leaves the device in between."""


@attrs.frozen
class ImageSpan:
    """Where one image stands in a prompt: ``length`` rows from ``start`` (positions in tokens)."""

    start: int
    length: int
    image: int
    """Index into :attr:`SlotSpec.image_rows`."""


@attrs.frozen(eq=False)
class PatchImage:
    """One preprocessed picture, ready for the vision tower. It may wait long for its turn, so it holds the 8-bit shades
    where there are any, a quarter of the numbers that they stand for."""

    values: npt.NDArray[np.float32] | npt.NDArray[np.uint8]
    """[N, 3 * patch * patch], rows in merge-block order, values [channel][y][x] of one frame (spec qwen35 §11); shades
    where there is a ``scale``."""
    grid: tuple[int, int]
    """(gh, gw) in patches."""
    digest: bytes
    """Digest of the decoded pixels, size, mode and every preprocessing option (design §7)."""
    num_tokens: int
    """Merged rows that the picture takes in the prompt: gh * gw / merge²."""
    scale: npt.NDArray[np.float32] | None = None
    """[3, 256], what each shade of a channel stands for; shared by all pictures of a model."""

    @property
    def patches(self) -> npt.NDArray[np.float32]:
        """The numbers that the tower takes, in the shape of ``values``. Made anew at every call from shades."""
        if self.scale is None:
            return np.asarray(self.values, np.float32)
        shades: npt.NDArray[Any] = self.values.reshape(len(self.values), len(self.scale), -1)
        scaled = np.empty(shades.shape, np.float32)
        for channel, table in enumerate(self.scale):
            np.take(table, shades[:, channel], out=scaled[:, channel], mode="clip")
        return scaled.reshape(self.values.shape)


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

    def with_generated(self, tokens: Sequence[int]) -> SlotSpec:
        """What to open a slot with that goes on after ``tokens``, all generated tokens since this spec was made.

        The last of them need not have been fed. Prefilling the result gives, bit for bit, the state and the next
        token of the slot that generated them (recompute after a drop). ``image_rows`` is the same list.
        """
        count = len(self.token_ids)
        later = np.arange(count, count + len(tokens), dtype=np.int32) + np.int32(self.rope_delta)
        return attrs.evolve(
            self,
            token_ids=np.concatenate([self.token_ids, np.asarray(tokens, np.int32)]),
            positions=np.concatenate([self.positions, np.broadcast_to(later, (3, len(later)))], axis=1),
            max_tokens=self.max_tokens - len(tokens),
            num_generated=self.num_generated + len(tokens),
        )


class Segment(NamedTuple):
    """One lane of a step: ``count`` rows of ``slot`` from absolute position ``start``. A tuple, because a plan makes
    one for every lane of every step."""

    slot: int
    kind: SegmentKind
    start: int
    count: int  # type: ignore[assignment]  # in place of tuple.count
    source: RowSource
    sample: bool
    """Sample a token from the last row (the last chunk of a prompt, and every decode row)."""
    layers: tuple[int, int] | None = None
    """Layers [first, end) of a staged slice; None in every other segment, which goes through all of them."""

    @property
    def commits(self) -> int:
        """Rows before this position are final once the segment has run: its start, or in a segment of more than
        :data:`MAX_VOID_ROWS` rows the last multiple of that before its end."""
        if self.count <= MAX_VOID_ROWS:
            return self.start
        return max(self.start, (self.start + self.count - 1) // MAX_VOID_ROWS * MAX_VOID_ROWS)


class WorkKind(enum.Enum):
    """What a :class:`SlotWork` item does."""

    SAVE = "save"
    """Copy everything of a slot to host memory: recurrent state, keys and values of all rows before ``position``,
    fed ids, the token sampled for ``position``, sampler state. The slot goes on or is closed, as policy likes."""
    RESTORE = "restore"
    """Fill a freshly opened slot from a SAVE of the same sequence. ``blocks`` cover ``position`` rows, all of them
    fresh; every row before ``position`` is written."""
    CAPTURE = "capture"
    """Copy the state after exactly ``position`` tokens: recurrent state, and keys and values of the block that
    ``position`` cuts. The whole blocks below stay where they are, to be shared."""
    ADOPT = "adopt"
    """Start a freshly opened slot after the first ``position`` tokens of its prompt, by a CAPTURE of them. Of
    ``blocks`` those below ``position`` are shared: they are read and never written. The block that ``position``
    cuts, if it does, is the slot's own fresh one and gets the captured rows."""
    IMPORT = "import"
    """Copy a slot's staging cache, which holds its prompt but for the last token, into ``blocks``, all of them fresh.
    ``position`` is the number of its rows, and where the slot's first segment outside of passes starts."""


NO_HANDLE = -1
"""What :attr:`SlotWork.handle` is where nothing is stored: in an IMPORT."""


@attrs.frozen
class SlotWork:
    """One copy between a slot and a stored state. Items run in the order of the plan, before its segments.

    SAVE and CAPTURE commit the slot at ``position``, as a segment's start does: no later segment may start before
    it. Possible is every position from where the slot is committed (:attr:`Segment.commits` of its last segment) to
    the end of its rows; rows past ``position`` are ignored. A CAPTURE may also come late, by what :mod:`.late_captures`
    says: rows that follow its position may be committed by then. They make a new stored state under ``handle``, which
    stays until :meth:`StoresStates.discard`. Nothing that happens later to any slot or block changes it.

    RESTORE and ADOPT make the slot's next segment start at ``position``. They need a slot that was opened and has no
    rows yet; the state under ``handle`` must have been stored at ``position``, for the same token ids and M-RoPE
    positions (engines check these; pictures are the caller's to compare). The handle stays. To be restored, the slot
    may be opened with the spec of the saved one or with :meth:`SlotSpec.with_generated` of it. An adopted position
    leaves at least one prompt row to compute. Images that end before ``position`` need no rows.
    """

    kind: WorkKind
    slot: int
    position: int
    """Rows before it are stored, or there afterwards. At least 1."""
    handle: int
    """Name of the stored state, chosen by whoever makes the plan and never used for another one."""
    blocks: tuple[int, ...] = ()
    """RESTORE, ADOPT and IMPORT: the slot's block table up to ``position``."""


@attrs.frozen
class StepPlan:
    """One step, immutable: freed blocks, fresh blocks, work, segments, in this order; it may hold work alone.

    ``block_tables[i]`` belongs to ``segments[i]`` and covers all rows up to its end.

    Staged passes. On an engine with ``whole_image_blocks`` a prompt with pictures is prefilled but for its last token
    in passes, into a staging cache of its slot: runs of rows that cut no picture's span, each of them and each rest of
    at least ``min_staged_rows`` rows. A pass takes rows of one or more slots through the layers in one plan, or in
    consecutive slices of layers, one a plan, all STAGED segments of a plan with the same ``layers``. There is one pass
    at a time, and nobody joins one that has begun. Slots may be left out of the slices that follow, or a new pass be
    begun instead of them: a slot that is left out in the middle of a pass can only be closed. A slot in passes has no
    other segments, empty block tables and no work, until IMPORT makes it an ordinary slot. Its last prompt token
    follows as a DECODE row whose source is PROMPT.
    """

    number: int
    segments: tuple[Segment, ...]
    block_tables: tuple[tuple[int, ...], ...]
    work: tuple[SlotWork, ...] = ()
    fresh_blocks: tuple[int, ...] = ()
    """Blocks that were nobody's and are somebody's from here on. Named once, by the first plan that has one of them
    in a table or in ``blocks``; whoever else gets to hold it later shares it as it is. The engine cleans them."""
    freed_blocks: tuple[int, ...] = ()
    """Blocks that are nobody's any more: no slot, stored state or cache holds them since the last plan. One of them
    may be fresh again in the same plan. Closing a slot says nothing about its blocks."""
    masks: tuple[Mask | None, ...] = ()
    """``masks[i]``: what ``segments[i]``, which samples, may sample. None: anything. Empty: no segment has one."""

    @property
    def num_rows(self) -> int:
        """Of the shared batch; those of staged passes apart."""
        return sum([segment.count for segment in self.segments if segment.layers is None])


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
class WorkOutcome:
    """What became of one :class:`SlotWork` item. Exactly one per item of the plan, in its order."""

    slot: int
    nbytes: int = 0
    """SAVE and CAPTURE: host bytes that the stored state takes, equal to :meth:`Capabilities.saved_bytes` or
    :meth:`Capabilities.captured_bytes`."""
    error: str | None = None
    """Set when this item alone failed. After SAVE and CAPTURE the slot goes on as ever and nothing is stored. After
    RESTORE and ADOPT the slot is as freshly opened, without rows, and the stored state is still there."""


@attrs.frozen
class StepResult:
    number: int
    outcomes: tuple[Outcome, ...]
    seconds: float
    """Time on the device, for logs, metrics and device models."""
    work: tuple[WorkOutcome, ...] = ()


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
    """Must an image's rows enter one prefill chunk together? Then prompts with images go through staged passes."""
    num_layers: int
    max_depth: int
    """Steps that may be in flight at once (1 or 2)."""
    speculation: tuple[str, ...] = ()
    bytes_per_token: int = 0
    bytes_per_slot: int = 0
    bytes_per_snapshot: int = 0
    """Recurrent state of a stored state, without keys and values."""
    parking: bool = False
    """May plans hold SAVE and RESTORE?"""
    snapshots: bool = False
    """May plans hold CAPTURE and ADOPT?"""
    min_staged_rows: int = 1
    """Rows of the shortest staged pass."""
    slice_layers: int = 0
    """Layers of one slice of a staged pass, when it is cut so that others decode in between; 0: passes are not cut."""
    bytes_per_staging: int = 0
    """Of the staging cache that every slot has from start-up on."""
    images_recomputable: bool = True
    """May a slot with images be dropped and prefilled again, as far as ``recomputable`` allows it at all?"""

    def recomputes(self, spec: SlotSpec) -> bool:
        """May this sequence be dropped and prefilled again?"""
        return self.recomputable and (self.images_recomputable or not spec.spans)

    def saved_bytes(self, position: int) -> int:
        """Host bytes of a slot saved at ``position``, to the byte."""
        return self.bytes_per_snapshot + position * self.bytes_per_token

    def captured_bytes(self, position: int) -> int:
        """Host bytes of a snapshot captured at ``position``, to the byte: recurrent state and the cut block's rows."""
        return self.bytes_per_snapshot + position % self.block_size * self.bytes_per_token


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
        """Free a slot. No row or work of it may be in flight. Its state must not be seen by the next owner; its
        blocks are the plans' to free (:attr:`StepPlan.freed_blocks`)."""

    def encode(self, image: PatchImage) -> npt.NDArray[np.float32]:
        """Rows [num_tokens, hidden] of one picture. Runs on the caller's thread."""

    def launch(self, plan: StepPlan) -> Ticket:
        """Start a step and return at once. At most ``max_depth`` tickets may be uncollected."""

    def collect(self, ticket: Ticket) -> StepResult:
        """The result of a finished step; tickets are collected in launch order.

        Raises:
            DeviceError: the step as a whole failed. All slots in it have to be closed, and the handles that its work
                was to make discarded; which of them hold something is not known.
        """

    def shutdown(self) -> None:
        """Stop the engine thread and release memory. Idempotent."""


class StoresStates(Engine, Protocol):
    """An engine that takes :class:`SlotWork` in its plans: parking and the prefix cache (see :class:`Capabilities`)."""

    def discard(self, handle: int) -> None:
        """Give a stored state's memory back. Nothing happens where the item that was to store it has failed or was
        never launched. No step in flight may name the handle, and no later one."""
