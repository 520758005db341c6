"""From a path to a :class:`LoadedModel`: files, configuration, memory plan, weights, engine, text and vision.

Everything that can be wrong is found in the order of its cost: headers and configuration, tokenizer and template,
the memory plan against what the machine has, and only then the weights.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import attrs

from luce.compute.host_memory import available_bytes
from luce.compute.operands import Operands
from luce.constraints.constrainer import Constrainer
from luce.engines.choose_device import CPU
from luce.engines.loaded import LoadedModel
from luce.engines.on_device import OnDevice, place
from luce.engines.qwen35.config import FAMILY_NAME, FAMILY_SAMPLING, Qwen35Config
from luce.engines.qwen35.device.budget import device_memory_plan
from luce.engines.qwen35.device.engine import DeviceEngine
from luce.engines.qwen35.engine import Qwen35Engine
from luce.engines.qwen35.loading import LoadProgress, check_tensors, load_config, load_weights
from luce.engines.qwen35.memory import (
    MemoryOptions,
    MemoryPlan,
    check_budget,
    format_bytes,
    plan_memory,
)
from luce.engines.qwen35.prompt import PromptBuilder
from luce.engines.qwen35.weights import Qwen35Weights
from luce.engines.sampling_defaults import GenerationDefaults, Sampling, sampling_defaults
from luce.errors import ConfigError, DeviceError, ModelFileError
from luce.text.chat_template import ChatTemplate
from luce.text.tokenizer import Tokenizer
from luce.vision.decode import DECODE_BYTES, MAX_PIXELS, DecodeLimits
from luce.vision.preprocess import Preprocessor
from luce.weights.model_files import ModelFiles, resolve_model

__all__ = [
    "LoadOptions",
    "LoadedEngine",
    "OpenedModel",
    "check_context",
    "check_fits",
    "check_free",
    "chosen_context",
    "demo_model",
    "load_engine",
    "load_model",
    "open_model",
]

DEFAULT_SLOTS = 4
DEFAULT_CONTEXT = 8192
"""Longest sequence unless told otherwise, where the model allows it: memory grows with it."""


@attrs.frozen
class LoadOptions:
    """What the operator chooses about a model."""

    mmproj: Path | None = None
    name: str | None = None
    """Served model name; None: the files' own."""
    slots: int = DEFAULT_SLOTS
    context: int | None = None
    """Tokens of prompt and answer; None: the model's limit, at most :data:`DEFAULT_CONTEXT`."""
    block_size: int = 64
    """Tokens in a KV block; the numpy engine reads blocks of 64, and multiples, in place."""
    num_blocks: int | None = None
    """KV blocks; None: enough for every slot at full context."""
    max_memory: int | None = None
    """Bytes that the model may take; None: what the machine has free."""
    sampling: Sampling = attrs.field(factory=dict)
    """How tokens are chosen where a request does not say; what is not in it is left to the model."""
    max_image_bytes: int = DecodeLimits().max_bytes
    """Of a picture file."""
    max_image_pixels: int | None = None
    """Of a picture; None: :data:`luce.vision.decode.MAX_PIXELS`, or what a quarter of the free memory decodes."""
    device: str = CPU
    """As :func:`luce.engines.choose_device.choose_device` takes it."""
    operands: Operands | None = None
    """Of a GPU's weight products; None: bf16."""
    encoder_device: str | None = None
    """As :func:`luce.engines.encoder_device.choose_encoder` takes it."""
    decoding_workers: int = 0
    """Pictures that are decoded at once, for the memory plan; 0: that memory is not planned, and not bounded by what is
    free."""


LoadedEngine = Qwen35Engine | DeviceEngine
WeightsSource = Callable[[Qwen35Config, Callable[[LoadProgress], None] | None], Qwen35Weights]
"""Weights of a configuration, telling of its progress."""


