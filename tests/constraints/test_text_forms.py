"""Forms of text: what is legal, and what is refused."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from luce.constraints.answer import AnswerConstraint
from luce.constraints.grammar import KEPT, MAX_GRAMMAR_BYTES
from luce.constraints.wish import ConstraintWish, TextForm, TextKind
from luce.errors import RequestError
from tests.constraints.models import constrainer, feed, ids_of, legal, opened, text_of, written

END = "<|im_end|>"


def held(kind: TextKind, value: Any = None, *, thinking: bool = False) -> AnswerConstraint:
    found = constrainer().constraint(ConstraintWish(text=TextForm(kind, value, "form")), thinking=thinking)
    assert found is not None
    return found


def takes(kind: TextKind, value: Any, text: str) -> bool:
    """Is the text legal, and a whole answer?"""
    constraint, ids = held(kind, value), ids_of(text, END)
    return feed(constraint, ids) == len(ids)


POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "number"}},
    "required": ["x", "y"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("kind", "value", "good", "bad"),
    [
        (TextKind.JSON_SCHEMA, POINT, ['{"x":1,"y":2.5}', '{\n  "x": -3,\n  "y": 1e5\n}'], ['{"x":1}', "[]"]),
        (TextKind.JSON_SCHEMA, True, ["1", '"a"', "null", "[{}]"], ["", "nul", "{a:1}"]),
        (TextKind.JSON_OBJECT, None, ["{}", '{"a": [1, {"b": null}]}'], ["[]", "1", '{"a"}', '{"a":1} ']),
        (TextKind.REGEX, r"[0-9]{3}-[a-f]+", ["123-abc"], ["12-abc", "123-abg", "x123-a"]),
        (TextKind.REGEX, r"^(yes|no)$", ["yes", "no"], ["maybe", "yes "]),
        (TextKind.CHOICE, ["red", "green", 'say "hi"\n', "ré"], ["red", 'say "hi"\n', "ré"], ["blue", "re"]),
        (TextKind.LARK, 'start: "a" | "(" start ")"', ["a", "((a))"], ["(a", "b"]),
        (TextKind.GBNF, 'root ::= "a" [0-9]+ | l\nl ::= "[" root ("," root)* "]"', ["a1", "[a1,a22]"], ["a", "[]"]),
    ],
)  # fmt: skip
def test_what_is_legal(kind: TextKind, value: Any, good: list[str], bad: list[str]) -> None:
    for text in good:
        assert takes(kind, value, text), text
    for text in bad:
        assert not takes(kind, value, text), text


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        (TextKind.JSON_SCHEMA, {"type": "foo"}, "form: Invalid type: foo"),
        (TextKind.JSON_SCHEMA, {"type": "array", "uniqueItems": True}, "uniqueItems"),
        (TextKind.JSON_SCHEMA, {"$ref": "#/$defs/none"}, "form: "),
        (TextKind.JSON_SCHEMA, {"$ref": "http://127.0.0.1:1/x"}, "form: "),
        (TextKind.JSON_SCHEMA, {"$ref": "#"}, "form: "),
        (TextKind.JSON_SCHEMA, False, "form: "),
        (TextKind.JSON_SCHEMA, [1], "form must be a JSON schema, an object, not"),
        (TextKind.REGEX, "(a", "unclosed group"),
        (TextKind.REGEX, "a(?=b)", "look-around"),
        (TextKind.REGEX, "", "form must be a string that is not empty"),
        (TextKind.REGEX, 7, "form must be a string that is not empty, not 7"),
        (TextKind.CHOICE, [], "form must be a list of strings that is not empty"),
        (TextKind.CHOICE, "abc", "form must be a list of strings"),
        (TextKind.CHOICE, ["a", 1], r"form\[1\] must be a string"),
        (TextKind.CHOICE, ["a"] * 2000, "form has 2000 choices; at most 1024"),
        (TextKind.LARK, "start: nothing", 'unknown name: "nothing"'),
        (TextKind.LARK, "no grammar at all", "form: "),
        (TextKind.GBNF, "root ::= (", "form: Expected"),
        (TextKind.LARK, "1", "form: .*expecting rule"),
        (TextKind.REGEX, "[ab]{1,5:}", "unclosed counted repetition"),
        (TextKind.JSON_SCHEMA, {"type": "\0\x1b[31m"}, "Invalid type"),
        (TextKind.GBNF, "root ::= " + "(" * 5000, "form nests 5000 brackets; at most 64"),
        (TextKind.REGEX, "a" * MAX_GRAMMAR_BYTES, "form takes .* bytes as a grammar; at most"),
        (TextKind.JSON_SCHEMA, {"enum": [f"v{i}" for i in range(30000)]}, "form takes .* bytes"),
    ],
)  # fmt: skip
def test_what_is_none_is_refused_with_its_reason(kind: TextKind, value: Any, says: str) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        held(kind, value)
    assert (caught.value.field or "").startswith("form") and caught.value.status == 400
    assert len(str(caught.value)) < 1000
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        (
            TextKind.REGEX,
            "abc(a",
            'form: invalid regex "abc(a" (in regex): regex parse error: abc(a ^ error: unclosed group',
        ),
        (TextKind.GBNF, 'root ::= "a" x\n\n\nx ::= [z-a]', None),
        (
            TextKind.LARK,
            'start: "a" b\nb: nothing',
            'form: at 2(4): unknown name: "nothing" 1 | start: "a" b 2 | b: nothing ^',
        ),
    ],
)  # fmt: skip
def test_places_are_those_of_the_text_that_was_sent(
    kind: TextKind, value: str, says: str | None, thinking: bool
) -> None:
    """Or there are none, where the text is a part of another one."""
    with pytest.raises(RequestError) as caught:
        held(kind, value, thinking=thinking)
    if says is not None:
        assert str(caught.value) == says
    else:
        assert not re.search(r"\d\(\d+\)", str(caught.value)), str(caught.value)


HOSTILE: dict[str, tuple[TextKind, Any]] = {
    "repeats of repeats": (TextKind.REGEX, "((a{1,1000}){1,1000}){1,1000}"),
    "ambiguous repeats": (TextKind.REGEX, "(.*a.{1,500}b.*){30}"),
    "huge minimum": (TextKind.JSON_SCHEMA, {"type": "array", "items": {}, "minItems": 10**9}),
    "huge length": (TextKind.JSON_SCHEMA, {"type": "string", "minLength": 10**9}),
    "references that double": (
        TextKind.JSON_SCHEMA,
        {
            "$ref": "#/$defs/d0",
            "$defs": {
                **{f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)},
                "d40": {"type": "integer"},
            },
        },
    ),
    "a thousand optional properties": (
        TextKind.JSON_SCHEMA,
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1000)}},
    ),
    "a rule in circles": (TextKind.LARK, 'start: a\na: a a | "x" | ""'),
    "many alternatives": (
        TextKind.LARK,
        "start: " + " | ".join(f'"x{i}" start' for i in range(3000)) + ' | "y"',
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_forms_cost_little(name: str) -> None:
    """Whether they are taken or refused: the test's own time limit is what they may not reach."""
    kind, value = HOSTILE[name]
    try:
        constraint = held(kind, value)
        written(constraint, random.Random(0), most=40)
    except RequestError as error:
        assert error.field in ("form", None) and str(error)


