"""Flags that say how tokens are chosen where requests do not: `--temperature` and so on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import attrs
from cyclopts import Group, Parameter

from luce.cli.flags import whole
from luce.engines.sampling_defaults import Sampling
from luce.errors import RequestError
from luce.sampling.parameters import SamplingParams

__all__ = ["SamplingFlags"]

SAMPLING = Group(
    "Sampling",
    sort_key=4,
    help="Where a request does not say; by default the model's files, then its family, then luce decide.",
)


def _as_in_requests(field: str) -> Callable[[Any, float | int | None], None]:
    def check(kind: Any, value: float | int | None) -> None:
        if value is not None:
            one: dict[str, Any] = {field: value}
            try:
                SamplingParams(**one).validate(vocab_size=1)
            except RequestError as error:
                raise ValueError(error.message) from None

    return check


def _flag(field: str, says: str) -> Parameter:
    return Parameter(group=SAMPLING, validator=_as_in_requests(field), help=says)


@Parameter(name="*")
@attrs.frozen
class SamplingFlags:
    temperature: Annotated[float | None, _flag("temperature", "0 is greedy.")] = None
    top_k: Annotated[
        int | None,
        whole(-1),
        Parameter(group=SAMPLING, help="Keep so many of the likeliest tokens; 0 keeps all."),
    ] = None
    top_p: Annotated[
        float | None, _flag("top_p", "Keep the likeliest tokens that have this probability together.")
    ] = None
    min_p: Annotated[
        float | None, _flag("min_p", "Drop tokens less likely than this part of the likeliest one.")
    ] = None
    repetition_penalty: Annotated[
        float | None, _flag("repetition_penalty", "Over prompt and answer; 1 is none.")
    ] = None
    presence_penalty: Annotated[float | None, _flag("presence_penalty", "Over the answer; 0 is none.")] = None
    frequency_penalty: Annotated[float | None, _flag("frequency_penalty", "Over the answer; 0 is none.")] = (
        None
    )

    def given(self) -> Sampling:
        """Those that were."""
        return attrs.asdict(self, filter=lambda _, value: value is not None)