@attrs.frozen(eq=False)
class OpenedModel:
    """A model whose files are known to be good and to fit; its weights are not loaded yet."""

    files: ModelFiles
    config: Qwen35Config
    tokenizer: Tokenizer | None
    template: ChatTemplate | None
    plan: MemoryPlan
    file_bytes: int
    """Bytes of weights to read."""
    name: str
    context: int
    defaults: GenerationDefaults
    """How tokens are chosen where a request does not say."""
    decode_limits: DecodeLimits = attrs.field(factory=DecodeLimits)
    weights: WeightsSource | None = None
    """Where weights come from; None: the files."""
    on_device: OnDevice | None = None
    """None: the text model runs on the CPU."""

    @property
    def prompts(self) -> PromptBuilder:
        preprocessor = Preprocessor(self.files.preprocessor) if self.files.preprocessor is not None else None
        return PromptBuilder(
            tokenizer=self.tokenizer,
            template=self.template,
            config=self.config,
            preprocessor=preprocessor if self.config.vision is not None else None,
            limits=self.decode_limits,
        )


def demo_model() -> Path:
    """The bundled model.

    Raises:
        ModelFileError: this copy of luce came without it.
    """
    folder = Path(__file__).parent.parent / "demo" / "model"
    if not any(folder.glob("*.gguf")):
        raise ModelFileError(folder, "the bundled model is not here; name a model")
    return folder


def open_model(
    path: str | os.PathLike[str], options: LoadOptions, *, chat: bool = True, fitting: bool = True
) -> OpenedModel:
    """Check everything about a model that can be checked without loading it.

    Args:
        chat: a tokenizer and a chat template are needed (`luce logits` does without).
        fitting: it must fit into memory, and a conversation into the context; False leaves :func:`check_fits` or
            :func:`check_free`, and :func:`check_context`, to the caller.

    Raises:
        ModelFileError: a file is missing, malformed or not of a kind that luce serves.
        ConfigError: a flag does not fit the model or the machine.
    """
    files = resolve_model(path, options.mmproj)
    config = load_config(files)
    context = chosen_context(options, config)
    memory = MemoryOptions(
        slots=options.slots,
        context=context,
        block_size=options.block_size,
        num_blocks=options.num_blocks,
        largest_picture=_largest_picture(files, config),
    )
    if memory.num_blocks is not None and memory.num_blocks * memory.block_size < context:
        raise ConfigError(
            f"{memory.num_blocks} blocks of {memory.block_size} hold {memory.num_blocks * memory.block_size} tokens, "
            f"less than one sequence of {context}; give more, or a lower --context",
            flag="--blocks",
        )
    file_bytes = check_tensors(files, config)
    on_device = place(
        files, config, memory, options.device, options.max_memory, options.encoder_device, options.operands
    )
    if on_device is not None:
        memory = attrs.evolve(memory, num_blocks=on_device.plan.sizes.num_blocks)
    limits = _decode_limits(options, config, memory)
    if config.vision is not None:
        decoding = options.decoding_workers * limits.max_pixels * DECODE_BYTES
        memory = attrs.evolve(memory, decoding_bytes=decoding)
    plan = plan_memory(config, memory)
    if on_device is not None:
        plan = device_memory_plan(config, plan, on_device.plan)
    elif fitting:
        check_fits(config, plan, options.max_memory)
    tokenizer = template = None
    if chat or files.tokenizer is not None:
        tokenizer = Tokenizer(files.require_tokenizer())
    if tokenizer is not None and files.chat_template is not None:
        template = ChatTemplate(files.chat_template, tokenizer)
    elif chat:
        raise ModelFileError(files.path, "has no chat template")
    opened = OpenedModel(
        files=files,
        config=config,
        tokenizer=tokenizer,
        template=template,
        plan=plan,
        file_bytes=file_bytes,
        name=options.name or files.name,
        context=context,
        defaults=sampling_defaults(options.sampling, files, FAMILY_SAMPLING, FAMILY_NAME),
        decode_limits=limits,
        on_device=on_device,
    )
    if chat and fitting:
        check_context(opened)
    return opened


def load_engine(opened: OpenedModel, progress: Callable[[LoadProgress], None] | None = None) -> LoadedEngine:
    """Load the weights and start the engine.

    Raises:
        ModelFileError: a tensor cannot be read, or memory ran out.
        DeviceError: this machine does not keep the exactness promise.
    """
    plan = opened.plan.options
    num_token_ids = opened.tokenizer.num_token_ids if opened.tokenizer is not None else None
    if opened.on_device is not None:
        return DeviceEngine(
            opened.on_device.device,
            opened.config,
            opened.on_device.weights(progress),
            opened.on_device.plan.sizes,
            num_token_ids=num_token_ids,
            tiled=opened.on_device.tiled,
            encoder=opened.on_device.encoder,
        )
    if opened.weights is not None:
        weights = opened.weights(opened.config, progress)
    else:
        weights = load_weights(opened.files, opened.config, progress)
    return Qwen35Engine(
        opened.config,
        weights,
        num_slots=plan.slots,
        num_blocks=plan.blocks,
        block_size=plan.block_size,
        max_context=opened.context,
        num_token_ids=num_token_ids,
    )


