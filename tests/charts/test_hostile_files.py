"""Whatever is in a chart file, loading it ends in a chart or in one short ChartError that names the file."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from xml.etree import ElementTree

import pytest

from luce.charts.document import ENCODINGS, MAX_BYTES, MAX_DEPTH, MAX_ELEMENTS
from luce.charts.loader import chart_names, chart_path, load_chart, parse_chart
from luce.errors import ChartError

NAMESPACE = "http://www.w3.org/2005/07/scxml"
HEAD = f'<scxml xmlns="{NAMESPACE}" version="1.0" name="t" datamodel="luce">'
SMALL = f'{HEAD}<state id="a"/></scxml>'


def nested(levels: int) -> str:
    start = "".join(f'<state id="s{level}">' for level in range(levels))
    return f"{HEAD}{start}{'</state>' * levels}</scxml>"


def bomb(levels: int = 12) -> str:
    entities = "".join(f'<!ENTITY e{n + 1} "{f"&e{n};" * 10}">' for n in range(levels))
    return f'<!DOCTYPE scxml [<!ENTITY e0 "x">{entities}]>{HEAD}&e{levels};<state id="a"/></scxml>'


HOSTILE: dict[str, tuple[str | bytes, str]] = {
    "nothing": ("", "not well-formed XML"),
    "no XML": (b"\0\1\2", "not well-formed XML"),
    "deep": (nested(3000), f"nested more than {MAX_DEPTH} elements deep"),
    "deep and foreign": ("<a>" * 50_000, f"nested more than {MAX_DEPTH} elements deep"),
    "many elements": (HEAD + "<x/>" * 20_000 + "</scxml>", f"more than {MAX_ELEMENTS} elements"),
    "large": (SMALL + " " * MAX_BYTES, f"more than {MAX_BYTES} bytes"),
    "an entity bomb": (bomb(), "document type declarations, and so entities, are refused"),
    "an entity in an attribute": (
        f'<!DOCTYPE scxml [<!ENTITY e "a">]>{HEAD}<state id="&e;"/></scxml>',
        "document type declarations",
    ),
    "an external entity": (
        f'<!DOCTYPE scxml [<!ENTITY e SYSTEM "file:///etc/passwd">]>{HEAD}&e;</scxml>',
        "document type declarations",
    ),
    "an external DTD": (f'<!DOCTYPE scxml SYSTEM "http://localhost/x.dtd">{SMALL}', "document type"),
    "a parameter entity": (
        '<!DOCTYPE a [<!ENTITY % p SYSTEM "file:///etc/passwd"> %p;]><a/>',
        "document type",
    ),
    "an unknown entity": (f"{HEAD}&nothing;</scxml>", "undefined entity"),
    "a long id": (f'{HEAD}<state id="{"a" * 100_000}"/></scxml>', "attribute 'id' is longer than"),
    "a long text": (f"{HEAD}{'x' * 100_000}</scxml>", "text 'xxx"),
    "a long tag": (f"{HEAD}<{'x' * 100_000}/></scxml>", "the element 'xxx"),
    "a long attribute": (f'{HEAD}<state id="a" {"x" * 100_000}=""/></scxml>', "attribute 'xxx"),
    "an endless delay": (
        f'{HEAD}<state id="a"><onentry><send target="#_timer" event="e" delay="{"9" * 400}s"/></onentry>'
        '<onexit><send target="#_timer" event="e"/></onexit><transition event="e"/></state></scxml>',
        "is longer than 1000000000 seconds",
    ),
    "half of UTF-8": (SMALL.replace('"a"', '"\xe9"').encode("latin-1"), "not well-formed XML"),
    **{
        f"the encoding {name}": (
            f'<?xml version="1.0" encoding="{name}"?>{SMALL}',
            f"the encoding is '{name}'",
        )
        for name in ("foo", "latin-1", "shift_jis", "utf-7", "utf-32", "hex", "idna", "punycode", "undefined")
    },
    "a long encoding": (f'<?xml version="1.0" encoding="{"e" * 9_000}"?>{SMALL}', "the encoding is 'eee"),
}


def said(data: bytes, *, wildcards: bool = False) -> str | None:
    """What loading says against it; any other error than a ChartError escapes."""
    try:
        parse_chart(data, "t.scxml", wildcards=wildcards)
    except ChartError as error:
        message = str(error)
        assert message.startswith("t.scxml:") and len(message) <= 500 and message.isprintable(), message[:600]
        return message
    return None


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files(case: str) -> None:
    text, expected = HOSTILE[case]
    message = said(text if isinstance(text, bytes) else text.encode())
    assert message is not None and expected in message


@pytest.mark.parametrize("name", [*ENCODINGS, "UTF-8", None])
def test_encodings_that_are_taken(name: str | None) -> None:
    declared = "" if name is None else f'<?xml version="1.0" encoding="{name}"?>'
    for mark in ("", "\ufeff"):
        assert said((mark + declared + SMALL).encode()) is None


def test_as_deep_as_it_may_be() -> None:
    assert said(nested(MAX_DEPTH - 1).encode()) is None


def test_long_texts_and_many_events_take_no_square() -> None:
    """A hundred thousand pieces of text, and thirty thousand events, of which none may be a prefix of another."""
    assert said((HEAD + " <!---->\n" * 25_000 + '<state id="a"/></scxml>').encode()) is None
    events = [f"e{number:x}" for number in range(30_000)]
    lines = [f'<transition event="{" ".join(events[at : at + 150])}"/>' for at in range(0, len(events), 150)]
    assert said(f'{HEAD}<state id="a">{"".join(lines)}</state></scxml>'.encode()) is None


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "large.scxml").write_bytes(b" " * (MAX_BYTES + 1))
    for path, expected in (
        (tmp_path, "Is a directory"),
        (tmp_path / "a\0b.scxml", "null byte"),
        (tmp_path / ("n" * 300), "File name too long"),
        (tmp_path / "large.scxml", f"more than {MAX_BYTES} bytes"),
    ):
        with pytest.raises(ChartError, match=expected):
            load_chart(path)


# -- random damage ----------------------------------------------------------------------------------------------------

JUNK = (
    b"<",
    b">",
    b"&",
    b'"',
    b"&lt;",
    b"&x;",
    b"&#0;",
    b"<!DOCTYPE a>",
    b"<![CDATA[",
    b"]]>",
    b"<?x?>",
    b"<!--",
)
JUNK += (
    b"-->",
    b"\0",
    b"\xff\xfe",
    b'xmlns="u"',
    b"<state>",
    b"</state>",
    "é".encode(),
    b' id="a"',
    b' event="a.b"',
)


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Some bytes changed, moved, dropped or put in."""
    raw = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at, length = rng.randrange(len(raw)), rng.choice((0, 1, 1, 2, 5, 40, 400))
        other = rng.randrange(len(raw))
        new = (rng.randbytes(rng.randint(0, 8)), b"", rng.choice(JUNK), bytes(raw[other : other + length]))
        raw[at : at + length] = rng.choice(new)
    return bytes(raw)


