"""Flags of `luce serve` about its trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import attrs
from cyclopts import Group, Parameter

from luce.cli.flags import FILE, SIZE
from luce.errors import ConfigError
from luce.trace.files import Limits
from luce.trace.recorder import Recorder

__all__ = ["TraceFlags"]

TRACE = Group("Trace", sort_key=8)


@Parameter(name="*")
@attrs.frozen
class TraceFlags:
    trace: Annotated[
        Path | None,
        FILE,
        Parameter(
            group=TRACE,
            help="Directory for a record of everything that happens, for luce replay: every step of every chart, "
            "arrivals, plans and results, with digests and lengths of prompts and pictures.",
        ),
    ] = None
    trace_content: Annotated[
        bool,
        Parameter(
            group=TRACE,
            negative="",
            help="Record prompts, pictures and answers, too. Whoever reads the trace can then read them.",
        ),
    ] = False
    trace_max: Annotated[
        int,
        SIZE,
        Parameter(
            group=TRACE,
            help="Bytes of all traces in the directory, as 4GiB; the oldest files go first, also of earlier runs.",
        ),
    ] = 4 << 30

    def recorder(self) -> Recorder | None:
        """What writes the trace; None without ``--trace``. Makes the directory.

        Raises:
            ConfigError: it cannot be written, or content is to go nowhere.
        """
        if self.trace is None:
            if self.trace_content:
                raise ConfigError("there is no trace for it to go into; give --trace", flag="--trace-content")
            return None
        return Recorder(self.trace, Limits(self.trace_max), content=self.trace_content)
