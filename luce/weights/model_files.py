"""From a path to the files of a model: text, vision, tokenizer, template, generation, preprocessing.

A path is a Hugging Face directory (``config.json`` and safetensors), a ``.gguf`` file, or a directory with
one text GGUF. The vision tower of a GGUF is a second file, the mmproj: named by the caller, or the only one
beside the model.
"""

from __future__ import annotations

import enum
import os
from pathlib import Path
from typing import Any

import attrs

from luce.errors import ConfigError, ModelFileError, quoted
from luce.weights.gguf_file import peek_gguf
from luce.weights.gguf_sources import gguf_chat_template, gguf_generation, gguf_preprocessor, gguf_tokenizer
from luce.weights.hf_sources import (
    hf_chat_template,
    hf_generation,
    hf_name,
    hf_preprocessor,
    hf_tokenizer,
)
from luce.weights.json_file import read_json_object
from luce.weights.paths import is_folder, is_listed, listed
from luce.weights.shards import open_gguf_parts, open_safetensors_model
from luce.weights.sources import ChatTemplateSource, GenerationSource, PreprocessorSource, TokenizerSource
from luce.weights.tensor_file import TensorFile

__all__ = ["FileForm", "ModelFiles", "resolve_model"]


MAX_NAME_CHARS = 200
VISION_PREFIXES = ("v.", "mm.")
"""Names of a vision tower's tensors in a GGUF begin with them."""


class FileForm(enum.Enum):
    HUGGING_FACE = "safetensors"
    GGUF = "GGUF"


@attrs.frozen(eq=False)
class ModelFiles:
    """Everything the files say, headers read and data mapped but not touched."""

    path: Path
    """What the caller named."""
    name: str
    form: FileForm
    text: TensorFile
    """All tensors of a Hugging Face model (vision included), or those of the text GGUF."""
    mmproj: TensorFile | None
    """The GGUF vision tower."""
    config: dict[str, Any]
    """``config.json``; {} for GGUF, whose configuration is in the metadata."""
    config_path: Path
    """File to name in errors about the configuration."""
    tokenizer: TokenizerSource | None
    chat_template: ChatTemplateSource | None
    generation: GenerationSource
    preprocessor: PreprocessorSource | None

    def require_tokenizer(self) -> TokenizerSource:
        """The tokenizer, or :class:`ModelFileError` for a model that comes without."""
        if self.tokenizer is None:
            if self.form is FileForm.GGUF:
                raise ModelFileError(self.config_path, "tokenizer.ggml.tokens: missing (it has no tokenizer)")
            raise ModelFileError(self.path, "has no tokenizer (tokenizer.json is missing)")
        return self.tokenizer


def resolve_model(path: str | os.PathLike[str], mmproj: str | os.PathLike[str] | None = None) -> ModelFiles:
    """Find and open the files of a model; only headers are read.

    Args:
        path: Hugging Face directory, GGUF file, or directory with one text GGUF.
        mmproj: vision tower of a GGUF; None looks beside the model.

    Raises:
        ModelFileError: nothing there that luce can read, or a file is malformed; names it.
        ConfigError: the choice is not unique, or ``--mmproj`` does not fit.
    """
    path = Path(path)
    if _looks_like_a_hub_name(path) and not is_listed(path):
        raise ModelFileError(
            path,
            f"does not exist, and luce downloads no models: hf download {path} --local-dir DIR, then name DIR",
        )
    if is_folder(path):
        if is_listed(path / "config.json"):
            return _hugging_face(path, mmproj)
        return _gguf(path, _only_text_gguf(path), mmproj)
    if path.suffix == ".gguf":
        return _gguf(path, path, mmproj)
    raise ModelFileError(
        path, "is neither a directory nor a .gguf file (name the directory that holds config.json)"
    )


def _looks_like_a_hub_name(path: Path) -> bool:
    """``owner/name``, which other servers fetch."""
    return (
        not path.is_absolute() and len(path.parts) == 2 and ".." not in path.parts and path.suffix != ".gguf"
    )


def _hugging_face(folder: Path, mmproj: str | os.PathLike[str] | None) -> ModelFiles:
    if mmproj is not None:
        raise ConfigError(
            f"{folder} is a Hugging Face directory and has its own vision tower", flag="--mmproj"
        )
    config_path = folder / "config.json"
    config = read_json_object(config_path)
    return ModelFiles(
        path=folder,
        name=hf_name(folder, config),
        form=FileForm.HUGGING_FACE,
        text=open_safetensors_model(folder),
        mmproj=None,
        config=config,
        config_path=config_path,
        tokenizer=hf_tokenizer(folder),
        chat_template=hf_chat_template(folder),
        generation=hf_generation(folder),
        preprocessor=hf_preprocessor(folder),
    )


