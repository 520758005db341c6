"""Chat templates: messages to a rendered prompt, as plain text and special tokens.

Special tokens of a prompt are those that the template writes; the same text from a caller stays text
(:mod:`luce.text.guard`). Unsafe or endless templates end in one error (:mod:`luce.text.template_environment`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import attrs
from jinja2 import Template
from jinja2.exceptions import TemplateSyntaxError
from jinja2.meta import find_undeclared_variables

from luce.errors import ModelFileError, RequestError, as_param, quoted, reason
from luce.text.guard import GuardRules
from luce.text.messages import plain_json
from luce.text.template_budget import Budget, TemplateLimitError, limited
from luce.text.template_environment import ChatEnvironment, TemplateRefusal
from luce.text.template_reads import outside_names
from luce.text.tokenizer import Tokenizer
from luce.weights.sources import ChatTemplateSource

__all__ = ["MAX_TEMPLATE_CHARS", "ChatTemplate", "Rendered"]

MAX_TEMPLATE_CHARS = 131_072
"""A longer template is refused: compiling would take seconds. Those of this family have about 8,000."""

RESERVED = ("messages", "tools", "add_generation_prompt")
"""Names that ``chat_template_kwargs`` may not set, beside the special tokens' (``eos_token``, …)."""


@attrs.frozen
class Rendered:
    """A rendered prompt."""

    pieces: tuple[str | int, ...]
    """In order: plain text, or the id of a special token that the template wrote."""
    text: str
    """All of it as one string; special tokens and text that looks like them are alike in it."""


class ChatTemplate:
    """A compiled chat template. Immutable; renders on any thread, several at once."""

    def __init__(
        self,
        source: ChatTemplateSource,
        tokenizer: Tokenizer,
        *,
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Compile the template and try it on a one-word conversation.

        Args:
            source: Jinja text and its file.
            tokenizer: whose special tokens the template writes.
            clock: what ``strftime_now`` tells templates that ask for the date.

        Raises:
            ModelFileError: no valid template, an unsafe one, or one that cannot render "Hi".
        """
        self.source = source
        self._special_ids = tokenizer.special_ids
        self._names = dict(tokenizer.names)
        if len(source.text) > MAX_TEMPLATE_CHARS:
            raise self._fault(
                f"has {len(source.text)} characters; at most {MAX_TEMPLATE_CHARS} are supported"
            )
        self._template, self._reads = self._compile(clock)
        self._rules = GuardRules(self._special_ids, source.text)
        try:
            self.render([{"role": "user", "content": "Hi"}])
        except RequestError as error:
            raise self._fault(f"cannot render a plain conversation: {reason(error)}") from None

    @property
    def options(self) -> frozenset[str]:
        """Names that the template reads and ``template_kwargs`` may set."""
        return self._reads.difference(RESERVED, self._names)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> Rendered:
        """Render normalised messages (:func:`luce.text.messages.normalise`).

        Args:
            messages: the conversation.
            tools: definitions as the client sent them; their key order is kept.
            template_kwargs: further template variables (``enable_thinking``, ``add_vision_id``, …).
            add_generation_prompt: end with the start of the assistant's answer.

        Raises:
            RequestError: the template refuses the conversation (its own reason), or cannot render it.
        """
        plain_tools = _tools(tools)
        variables = self._variables(template_kwargs)
        guard = self._rules.guard_for(messages, plain_tools, variables)
        inputs = {
            **self._names,
            **{name: guard.words(value) for name, value in variables.items()},
            "messages": [guard.message(message) for message in messages],
            "tools": guard.words(plain_tools),
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._run(inputs)
        pieces: list[str | int] = []
        for plain, token in self._rules.split(text):
            plain = guard.drop(plain)
            if plain and pieces and isinstance(pieces[-1], str):
                pieces[-1] += plain
            elif plain:
                pieces.append(plain)
            if token is not None:
                pieces.append(self._special_ids[token])
        return Rendered(tuple(pieces), guard.drop(text))

    def _compile(self, clock: Callable[[], datetime]) -> tuple[Template, frozenset[str]]:
        """The template, and the names that it reads from outside."""
        environment = ChatEnvironment(clock)
        try:
            with limited(Budget.for_input(self.source.text)):
                template = environment.from_string(self.source.text)
                parsed = environment.parse(self.source.text)
                return template, outside_names(parsed) & find_undeclared_variables(parsed)
        except TemplateSyntaxError as error:
            raise self._fault(f"line {error.lineno}: {reason(error)}") from None
        except Exception as error:
            raise self._fault(_reason(error)) from None

    def _run(self, inputs: dict[str, Any]) -> str:
        try:
            with limited(Budget.for_input(inputs)):
                return self._template.render(inputs)
        except (TemplateRefusal, TemplateLimitError) as error:
            raise RequestError(reason(error), field="messages", code="chat_template") from None
        except Exception as error:
            raise RequestError(
                f"the chat template cannot render this conversation: {_reason(error)}",
                field="messages",
                code="chat_template",
            ) from None

    def _variables(self, given: Mapping[str, Any] | None) -> dict[str, Any]:
        variables: dict[str, Any] = {}
        for name, value in (given or {}).items():
            field = f"chat_template_kwargs.{as_param(name)}"
            if name in RESERVED or name in self._names or name.startswith("_"):
                raise RequestError(
                    f"{field} cannot be set: the server itself gives it to the template", field=field
                )
            if name not in self._reads:
                options = sorted(self.options)
                raise RequestError(
                    f"{field}: the chat template of this model reads no such option; it reads {', '.join(options)}",
                    field=field,
                    code="unknown_field",
                )
            if value is None:
                continue  # as good as absent, like every other null in a body
            # Templates ask whether it `is true`: anything else would silently be off.
            if name == "enable_thinking" and not isinstance(value, bool):
                raise RequestError(f"{field} must be true or false, not {quoted(value)}", field=field)
            variables[name] = plain_json(value, field)
        return variables

    def _fault(self, message: str) -> ModelFileError:
        return ModelFileError(self.source.path, f"chat template: {message}")


def _tools(tools: Sequence[Mapping[str, Any]] | None) -> list[Any] | None:
    if not tools:
        return None
    given: object = tools
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise RequestError("tools must be a list", field="tools")
    for i, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise RequestError(f"tools[{i}] must be an object", field=f"tools[{i}]")
    return [plain_json(tool, f"tools[{i}]") for i, tool in enumerate(tools)]


def _reason(error: BaseException) -> str:
    return reason(error) if isinstance(error, RecursionError) else f"{type(error).__name__}: {reason(error)}"
