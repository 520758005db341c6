"""From what a request asks for to a :class:`Submission`: everything that costs CPU time, on a worker thread.

JSON, base64, decoding and resizing of pictures, template and tokenising all happen here, so that the trio thread
only moves messages. Pure but for the ids and seeds it draws; raises RequestError for whatever the client got wrong.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any, TypeVar

import attrs
import msgspec

from luce.actors.choices import choices_of
from luce.actors.submission import Submission, prefix_keys
from luce.constraints.constraint import Constraint
from luce.engines.loaded import LoadedModel, PreparedPrompt
from luce.engines.seam import PatchImage
from luce.errors import RequestError, quoted
from luce.http.answering.answer_form import AnswerForm
from luce.http.answering.images import picture_bytes, refuse_many_pixels
from luce.http.answering.room import (
    CHAT_TEXTS,
    answer_room,
    body_limits,
    refuse_hopeless,
    refuse_overlong,
    refuse_too_large,
    refuse_too_much_text,
)
from luce.http.answering.unserved import Unserved, without_unserved
from luce.http.answering.wish import WholePrompt, Wish
from luce.http.json_body import decode_object, typed
from luce.http.options import HttpOptions
from luce.text.messages import Conversation

__all__ = ["Job", "build_prompt", "check_model", "count_prompt", "prepare", "read_object", "read_request"]

T = TypeVar("T", bound=msgspec.Struct)


@attrs.frozen(eq=False)
class Job:
    """A request, ready to submit, and how its answer is to be read."""

    submissions: tuple[Submission, ...]
    """One for each choice."""
    created: int
    """Unix seconds."""
    form: AnswerForm
    request_id: str | None = None
    """The caller's name for it, if the body gave one."""

    @property
    def submission(self) -> Submission:
        """The first choice's: its id is the answer's, its seed that of the request."""
        return self.submissions[0]


def read_request(
    body: bytes | bytearray,
    kind: type[T],
    model: LoadedModel,
    unserved: Unserved = {},  # noqa: B006 - nobody writes into it
    texts: Sequence[str] = CHAT_TEXTS,
) -> tuple[T, dict[str, Any]]:
    """A body as typed values and as plain ones, bounded by what the model's context could take.

    Args:
        unserved: what is refused by name.
        texts: the fields that hold text for the model.

    Raises:
        RequestError: names the field at fault.
    """
    served: tuple[str, ...] = kind.__struct_encode_fields__
    raw = without_unserved(read_object(body, model), unserved, served)
    request = typed(raw, kind)
    refuse_too_much_text(raw, model.engine.capabilities.max_context, texts)
    return request, raw


def read_object(body: bytes | bytearray, model: LoadedModel) -> dict[str, Any]:
    """A body as plain values, bounded by what the model's context could take.

    Raises:
        RequestError: it is no JSON object, or holds too much.
    """
    return decode_object(body, limits=body_limits(model.engine.capabilities.max_context))


def prepare(wish: Wish, model: LoadedModel, options: HttpOptions, *, prefix: str) -> Job:
    """Make a request ready to run.

    Args:
        prefix: what its id begins with.

    Raises:
        RequestError: names the field at fault.
    """
    context = model.engine.capabilities.max_context
    source = wish.conversation
    wish.params.validate(model.tokenizer.num_token_ids)
    _check_minimum(wish)

    images: tuple[PatchImage, ...] = ()
    prompt: PreparedPrompt
    if isinstance(source, WholePrompt):
        refuse_overlong(len(source.ids), context, source.field)
        prompt, place = model.preparer.from_ids(source.ids, field=source.field), source.field
    else:
        images, prompt = build_prompt(source, wish, model, options)
        place = "messages"
    room = answer_room(len(prompt.token_ids), wish.limit, context, place)
    params = attrs.evolve(wish.params, max_tokens=room).with_seed()
    params.validate(model.tokenizer.num_token_ids)
    form = AnswerForm(
        inside=prompt.starts_in_thinking,
        split=wish.split_reasoning,
        show_reasoning=wish.show_reasoning,
        tools=wish.tools,
        one_call=wish.one_call,
    )
    submission = Submission(
        id=f"{prefix}{uuid.uuid4().hex}",
        prompt=prompt,
        images=images,
        params=params,
        stop=wish.stop,
        include_stop=wish.include_stop,
        stop_in_reasoning=not form.split,
        skip_special_tokens=wish.skip_special_tokens,
        timeout=wish.timeout,
        cache_salt=wish.cache_salt.encode(),
        constraint=_constraint(wish, model, thinking=prompt.starts_in_thinking),
        form=None if wish.form.empty else wish.form,
    )
    keyed = attrs.evolve(submission, keys=prefix_keys(submission, model.engine.capabilities))
    return Job(
        submissions=choices_of(keyed, wish.n),
        created=int(time.time()),
        form=form,
        request_id=wish.request_id,
    )


