"""Bounds and cross-field checks that both file forms share (spec qwen35 §1.1, §5-7, §12).

Each form gives the names that its file uses for a field, so that an error names what the user can look up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from luce.engines.qwen35.config import TextConfig, VisionConfig
from luce.weights.fields import Fields

__all__ = ["LIMITS", "check_text", "check_vision"]

LIMITS: Mapping[str, tuple[int, int]] = {
    "vocab_size": (1, 1 << 22),
    "hidden": (1, 1 << 16),
    "num_layers": (1, 512),
    "ffn": (1, 1 << 19),
    "moe.experts": (1, 1 << 12),
    "moe.used": (1, 1 << 8),
    "moe.ffn": (1, 1 << 19),
    "moe.shared_ffn": (1, 1 << 19),
    "heads": (1, 512),
    "kv_heads": (1, 512),
    "head_dim": (4, 1024),
    "key_heads": (1, 512),
    "value_heads": (1, 1024),
    "key_dim": (1, 1024),
    "value_dim": (1, 1024),
    "conv_kernel": (2, 16),
    "max_positions": (1, 1 << 24),
    "rotary_dim": (2, 1024),
    "num_mtp_layers": (0, 8),
    "vision.depth": (1, 256),
    "vision.hidden": (4, 1 << 14),
    "vision.heads": (1, 256),
    "vision.ffn": (1, 1 << 17),
    "vision.patch_size": (1, 128),
    "vision.temporal_patch_size": (1, 8),
    "vision.merge_size": (1, 8),
    "vision.out_hidden": (1, 1 << 16),
}
"""Accepted ranges. Several times past any released model; larger values mean a corrupt or hostile file."""


def check_text(config: TextConfig, fields: Fields, names: Mapping[str, str]) -> None:
    """Checks between fields of the text model.

    Args:
        fields: whose path and prefix go into messages.
        names: the file's name of each :class:`TextConfig` field.

    Raises:
        ModelFileError: names the field.
    """

    def require(holds: bool, name: str, message: str) -> None:
        if not holds:
            raise fields.fault(names.get(name, name), message)

    require(
        config.heads % config.kv_heads == 0,
        "kv_heads",
        f"{config.kv_heads} does not divide the {config.heads} query heads",
    )
    require(
        config.value_heads % config.key_heads == 0,
        "value_heads",
        f"{config.value_heads} is not a multiple of the {config.key_heads} key heads",
    )
    require(
        config.rotary_dim % 2 == 0 and 2 <= config.rotary_dim <= config.head_dim,
        "rotary_dim",
        f"gives {config.rotary_dim} rotated dims, not an even number up to the head size {config.head_dim}",
    )
    require(
        sum(config.mrope_section) == config.rotary_dim // 2,
        "mrope_section",
        f"{list(config.mrope_section)} does not sum to {config.rotary_dim // 2}, half the rotated dims",
    )
    if config.moe is not None:
        require(
            config.moe.used <= config.moe.experts,
            "moe.used",
            f"{config.moe.used} of {config.moe.experts} experts cannot be chosen",
        )


def check_vision(vision: VisionConfig, text: TextConfig, fields: Fields, names: Mapping[str, str]) -> None:
    """Checks between fields of the vision tower, and against the text model. As :func:`check_text`."""
    if vision.hidden % vision.heads or (vision.hidden // vision.heads) % 4:
        raise fields.fault(
            names["heads"],
            f"{vision.heads} heads of {vision.hidden} dims do not give a head size that is a multiple of 4",
        )
    if vision.out_hidden != text.hidden:
        raise fields.fault(
            names["out_hidden"],
            f"{vision.out_hidden} is not the text model's hidden size {text.hidden}",
        )


def square_side(rows: int) -> int | None:
    """Side of a square table with that many rows; None when it is not square."""
    side = math.isqrt(rows)
    return side if side > 0 and side * side == rows else None
