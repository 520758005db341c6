"""Flags of the HTTP side that must fit each other."""

from __future__ import annotations

import pytest

from luce.cli.serve import HttpFlags
from luce.errors import ConfigError


def test_the_largest_body_must_fit_what_is_held_of_all() -> None:
    with pytest.raises(ConfigError, match=r"--max-buffered-bodies: 268435456 bytes .* --max-body, 268435457"):
        HttpFlags(max_body=(256 << 20) + 1).options()
    options = HttpFlags(max_body=1 << 30, max_buffered_bodies=1 << 30).options()
    assert (options.max_body_bytes, options.max_buffered_bytes) == (1 << 30, 1 << 30)
