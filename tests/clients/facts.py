"""What every script asks, and the one right answer to it: plain data, for Python and Node.js alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from luce.cli.demo import chat_body
from luce.demo.chart_tasks import description
from luce.demo.submissions import png
from luce.demo.tasks import make_case
from luce.demo.text_tasks import worked
from luce.demo.tool_tasks import TOOLS
from luce.vision.data_url import data_url
from tools.demo_model.text import ADDED_TOKENS, BASE_PIECES

__all__ = ["KEY", "SLOTS", "facts"]

KEY = "sk-of-the-tests"
SLOTS = 4


def _numbers(first: int, last: int) -> dict[str, str]:
    return {
        "question": f"Count from {first} to {last}.",
        "answer": ", ".join(str(number) for number in range(first, last + 1)),
    }


def _chart(index: int, folder: Path) -> dict[str, Any]:
    """A chart as a file and as a URL, and what is in it."""
    case = make_case("describe", index, test=True)
    (chart,), (pixels,) = case.charts, case.pictures()
    file = folder / f"chart-{index}.png"
    file.write_bytes(png(pixels))
    return {
        "file": str(file),
        "url": data_url(file.read_bytes()),
        "question": "Describe the chart.",
        "answer": description(chart),
        "title": chart.title,
        "tallest": chart.tallest.colour,
        "bars": [{"color": bar.colour, "value": bar.value} for bar in chart.bars],
    }


def facts(base: str, tight: str, folder: Path) -> dict[str, Any]:
    """For servers at `base` (of SLOTS slots) and `tight` (one slot, one place to wait), both with KEY."""
    several = make_case("many_which", 0, test=True)
    content = chat_body(several)["messages"][-1]["content"]
    return {
        "base": base,
        "tight": tight,
        "key": KEY,
        "slots": SLOTS,
        "model": "luce-demo",
        "end_token": BASE_PIECES + [name for name, _ in ADDED_TOKENS].index("<|im_end|>"),
        "count": _numbers(7, 30),
        "long_count": _numbers(100, 249),
        "copy": {"question": "Repeat: orange walnut 4711 Anna", "answer": "orange walnut 4711 Anna"},
        "too_long": "walnut " * 6000,
        "chart": _chart(0, folder),
        "other_chart": _chart(1, folder),
        "several": {
            "urls": [part["image_url"]["url"] for part in content if part["type"] == "image_url"],
            "question": next(part["text"] for part in content if part["type"] == "text"),
            "answer": several.answer,
        },
        "tools": [TOOLS["get_weather"], TOOLS["multiply"]],
        "weather": {
            "question": "What is the weather in Oslo?",
            "name": "get_weather",
            "arguments": {"city": "Oslo"},
            "result": '{"sky": "sunny", "degrees": 12}',
            "answer": "It is sunny in Oslo at 12 degrees.",
        },
        "product": {
            "question": "What is 12 times 34?",
            "name": "multiply",
            "arguments": {"a": 12, "b": 34},
            "result": "408",
            "answer": "12 times 34 is 408.",
        },
        "sum": {
            "question": "What is 789 - 384?",
            "reasoning": f"789 - 384\n{worked(789, 384, '-')}",
            "answer": "405",
        },
        "record": {
            "question": "Write as JSON: name Anna, age 34",
            "value": {"name": "Anna", "age": 34},
            "schema": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
                "required": ["name", "age"],
                "additionalProperties": False,
            },
        },
    }