def load_model(opened: OpenedModel, progress: Callable[[LoadProgress], None] | None = None) -> LoadedModel:
    """The model as a service takes it. ``opened`` must have been opened for chat. Raises as :func:`load_engine`."""
    assert opened.tokenizer is not None and opened.template is not None, "opened without text"
    return LoadedModel(
        name=opened.name,
        engine=load_engine(opened, progress),
        tokenizer=opened.tokenizer,
        preparer=opened.prompts,
        eos_token_ids=opened.config.eos_token_ids,
        defaults=opened.defaults,
        created=int(opened.files.config_path.stat().st_mtime),
        constrainer=Constrainer(opened.tokenizer, opened.config.eos_token_ids, opened.template.source.text),
        memory=opened.plan.parts,
    )


def chosen_context(options: LoadOptions, config: Qwen35Config) -> int:
    """Tokens of the longest sequence. Raises ConfigError for more than the model's own limit."""
    longest = config.text.max_positions
    if options.context is None:
        return min(longest, DEFAULT_CONTEXT)
    if options.context > longest:
        raise ConfigError(f"{options.context} is over the model's own limit of {longest}", flag="--context")
    return options.context


def check_context(opened: OpenedModel) -> None:
    """Refuse a context in which no request would fit: one word and one token of its answer. Needs the chat template.

    Raises:
        ConfigError: says how much it takes.
    """
    rows = len(opened.prompts.build([{"role": "user", "content": "Hi"}], ()).token_ids)
    if rows >= opened.context:
        raise ConfigError(
            f"{opened.context} holds no conversation: one word takes {rows} tokens in this model's chat template; "
            f"give at least {rows + 1}",
            flag="--context",
        )


def _largest_picture(files: ModelFiles, config: Qwen35Config) -> int | None:
    """In patches; None for a model without pictures."""
    if config.vision is None or files.preprocessor is None:
        return None
    return Preprocessor(files.preprocessor).most_patches


LEAST_PIXELS = 1_000_000
"""Are taken whatever is free, if nobody says otherwise."""


def _decode_limits(options: LoadOptions, config: Qwen35Config, memory: MemoryOptions) -> DecodeLimits:
    """Bounds of pictures; by default of a size that the rest of the plan, and the machine, have room to decode."""
    pixels = options.max_image_pixels
    if pixels is None:
        pixels = MAX_PIXELS
        budget = options.max_memory if options.max_memory is not None else available_bytes()
        if options.decoding_workers and config.vision is not None and budget is not None:
            room = min(budget // 4, budget - plan_memory(config, memory).serving)
            pixels = min(pixels, max(LEAST_PIXELS, room // (options.decoding_workers * DECODE_BYTES)))
    return DecodeLimits(max_bytes=options.max_image_bytes, max_pixels=pixels)


def check_fits(config: Qwen35Config, plan: MemoryPlan, max_memory: int | None) -> None:
    """Refuse a plan that is over ``max_memory`` bytes, or over what the machine has free.

    Raises:
        ConfigError: names ``--max-memory`` where it was given, and says what would fit.
    """
    budget = max_memory if max_memory is not None else available_bytes()
    if budget is not None:
        check_budget(config, plan, budget, free=max_memory is None)


def check_free(plan: MemoryPlan, what: str, more: int = 0) -> None:
    """The same for tools that choose slots and context themselves.

    Args:
        what: needs the memory.
        more: bytes that it takes beside the plan once the model is loaded.

    Raises:
        DeviceError: the machine has not that much free.
    """
    needed, free = max(plan.peak, plan.serving + more), available_bytes()
    if free is not None and needed > free:
        raise DeviceError(
            f"{what} needs {needed:,} bytes of memory ({format_bytes(needed)}), {needed - free:,} more than the "
            f"{free:,} free"
        )
