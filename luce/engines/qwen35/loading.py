"""From resolved model files to configuration and canonical weights, whatever the file form."""

from __future__ import annotations

from luce.engines.qwen35 import gguf_files, hf_files
from luce.engines.qwen35.config import Qwen35Config, VisionConfig
from luce.engines.qwen35.gguf_config import gguf_config
from luce.engines.qwen35.hf_config import hf_config
from luce.engines.qwen35.take import Checker, Loader, LoadProgress, ProgressCallback, out_of_memory_named
from luce.engines.qwen35.weights import Qwen35Weights
from luce.errors import ModelFileError
from luce.weights.model_files import FileForm, ModelFiles

__all__ = ["LoadProgress", "check_tensors", "load_config", "load_weights"]


def load_config(files: ModelFiles) -> Qwen35Config:
    """Read and check the configuration; no tensor data is read.

    Raises:
        ModelFileError: names the file and field that is missing, wrong or asks for what luce does not serve.
    """
    config = hf_config(files) if files.form is FileForm.HUGGING_FACE else gguf_config(files)
    if config.vision is not None:
        _check_preprocessor(files, config.vision)
    return config


def check_tensors(files: ModelFiles, config: Qwen35Config) -> int:
    """Check names, shapes and formats of all tensors without reading data; the number of file bytes to load.

    Raises:
        ModelFileError: a tensor is missing, unknown, of a wrong shape or in an unsupported format; names it.
    """
    text = Checker(files.text)
    if files.form is FileForm.HUGGING_FACE:
        hf_files.hf_weights(text, config, hf_files.text_prefix(files.text.tensors))
        return text.finish(hf_files.HINTS)
    total = 0
    if files.mmproj is not None and config.vision is not None:
        vision = Checker(files.mmproj)
        gguf_files.gguf_vision(vision, config.vision)
        total += vision.finish(gguf_files.HINTS[-1:])
    gguf_files.gguf_text(text, config.text, None)
    return total + text.finish(gguf_files.HINTS)


def load_weights(
    files: ModelFiles, config: Qwen35Config, progress: ProgressCallback | None = None
) -> Qwen35Weights:
    """Load everything as float32 in canonical form. Checks all tensors first.

    Args:
        config: from :func:`load_config` on the same files.
        progress: called after each tensor.

    Raises:
        ModelFileError: as :func:`check_tensors`, or memory ran out.
    """
    total = check_tensors(files, config)
    with out_of_memory_named(files.text):
        if files.form is FileForm.HUGGING_FACE:
            loader = Loader(files.text, total, progress)
            return hf_files.hf_weights(loader, config, hf_files.text_prefix(files.text.tensors))
        vision, done = None, 0
        if files.mmproj is not None and config.vision is not None:
            vision_loader = Loader(files.mmproj, total, progress)
            vision = gguf_files.gguf_vision(vision_loader, config.vision)
            done = vision_loader.done
        return gguf_files.gguf_text(Loader(files.text, total, progress, done), config.text, vision)


def _check_preprocessor(files: ModelFiles, vision: VisionConfig) -> None:
    """The two files that describe the vision tower must agree on the patch geometry."""
    source = files.preprocessor
    if source is None:
        raise ModelFileError(files.path, "has a vision tower but no preprocessor_config.json")
    for name in ("patch_size", "temporal_patch_size", "merge_size"):
        have, want = getattr(source, name), getattr(vision, name)
        if have != want:
            raise ModelFileError(source.path, f"{name}: {have}, but the vision tower has {want}")
