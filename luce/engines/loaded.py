"""A model that is loaded and ready to serve: the engine and what turns requests into its rows and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs
import numpy as np
import numpy.typing as npt

from luce.constraints.constrainer import Constrainer
from luce.engines.sampling_defaults import GenerationDefaults
from luce.engines.seam import Engine, ImageSpan, PatchImage
from luce.text.tokenizer import Tokenizer

__all__ = ["GenerationDefaults", "LoadedModel", "PreparedPrompt", "Preparer"]


class PreparedPrompt(Protocol):
    """A prompt in rows, as an engine family's prompt builder makes it."""

    @property
    def token_ids(self) -> npt.NDArray[np.int32]:
        """[T]; image pads expanded."""

    @property
    def positions(self) -> npt.NDArray[np.int32]:
        """[3, T]."""

    @property
    def rope_delta(self) -> int: ...

    @property
    def spans(self) -> tuple[ImageSpan, ...]: ...

    @property
    def answer_start(self) -> int:
        """Place of the generation prompt: up to here a later turn renders the same. T when there is none."""

    @property
    def turn_ends(self) -> tuple[int, ...]:
        """Places after the turns of a conversation, ascending."""

    @property
    def starts_in_thinking(self) -> bool:
        """The answer begins inside a think block that the prompt opened."""


class Preparer(Protocol):
    """Pure and re-entrant: called on worker threads, several at once."""

    @property
    def options(self) -> frozenset[str]:
        """Names of the options that the chat template reads (``enable_thinking``, …)."""
        ...

    def build(
        self,
        messages: Sequence[Mapping[str, Any]],
        images: Sequence[PatchImage],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continuation: str = "",
    ) -> PreparedPrompt:
        """Messages through the chat template to rows. Raises RequestError naming the field.

        Args:
            continuation: plain text behind the start of the answer, which goes on from there.
        """
        ...

    def count(
        self,
        messages: Sequence[Mapping[str, Any]],
        image_tokens: Sequence[int],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        continuation: str = "",
    ) -> int:
        """Rows that :meth:`build` would make of it, pictures of so many rows. Raises RequestError naming the field."""
        ...

    def from_ids(
        self, ids: Sequence[int], images: Sequence[PatchImage] = (), *, field: str = "ids"
    ) -> PreparedPrompt:
        """Token ids as they stand to rows. Raises RequestError naming ``field``."""
        ...

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The text that the chat template makes of messages. Raises RequestError naming the field."""
        ...

    def image_tokens(self, data: bytes, *, field: str) -> int:
        """Rows that a picture will take in the prompt, from its header alone. Raises RequestError naming ``field``."""
        ...

    def prepare_image(self, data: bytes, *, field: str) -> PatchImage:
        """Decode, resize and patchify one picture. Raises RequestError naming ``field``."""
        ...


@attrs.frozen(eq=False)
class LoadedModel:
    name: str
    """Served model name."""
    engine: Engine
    tokenizer: Tokenizer
    preparer: Preparer
    eos_token_ids: tuple[int, ...]
    defaults: GenerationDefaults
    created: int
    """Unix seconds, shown by /v1/models."""
    constrainer: Constrainer | None = None
    """Holds answers to forms; None: this model cannot."""
    memory: Mapping[str, int] = attrs.field(factory=dict)
    """Bytes by part of the memory plan, taken from the start on; empty where there is none."""

    @property
    def fingerprint(self) -> str | None:
        """What answers depend on beside the request (``system_fingerprint``); None where the engine has none."""
        found = getattr(self.engine, "fingerprint", None)
        return None if found is None else str(found)
