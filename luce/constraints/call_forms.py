"""Tool calls as grammars: the model's own call syntax, arguments by the tools' declared schemas.

Both forms are those of :mod:`luce.text.tool_calls`. In the XML form a parameter of type string stands as it is, without
quotes, and ends where its closing mark follows on a line end; any other stands as JSON. Parameters come in the order in
which they are declared.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from luce.constraints.text_forms import json_options, quote
from luce.constraints.tool_schemas import Literal, Root, Text, Value
from luce.errors import RequestError, quoted

__all__ = ["CallRules", "CallSyntax", "call_syntax"]


class CallSyntax(enum.Enum):
    """How a model writes a call between ``<tool_call>`` and ``</tool_call>``."""

    XML = "xml"
    """``<function=NAME><parameter=KEY>VALUE</parameter>…</function>``: Qwen3.5, Qwen3-Coder."""
    JSON = "json"
    """``{"name": NAME, "arguments": {…}}``: Hermes, Qwen3."""


def call_syntax(template: str) -> CallSyntax | None:
    """The one that a chat template (its source) writes and asks for; None: it knows no calls."""
    if "<tool_call>" not in template:
        return None
    return CallSyntax.XML if "<function=" in template else CallSyntax.JSON


_NAME = re.compile(r"[^<>\s\"\\](?:[^<>\n\r\"\\]{0,254}[^<>\s\"\\])?")
_FREE_NAME = r"/[A-Za-z0-9_.-]{1,64}/"
_END = "\n</parameter>\n"
_TEXT = r"(/(?s:.*)/ & ~/(?s:.*)(<\/parameter>|<parameter=)(?s:.*)/)"
"""A value that nothing takes for the end of a parameter."""


class CallRules:
    """Lark rules, one for the body of each tool's calls. ``names`` are the rules' names.

    Args:
        tools: as the client sent them.
        syntax: the model's.
        strict_only: tools that are not strict take any arguments of JSON, or parameters of any text.
        field: of the tools, for errors.
    """

    def __init__(
        self,
        tools: Iterable[Mapping[str, Any]],
        syntax: CallSyntax,
        *,
        strict_only: bool,
        field: str = "tools",
    ) -> None:
        self._rules: list[str] = []
        self._syntax = syntax
        self._number = 0
        self.names: list[str] = []
        for place, tool in enumerate(tools):
            function, path = tool["function"], f"{field}[{place}].function"
            name, strict = function["name"], function.get("strict") is True
            if not _NAME.fullmatch(name):
                raise RequestError(
                    f"{path}.name {quoted(name)} cannot stand in a call of this model: no angle brackets, quotes, "
                    "backslashes, line ends or blanks around it",
                    field=f"{path}.name",
                )
            schema = function.get("parameters") if strict or not strict_only else None
            root = Root(schema, strict=strict, field=f"{path}.parameters") if schema is not None else None
            write = self._xml if syntax is CallSyntax.XML else self._json
            self.names.append(self._rule("call", write(name, root)))

    @property
    def text(self) -> str:
        """All rules, in Lark."""
        return "\n".join(self._rules)

    def _rule(self, kind: str, body: str, attribute: str = "") -> str:
        self._number += 1
        name = f"{kind}_{self._number}"
        self._rules.append(f"{name}{attribute}: {body}")
        return name

    # -- {"name": …, "arguments": …}

    def _json(self, name: str, root: Root | None) -> str:
        schema = root.whole if root is not None else {"type": "object"}
        arguments = json.dumps(json_options(schema, lenient=root is None or not root.strict))
        head = '\n{"name": ' + json.dumps(name) + ', "arguments": '
        return f"{quote(head)} %json {arguments} {quote('}' + chr(10))}"

    # -- <function=…>

    def _xml(self, name: str, root: Root | None) -> str:
        parts = [quote(f"\n<function={name}>\n")]
        if root is None or root.open:
            any_one = self._rule("any", f'"<parameter=" {_FREE_NAME} ">\\n" {self._text(_TEXT)}')
            parts.append(f"{any_one}*")
        else:
            parts += [self._parameter(key, root) for key in root.properties]
        return " ".join([*parts, quote("</function>\n")])

    def _parameter(self, key: str, root: Root) -> str:
        if not _NAME.fullmatch(key):
            raise RequestError(
                f"{root.field}.properties: the name {quoted(key)} cannot stand in a call of this model",
                field=root.field,
            )
        values = [self._value(one, root) for one in root.alternatives(key)]
        head = quote(f"<parameter={key}>\n")
        if len(values) == 1:
            rule = self._rule("parameter", f"{head} {values[0]}")
        else:
            rule = self._rule("parameter", f"{head} ({' | '.join(values)})")
        return rule if key in root.required else f"{rule}?"

    def _value(self, value: Value, root: Root) -> str:
        """A value with its closing mark."""
        if isinstance(value, Literal):
            return quote(value.text + _END)
        if isinstance(value, Text):
            return self._text(" & ".join((_TEXT, *value.patterns)))
        options = json.dumps(json_options(value.schema, lenient=not root.strict))
        return self._rule("json", f"%json {options}") + " " + quote(_END)

    def _text(self, terminal: str) -> str:
        self._number += 1
        name = f"TEXT_{self._number}"
        self._rules.append(f"{name}: {terminal}")
        return self._rule("text", f"{name} {quote(_END)}", "[lazy]")
