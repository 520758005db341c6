"""Bodies that are nearly right: values put in the wrong place, and texts that are nearly JSON."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from random import Random
from typing import Any

__all__ = ["mutated_text", "mutated_value"]

ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 0.0, -0.0, 1e-320, 1e308, 0.5, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 10**40, 10**400,
    "", " ", "a", "\0", "\x1b[31m", "\u202e", "é", "e\u0301", "\uffff", "\U0001f469\u200d\U0001f680", "<|im_start|>",
    "<think>", "</think>", "<tool_call>", "x" * 3000, "{{ 7 * 7 }}", "{% for", "null", "1", "data:,", "http://x/",
    "file:///etc/passwd", "../..", [], [[]], {}, {"": {}}, [None], {"type": "text"}, {"role": "user"}, [0] * 300,
)  # fmt: skip
NAMES = (
    "", "a", "messages", "model", "n", "best_of", "stream", "type", "role", "content", "$ref", "__class__", "é", "\0",
    "priority", "grammar", "response_format", "tools", "image_url", "url", "detail", "seed", "max_tokens", "x" * 500,
)  # fmt: skip


def mutated_value(value: Any, random: Random) -> Any:
    """A copy with one to four changes anywhere in it."""
    value = json.loads(json.dumps(value))
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        places = list(_places(value))
        if not places:
            return value
        holder, key = random.choice(places)
        if _change(holder, key, random):
            break  # nested deep, and further changes could nest that again
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield value, key
        yield from _places(item)


def _change(holder: Any, key: Any, random: Random) -> bool:
    """True for a change that nests deep."""
    choice = random.randrange(9)
    if choice <= 2:
        holder[key] = _odd(random)
    elif choice == 3:
        del holder[key]
    elif choice == 4:
        holder[key] = random.choice(([holder[key]], {"a": holder[key]}, [holder[key]] * 40, str(holder[key])))
    elif choice == 5 and isinstance(holder, dict):
        holder[random.choice(NAMES)] = _odd(random)
    elif choice == 5:
        holder.append(_odd(random))
    elif choice == 6:
        holder[key] = _nested(random.choice((2, 30, 64, 65, 127, 128, 129, 400)), random)
    elif isinstance(holder[key], str):
        holder[key] = _other_text(holder[key], random)
    elif isinstance(holder[key], int | float) and abs(holder[key]) < 2**64:
        holder[key] = random.choice((-1, 2, 1.5, 1e9)) * holder[key]
    else:
        holder[key] = _odd(random)
    return choice == 6


def _odd(random: Random) -> Any:
    """A copy of its own, since it may be changed in turn."""
    return copy.deepcopy(random.choice(ODD))


def _nested(depth: int, random: Random) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if random.random() < 0.5 else {"a": value}
    return value


def _other_text(text: str, random: Random) -> str:
    at = random.randrange(len(text) + 1)
    piece = random.choice([one for one in ODD if isinstance(one, str)])
    return random.choice((text[:at] + piece + text[at:], text[:at], text * 3, text.swapcase(), piece))


PIECES = (
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u0000", b"\\ud83d", b"\\udc00\\ud83d", b"NaN", b"Infinity",
    b"-", b"1e999", b"0x1", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\0", b"/*", b"'", b"9" * 400, b"-0.", b"null",
    b"[" * 500, b'{"a":' * 200, b'"stream":true,', b'"messages":[],', b"\r\n", b"\xc3", b"true",
)  # fmt: skip


def mutated_text(data: bytes, random: Random) -> bytes:
    """The text with pieces put in, taken out, doubled and flipped."""
    found = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 3, 8))):
        at = random.randrange(len(found) + 1)
        choice = random.randrange(6)
        if choice == 0:
            found[at:at] = random.choice(PIECES)
        elif choice == 1:
            del found[at : at + random.choice((1, 2, 20))]
        elif choice == 2 and at < len(found):
            found[at] = random.randrange(256)
        elif choice == 3:
            piece = found[at : at + random.randrange(60)]
            found[at:at] = piece * random.choice((1, 2, 50))
        elif choice == 4:
            found[at:] = b""
        elif found.startswith(b"{"):  # a name that is given twice
            found[1:1] = random.choice(
                (b'"messages":[],', b'"stream":true,', b'"model":null,', b'"a":1,"a":1,')
            )
    return bytes(found)
