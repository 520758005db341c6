"""From messages and pictures to the rows of a Qwen3.5 prompt (spec qwen35 §3, §10, §13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from luce.engines.qwen35.config import Qwen35Config
from luce.engines.qwen35.positions import mrope_positions
from luce.engines.seam import ImageSpan, PatchImage
from luce.errors import RequestError, quoted
from luce.text.chat_template import ChatTemplate
from luce.text.messages import normalise
from luce.text.tokenizer import Tokenizer
from luce.vision.decode import DecodeLimits, check_image, decode_image
from luce.vision.preprocess import Preprocessor

__all__ = ["Prompt", "PromptBuilder"]


@attrs.frozen(eq=False)
class Prompt:
    """A prompt in rows."""

    token_ids: npt.NDArray[np.int32]
    """[T]; one image pad per image row."""
    positions: npt.NDArray[np.int32]
    """[3, T] (t, h, w)."""
    rope_delta: int
    """Added to the token count for positions of generated tokens."""
    spans: tuple[ImageSpan, ...]
    images: tuple[PatchImage, ...]
    """In order of appearance; ``span.image`` indexes them."""
    answer_start: int
    """Place of the generation prompt: up to here a later turn renders the same. T when there is none."""
    turn_ends: tuple[int, ...]
    """Places after the turns of the conversation: where the next one starts."""
    starts_in_thinking: bool
    """The answer begins inside a think block that the prompt opened."""

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_images(self) -> int:
        return len(self.images)


@attrs.frozen(eq=False)
class PromptBuilder:
    """Builds prompts. Immutable and re-entrant: called on worker threads, several at once."""

    tokenizer: Tokenizer | None
    template: ChatTemplate | None
    """None, as the tokenizer, when the model files have none; then only :meth:`from_ids` works."""
    config: Qwen35Config
    preprocessor: Preprocessor | None
    """None when the model has no vision tower."""
    limits: DecodeLimits = attrs.field(factory=DecodeLimits)

    @property
    def options(self) -> frozenset[str]:
        """Names of the options that the chat template reads; none without one."""
        return frozenset() if self.template is None else self.template.options

    def build(
        self,
        messages: Sequence[Mapping[str, Any]],
        images: Sequence[PatchImage] = (),
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continuation: str = "",
    ) -> Prompt:
        """Messages through the chat template to rows.

        Args:
            messages: as the client sent them (:func:`luce.text.messages.normalise`).
            images: pictures of all turns, in the order of their parts in the messages.
            tools: tool definitions as the client sent them.
            template_kwargs: further template variables.
            add_generation_prompt: end with the start of the assistant's answer.
            continuation: plain text behind the start of the answer, which goes on from there.

        Raises:
            RequestError: names the field at fault.
        """
        self._check_images(images)
        ids = self._ids(messages, len(images), tools, template_kwargs, add_generation_prompt, continuation)
        return self._prompt(ids, images, answer_at_turn=add_generation_prompt)

    def count(
        self,
        messages: Sequence[Mapping[str, Any]],
        image_tokens: Sequence[int] = (),
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        continuation: str = "",
    ) -> int:
        """Rows that :meth:`build` would make of it.

        Args:
            image_tokens: rows of each picture (:meth:`image_tokens`), in the order of their parts in the messages.

        Raises:
            RequestError: names the field at fault.
        """
        ids = self._ids(messages, len(image_tokens), tools, template_kwargs, True, continuation)
        return len(ids) - len(image_tokens) + sum(image_tokens)

    def _ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        num_images: int,
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None,
        add_generation_prompt: bool,
        continuation: str,
    ) -> npt.NDArray[np.int32]:
        """Ids of the rendered prompt, one image pad per picture."""
        if self.template is None or self.tokenizer is None:
            raise RequestError("the model files hold no chat template", field="messages")
        conversation = normalise(messages)
        if len(conversation.images) != num_images:
            raise RequestError(
                f"the messages name {len(conversation.images)} images, {num_images} are given",
                field="messages",
            )
        rendered = self.template.render(
            conversation.messages,
            tools=tools,
            template_kwargs=template_kwargs,
            add_generation_prompt=add_generation_prompt,
        )
        pieces = list(rendered.pieces)
        if continuation and pieces and isinstance(pieces[-1], str):
            pieces[-1] += continuation  # one text: where it is cut would change its tokens
        elif continuation:
            pieces.append(continuation)
        ids = np.array(self.tokenizer.encode_rendered(pieces), np.int32)
        marks = int(np.count_nonzero(ids == self.config.image_token_id)) if len(ids) else 0
        if marks != num_images:
            raise RequestError(
                f"the chat template wrote {marks} image markers for {num_images} images", field="messages"
            )
        return ids

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The text that the chat template makes of messages, one image pad for each picture.

        Raises:
            RequestError: names the field at fault.
        """
        if self.template is None:
            raise RequestError("the model files hold no chat template", field="messages")
        return self.template.render(
            normalise(messages).messages,
            tools=tools,
            template_kwargs=template_kwargs,
            add_generation_prompt=add_generation_prompt,
        ).text

    def from_ids(
        self, ids: Sequence[int], images: Sequence[PatchImage] = (), *, field: str = "ids"
    ) -> Prompt:
        """A prompt of given ids, with one image pad per image or one per image row.

        Raises:
            RequestError: an id is out of range, or pads and images do not match; names ``field``.
        """
        self._check_images(images)
        rows = self.config.text.vocab_size
        for place, index in enumerate(ids):
            if not 0 <= index < rows:
                raise RequestError(
                    f"{field}[{place}] is {quoted(index)}; the model has ids 0 to {rows - 1}", field=field
                )
        if not len(ids):
            raise RequestError(f"{field} must not be empty", field=field)
        return self._prompt(np.array(ids, np.int32), images, answer_at_turn=False, field=field)

    def prepare_image(self, data: bytes, *, field: str) -> PatchImage:
        """Decode, resize and patchify one picture.

        Raises:
            RequestError: names ``field``.
        """
        preprocessor = self._vision(field)
        return preprocessor(decode_image(data, limits=self.limits, field=field), field=field)

    def image_tokens(self, data: bytes, *, field: str) -> int:
        """Rows that a picture will take in the prompt, from its header alone: to refuse too many before decoding.

        Raises:
            RequestError: names ``field``.
        """
        preprocessor = self._vision(field)
        _, height, width = check_image(data, limits=self.limits, field=field)
        rows, columns = preprocessor.target(height, width, field=field)
        return rows * columns // preprocessor.factor**2

    def _vision(self, field: str) -> Preprocessor:
        if self.preprocessor is None:
            raise RequestError("this model has no vision tower; send text only", field=field)
        return self.preprocessor

    def _check_images(self, images: Sequence[PatchImage]) -> None:
        vision = self.config.vision
        if images and (vision is None or self.config.image_token_id is None):
            raise RequestError("this model has no vision tower; send text only", field="messages")
        for image in images:
            assert vision is not None
            rows, columns = image.grid
            size = vision.in_channels * vision.patch_size**2
            assert image.values.shape == (rows * columns, size), (image.values.shape, image.grid)
            assert image.num_tokens * vision.merge_size**2 == rows * columns, image.grid

    def _prompt(
        self,
        ids: npt.NDArray[np.int32],
        images: Sequence[PatchImage],
        *,
        answer_at_turn: bool,
        field: str = "messages",
    ) -> Prompt:
        ids, spans = _expand(ids, images, self.config.image_token_id, field)
        merge = self.config.vision.merge_size if self.config.vision is not None else 1
        positions, delta = mrope_positions(len(ids), spans, [image.grid for image in images], merge)
        special = self.tokenizer.special_ids if self.tokenizer is not None else {}
        start = _last(ids, special.get("<|im_start|>")) if answer_at_turn else -1
        opened, closed = _last(ids, special.get("<think>")), _last(ids, special.get("</think>"))
        return Prompt(
            token_ids=ids,
            positions=positions,
            rope_delta=delta,
            spans=spans,
            images=tuple(images),
            answer_start=len(ids) if start < 0 else start,
            turn_ends=_all(ids, special.get("<|im_start|>")) if answer_at_turn else (),
            starts_in_thinking=0 <= start < opened and closed < opened,
        )