def rearranged(rng: random.Random, data: bytes) -> bytes:
    """Well-formed XML all the same: attributes, tags and whole elements changed for others of the chart."""
    root = ElementTree.fromstring(data)
    for _ in range(rng.randint(1, 3)):
        every = list(root.iter())
        one, two = rng.choice(every), rng.choice(every)
        kind = rng.randrange(6)
        if kind == 0 and one.attrib:
            del one.attrib[rng.choice(list(one.attrib))]
        elif kind == 1:
            one.tag = two.tag
        elif kind == 2 and two is not root:
            one.insert(rng.randint(0, len(one)), copy.deepcopy(two))
        elif kind == 3 and len(one):
            one.remove(rng.choice(list(one)))
        elif kind == 4 and one.attrib and two.attrib:
            name = rng.choice(list(one.attrib))
            one.set(name, one.attrib[name] + rng.choice((" ", ".")) + rng.choice(list(two.attrib.values())))
        elif two.attrib:
            name, value = rng.choice(list(two.attrib.items()))
            one.set(name, value)
    return ElementTree.tostring(root)


@pytest.mark.parametrize("name", chart_names())
@pytest.mark.parametrize("change", [damaged, rearranged])
def test_random_damage_ends_in_a_chart_or_a_chart_error(change: object, name: str) -> None:
    data = chart_path(name).read_bytes()
    messages = set()
    for seed in range(300):
        mutant = (
            damaged(random.Random(seed), data) if change is damaged else rearranged(random.Random(seed), data)
        )
        for wildcards in (False, True):
            message = said(mutant, wildcards=wildcards)
            messages.add(message and message.split(": ", 1)[1])
    assert None in messages and len(messages) > 20, (
        "some are still charts, and many different faults were met"
    )
