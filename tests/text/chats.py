"""Conversations that templates of the family must render, in the normalised form."""

from __future__ import annotations

from typing import Any

__all__ = ["CHATS", "TOOLS"]


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def tool(content: str) -> dict[str, Any]:
    return {"role": "tool", "content": content}


SYSTEM = {"role": "system", "content": " Be brief. \n"}

CHATS: dict[str, list[dict[str, Any]]] = {
    "one": [user("Hi")],
    "blanks": [user("  Hi \n\n")],
    "system": [SYSTEM, user("What?")],
    "turns": [user("A"), assistant("B"), user("C")],
    "reasoning": [user("A"), assistant("B", reasoning_content="hmm"), user("C")],
    "reasoning in content": [user("A"), assistant("<think>\nhmm\n</think>\n\nB"), user("C")],
    "reasoning last": [user("A"), assistant("<think>\nhmm\n</think>\n\nB")],
    "call": [
        user("1+2?"),
        assistant("", tool_calls=[call("add", a=1, b=2)]),
        tool("3"),
        assistant("It is 3."),
    ],
    "calls": [
        SYSTEM,
        user("sums"),
        assistant(
            "Let me see.",
            reasoning_content="r",
            tool_calls=[call("add", a=1, b=True, l=[1, "é"]), call("add", a=2, d={"x": None, "y": 1.5})],
        ),
        tool("3"),
        tool("4"),
    ],
    "unicode": [user("नमस्ते 👩‍👩‍👧 <b>&amp; \"quoted\" 'x' \\n {{ not jinja }}"), assistant("好"), user("é")],
    "brackets": [user("a < b and b > c, <html></html> << >>"), assistant("1 < 2"), user("<>")],
    "many": [user("q"), assistant("a")] * 20 + [user("end")],
}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": 'Adds "numbers" <b>exactly</b> & ünique',
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {}}},
]
