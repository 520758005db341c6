"""Errors in the words of the API that the request came by, where what is at fault was found behind it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from luce.constraints.wish import ConstraintWish
from luce.errors import RequestError

__all__ = ["fields_of"]

_TOOL = re.compile(r"\btools\[(\d+)\]\.function\.(name|description|parameters)\b")


@contextmanager
def fields_of(
    tools: Sequence[Mapping[str, Any]],
    form: ConstraintWish,
    names: Mapping[str, str] | None = None,
    *,
    place: str = "messages",
    places: Sequence[int] | None = None,
) -> Iterator[None]:
    """Give RequestErrors of this block the API's names.

    Args:
        tools: those that are offered.
        form: may hold the answer to some of these.
        names: of a tool's ``name``, ``description`` and ``parameters``, where they differ.
        place: of the field that holds the conversation.
        places: in the request, of the tools.
    """
    held = [id(tool) for tool in form.calls.tools] if form.calls is not None else []
    where = {id(tool): index for index, tool in zip(places or range(len(tools)), tools, strict=True)}

    def renamed(found: re.Match[str]) -> str:
        index, name = int(found[1]), found[2]
        if index < len(held):
            index = where[held[index]]
        return f"tools[{index}].{(names or {}).get(name, name)}"

    try:
        yield
    except RequestError as error:
        field = place if error.field == "messages" else error.field
        raise RequestError(
            _TOOL.sub(renamed, error.message).replace("messages and tools", f"{place} and tools"),
            field=None if field is None else _TOOL.sub(renamed, field),
            status=error.status,
            code=error.code,
        ) from None
