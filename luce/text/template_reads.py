"""What a chat template reads from outside: the options that a caller may set.

Jinja's own list also holds names that a template gives values to in one place and reads in another, such as a macro's
parameters. Here the text is followed in its order, scope by scope: a name counts that is read where nothing has given
it a value on every way there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jinja2 import nodes

__all__ = ["outside_names"]

_OF_LOOPS = frozenset({"loop"})
_OF_MACROS = frozenset({"caller", "varargs", "kwargs"})


def outside_names(template: nodes.Template) -> frozenset[str]:
    """Every name that some way through the template reads before it has a value; functions of the environment
    included."""
    reader = _Reader(frozenset(_given(template.body)))
    reader.follow(template.body, set())
    return frozenset(reader.found)


def _given(body: Iterable[nodes.Node]) -> Iterator[str]:
    """Names that the outermost scope gives values to; macros, which run later, see them."""
    for node in body:
        if isinstance(node, nodes.Assign | nodes.AssignBlock):
            yield from (name.name for name in node.target.find_all(nodes.Name))
            if isinstance(node.target, nodes.Name):
                yield node.target.name
        elif isinstance(node, nodes.If):
            yield from _given([*node.body, *node.elif_, *node.else_])
        elif isinstance(node, nodes.Macro):
            yield node.name


class _Reader:
    def __init__(self, outermost: frozenset[str]) -> None:
        self.found: set[str] = set()
        self._outermost = outermost

    def follow(self, body: Iterable[nodes.Node], bound: set[str]) -> None:
        """``bound``: names that have a value here; those that ``body`` gives one to are added."""
        for node in body:
            self._visit(node, bound)

    def _visit(self, node: nodes.Node, bound: set[str]) -> None:
        match node:
            case nodes.Name():
                if node.ctx == "load" and node.name not in bound:
                    self.found.add(node.name)
                elif node.ctx != "load":
                    bound.add(node.name)
            case nodes.Assign():
                self.follow([node.node, node.target], bound)
            case nodes.AssignBlock():
                self.follow([*node.body, *([node.filter] if node.filter else [])], set(bound))
                self._visit(node.target, bound)
            case nodes.If():
                self._branch(node, bound)
            case nodes.For():
                self._visit(node.iter, bound)
                inner = bound | _OF_LOOPS
                self.follow([node.target, *([node.test] if node.test else []), *node.body], inner)
                self.follow(node.else_, set(bound))
            case nodes.Macro() | nodes.CallBlock():
                if isinstance(node, nodes.Macro):
                    bound.add(node.name)
                else:
                    self._visit(node.call, bound)
                self.follow(node.defaults, bound)
                own = {argument.name for argument in node.args}
                self.follow(node.body, bound | own | _OF_MACROS | self._outermost)
            case nodes.With():
                self.follow(node.values, bound)
                self.follow([*node.targets, *node.body], set(bound))
            case nodes.FilterBlock() | nodes.Scope() | nodes.Block():
                self.follow(node.iter_child_nodes(), set(bound))
            case _:
                self.follow(node.iter_child_nodes(), bound)

    def _branch(self, node: nodes.If, bound: set[str]) -> None:
        """A name has a value behind it that every way through it gives one to."""
        ways = []
        for one in (node, *node.elif_):
            self._visit(one.test, bound)
            ways.append(set(bound))
            self.follow(one.body, ways[-1])
        ways.append(set(bound))
        self.follow(node.else_, ways[-1])
        bound |= set.intersection(*ways)