def _all(ids: npt.NDArray[np.int32], token: int | None) -> tuple[int, ...]:
    """Places of such a token, but the very first."""
    return () if token is None else tuple(int(place) for place in np.flatnonzero(ids == token) if place)


def _last(ids: npt.NDArray[np.int32], token: int | None) -> int:
    """Place of the last such token, or -1."""
    if token is None:
        return -1
    places = np.flatnonzero(ids == token)
    return int(places[-1]) if len(places) else -1


def _expand(
    ids: npt.NDArray[np.int32], images: Sequence[PatchImage], pad: int | None, field: str
) -> tuple[npt.NDArray[np.int32], tuple[ImageSpan, ...]]:
    """Every image pad times its image's rows (or as they are, if already so many), and where the images stand."""
    pads = np.flatnonzero(ids == pad) if pad is not None else np.empty(0, np.int64)
    lengths = [image.num_tokens for image in images]
    if len(pads) == sum(lengths) and len(pads):
        first = np.cumsum([0, *lengths[:-1]])
        spans = tuple(
            ImageSpan(int(pads[at]), length, i)
            for i, (at, length) in enumerate(zip(first, lengths, strict=True))
        )
        for span, at in zip(spans, first, strict=True):
            if pads[at + span.length - 1] != span.start + span.length - 1:
                raise RequestError(
                    f"the pads of image {span.image} are not {span.length} in a row", field=field
                )
        return ids, spans
    if len(pads) != len(images):
        raise RequestError(
            f"{len(pads)} image pads for {len(images)} images of {lengths} rows; give one pad per image or "
            "one per row",
            field=field,
        )
    if not images:
        return ids, ()
    repeats = np.ones(len(ids), np.int64)
    repeats[pads] = lengths
    starts = pads + np.cumsum([0, *lengths[:-1]]) - np.arange(len(images))
    return np.repeat(ids, repeats), tuple(
        ImageSpan(int(start), length, i)
        for i, (start, length) in enumerate(zip(starts, lengths, strict=True))
    )
