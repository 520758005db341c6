from __future__ import annotations

import pytest

from luce.engines.load_model import LoadOptions, demo_model, open_model
from luce.errors import ConfigError


def test_a_pool_that_cannot_hold_one_sequence_is_refused() -> None:
    """It would refuse every request that leaves max_tokens out, the server's own example among them."""
    with pytest.raises(
        ConfigError, match=r"--blocks: 8 blocks of 64 hold 512 tokens, less than one sequence of 4096"
    ):
        open_model(demo_model(), LoadOptions(num_blocks=8))
    assert open_model(demo_model(), LoadOptions(num_blocks=8, context=512)).plan.options.blocks == 8


def test_the_bundled_model_is_greedy_unless_told_otherwise() -> None:
    defaults = open_model(demo_model(), LoadOptions()).defaults
    assert (defaults.temperature, defaults.source) == (0.0, "the GGUF's metadata")