def build_prompt(
    conversation: Conversation,
    wish: Wish,
    model: LoadedModel,
    options: HttpOptions,
    *,
    add_generation_prompt: bool = True,
) -> tuple[tuple[PatchImage, ...], PreparedPrompt]:
    """(the pictures, the prompt) of a conversation. It may be longer than the context.

    Args:
        add_generation_prompt: end with the start of an answer.

    Raises:
        RequestError: names the field at fault.
    """
    named, sizes = _pictures(conversation, wish, model, options)
    refuse_too_large(sum(sizes), model.engine.capabilities.max_context)
    images = tuple(model.preparer.prepare_image(file, field=place) for file, place in named)
    prompt = model.preparer.build(
        conversation.messages,
        images,
        tools=list(wish.tools) or None,
        template_kwargs=wish.template_kwargs,
        continuation=wish.continuation,
        add_generation_prompt=add_generation_prompt,
    )
    if wish.continuation and prompt.starts_in_thinking:
        raise RequestError(
            "the model would begin its answer by thinking, and cannot go on from a message of the assistant's then; "
            "switch its thinking off, or end with a message of the user's",
            field="messages",
        )
    return images, prompt


def count_prompt(wish: Wish, model: LoadedModel, options: HttpOptions) -> int:
    """How many tokens the prompt of a request would have, pictures by their headers alone.

    Raises:
        RequestError: names the field at fault.
    """
    if isinstance(wish.conversation, WholePrompt):
        return len(wish.conversation.ids)
    _, sizes = _pictures(wish.conversation, wish, model, options)
    return model.preparer.count(
        wish.conversation.messages,
        sizes,
        tools=list(wish.tools) or None,
        template_kwargs=wish.template_kwargs,
        continuation=wish.continuation,
    )


def _pictures(
    conversation: Conversation, wish: Wish, model: LoadedModel, options: HttpOptions
) -> tuple[list[tuple[bytes, str]], list[int]]:
    """(the picture files of a request, each with its place; their rows), once it is clear that it is worth the work."""
    context = model.engine.capabilities.max_context
    texts = {
        "messages": conversation.messages,
        "tools": wish.tools,
        "chat_template_kwargs": wish.template_kwargs,
    }
    refuse_too_much_text(texts, context, pictures=False)
    refuse_hopeless(conversation.messages, model.tokenizer, context)
    references = conversation.images
    if references and not model.engine.capabilities.images:
        raise RequestError(f"the model {model.name} does not read pictures", field=references[0].field)
    files = picture_bytes(references, options, wish.timeout)
    named = [(file, reference.field) for file, reference in zip(files, references, strict=True)]
    sizes = [model.preparer.image_tokens(file, field=place) for file, place in named]
    refuse_many_pixels(references, files, options.max_total_pixels)
    return named, sizes


def check_model(name: str | None, model: LoadedModel, options: HttpOptions) -> None:
    """Raises RequestError (404) when a request names a model that is not served here."""
    if name is not None and name != model.name and name not in options.aliases:
        raise RequestError(
            f"the model {quoted(name)} is not served here; this server has {model.name!r}",
            field="model",
            status=404,
            code="model_not_found",
        )


def _constraint(wish: Wish, model: LoadedModel, *, thinking: bool) -> Constraint | None:
    form = wish.form
    if form.empty:
        return None
    if form.text is not None and wish.continuation:
        raise RequestError(
            f"{form.field} is for whole answers; this one has begun in the last message", field=form.field
        )
    if model.constrainer is None:
        raise RequestError(f"answers of the model {model.name} cannot be held to a form", field=form.field)
    return model.constrainer.constraint(form, thinking=thinking)


def _check_minimum(wish: Wish) -> None:
    least, limit = wish.params.min_tokens, wish.limit
    if limit.tokens is not None and least > limit.tokens:
        raise RequestError(
            f"min_tokens must be at most {limit.field} ({quoted(limit.tokens)}), not {quoted(least)}",
            field="min_tokens",
        )
