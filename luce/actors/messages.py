"""What actors say to each other. ``event`` is the name in the receiver's chart; the rest is what it carries.

Named tuples and small frozen classes: at 64 slots and 100 steps a second thousands of them are made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

import attrs
import numpy as np
import numpy.typing as npt

from luce.engines.seam import SampledToken
from luce.errors import LuceError

if TYPE_CHECKING:
    from luce.actors.request import Request

__all__ = [
    "AdoptionFailed",
    "ChunkDone",
    "EncodeFailed",
    "ImageReady",
    "MaskFailed",
    "Plain",
    "QueueExpired",
    "RequestMessage",
    "RestoreFailed",
    "SliceDone",
    "SlotGranted",
    "StepFailed",
    "ToEncoder",
    "ToLoop",
    "Token",
]


class Plain(NamedTuple):
    """An event that carries nothing: cancel, retired, dropped, park.save, park.drop, resume, mask.ready, …"""

    event: str


@attrs.frozen
class QueueExpired:
    """The request waited too long, or the server stops admitting; the error says which."""

    event: ClassVar[str] = "queue.expired"
    error: LuceError


@attrs.frozen
class SlotGranted:
    event: ClassVar[str] = "slot.granted"
    slot: int


class ChunkDone(NamedTuple):
    """Prompt rows were prefilled. After the last chunk of a prompt a :class:`Token` follows at once."""

    rows: int
    event: str = "chunk.done"


class SliceDone(NamedTuple):
    """Prompt rows went through a slice of a staged pass."""

    rows: int
    """That are through all layers now; 0 while layers are left."""
    layers_left: bool
    event: str = "slice.done"


class Token(NamedTuple):
    token: SampledToken
    rows: int
    """Rows that its step computed and no :class:`ChunkDone` told of."""
    event: str = "token"


@attrs.frozen
class StepFailed:
    event: ClassVar[str] = "step.failed"
    error: LuceError


@attrs.frozen
class RestoreFailed:
    """The state of a parked request could not be copied out or back in."""

    event: ClassVar[str] = "restore.failed"
    error: LuceError


@attrs.frozen
class AdoptionFailed:
    """The cached prefix that a request was to start from is no good; its slot is gone."""

    event: ClassVar[str] = "adoption.failed"
    error: LuceError


@attrs.frozen
class MaskFailed:
    """What the next token may be cannot be told."""

    event: ClassVar[str] = "mask.failed"
    error: LuceError


@attrs.frozen(eq=False)
class ImageReady:
    event: ClassVar[str] = "image.ready"
    image: int
    rows: npt.NDArray[np.float32]


@attrs.frozen
class EncodeFailed:
    event: ClassVar[str] = "encode.failed"
    image: int
    error: LuceError


RequestMessage = (
    Plain
    | QueueExpired
    | SlotGranted
    | ChunkDone
    | SliceDone
    | Token
    | StepFailed
    | RestoreFailed
    | AdoptionFailed
    | MaskFailed
    | ImageReady
    | EncodeFailed
)


class ToLoop(NamedTuple):
    """admit, retire, rows.ready, pass.wanted from a request; drain, abort from the server; window.elapsed."""

    event: str
    request: Request | None = None


class ToEncoder(NamedTuple):
    """encode and drop from a request; image.done and image.failed from the encoder's own worker; stop from the server.
    The last three are of no request."""

    event: str
    request: Request | None = None
