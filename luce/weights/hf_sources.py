"""Tokenizer, template, generation and preprocessing files of a Hugging Face directory (spec qwen35 §1.3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from luce.errors import ModelFileError, quoted
from luce.weights.fields import Fields
from luce.weights.json_file import read_json_object, read_json_object_if_present, read_text
from luce.weights.paths import is_listed
from luce.weights.sources import (
    MAX_TEMPLATE_CHARS,
    ChatTemplateSource,
    GenerationSource,
    PreprocessorSource,
    TokenizerSource,
)

__all__ = ["hf_chat_template", "hf_generation", "hf_preprocessor", "hf_tokenizer"]

MAX_ID = (1 << 31) - 1
MAX_PIXELS = 1 << 40


def hf_tokenizer(folder: Path) -> TokenizerSource | None:
    """The tokenizer files; None without ``tokenizer.json``."""
    path = folder / "tokenizer.json"
    if not is_listed(path):
        return None
    added_path = folder / "added_tokens.json"
    added = Fields(added_path, read_json_object_if_present(added_path))
    for name in added.values:
        added.integer(name, 0, MAX_ID)
    return TokenizerSource(
        path=path,
        json_text=read_text(path),
        config=read_json_object_if_present(folder / "tokenizer_config.json"),
        added_tokens=dict(added.values),
        special_tokens=read_json_object_if_present(folder / "special_tokens_map.json"),
    )


def hf_chat_template(folder: Path) -> ChatTemplateSource | None:
    """``chat_template.jinja``, else ``chat_template.json``, else ``tokenizer_config.json``."""
    path = folder / "chat_template.jinja"
    if is_listed(path):
        return chat_template(path, read_text(path))
    for name in ("chat_template.json", "tokenizer_config.json"):
        path = folder / name
        found = read_json_object_if_present(path).get("chat_template")
        if found is not None:
            return chat_template(path, _pick(path, found))
    return None


def chat_template(path: Path, text: object) -> ChatTemplateSource:
    """Check type and size of a template.

    Raises:
        ModelFileError: not a string, or longer than :data:`MAX_TEMPLATE_CHARS`.
    """
    if not isinstance(text, str):
        raise ModelFileError(path, "the chat template is not a string")
    if len(text) > MAX_TEMPLATE_CHARS:
        raise ModelFileError(
            path, f"the chat template has {len(text)} characters; the limit is {MAX_TEMPLATE_CHARS}"
        )
    return ChatTemplateSource(text, path)


def _pick(path: Path, found: object) -> object:
    """Older files hold a list of {name, template}; the one named "default" is meant."""
    if not isinstance(found, list):
        return found
    by_name = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
    if "default" not in by_name:
        raise ModelFileError(
            path, f"chat_template is a list without 'default' (names: {quoted(list(by_name))})"
        )
    return by_name["default"]


def hf_generation(folder: Path) -> GenerationSource:
    """``generation_config.json``; every field None when there is none."""
    path = folder / "generation_config.json"
    fields = Fields(path, read_json_object_if_present(path))
    return GenerationSource(
        eos_token_ids=id_list(fields, "eos_token_id"),
        do_sample=fields.flag("do_sample") if fields.has("do_sample") else None,
        temperature=_optional(fields, "temperature", 0.0, 100.0),
        top_k=fields.integer("top_k", 0, MAX_ID) if fields.has("top_k") else None,
        top_p=_optional(fields, "top_p", 0.0, 1.0),
        min_p=_optional(fields, "min_p", 0.0, 1.0),
        repetition_penalty=_optional(fields, "repetition_penalty", 0.0, 100.0),
    )


def id_list(fields: Fields, name: str) -> tuple[int, ...]:
    """A token id or a list of them; () when missing."""
    if not fields.has(name):
        return ()
    if isinstance(fields.values[name], list):
        return tuple(fields.integers(name, 0, MAX_ID))
    return (fields.integer(name, 0, MAX_ID),)


def _optional(fields: Fields, name: str, low: float, high: float) -> float | None:
    return fields.number(name, low, high) if fields.has(name) else None


def hf_preprocessor(folder: Path) -> PreprocessorSource | None:
    """``preprocessor_config.json`` or the ``image_processor`` member of ``processor_config.json``."""
    path = folder / "preprocessor_config.json"
    if is_listed(path):
        return _preprocessor(Fields(path, read_json_object(path)))
    path = folder / "processor_config.json"
    fields = Fields(path, read_json_object_if_present(path))
    return _preprocessor(fields.child("image_processor")) if fields.has("image_processor") else None


def _preprocessor(fields: Fields) -> PreprocessorSource:
    low, high = _pixel_limits(fields)
    return PreprocessorSource(
        patch_size=fields.integer("patch_size", 1, 256),
        temporal_patch_size=fields.integer("temporal_patch_size", 1, 16),
        merge_size=fields.integer("merge_size", 1, 16),
        min_pixels=low,
        max_pixels=high,
        image_mean=triple(fields, "image_mean", -10.0),
        image_std=triple(fields, "image_std", 1e-6),
        path=fields.path,
    )


def triple(fields: Fields, name: str, low: float) -> tuple[float, float, float]:
    red, green, blue = fields.numbers(name, low, 10.0, 3)
    return red, green, blue


def _pixel_limits(fields: Fields) -> tuple[int, int]:
    """Areas, whatever their names say: ``shortest_edge``, ``longest_edge`` or ``min_pixels``, ``max_…``."""
    if fields.has("size"):
        size = fields.child("size")
        names = (
            ("shortest_edge", "longest_edge") if size.has("shortest_edge") else ("min_pixels", "max_pixels")
        )
    else:
        size, names = fields, ("min_pixels", "max_pixels")
    low, high = (size.integer(name, 1, MAX_PIXELS) for name in names)
    if low > high:
        raise size.fault(names[0], f"{low} is above {names[1]} {high}")
    return low, high


def hf_name(folder: Path, config: dict[str, Any]) -> str:
    """Name to show: the directory's, or the last part of ``_name_or_path``."""
    name = folder.resolve().name
    return name or str(config.get("_name_or_path") or "model")
