"""The fields that hold an answer to a form, in the spellings of OpenAI, vLLM, llama.cpp and SGLang."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from luce.constraints.grammar import MAX_GRAMMAR_BYTES
from luce.constraints.wish import TextForm, TextKind
from luce.errors import RequestError
from luce.http.json_body import decode_object

__all__ = ["FormFields", "ResponseFormat", "StructuredOutputs", "text_form"]


class _Strict(Struct, forbid_unknown_fields=True, frozen=True):
    pass


class FormatText(_Strict, tag_field="type", tag="text", frozen=True):
    pass


class FormatJsonObject(
    _Strict, tag_field="type", tag="json_object", frozen=True, rename={"schema_": "schema"}
):
    schema_: dict[str, Any] | None = None
    """llama.cpp's: as with the type json_schema."""


class NamedSchema(_Strict, frozen=True, rename={"schema_": "schema"}):
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool | None = None
    """Left out: any JSON object."""
    strict: bool | None = None
    """Of no effect: the answer is always held to the schema."""


class FormatJsonSchema(_Strict, tag_field="type", tag="json_schema", frozen=True):
    json_schema: NamedSchema


ResponseFormat = FormatText | FormatJsonObject | FormatJsonSchema


class StructuredOutputs(_Strict, frozen=True):
    """vLLM's; one of its fields."""

    json: dict[str, Any] | bool | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class FormFields(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """At most one of them."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | bool | str | None = None
    """An object, or its JSON as a string."""
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    json_schema: dict[str, Any] | bool | str | None = None
    """llama.cpp's, an object; SGLang's, its JSON as a string."""
    grammar: str | None = None
    """llama.cpp's: GBNF, or Lark."""
    regex: str | None = None
    """SGLang's."""
    ebnf: str | None = None


def text_form(request: FormFields) -> TextForm | None:
    """The one that is asked for.

    Raises:
        RequestError: more than one is.
    """
    found = [*_asked(request)]
    if len(found) > 1:
        raise RequestError(
            f"{found[0].field} and {found[1].field} both say what the answer is to be; send one of them",
            field=found[1].field,
        )
    return found[0] if found else None


def _asked(request: FormFields) -> Iterator[TextForm]:
    form = request.response_format
    if isinstance(form, FormatJsonSchema):
        yield _json(form.json_schema.schema_, "response_format.json_schema.schema")
    elif isinstance(form, FormatJsonObject):
        yield _json(form.schema_, "response_format" + (".schema" if form.schema_ is not None else ""))
    structured = request.structured_outputs
    if structured is not None:
        yield from _spelled(
            "structured_outputs.", structured.json, structured.regex, structured.choice, structured.grammar
        )
        if structured.json_object:
            yield TextForm(TextKind.JSON_OBJECT, field="structured_outputs.json_object")
    yield from _spelled(
        "guided_", request.guided_json, request.guided_regex, request.guided_choice, request.guided_grammar
    )
    yield from _spelled("", None, request.regex, None, request.grammar)
    if request.json_schema is not None:
        yield _json(request.json_schema, "json_schema")
    if request.ebnf is not None:
        yield _grammar(request.ebnf, "ebnf")


def _spelled(
    prefix: str,
    schema: Mapping[str, Any] | bool | str | None,
    regex: str | None,
    choice: Sequence[str] | None,
    grammar: str | None,
) -> Iterator[TextForm]:
    if schema is not None:
        yield _json(schema, f"{prefix}json")
    if regex is not None:
        yield TextForm(TextKind.REGEX, regex, f"{prefix}regex")
    if choice is not None:
        yield TextForm(TextKind.CHOICE, choice, f"{prefix}choice")
    if grammar is not None:
        yield _grammar(grammar, f"{prefix}grammar")


def _json(schema: Mapping[str, Any] | bool | str | None, field: str) -> TextForm:
    if isinstance(schema, str):
        schema = _parsed(schema, field)
    return TextForm(TextKind.JSON_OBJECT if schema is None else TextKind.JSON_SCHEMA, schema, field)


def _parsed(text: str, field: str) -> dict[str, Any]:
    """A schema that came as JSON in a string, read as strictly as the body is."""
    data = text.encode()
    if len(data) > MAX_GRAMMAR_BYTES:  # before any of it is built
        raise RequestError(
            f"{field} has {len(data)} bytes; at most {MAX_GRAMMAR_BYTES} are taken in a string", field=field
        )
    try:
        return decode_object(data, what=field)
    except RequestError as error:
        said = error.message if error.field is None else f"{field}: {error.message}"
        raise RequestError(said, field=field, code=error.code) from None


def _grammar(text: str, field: str) -> TextForm:
    return TextForm(TextKind.GBNF if "::=" in text else TextKind.LARK, text, field)