def test_blanks_between_parts_are_bounded() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    blanks = re.compile(r"(?:\n {0,16}| )?")
    for text in ("{%s}", '{%s"a":1}', '{"a":%s1}', '{"a":1%s}'):
        for gap in ("", " ", "\n", "\n  ", "\n" + 16 * " ", "  ", "\n\n", "\n" + 17 * " ", "\t", " \n"):
            good = bool(blanks.fullmatch(gap)) and text != "{%s}"
            assert takes(TextKind.JSON_SCHEMA, schema, text % gap) == good, text % gap
    for text in (' {"a":1}', '{"a":1} ', '\n{"a":1}', '{"a":1}\n'):
        assert not takes(TextKind.JSON_SCHEMA, schema, text), "none around it"


def test_added_tokens_are_never_text() -> None:
    """In a string of JSON ``<think>`` can be spelt, and the token of that name cannot come."""
    constraint = held(TextKind.JSON_SCHEMA, {"type": "string"})
    assert feed(constraint, ids_of('"a')) == len(ids_of('"a'))
    tokenizer = opened().tokenizer
    assert tokenizer is not None
    for token in tokenizer.special_ids.values():
        assert not legal(constraint, token)
    spelt = tokenizer.encode_text("<think>")
    assert feed(constraint, spelt) == len(spelt) > 1


def test_an_end_may_come_where_the_form_is_complete_and_nowhere_else() -> None:
    (end,) = ids_of(END)
    constraint = held(TextKind.REGEX, "ab?")
    assert not legal(constraint, end)
    feed(constraint, ids_of("a"))
    assert legal(constraint, end)
    feed(constraint, ids_of("b"))
    assert legal(constraint, end) and not constraint.complete
    feed(constraint, [end])
    assert constraint.complete


def test_answers_that_fork_go_their_own_ways() -> None:
    one = held(TextKind.REGEX, "x[0-9]{3}")
    assert feed(one, ids_of("x1")) == len(ids_of("x1"))
    other = one.fork()
    assert feed(one, ids_of("2", "3", END)) == 3 and one.complete
    assert not other.complete
    assert feed(other, ids_of("9", "8", END)) == 3 and other.complete


def test_what_was_compiled_is_kept_within_bounds() -> None:
    compiler = constrainer().compiler
    a = held(TextKind.REGEX, "kept[0-9]")
    before = compiler.kept
    b = held(TextKind.REGEX, "kept[0-9]")
    assert compiler.kept == before and a.mask is b.mask, "the second one was there"
    for number in range(KEPT + 20):
        held(TextKind.REGEX, f"one of many {number}")
    assert compiler.kept == KEPT
    for number in range(60):
        held(TextKind.CHOICE, [f"{number} {'x' * 900} {place}" for place in range(100)])
    assert compiler.kept < 60, "long ones count by their bytes"


@pytest.mark.parametrize("thinking", [False, True])
def test_what_random_weights_write_is_json(thinking: bool) -> None:
    """With what may come between a thought and its answer: line ends, at most two."""
    seen = set()
    for seed in range(60):
        constraint = held(TextKind.JSON_SCHEMA, POINT, thinking=thinking)
        if thinking:
            assert constraint.mask is None
            feed(constraint, ids_of("</think>"))
        text = text_of(
            [
                t
                for t in written(constraint, random.Random(seed), most=2000)
                if t not in opened().config.eos_token_ids
            ]
        )
        lead = text[: len(text) - len(text.lstrip("\n"))]
        seen.add(lead)
        assert lead in ("", "\n", "\n\n")[: 1 + 2 * thinking]
        assert constraint.complete, text
        assert set(json.loads(text)) == {"x", "y"} and text[len(lead)] == "{"
    assert len(seen) == (3 if thinking else 1)
