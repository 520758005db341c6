"""The Jinja environment of chat templates: configured like the one in transformers, sandboxed, with bounded work.

Sources: transformers ``chat_template_utils`` (behaviour only); jinja2's sandbox, which stops attribute escapes and
long ranges, but neither ``'a' * 10**8`` nor loops in loops. Those are charged to :mod:`luce.text.template_budget`:
the syntax tree is extended so that every loop body, macro and text-making operation pays before it runs.
"""

# ruff: noqa: N802  (visitors of jinja2 are named after its node classes)
from __future__ import annotations

import types
from collections.abc import Callable
from datetime import datetime
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro, Undefined, markup_join
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from luce.text.template_budget import CHARACTERS, TemplateLimitError, charge, charge_copy, measure, weigh
from luce.text.template_filters import FILTERS, TESTS, before_method, percent

__all__ = ["ChatEnvironment", "TemplateRefusal"]

MAX_INTEGER_BITS = 4096
MAX_NODES = 12_000
"""Parts of a template's syntax tree: compiling takes 0.1 ms for each; those of this family have about 1,700."""
_FRAME_ARGUMENTS = ("_loop_vars", "_block_vars")
"""What compiled templates pass along with calls inside loops and blocks; the context takes them out again."""
_SEQUENCES = (str, list, tuple)
_CHARGE, _CONCAT, _COPY, _MEASURE, _WEIGH = (
    "luce charge",
    "luce concat",
    "luce copy",
    "luce measure",
    "luce weigh",
)


class TemplateRefusal(TemplateError):  # noqa: N818
    """``raise_exception`` in the template: the conversation is not one that it can render."""


class _Metering(NodeTransformer):
    """Adds the charges that the environment's own hooks cannot see."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        cost = _cost(node.body)
        self.generic_visit(node)
        node.body.insert(0, _pay(cost))
        if node.test is not None:
            node.test = _filter(node.test, _CHARGE, nodes.Const(_cost([node.test])))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._body(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._body(node)

    def visit_Block(self, node: nodes.Block) -> nodes.Node:
        return self._body(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes), _CONCAT)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _filter(node.node, _COPY, nodes.Const(node.arg.step is not None))
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        scans = any(operand.op in ("in", "notin") for operand in node.ops)
        literal = any(isinstance(part, nodes.Const) for part in (node.expr, *(o.expr for o in node.ops)))
        if scans or not literal:
            weight = _WEIGH if scans else _MEASURE
            node.expr = _filter(node.expr, weight)
            for operand in node.ops:
                operand.expr = _filter(operand.expr, weight)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.key, nodes.Const):
            node.key = _filter(node.key, _MEASURE)
        return node

    def _body(self, node: Any) -> nodes.Node:
        cost = _cost(node.body)
        self.generic_visit(node)
        node.body.insert(0, _pay(cost))
        return node  # type: ignore[no-any-return]


def _filter(node: nodes.Node, name: str, *arguments: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(arguments), [], None, None)


def _pay(steps: int) -> nodes.ExprStmt:
    return nodes.ExprStmt(_filter(nodes.Const(None), _CHARGE, nodes.Const(steps)))


def _cost(body: list[Any]) -> int:
    """Steps to run these nodes once: their number, and the text they write."""
    count = characters = 0
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        count += 1
        if isinstance(node, nodes.TemplateData):
            characters += len(node.data)
        elif isinstance(node, nodes.Const) and isinstance(node.value, str):
            characters += len(node.value)
        waiting += node.iter_child_nodes()
    return 1 + count // 8 + characters // CHARACTERS


class _Generator(CodeGenerator):
    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:
        if sum(1 for _ in node.find_all(nodes.Node)) > MAX_NODES:
            raise TemplateLimitError(f"the chat template has more than {MAX_NODES} parts")
        super().visit_Template(_Metering().visit(node), frame)


@pass_context
def _charge_filter(context: Context, value: object, steps: int) -> object:
    charge(steps)
    return value


@pass_context
def _concat_filter(context: Context, values: list[object]) -> str:
    for value in values:
        measure(value)
    if context.eval_ctx.autoescape:
        return markup_join(values)
    return "".join([str(value) for value in values])


@pass_context
def _copy_filter(context: Context, value: object, stepped: bool) -> object:
    if isinstance(value, str):
        if stepped:
            raise SecurityError("a slice of a text may not have a step")
        charge_copy(len(value))
    elif isinstance(value, list | tuple):
        charge_copy(len(value), text=False)
    return value


@pass_context
def _measure_filter(context: Context, value: object) -> object:
    measure(value)
    return value


@pass_context
def _weigh_filter(context: Context, value: object) -> object:
    weigh(value)
    return value


def _printed(value: object) -> object:
    measure(value)
    return value


class _GenerationTag(Extension):
    """``{% generation %}`` marks answers for training; here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _TemplateNamespace(Namespace):
    """``namespace()`` without underscore attributes, which would reach into the interpreter."""

    def __setitem__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace may not have the attribute {name!r}")
        super().__setitem__(name, value)


