"""One run of `luce bench` on a loaded model: everything that was asked for, in the order of its cost."""

from __future__ import annotations

import datetime
import math
import platform
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version

import attrs

from luce.actors.budgets import settled
from luce.actors.options import ServiceOptions
from luce.bench.engine_points import (
    Measured,
    Plan,
    decode_points,
    encode_points,
    mixed_points,
    prefill_points,
    room_needed,
)
from luce.bench.http_points import LONG_TEXT, Traffic, http_points
from luce.bench.limits import WeightBytes, file_weight_bytes, weight_bytes
from luce.bench.pictures import png
from luce.bench.points import Point
from luce.bench.report import Report
from luce.bench.yardstick import device_speeds, host_speeds
from luce.compute.host_memory import available_bytes
from luce.compute.operands import Operands
from luce.engines.load_model import LoadOptions, OpenedModel
from luce.engines.loaded import LoadedModel
from luce.engines.qwen35.memory import format_bytes
from luce.engines.seam import PatchImage
from luce.errors import ConfigError, DeviceError
from luce.vision.preprocess import Preprocessor

__all__ = ["Telling", "check_room", "load_options", "measure", "traffic_of"]

CHAT_ROWS = 64
"""More than the chat template puts around a picture and a short question."""


@attrs.frozen
class Telling:
    """Who is told how far it is."""

    doing: Callable[[str], None]
    """What comes next."""
    begun: Callable[[Report], object]
    """Told once, of what all points are held against."""
    measured: Callable[[Point], None]


def traffic_of(plan: Plan, tokens: int, opened: OpenedModel) -> Traffic:
    """What clients of the server will ask for.

    Args:
        tokens: of each answer.
    """
    return Traffic(
        tokens=tokens,
        prompt=min(plan.contexts),
        streams=plan.rows,
        pictures=_pictures(plan, opened),
    )


