"""Hostile templates: each ends in one error, decided by counting, not by a clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from luce.errors import ModelFileError, RequestError
from luce.text.chat_template import ChatTemplate
from luce.text.tokenizer import Tokenizer
from luce.weights.sources import ChatTemplateSource

pytestmark = pytest.mark.timeout(60)

GROW = "{% set ns = namespace(x='a') %}{% for i in range(60) %}"
NEST = "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
NEST += "{% set ns.y = [ns.y, ns.y] %}{% endfor %}"
LONG = "{% set a = 'a' * 1000000 %}{% for i in range(100000) %}"

PAIRS = "{% set ns = namespace(x=(1,), y=(1,)) %}{% for i in range(60) %}{% set ns.x = (ns.x, ns.x) %}"
PAIRS += "{% set ns.y = (ns.y, ns.y) %}{% endfor %}"
DEEP = "{% set ns = namespace(x=()) %}{% for i in range(90000) %}{% set ns.x = (ns.x,) %}{% endfor %}"

ESCAPES = [
    "{{ ''.__class__.__mro__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ (messages | attr('__class__')).__mro__ }}",
    "{{ namespace(__class__=1) }}",
    "{% set messages.x = 1 %}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(role='system') }}",
    "{{ messages[0].pop('role') }}",
    "{{ ''.encode() }}",
    "{{ 'a'.translate({}) }}",
    "{{ raise_exception.__globals__.x }}",
]

WORK = [
    "{{ range(10**9) }}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) if j > 99999 %}{% endfor %}{% endfor %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "{% for x in [[1]] recursive %}{{ loop([x, x]) }}{% endfor %}",
    "{% set c = cycler('a', 'b') %}{% for i in range(99999) %}{% for j in range(99999) %}{{ c.next() }}"
    "{% endfor %}{% endfor %}",
    LONG + "{% if a == a ~ '' %}{% endif %}{% endfor %}",
    LONG + "{% if 'b' in a %}{% endif %}{% endfor %}",
    LONG + "{% set b = a[1:] %}{% endfor %}",
    LONG + "{% set b = a.upper() %}{% endfor %}",
    LONG + "{% set b = a | trim %}{% endfor %}",
    LONG + "{% set b = a is lower %}{% endfor %}",
    LONG + "{% set b = a.split('a') %}{% endfor %}",
    "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = ns.l + [i] %}{% endfor %}",
    "{% for i in range(100000) %}" + "{% set a = b %}" * 500 + "{% endfor %}",
]

SIZE = [
    "{{ 'a' * 10**8 }}",
    "{{ 10**8 * 'a' }}",
    "{{ [1] * 10**9 }}",
    GROW + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    GROW + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    GROW + "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
    GROW + "{% set ns.x = [ns.x, ns.x] | join %}{% endfor %}",
    GROW + "{% set ns.x = ns.x.replace('a', 'aa') %}{% endfor %}",
    GROW + "{% set ns.x = ns.x | replace('a', 'aa') %}{% endfor %}",
    GROW + "{% set ns.x = ''.join([ns.x, ns.x]) %}{% endfor %}",
    GROW + "{% set ns.x = '%s%s' % (ns.x, ns.x) %}{% endfor %}",
    GROW + "{% set ns.x = '{0}{0}'.format(ns.x) %}{% endfor %}",
    GROW + "{% set ns.x = ns.x | tojson | tojson %}{% endfor %}",
    NEST + "{{ ns.x }}",
    NEST + "{{ ns.x == ns.y }}",
    NEST + "{{ ns.x in [ns.y] }}",
    NEST + "{{ ns.x is eq(ns.y) }}",
    NEST + "{{ ns.x is in([ns.y]) }}",
    NEST + "{{ ns.x | tojson }}",
    NEST + "{{ ns.x | string }}",
    NEST + "{{ ns.x ~ '' }}",
    NEST + "{{ '%s' % ns.x }}",
    NEST + "{{ '{}'.format(ns.x) }}",
    NEST + "{{ '%s' | format(ns.x) }}",
    NEST + "{{ [ns.x, ns.y] | unique | list }}",
    NEST + "{{ [ns.x].index(ns.y) }}",
    NEST + "{{ raise_exception(ns.x) }}",
    NEST + "{{ ns }}",
    NEST + "{{ ns ~ '' }}",
    NEST + "{{ '%s' % ns }}",
    NEST + "{{ {'a': ns.x}.items() == {'a': ns.y}.items() }}",
    NEST + "{{ {'a': ns.x}.values() | list == {'a': ns.y}.values() | list }}",
    NEST + "{% for i in [0, 1] %}{{ loop.changed([ns.x, ns.y][i]) }}{% endfor %}",
    NEST + "{{ 'a' | attr(ns.x) }}",
    PAIRS + "{{ {}[ns.x] }}",
    PAIRS + "{{ {ns.x: 1} }}",
    PAIRS + "{{ {}.get(ns.x) }}",
    PAIRS + "{{ ns.x in {} }}",
    PAIRS + "{{ ns.x is in({}) }}",
    PAIRS + "{{ ns.x is filter }}",
    PAIRS + "{{ dict([(ns.x, 1)]) }}",
    PAIRS + "{{ namespace([(ns.x, 1)]) }}",
    PAIRS + "{{ [{}] | map(attribute=ns.x) | list }}",
    PAIRS + "{{ [{}] | selectattr(ns.x) | list }}",
    PAIRS + "{{ {}.keys() - [ns.x] }}",
    PAIRS + "{{ [ns.x] | unique | list }}",
    DEEP + "{{ {}[ns.x] }}",
    DEEP + "{{ ns.x }}",
    DEEP + "{{ ns.x == (ns.x,) }}",
    "{{ ('b' * 100000).join(range(100000) | map('string')) }}",
    "{{ ([1] * 50000) | tojson(separators=('b' * 100000, ':')) }}",
    "{{ 1 | round(-10**9) }}",
    "{{ 1.5 | round(10**9, 'floor') }}",
    "{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{{ (('f' * 100000) | int(0, 16)) // 3 }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 1000000000) }}",
    "{{ 'a'.center(10**9) }}",
    "{{ 'a'.ljust(10**9) }}",
    "{{ 'a'.zfill(10**9) }}",
    "{{ '\t'.expandtabs(10**9) }}",
    "{{ 'a' | center(10**9) }}",
    "{{ 'a' | indent(10**9) }}",
    "{{ ('a\n' * 1000) | indent('x' * 100000) }}",
    "{{ [1] | batch(10**9, 0) | list }}",
    "{{ [1] | slice(10**9) | list }}",
    "{{ {'a': 1} | tojson(indent=10**9) }}",
    "{{ ([[]] * 10000) | sum(start=[]) }}",
    "{{ lipsum(10**6) }}",
    "{{ 9**(9**9) }}",
    "{% set ns = namespace(x=10) %}{% for i in range(10000) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}",
    "{% for i in range(100000) %}" + "y" * 100_000 + "{% endfor %}",
    "{{ range(100000) | map('string') | map('replace', '0', '0' * 10000) | join }}",
    "{{ ('a,' * 100000).split(',') | join('b' * 100000) }}",
    "{{ strftime_now('%Y' * 100000) }}",
]


def load(text: str, tokenizer: Tokenizer) -> ChatTemplate:
    return ChatTemplate(ChatTemplateSource(text, Path("t.jinja")), tokenizer)


@pytest.mark.parametrize("text", [*ESCAPES, *WORK, *SIZE])
def test_hostile_templates_end_at_load(small: Tokenizer, text: str) -> None:
    with pytest.raises(ModelFileError) as found:
        load(text, small)
    assert "\n" not in str(found.value) and len(str(found.value)) < 500


@pytest.mark.parametrize("text", [WORK[1], SIZE[0], NEST + "{{ ns.x }}"])
def test_hostile_templates_that_wait_for_a_request(small: Tokenizer, text: str) -> None:
    chat = load("{% if messages[0].content == 'go' %}" + text + "{% endif %}ok", small)
    assert chat.render([{"role": "user", "content": "Hi"}]).text == "ok"
    with pytest.raises(RequestError, match="more work") as found:
        chat.render([{"role": "user", "content": "go"}])
    assert found.value.status == 400 and found.value.field == "messages"


def test_the_count_is_the_same_every_time(small: Tokenizer) -> None:
    """A template near its limit must not pass on one machine and fail on another."""
    source = "{{% for i in range({}) %}}{{{{ i }}}}{{% endfor %}}"
    low, high = 1, 10**4
    while high - low > 1:
        middle = (low + high) // 2
        text = "{% for k in range(400) %}" + source.format(middle) + "{% endfor %}"
        try:
            load(text, small)
            low = middle
        except ModelFileError:
            high = middle
    assert 100 < low < 9_999
    for _ in range(2):
        load("{% for k in range(400) %}" + source.format(low) + "{% endfor %}", small)
        with pytest.raises(ModelFileError):
            load("{% for k in range(400) %}" + source.format(high) + "{% endfor %}", small)


@pytest.mark.parametrize(
    "text",
    ["{{ messages.__class__ }}", "{{ '{0.__class__}'.format(1) }}", "{{ raise_exception.__globals__ }}"],
)
def test_unsafe_attributes_print_as_nothing(small: Tokenizer, text: str) -> None:
    assert load(text, small).render([{"role": "user", "content": "Hi"}]).text == ""


def test_templates_do_not_change_what_they_are_given(small: Tokenizer) -> None:
    chat = load("{% set ns = namespace(x=1) %}{% set ns.x = messages %}{{ messages[0].content }}", small)
    messages = [{"role": "user", "content": "<b>"}]
    assert chat.render(messages).text == "<b>" and messages == [{"role": "user", "content": "<b>"}]


def test_long_honest_conversations_fit(style: ChatTemplate) -> None:
    turns = [{"role": "user", "content": "x" * 50}, {"role": "assistant", "content": "y" * 50}] * 2000
    tools = [
        {"type": "function", "function": {"name": f"f{i}", "parameters": {"a": [1] * 50}}} for i in range(100)
    ]
    assert (
        style.render([*turns, {"role": "user", "content": "z" * 2_000_000}], tools=tools).text.count(
            "<|im_end|>"
        )
        == 4002
    )
