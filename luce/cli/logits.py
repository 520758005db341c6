"""`luce logits`: the numbers of one prompt in a file, for comparison with other implementations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import attrs
import msgspec
import numpy as np
from cyclopts import Parameter
from rich.console import Console

from luce.cli.flags import FILE, NAME, OPERANDS, ConfigFlags, OperandsName, chosen_operands
from luce.cli.inputs import read_file
from luce.cli.loading_progress import loading_progress
from luce.cli.outputs import check_writable, same_file, writing
from luce.engines.load_model import (
    LoadedEngine,
    LoadOptions,
    OpenedModel,
    check_free,
    load_engine,
    open_model,
)
from luce.engines.qwen35.prompt import Prompt, PromptBuilder
from luce.engines.seam import PatchImage, SlotSpec
from luce.errors import ConfigError, RequestError, reason
from luce.http.json_body import decode_object, typed
from luce.http.options import HttpOptions
from luce.text.messages import normalise
from luce.vision.data_url import parse_data_url

__all__ = ["LogitsRequest", "compute", "logits", "read_request"]


class LogitsRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The file given with `--request`: ids, or messages; pictures by path, relative to the file."""

    ids: list[int] | None = None
    """One pad per picture, or one per picture row."""
    images: list[str] | None = None
    """Pictures in order. In messages they stand for `{"type": "image"}` parts; `data:` URLs need none."""
    messages: list[Any] | None = None
    tools: list[Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


def logits(
    model: Annotated[
        Path, FILE, Parameter(help="Directory with config.json and safetensors, or a .gguf file.")
    ],
    /,
    *,
    request: Annotated[
        Path,
        FILE,
        Parameter(
            help='JSON file: {"ids": […], "images": [paths]} or {"messages": […]}, with tools if need be.'
        ),
    ],
    out: Annotated[
        Path,
        FILE,
        Parameter(help="npz file to write: ids [T], position_ids [3, T], logits [T, V] float32, and more."),
    ],
    hidden: Annotated[
        bool,
        Parameter(
            negative="", help="Also hidden_0 … hidden_{L-1}: the rows [T, hidden] that leave each layer."
        ),
    ] = False,
    vision: Annotated[
        bool,
        Parameter(negative="", help="Also image_rows_0 …: the encoded rows [N, hidden] of each picture."),
    ] = False,
    mmproj: Annotated[Path | None, FILE, Parameter(help="Vision tower of a GGUF model.")] = None,
    device: Annotated[str, NAME, Parameter(help="Where it is computed: cpu, cuda:N, hip:N or auto.")] = "cpu",
    operands: Annotated[OperandsName | None, OPERANDS] = None,
    config: ConfigFlags = ConfigFlags(),  # noqa: B008 - frozen
) -> None:
    """Write the logits of a prompt to a file, for comparison with other implementations.

    The numbers are those of serving: the same engine computes them in the same order.
    """
    for path, what in ((request, "the request"), (model, "the model"), (mmproj, "the vision tower")):
        if path is not None and same_file(out, path):
            raise ConfigError(f"{out} is {what}; name another file to write", flag="--out")
    check_writable(out, "--out")
    asked = read_request(request)
    chat = asked.messages is not None
    taken = chosen_operands(operands)
    options = LoadOptions(mmproj=mmproj, slots=1, context=1, device=device, operands=taken)
    opened = open_model(model, options, chat=chat, fitting=False)
    with _naming(request):
        prompt = build_prompt(asked, opened.prompts, request.parent)
    count = len(prompt.token_ids)
    opened = open_model(model, attrs.evolve(options, context=count), chat=chat, fitting=False)
    if opened.on_device is None:
        check_free(opened.plan, f"a prompt of {count} tokens", output_bytes(opened, count))
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    with loading_progress(opened.name, console) as progress:
        engine = load_engine(opened, progress)
    try:
        arrays = compute(engine, prompt, hidden=hidden, vision=vision)
    finally:
        engine.shutdown()
    with writing(out, "--out"), out.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
    console.print(f"{out}: {shapes}", markup=False)


def output_bytes(opened: OpenedModel, rows: int) -> int:
    """What the pass itself takes beside the plan: a pool of its own, logits, and the rows that leave every layer."""
    text, parts = opened.config.text, opened.plan.parts
    values = text.vocab_size + text.num_layers * text.hidden
    return parts["KV blocks"] + parts["recurrent state"] + 4 * rows * values


def read_request(path: Path) -> LogitsRequest:
    """The request file.

    Raises:
        ConfigError: it cannot be read.
        RequestError: it is malformed; names the file and the field.
    """
    try:
        body = read_file(path, HttpOptions().max_body_bytes)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {reason(error)}", flag="--request") from None
    with _naming(path):
        request = typed(decode_object(body, what="the file"), LogitsRequest)
        if (request.ids is None) == (request.messages is None):
            raise RequestError("give either ids or messages", field="ids")
        if request.ids is not None and (request.tools or request.chat_template_kwargs):
            raise RequestError("tools and chat_template_kwargs go with messages, not with ids", field="tools")
        return request


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors in a request name the file that it was read from."""
    try:
        yield
    except RequestError as error:
        raise RequestError(f"{path}: {error.message}", field=error.field) from None


def build_prompt(request: LogitsRequest, prompts: PromptBuilder, folder: Path) -> Prompt:
    """The prompt's rows. Raises RequestError naming the field."""
    files = iter(request.images or ())
    if request.ids is not None:
        return prompts.from_ids(request.ids, _pictures(list(files), prompts, folder))
    conversation = normalise(request.messages or [])
    images: list[PatchImage] = []
    for reference in conversation.images:
        if reference.url is not None:
            images.append(prompts.prepare_image(parse_data_url(reference.url), field=reference.field))
        elif (name := next(files, None)) is not None:
            images += _pictures([name], prompts, folder)
        else:
            raise RequestError(f"{reference.field}: images names no file for it", field="images")
    if next(files, None) is not None:
        raise RequestError("images names more files than the messages have picture parts", field="images")
    return prompts.build(
        conversation.messages, images, tools=request.tools, template_kwargs=request.chat_template_kwargs
    )


def compute(
    engine: LoadedEngine, prompt: Prompt, *, hidden: bool, vision: bool
) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    """The arrays by name, as the npz file holds them."""
    rows = [engine.encode(image) for image in prompt.images]
    spec = SlotSpec(
        token_ids=prompt.token_ids,
        positions=prompt.positions,
        rope_delta=prompt.rope_delta,
        sampling=None,
        max_tokens=0,
        spans=prompt.spans,
        image_rows=list(rows),
    )
    values, layers = engine.forward_all(spec)
    arrays: dict[str, np.ndarray[Any, np.dtype[Any]]] = {
        "ids": prompt.token_ids,
        "position_ids": prompt.positions,
        "logits": values,
    }
    if hidden:
        arrays |= {f"hidden_{index}": layer for index, layer in enumerate(layers)}
    if vision:
        arrays |= {f"image_rows_{index}": array for index, array in enumerate(rows)}
    return arrays


def _pictures(names: list[str], prompts: PromptBuilder, folder: Path) -> list[PatchImage]:
    images = []
    for index, name in enumerate(names):
        path = folder / name
        field = f"images[{index}]"
        if not name:
            raise RequestError(f"{field} is empty; it must be the path of a picture", field=field)
        try:
            data = read_file(path, HttpOptions().max_image_bytes)
        except (OSError, ValueError) as error:
            raise RequestError(f"{field}: {path}: {reason(error)}", field=field) from None
        images.append(prompts.prepare_image(data, field=field))
    return images