def load_options(
    plan: Plan, traffic: Traffic, opened: OpenedModel, device: str, operands: Operands | None = None
) -> LoadOptions:
    """Room for everything of ``plan`` and ``traffic``: as many slots as decode at once, and one for a prompt beside.

    Raises:
        ConfigError: it is more than the model's own limit.
    """
    room, picture = room_needed(plan), max((tokens for tokens, _ in traffic.pictures), default=0) + CHAT_ROWS
    if "pictures" in plan.parts:
        room = max(room, picture)
    if "http" in plan.parts:
        room = max(room, max(traffic.prompt, picture) + LONG_TEXT * traffic.tokens)
    if room > (longest := opened.config.text.max_positions):
        raise ConfigError(
            f"with what is measured behind them sequences come to have {room:,} tokens; "
            f"the model's limit is {longest:,}",
            flag="--contexts",
        )
    slots, block = max(plan.rows) + 1, LoadOptions().block_size
    return LoadOptions(
        slots=slots, context=room, num_blocks=slots * -(-room // block), device=device, operands=operands
    )


def check_room(opened: OpenedModel) -> None:
    """Refuse a model and sizes that the machine has no memory for.

    Raises:
        DeviceError: says how much is missing.
    """
    plan, free = opened.plan, available_bytes()
    if opened.on_device is None and free is not None and plan.needed > free:
        raise DeviceError(
            f"{plan.options.slots} sequences of {plan.options.context:,} tokens need {plan.needed:,} bytes with the "
            f"model ({format_bytes(plan.needed)}), {plan.needed - free:,} more than the {free:,} free; fewer --rows or "
            "smaller --contexts need less"
        )


def measure(
    opened: OpenedModel,
    model: LoadedModel,
    plan: Plan,
    traffic: Traffic,
    tell: Telling,
    *,
    shape: str | None,
    startup: dict[str, float],
    form: str = "BF16",
    memory: dict[str, int] | None = None,
) -> Report:
    """All points of ``plan``.

    Args:
        shape: of synthetic weights.
        startup: seconds of what was done before.
        form: of synthetic weights on a GPU.
        memory: as :class:`Report` has it.
    """
    tell.doing("copying and multiplying")
    engine, config = model.engine, opened.config
    on_gpu = opened.on_device is not None
    speeds = device_speeds(opened.on_device.device) if opened.on_device is not None else host_speeds()
    weights, held = _weights(opened, shape, form)
    measured = Measured(
        engine=engine,
        config=config,
        weights=held,
        speeds=speeds,
        kv_bytes=2 if on_gpu else 4,
        vision_bytes=2 if on_gpu else 4,
        num_ids=_plain_ids(model),
    )
    report = Report(
        when=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        luce=_version(),
        machine=f"{platform.machine()}, {platform.platform()}, Python {platform.python_version()}",
        device=model.fingerprint or "",
        model=model.name,
        shape=shape,
        weights=weights,
        weight_bytes=measured.weights.total(config.text.moe.experts if config.text.moe is not None else 0),
        speeds=speeds,
        options={
            "prefill": plan.piece,
            "step_seconds": plan.step_seconds,
            "depth": plan.depth,
            "temperature": plan.temperature,
            "runs": plan.runs,
        },
        startup=startup,
        memory=memory or {},
    )

    tell.begun(report)

    def keep(point: Point) -> None:
        report.points.append(point)
        tell.measured(point)

    for what, points in _parts(plan, measured, opened):
        tell.doing(what)
        for point in points:
            keep(point)
            tell.doing(what)
    if "http" in plan.parts:
        tell.doing("HTTP")
        options = ServiceOptions(
            prefill_budget=plan.piece,
            step_seconds=plan.step_seconds,
            rows_before_picture=plan.rows_before_picture,
            depth=plan.depth,
        )
        http_points(plan, traffic, measured, model, settled(options, engine.capabilities), keep)
    return report


def _parts(plan: Plan, measured: Measured, opened: OpenedModel) -> Iterator[tuple[str, Iterator[Point]]]:
    """What is measured through the engine's seam, by name."""
    room = opened.context
    makers: dict[str, Callable[[], Iterator[Point]]] = {
        "decode": lambda: decode_points(plan, measured, room),
        "prefill": lambda: prefill_points(plan, measured, room),
        "mixed": lambda: mixed_points(plan, measured, room),
        "pictures": lambda: encode_points(plan, measured, _images(plan, opened)),
    }
    for name, make in makers.items():
        if name in plan.parts:
            yield name, make()


def _images(plan: Plan, opened: OpenedModel) -> Iterator[PatchImage]:
    for _, side in _pictures(plan, opened):
        yield opened.prompts.prepare_image(png(side, side), field="a picture")


def _pictures(plan: Plan, opened: OpenedModel) -> tuple[tuple[int, int], ...]:
    """(tokens, pixels along a side) of square pictures that take about so many tokens as were asked for."""
    if opened.config.vision is None or opened.files.preprocessor is None:
        return ()
    preprocessor = Preprocessor(opened.files.preprocessor)
    found: dict[int, int] = {}
    for tokens in plan.pictures:
        side = max(1, round(math.sqrt(tokens))) * preprocessor.factor
        height, width = preprocessor.target(side, side)
        found.setdefault(height * width // preprocessor.factor**2, side)
    return tuple(found.items())


def _weights(opened: OpenedModel, shape: str | None, form: str) -> tuple[str, WeightBytes]:
    """Format and bytes of the matrices in the engine's memory."""
    text = opened.config.text
    if opened.on_device is None:
        return "F32", weight_bytes(text, "F32")
    if shape is not None:
        return form, weight_bytes(text, form)
    tensors = list(opened.files.text.tensors.values())
    sizes: dict[str, int] = {}
    for info in tensors:
        sizes[info.format] = sizes.get(info.format, 0) + info.nbytes
    held = file_weight_bytes(tensors, tied=text.tied)
    return max(sizes, key=lambda name: sizes[name]), held


def _plain_ids(model: LoadedModel) -> int:
    """Ids below it are text: those of special tokens come behind them."""
    return min(
        [
            *model.tokenizer.special_ids.values(),
            model.tokenizer.num_token_ids,
            model.engine.capabilities.vocab_size,
        ]
    )


def _version() -> str:
    try:
        return version("luce")
    except PackageNotFoundError:
        return "unknown (not installed)"