def _namespace(*arguments: Any, **named: Any) -> Namespace:
    found = _TemplateNamespace()
    for name, value in dict(*arguments, **named).items():
        found[name] = value
    return found


def _dict(*arguments: Any, **named: Any) -> dict[Any, Any]:
    return dict(*arguments, **named)


def _raise_exception(message: object = "") -> None:
    measure(message)
    raise TemplateRefusal(str(message)[:1000])


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compile and run templates only within :func:`luce.text.template_budget.limited`."""

    code_generator_class = _Generator
    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self, clock: Callable[[], datetime] = datetime.now) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_printed,
            extensions=[_GenerationTag, loopcontrols],
            cache_size=0,
        )

        def strftime_now(pattern: str) -> str:
            if not isinstance(pattern, str) or len(pattern) > 100:
                raise SecurityError("strftime_now: the format is too long")
            return clock().strftime(pattern)

        self.filters = dict(FILTERS)
        self.filters |= {_CHARGE: _charge_filter, _CONCAT: _concat_filter, _COPY: _copy_filter}
        self.filters |= {_MEASURE: _measure_filter, _WEIGH: _weigh_filter}
        self.tests = dict(TESTS)
        keep = ("range", "cycler", "joiner")
        self.globals = {name: value for name, value in self.globals.items() if name in keep}
        self.globals |= {"namespace": _namespace, "dict": _dict}
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": strftime_now}

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        text: str = value.__self__
        name: str = value.__name__

        def run(*arguments: Any, **named: Any) -> str:
            before_method(text, name, arguments, named)
            return wrapped(*arguments, **named)

        return run

    def call(self, context: Context, function: Any, *arguments: Any, **named: Any) -> Any:
        charge(1)
        given = {name: value for name, value in named.items() if name not in _FRAME_ARGUMENTS}
        if isinstance(function, types.BuiltinMethodType | types.MethodWrapperType):
            before_method(function.__self__, function.__name__, arguments, given)
        elif not isinstance(function, Macro):
            for value in (*arguments, *given.values()):
                measure(value)
        return super().call(context, function, *arguments, **named)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, tuple):
            measure(argument)
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        charge(1)
        if isinstance(left, str) and operator == "%":
            return percent(left, right)
        if operator == "+" and isinstance(left, _SEQUENCES) and isinstance(right, _SEQUENCES):
            charge_copy(len(left) + len(right), text=isinstance(left, str))
        elif operator == "*" and isinstance(left, _SEQUENCES) and isinstance(right, int):
            charge_copy(len(left) * max(right, 0), text=isinstance(left, str))
        elif operator == "*" and isinstance(right, _SEQUENCES) and isinstance(left, int):
            charge_copy(len(right) * max(left, 0), text=isinstance(right, str))
        elif isinstance(left, int) and isinstance(right, int):
            _check_integers(operator, left, right)
        elif not all(isinstance(side, (*_SEQUENCES, int, float, Undefined)) for side in (left, right)):
            raise SecurityError(f"{operator} of {type(left).__name__} and {type(right).__name__}")
        return super().call_binop(context, operator, left, right)


def _check_integers(operator: str, left: int, right: int) -> None:
    bits = max(left.bit_length(), right.bit_length())
    if operator == "**":
        bits = max(bits, left.bit_length() * abs(right))
    elif operator == "*":
        bits = left.bit_length() + right.bit_length()
    if bits > MAX_INTEGER_BITS:
        raise TemplateLimitError("the chat template computes too large a number")
