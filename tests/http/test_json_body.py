"""Reading bodies: names given twice, and errors that stay short and printable whatever stands in the body."""

from __future__ import annotations

import json
import re
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.errors import RequestError
from luce.http.answering.room import body_limits
from luce.http.anthropic.request import MessagesRequest
from luce.http.json_body import decode_object, typed
from luce.http.json_scan import Limits, scan
from luce.http.openai.chat_request import ChatRequest
from luce.http.openai.responses.request import ResponsesRequest

LIMITS = body_limits(8192)


def refused(body: bytes | str) -> RequestError:
    data = body if isinstance(body, bytes) else body.encode()
    with pytest.raises(RequestError) as raised:
        typed(decode_object(data, limits=LIMITS), ChatRequest)
    error = raised.value
    for text in (error.message, error.field or ""):
        assert text.isprintable() and len(text) < 700, text
    return error


# -- names given twice --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ('{"messages": [], "seed": 1, "seed": 2}', "seed"),
        ('{"messages": [], "seed": 1, "seed": 1}', "seed"),
        ('{"messages": [], "seed": 1, "s\\u0065ed": 2}', "seed"),
        ('{"messages": [{"role": "user", "content": "a", "content": "b"}]}', "messages[0].content"),
        ('{"messages": [{}, {"role": "user", "role": "system"}]}', "messages[1].role"),
        ('{"messages": [], "metadata": {"a": {"b": [1, {"c": 1, "c": 2}]}}}', "metadata.a.b[1].c"),
        ('{"messages": [], "logit_bias": {"3": 1, "4": 1, "3": -1}}', "logit_bias.3"),
        ('{"messages": [], "tools": [{"x": {"": 1, "": 2}}]}', "tools[0].x."),
        ('{"a`\\u001b[31m": 1, "a`\\u001b[31m": 2}', "a`\\x1b[31m"),
        (json.dumps({"x": "data:" + "y" * 1000})[:-1] + ', "x": 1}', "x"),
    ],
)
def test_a_name_given_twice_is_refused(body: str, field: str) -> None:
    error = refused(body)
    assert (error.field, error.code, error.status) == (field, "duplicate_field", 400)
    assert "is given twice" in error.message


@pytest.mark.parametrize(
    "text",
    [
        '"seed": 1, "seed": 2',
        "{}:[],:",
        '\\"a\\": 1, \\"a\\": 2',
        "\\\\",
        "\\\\\\\\",
        "\\u0022:\\u0022:",
        "data:image/png;base64,:,:" + "x" * 300,
        "data:x\\\\\\" + '":' + "x" * 300,
    ],
)
def test_what_stands_in_texts_is_no_name(text: str) -> None:
    quoted_text = text if "\\" in text else json.dumps(text)[1:-1]
    body = f'{{"messages": [], "user": "{quoted_text}", "metadata": {{"a:b": "{quoted_text}"}}}}'
    assert decode_object(body.encode(), limits=LIMITS) == json.loads(body)


def test_the_same_name_in_different_objects_is_not_twice() -> None:
    body = '{"a": {"a": [{"a": 1}, {"a": 2}]}, "b": {"a": {}}}'
    assert decode_object(body.encode(), limits=LIMITS) == json.loads(body)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.text(st.characters(codec="utf-8"), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text('ab"\\:{[,', max_size=3), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.text('ab"\\:{[,', max_size=3), JSON, max_size=4), st.booleans(), st.booleans())
def test_any_object_is_read_as_it_is(value: dict[str, Any], escaped: bool, spread: bool) -> None:
    text = json.dumps(value, ensure_ascii=escaped, indent=2 if spread else None)
    assert decode_object(text.encode(), limits=LIMITS) == value
    found = scan(text.encode(), LIMITS, "the body")
    assert json.loads(found.bare) == value


@given(st.text('ad:t"\\\\,[{}1 \n', max_size=60))
def test_a_short_text_without_pictures_is_scanned_as_a_long_one(text: str) -> None:
    """Blanks behind it make it long. Those in a string that breaks off count as nothing either."""
    data = text.encode()
    short, long = scan(data, LIMITS, "the body"), scan(data + b" " * (1 << 16), LIMITS, "the body")
    assert short == attrs.evolve(long, bare=short.bare)
    assert short.bare == long.bare[: len(short.bare)]
    for most in range(8):
        refused = [_refused(one, most) for one in (data, data + b" " * (1 << 16))]
        assert refused[0] == refused[1]


def _refused(data: bytes, values: int) -> str | None:
    try:
        scan(data, Limits(values=values), "the body")
    except RequestError as error:
        return str(error)
    return None


@given(st.integers(0, 70), st.integers(65_000, 66_000))
def test_the_scan_joins_its_pieces(backslashes: int, padding: int) -> None:
    """Long runs of backslashes, and numbers that lie across the pieces in which the text is looked at."""
    text = "\\\\" * backslashes + '\\"' * (backslashes % 3)
    body = f'{{"a": "{text}", {" " * padding} "b": {"1" * 309}, "c": [1]}}'.encode()
    found = scan(body, Limits(values=6), "the body")
    assert (found.names, found.long_number) == (3, False)
    assert scan(body.replace(b"1" * 309, b"1" * 310), LIMITS, "the body").long_number
    with pytest.raises(RequestError, match="over 5 values"):
        scan(body.replace(b"[1]", b"[1,1,1,1]"), Limits(values=5), "the body")


