"""Names of synthetic models and of the formats of their weights, as flags take them."""

from __future__ import annotations

from typing import Literal, get_args

from luce.engines.synthetic_model import SHAPES

__all__ = ["Form", "Shape"]

Shape = Literal[
    "qwen3.5-0.8b", "qwen3.5-2b", "qwen3.5-4b", "qwen3.5-9b", "qwen3.5-27b", "qwen3.5-35b-a3b", "luce-demo"
]
assert get_args(Shape) == SHAPES
Form = Literal["bf16", "f16", "q8_0", "q6_k", "q5_k", "q4_k", "iq4_xs", "q4_0"]
