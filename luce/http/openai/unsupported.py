"""Fields that clients send and this server does not serve yet: refused by name, never ignored.

A value that asks for what happens anyway is let through.
"""

from __future__ import annotations

from typing import Any

from luce.errors import RequestError
from luce.http.openai.chat_request import ChatRequest

__all__ = ["refuse_unsupported"]

_FIELDS: dict[str, tuple[tuple[Any, ...], str]] = {
    "n": ((1,), "one answer per request; send the request n times"),
    "response_format": (({"type": "text"},), 'only {"type": "text"}'),
    "tool_choice": (("auto", "none"), 'only "auto" and "none"; the model cannot be held to a call yet'),
    "reasoning_effort": ((), "pass what the model's template knows in chat_template_kwargs"),
    "verbosity": ((), "ask for it in the prompt"),
    "modalities": ((["text"],), 'only ["text"]'),
    "audio": ((), "text answers only"),
    "prediction": ((), ""),
    "functions": ((), "use tools"),
    "function_call": ((), "use tools"),
    "web_search_options": ((), "this server does not search"),
    "best_of": ((1,), "one answer per request"),
    "use_beam_search": ((False,), "sampling only"),
    "echo": ((False,), ""),
    "add_generation_prompt": ((True,), "answers always begin a new turn"),
    "continue_final_message": ((False,), "answers always begin a new turn"),
    "guided_json": ((), ""),
    "guided_regex": ((), ""),
    "guided_choice": ((), ""),
    "guided_grammar": ((), ""),
    "structured_outputs": ((), ""),
    "grammar": ((), ""),
    "priority": ((0,), "requests are served in the order they arrive"),
    "thinking_token_budget": ((), ""),
    "enable_thinking": ((), "it is the template's: put it into chat_template_kwargs"),
}


def refuse_unsupported(request: ChatRequest) -> None:
    """Raises RequestError for the first field whose value asks for something that is not served yet."""
    for field, (accepted, hint) in _FIELDS.items():
        value = getattr(request, field)
        if value is not None and not any(_same(value, one) for one in accepted):
            said = f"this value of {field}" if accepted else field
            raise _not_supported(field, f"{said} is not supported yet", hint)
    for index, tool in enumerate(request.tools or ()):
        if tool.function.strict:
            raise _not_supported(
                f"tools[{index}].function.strict", "strict tool schemas are not supported yet", ""
            )
    options = request.stream_options
    if options is not None and not request.stream:
        raise RequestError("stream_options needs stream to be true", field="stream_options")


def _same(value: Any, accepted: Any) -> bool:
    return type(value) is type(accepted) and bool(value == accepted)


def _not_supported(field: str, message: str, hint: str) -> RequestError:
    return RequestError(f"{message}: {hint}" if hint else message, field=field, code="unsupported_value")