# -- numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("digits", [310, 4301, 100_000])
@pytest.mark.parametrize("sign", ["", "-"])
def test_numbers_of_thousands_of_digits_name_their_field(digits: int, sign: str) -> None:
    error = refused(f'{{"messages": [], "seed": {sign}{"9" * digits}}}')
    assert (error.field, error.message) == ("seed", "seed: the number is not finite, or too large")
    error = refused(f'{{"messages": [], "metadata": [{{"a": {sign}{"9" * digits}}}]}}')
    assert error.field == "metadata[0].a"


def test_numbers_that_a_double_can_hold_are_read() -> None:
    body = f'{{"a": {"9" * 308}, "b": -{"1" * 309}, "c": 1.{"0" * 300}}}'
    assert decode_object(body.encode(), limits=LIMITS) == {"a": 10**308 - 1, "b": -int("1" * 309), "c": 1.0}


# -- names and texts that are not plain ---------------------------------------------------------------------------

STRANGE = [
    "a`b",
    "x` - at `$.model",
    "\x1b[31m",
    "a\nb",
    "\u202e",
    "",
    " ",
    "é",
    "?0",
    "a.b",
    "$",
    "x" * 5000,
    "\x00",
]
PLACES = [
    ('{"messages": [], %s: 1}', ""),
    ('{"messages": [{"role": "user", "content": "x", %s: 1}]}', "messages[0]."),
    (
        '{"messages": [{"role": "user", "content": [{"type": "text", "text": "x", %s: 1}]}]}',
        "messages[0].content[0].",
    ),
    ('{"messages": [], "stream_options": {%s: 1}}', "stream_options."),
    ('{"messages": [], "?1": 1, %s: 1}', None),
]


@pytest.mark.parametrize("name", STRANGE, ids=lambda name: repr(name)[:20])
@pytest.mark.parametrize(("body", "place"), PLACES)
def test_unknown_fields_with_strange_names(name: str, body: str, place: str | None) -> None:
    error = refused(body % json.dumps(name))
    assert error.code == "unknown_field"
    assert "is not a known field" in error.message
    if place is None:
        assert error.field == "?1"
    else:
        assert error.field is not None and error.field.startswith(place)
        shown = error.field.removeprefix(place)
        assert shown == name or re.search(r"\\x|\\n|\\u|…|^$", shown), shown


@pytest.mark.parametrize(
    "text",
    [
        "a`b",
        "x` - at `$.model",
        "\x1b[31m\n",
        "x" * 5000,
        "Object contains unknown field `x`",
        "\u202e`" * 400,
    ],
)
def test_wrong_values_with_strange_texts(text: str) -> None:
    error = refused(json.dumps({"messages": [{"role": text, "content": "x"}]}))
    assert error.field == "messages[0].role"
    assert error.message.endswith("it must be 'system', 'developer', 'user', 'assistant' or 'tool'")
    error = refused(json.dumps({"messages": [], "tools": [{"type": text, "function": {"name": "f"}}]}))
    assert error.field == "tools[0].type"
    error = refused(
        json.dumps({"messages": [], "tools": [{"type": "function", "function": {"name": text * 300}}]})
    )
    assert error.message == "tools[0].function.name: expected string of length <= 256"


def test_the_place_of_a_fault_is_cut() -> None:
    inner: Any = float("nan")
    for _ in range(100):
        inner = {"n" * 90: inner}
    error = refused(json.dumps({"metadata": inner}))
    assert error.field is not None and error.field.startswith("metadata.nnn") and "…" in error.field


def test_a_file_is_named_in_its_errors() -> None:
    with pytest.raises(RequestError, match="the file must be a JSON object"):
        decode_object(b"[]", what="the file")
    with pytest.raises(RequestError, match="the file: the number is not finite"):
        decode_object(b"NaN", what="the file")
    with pytest.raises(RequestError, match="the file is not valid JSON"):
        decode_object(b"{", what="the file")


# -- kinds that are left out --------------------------------------------------------------------------------------

SAID = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]}
SUMMARY = {"type": "summary_text", "text": "x"}
CACHED = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize(
    ("kind", "body", "place"),
    [
        (MessagesRequest, SAID | {"system": [{"text": "x"}]}, "system[0].type"),
        (MessagesRequest, SAID | {"system": [CACHED, {"text": "x"}]}, "system[1].type"),
        (ResponsesRequest, {"input": [{"type": "reasoning", "summary": [{"text": "x"}]}]}, "input[0].summary[0].type"),
        (ResponsesRequest, {"input": [{"type": "reasoning", "summary": [SUMMARY]}]}, None),
        (MessagesRequest, SAID | {"system": [CACHED]}, None),
        (MessagesRequest, SAID | {"system": "x"}, None),
        (MessagesRequest, SAID | {"system": None}, None),
        (ChatRequest, {"messages": SAID["messages"]}, None),
    ],
)  # fmt: skip
def test_a_kind_is_needed_where_there_is_only_one(kind: type, body: Any, place: str | None) -> None:
    if place is None:
        typed(body, kind)
        return
    with pytest.raises(RequestError, match="is missing") as raised:
        typed(body, kind)
    assert raised.value.field == place