def _gguf(path: Path, text_path: Path, mmproj: str | os.PathLike[str] | None) -> ModelFiles:
    if is_mmproj(peek_gguf(text_path)):
        raise ModelFileError(text_path, "is a vision tower (mmproj), not a text model")
    text = open_gguf_parts(text_path)
    _refuse_both_in_one(text)
    vision_path = _explicit_mmproj(Path(mmproj)) if mmproj is not None else _sibling_mmproj(text_path)
    vision = open_gguf_parts(vision_path) if vision_path is not None else None
    return ModelFiles(
        path=path,
        name=_shown_name(text.metadata.get("general.name"), text_path.stem),
        form=FileForm.GGUF,
        text=text,
        mmproj=vision,
        config={},
        config_path=text_path,
        tokenizer=gguf_tokenizer(text),
        chat_template=gguf_chat_template(text),
        generation=gguf_generation(text),
        preprocessor=gguf_preprocessor(vision) if vision is not None else None,
    )


def _refuse_both_in_one(text: TensorFile) -> None:
    """Ollama writes the vision tower into the text file, in a layout of its own: patches, attention and some text
    tensors differ. llama.cpp reads no such file either ("wrong number of tensors"); which is said at once, before
    anything else in it is found to be different.
    """
    found = [name for name in text.tensors if name.startswith(VISION_PREFIXES)]
    if found:
        raise ModelFileError(
            text.path,
            f"holds a vision tower beside the text model ({len(found)} tensors such as {quoted(found[0])}), as Ollama "
            "writes it; this is not served. Use the same model as two files, the text GGUF and its mmproj GGUF "
            "(llama.cpp's convert_hf_to_gguf.py makes them, the second with its option --mmproj), or as the Hugging "
            "Face directory",
        )


def _shown_name(found: object, fallback: str) -> str:
    """``general.name`` where it is a short printable text: it goes into logs and answers."""
    usable = isinstance(found, str) and found.strip() and len(found) <= MAX_NAME_CHARS and found.isprintable()
    return str(found).strip() if usable else fallback


def is_mmproj(metadata: dict[str, Any]) -> bool:
    """Do the leading keys of a GGUF say that it is a vision tower?"""
    said = ((metadata.get("general.type"), "mmproj"), (metadata.get("general.architecture"), "clip"))
    return any(isinstance(found, str) and found == name for found, name in said)


def _explicit_mmproj(path: Path) -> Path:
    try:
        metadata = peek_gguf(path)
    except ModelFileError as error:
        raise ConfigError(str(error), flag="--mmproj") from None
    if not is_mmproj(metadata):
        kind = quoted(metadata.get("general.architecture"))
        fault = f"{path} is not a vision tower (general.architecture is {kind}, not 'clip')"
        raise ConfigError(fault, flag="--mmproj")
    return path


def _first_parts(folder: Path) -> list[Path]:
    """GGUFs of a directory, split ones by their first part only."""
    later = {path for path in listed(folder, "*-?????-of-?????.gguf") if "-00001-of-" not in path.name}
    return [path for path in listed(folder, "*.gguf") if path not in later]


def _sibling_mmproj(text_path: Path) -> Path | None:
    found = []
    for path in _first_parts(text_path.parent):
        try:
            if path != text_path and is_mmproj(peek_gguf(path)):
                found.append(path)
        except ModelFileError:
            # a broken file of another model must not stop this one, a broken vision tower must
            if "mmproj" in path.name.lower():
                raise
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ConfigError(
            f"{text_path.parent} holds several vision towers ({names}): name one", flag="--mmproj"
        )
    return found[0] if found else None


def _only_text_gguf(folder: Path) -> Path:
    paths = _first_parts(folder)
    if not paths:
        raise ModelFileError(folder, "has neither config.json nor a .gguf file")
    texts = [path for path in paths if not is_mmproj(peek_gguf(path))]
    if not texts:
        raise ModelFileError(folder, f"has only vision towers ({paths[0].name}), no text model")
    if len(texts) > 1:
        names = ", ".join(path.name for path in texts[:8])
        raise ModelFileError(folder, f"has {len(texts)} text models ({names}): name one of the files")
    return texts[0]
