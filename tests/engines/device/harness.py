"""Device engines of tiny models: on the host build of the kernels, or on a GPU with LUCE_TEST_DEVICE=cuda."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from luce.compute.bf16 import round_bf16, widen_bf16
from luce.compute.device import Device
from luce.engines.qwen35.config import MoeConfig, Qwen35Config
from luce.engines.qwen35.device.engine import DeviceEngine
from luce.engines.qwen35.device.plan import DeviceSizes
from luce.engines.qwen35.weights import Qwen35Weights
from tests.engines.models import SAMPLED_IDS, tiny_model
from tests.kernels.conftest import open_test_device

__all__ = ["bf16_model", "bf16_text", "device_of_tests", "new_device_engine", "rounded_text"]

F32 = npt.NDArray[np.float32]

device_of_tests = functools.cache(open_test_device)


def new_device_engine(
    config: Qwen35Config,
    weights: Qwen35Weights,
    *,
    num_slots: int = 4,
    num_blocks: int = 24,
    max_context: int = 512,
    chunk_rows: int = 192,
    eager: bool = False,
    device: Device | None = None,
    max_patches: int = 0,
    encoder: Device | None = None,
    **_: object,
) -> DeviceEngine:
    """What belongs to nobody holds NaN. Some passes of the tests are longer than ``chunk_rows``."""
    return DeviceEngine(
        device or device_of_tests(),
        config,
        weights,
        DeviceSizes(num_slots, num_blocks, max_context, chunk_rows, max_patches),
        num_token_ids=SAMPLED_IDS if config.text.vocab_size == 120 else None,
        eager=eager,
        poison=True,
        encoder=encoder,
    )


def _bf16(matrix: F32) -> F32:
    return widen_bf16(round_bf16(matrix))


def _rounded(value: Any, rounding: Callable[[F32], F32] = _bf16) -> Any:
    if isinstance(value, np.ndarray):
        return rounding(value) if value.ndim > 1 and value.shape[-1] > 4 else value
    if isinstance(value, tuple):
        return tuple(_rounded(one, rounding) for one in value)
    if attrs.has(type(value)):
        fields = (getattr(value, field.name) for field in attrs.fields(type(value)))
        return type(value)(*(_rounded(field, rounding) for field in fields))
    return value


@functools.cache
def bf16_model(moe: MoeConfig | None = None) -> tuple[Qwen35Config, Qwen35Weights]:
    """A tiny model with matrices that bfloat16 holds exactly, so that both engines have the same weights."""
    config, weights = tiny_model(moe=moe)
    return config, attrs.evolve(weights, layers=_rounded(weights.layers), head=_rounded(weights.head))


def rounded_text(weights: Qwen35Weights, rounding: Callable[[F32], F32]) -> Qwen35Weights:
    """The text model's matrices rounded, but the convolution's four taps, which are kept in float32."""
    embed, tied = rounding(weights.embed), weights.head is weights.embed
    head = embed if tied else rounding(weights.head)
    return attrs.evolve(weights, layers=_rounded(weights.layers, rounding), embed=embed, head=head)


def bf16_text(weights: Qwen35Weights) -> Qwen35Weights:
    """As a checkpoint in bfloat16 holds them."""
    return rounded_text(weights, _bf16)
