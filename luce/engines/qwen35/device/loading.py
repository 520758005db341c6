"""From resolved model files to weights for a device: matrices stay in their files, in the files' own formats."""

from __future__ import annotations

import attrs

from luce.engines.qwen35 import gguf_files, hf_files
from luce.engines.qwen35.config import Qwen35Config
from luce.engines.qwen35.device.deferred import DeferredTake
from luce.engines.qwen35.loading import check_tensors
from luce.engines.qwen35.take import Loader, ProgressCallback, out_of_memory_named
from luce.engines.qwen35.weights import Qwen35Weights
from luce.weights.model_files import FileForm, ModelFiles

__all__ = ["deferred_headers", "load_deferred", "tiled_output"]


def tiled_output(files: ModelFiles) -> bool:
    """Do the DeltaNet output matrices take value heads in a GGUF's order?"""
    return files.form is not FileForm.HUGGING_FACE


def deferred_headers(files: ModelFiles, config: Qwen35Config) -> Qwen35Weights:
    """The text model's shapes and formats: as :func:`load_deferred` without reading, and without a vision tower."""
    text = attrs.evolve(config, vision=None)
    take = DeferredTake(files.text, 1, headers=True)
    if tiled_output(files):
        return gguf_files.gguf_text(take, config.text, None)
    return hf_files.hf_weights(take, text, hf_files.text_prefix(files.text.tensors))


def load_deferred(
    files: ModelFiles, config: Qwen35Config, progress: ProgressCallback | None = None
) -> Qwen35Weights:
    """Small tensors and the vision tower as float32, matrices of the text model as stand-ins, the DeltaNet output
    matrices with columns in the order of the files (:func:`tiled_output`). Checks all tensors first.

    Args:
        config: from :func:`luce.engines.qwen35.loading.load_config` on the same files.
        progress: called after each tensor, also those that are read later.

    Raises:
        ModelFileError: as :func:`luce.engines.qwen35.loading.check_tensors`, or memory ran out.
    """
    total = check_tensors(files, config)
    with out_of_memory_named(files.text):
        if not tiled_output(files):
            take = DeferredTake(files.text, total, progress, now="model.visual.")
            return hf_files.hf_weights(take, config, hf_files.text_prefix(files.text.tensors))
        vision = None
        if files.mmproj is not None and config.vision is not None:
            vision = gguf_files.gguf_vision(Loader(files.mmproj, total, progress), config.vision)
        take = DeferredTake(files.text, total, progress)
        return gguf_files.gguf_text(take, config.text, vision)
