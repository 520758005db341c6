"""Models without files: random weights in a released shape, with the bundled model's tokenizer and chat template."""

from __future__ import annotations

import attrs

from luce.engines.choose_device import CPU, choose_device
from luce.engines.load_model import (
    LoadOptions,
    OpenedModel,
    check_fits,
    chosen_context,
    demo_model,
    open_model,
)
from luce.engines.on_device import OnDevice, plan_on_device
from luce.engines.qwen35.config import Qwen35Config
from luce.engines.qwen35.device.budget import device_memory_plan
from luce.engines.qwen35.device.synthetic import synthetic_device_weights
from luce.engines.qwen35.memory import plan_memory
from luce.engines.qwen35.shapes import RELEASED, released
from luce.engines.qwen35.synthetic import synthetic_bytes, synthetic_weights
from luce.vision.preprocess import Preprocessor
from luce.weights.model_files import ModelFiles
from luce.weights.sources import PreprocessorSource

__all__ = ["DEMO_SHAPE", "SHAPES", "open_synthetic"]

DEMO_SHAPE = "luce-demo"
"""The bundled model's shape, for trying things out."""
SHAPES = (*RELEASED, DEMO_SHAPE)


def open_synthetic(
    shape: str, options: LoadOptions, *, form: str = "BF16", fitting: bool = True
) -> OpenedModel:
    """A model of one of :data:`SHAPES`, ready to load. Its vocabulary is the shape's; the ids past the bundled
    tokenizer's are padding.

    Args:
        form: of the matrices on a GPU, a name of :mod:`luce.weights.formats`; on the CPU they are float32.
        fitting: it must fit into memory; False leaves that to the caller.

    Raises:
        ConfigError: a flag does not fit the model or the machine.
        ModelFileError: this copy of luce came without the bundled model.
    """
    plain = attrs.evolve(
        options, context=None, num_blocks=None, device=CPU, encoder_device=None, operands=None
    )
    demo = open_model(demo_model(), plain, fitting=False)
    config, files = demo.config, demo.files
    if shape != DEMO_SHAPE:
        config, files = _reshaped(config, shape), _files(files)
    context = chosen_context(options, config)
    memory = attrs.evolve(
        demo.plan.options,
        context=context,
        num_blocks=options.num_blocks,
        largest_picture=Preprocessor(files.preprocessor).most_patches if files.preprocessor else None,
    )
    on_device, device = None, choose_device(options.device, operands=options.operands)
    if device is not None:
        found = plan_on_device(
            device, config, synthetic_device_weights(config, form), memory, options.max_memory
        )
        on_device = OnDevice(device, found, lambda _: synthetic_device_weights(config, form), tiled=False)
        memory = attrs.evolve(memory, num_blocks=found.sizes.num_blocks)
    plan = plan_memory(config, memory)
    if on_device is not None:
        plan = device_memory_plan(config, plan, on_device.plan)
    elif fitting:
        check_fits(config, plan, options.max_memory)
    return attrs.evolve(
        demo,
        files=files,
        config=config,
        plan=plan,
        file_bytes=synthetic_bytes(config),
        name=f"{shape}-synthetic",
        context=context,
        weights=synthetic_weights,
        on_device=on_device,
    )


def _reshaped(config: Qwen35Config, shape: str) -> Qwen35Config:
    """The shape with the ids of the tokenizer that stands in for its own."""
    return attrs.evolve(config, text=released(shape).text, vision=released(shape).vision)


def _files(files: ModelFiles) -> ModelFiles:
    """The bundled model's files with the released models' preprocessing (spec qwen35 §1.3)."""
    half = (0.5, 0.5, 0.5)
    source = PreprocessorSource(
        patch_size=16,
        temporal_patch_size=2,
        merge_size=2,
        min_pixels=65_536,
        max_pixels=16_777_216,
        image_mean=half,
        image_std=half,
        path=files.path,
    )
    return attrs.evolve(files, preprocessor=source)
