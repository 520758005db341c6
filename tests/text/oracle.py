"""Chat templates by jinja2 alone, set up as transformers documents it: the oracle for renderings."""

from __future__ import annotations

import functools
import json
from typing import Any

from jinja2 import Template
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["jinja_render"]


@functools.cache
def _compiled(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )

    def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    return environment.from_string(template)


def jinja_render(template: str, messages: list[dict[str, Any]], **variables: Any) -> str:
    return _compiled(template).render(
        **{"messages": messages, "tools": None, "add_generation_prompt": True, **variables}
    )
