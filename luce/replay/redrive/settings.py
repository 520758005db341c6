"""What the recorded server was, from the header of its trace."""

from __future__ import annotations

import attrs
import msgspec

from luce.actors.options import ServiceOptions
from luce.engines.seam import Capabilities
from luce.errors import ConfigError
from luce.trace.schema import Header

__all__ = ["settings_of"]


def settings_of(header: Header, *, other_policy: bool = False) -> tuple[ServiceOptions, Capabilities]:
    """Its options, with room for whatever the trace says was taken in, and what its engine declared.

    Args:
        other_policy: another policy than luce's is to decide, or the trace.

    Raises:
        ConfigError: the header does not say it, or the trace lacks what actors would need.
    """
    try:
        options = msgspec.convert(header.options, ServiceOptions)
        capabilities = msgspec.convert(header.capabilities, Capabilities)
    except msgspec.ValidationError as error:
        raise ConfigError(f"its header does not say what its server was: {error}", flag="TRACE") from None
    if header.policy and not other_policy:
        raise ConfigError(
            f"its server was a test's, with a policy of its own ({header.policy}): luce's would decide otherwise; "
            "with --recorded-plans the trace decides",
            flag="TRACE",
        )
    if capabilities.snapshots and options.prefix_bytes != 0 and not (header.content or header.prefixes):
        raise ConfigError(
            "an earlier luce recorded it, without content, and its server kept prefixes: which prompts begin alike is "
            "not in it; record it again",
            flag="TRACE",
        )
    # What the queue and buffers hold decides nothing here: who was refused, and who did not read, is in the trace.
    open_wide = {"max_queued": 1 << 40, "max_queued_tokens": 1 << 60, "buffer_limit": 1 << 40}
    return attrs.evolve(options, **open_wide), capabilities
