"""``luce inspect MODEL``: what the files hold and what serving them would take. Reads no weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import attrs
from cyclopts import Parameter
from rich.console import Console

from luce.cli.flags import ConfigFlags, ModelFlags, ModelPath
from luce.engines.load_model import (
    LoadOptions,
    OpenedModel,
    check_context,
    check_fits,
    demo_model,
    open_model,
)
from luce.engines.qwen35.config import TextConfig
from luce.engines.qwen35.memory import format_bytes
from luce.http.options import HttpOptions
from luce.weights.model_files import ModelFiles
from luce.weights.tensor_file import TensorFile

__all__ = ["describe", "inspect", "inspect_model"]


def inspect(
    model: ModelPath = None,
    /,
    *,
    tensors: Annotated[bool, Parameter(negative="", help="List every tensor as well.")] = False,
    model_flags: ModelFlags = ModelFlags(),  # noqa: B008 - frozen
    config: ConfigFlags = ConfigFlags(),  # noqa: B008
) -> None:
    """Show what a model's files hold and what serving them takes. Reads no weights."""
    options = attrs.evolve(model_flags.options(), decoding_workers=HttpOptions().preparing)
    inspect_model(model or demo_model(), options, Console(soft_wrap=True), tensors=tensors)


def inspect_model(path: Path, options: LoadOptions, console: Console, *, tensors: bool = False) -> None:
    """Print the description of a model.

    Args:
        options: what the memory plan is for.
        tensors: list every tensor as well.

    Raises:
        ModelFileError, ConfigError: as serving the model would, before any data is read; that it does not fit into
            memory, or has no tokenizer or chat template, is raised when all is printed.
    """
    model = open_model(path, options, chat=False, fitting=False)
    if model.template is not None:
        check_context(model)
    lines = [*describe(model), *(_tensor_lines(model.files) if tensors else ())]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if model.tokenizer is None or model.template is None:
        open_model(path, options)  # which refuses it
    if model.on_device is None:
        check_fits(model.config, model.plan, options.max_memory)


def describe(model: OpenedModel) -> Iterator[str]:
    """The description, line by line."""
    files, config, options = model.files, model.config, model.plan.options
    text, vision = config.text, config.vision
    full = sum(text.full_attention)
    yield f"model       {model.name} ({files.form.value})"
    for label, file in (("text", files.text), ("vision", files.mmproj)):
        if file is not None:
            yield f"{label:<11} {file.path}: {len(file.tensors)} tensors, {_formats(file)}"
    yield f"weights     {model.file_bytes:,} bytes in the files ({format_bytes(model.file_bytes)})"
    yield (
        f"layers      {text.num_layers} ({text.num_layers - full} DeltaNet, {full} attention)"
        f"{f', {text.num_mtp_layers} MTP' if text.num_mtp_layers else ''}, hidden {text.hidden}, {_ffn(text)}"
    )
    yield f"attention   {text.heads} query heads, {text.kv_heads} KV heads, head size {text.head_dim}"
    yield (
        f"DeltaNet    {text.key_heads} key heads of {text.key_dim}, "
        f"{text.value_heads} value heads of {text.value_dim}"
    )
    yield (
        f"vocabulary  {config.num_token_ids or text.vocab_size} tokens, {text.vocab_size} rows, "
        f"{'tied' if text.tied else 'separate'} head; stops at {', '.join(map(str, config.eos_token_ids))}"
    )
    yield f"context     up to {text.max_positions} tokens"
    if vision is None:
        yield "images      no (the files hold no vision tower)"
    else:
        yield (
            f"images      yes: {vision.depth} blocks, hidden {vision.hidden}, patches of {vision.patch_size}, "
            f"image token {config.image_token_id}"
        )
    if files.preprocessor is not None:
        yield f"pixels      {files.preprocessor.min_pixels} to {files.preprocessor.max_pixels} per picture"
    yield f"tokenizer   {files.tokenizer.path if files.tokenizer else 'none'}"
    yield f"template    {files.chat_template.path if files.chat_template else 'none'}"
    yield f"memory      for {options.slots} slots of {options.context} tokens:"
    for line in model.plan.lines():
        yield f"  {line}"


def _ffn(text: TextConfig) -> str:
    moe = text.moe
    if moe is None:
        return f"ffn {text.ffn}"
    return f"{moe.used} of {moe.experts} experts of {moe.ffn} and a shared one of {moe.shared_ffn}"


def _formats(file: TensorFile) -> str:
    counts = Counter(info.format for info in file.tensors.values())
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


def _tensor_lines(files: ModelFiles) -> Iterator[str]:
    for file in (files.text, files.mmproj):
        for info in file.tensors.values() if file is not None else ():
            yield f"{info.name}  {info.format}  {list(info.shape)}  {info.nbytes} bytes at {info.offset}"
