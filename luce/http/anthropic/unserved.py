"""What clients of Anthropic's API send and this server does not serve: refused by name, never ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from luce.errors import RequestError, quoted
from luce.http.answering.unserved import Unserved
from luce.http.errors import THREAD_UNSUPPORTED

__all__ = ["UNSERVED", "refuse_threads", "refuse_tools_of_the_api"]

UNSERVED: Unserved = {
    "container": ((), "this server runs no code"),
    "context_management": (
        ({}, {"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
        "the conversation is taken as it is sent",
    ),
    "diagnostics": ((), "usage says how much of the prompt was cached"),
    "inference_geo": ((), ""),
    "mcp_servers": (([],), "this server calls no other one; declare the tools"),
    "output_format": ((), "it is output_config.format now"),
    "speed": (("standard",), ""),
}


def refuse_threads(body: Mapping[str, Any]) -> None:
    """Conversations that the server keeps. The clients' tool runner asks for one unless it is told not to."""
    if body.get("thread") is not None:
        raise RequestError(
            "thread is not supported: nothing is kept between requests; send the whole conversation",
            field="thread",
            code=THREAD_UNSUPPORTED,
        )


def refuse_tools_of_the_api(body: Mapping[str, Any]) -> None:
    """Tools that Anthropic's servers run, or whose form its models know: what they are is not in the request.

    Looked at before the fields of tools are, which are others for each of them.
    """
    tools = body.get("tools")
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind != "custom":
            field = f"tools[{index}].type"
            raise RequestError(
                f"{field}: tools of the type {quoted(kind)} are not supported; declare a tool with a name, a "
                "description and an input_schema",
                field=field,
                code="unsupported_value",
            )
