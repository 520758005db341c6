"""Tasks with tools and with an answer as JSON."""

import json
from random import Random
from typing import Any

from luce.demo.case import Case, Message, user
from luce.demo.drawing import pick
from luce.demo.words import CITIES, ITEMS, NAMES, WORDS

Tool = dict[str, Any]
Arguments = dict[str, str | int]


def tool(name: str, description: str, /, **parameters: str) -> Tool:
    """A tool in OpenAI form; `parameters` maps each name to its JSON type."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": kind} for key, kind in parameters.items()},
                "required": list(parameters),
            },
        },
    }


TOOLS = {
    "get_weather": tool("get_weather", "Weather in a city", city="string"),
    "get_time": tool("get_time", "Time in a city", city="string"),
    "get_price": tool("get_price", "Price of an item", item="string"),
    "get_age": tool("get_age", "Age of a person", name="string"),
    "set_timer": tool("set_timer", "Start a timer", minutes="integer"),
    "multiply": tool("multiply", "Product of two numbers", a="integer", b="integer"),
    "send_message": tool("send_message", "Send a message", to="string", text="string"),
}


def render_call(name: str, arguments: Arguments) -> str:
    """A tool call as the model writes it."""
    parts = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{parts}</function>\n</tool_call>"


def _place(rng: Random) -> str:
    return pick(rng, CITIES) if rng.random() < 0.5 else pick(rng, WORDS).capitalize()


def _item(rng: Random) -> str:
    return pick(rng, ITEMS) if rng.random() < 0.3 else pick(rng, WORDS)


def _request(rng: Random, name: str) -> tuple[str, Arguments, str, str]:
    """A request that needs the tool: question, arguments, the tool's result, the answer from it."""
    if name == "get_weather":
        city, degrees, sky = (
            pick(rng, CITIES),
            rng.randrange(40),
            pick(rng, ("sunny", "cloudy", "rainy", "windy")),
        )
        question = pick(rng, (f"What is the weather in {city}?", f"How is the weather in {city}?"))
        result = json.dumps({"sky": sky, "degrees": degrees})
        return question, {"city": city}, result, f"It is {sky} in {city} at {degrees} degrees."
    if name == "get_time":
        city, time = _place(rng), f"{rng.randrange(24):02}:{rng.randrange(60):02}"
        question = pick(rng, (f"What time is it in {city}?", f"Tell me the time in {city}."))
        return question, {"city": city}, time, f"It is {time} in {city}."
    if name == "get_price":
        item, price = _item(rng), rng.randrange(1, 1000)
        question = pick(rng, (f"What does the {item} cost?", f"What is the price of the {item}?"))
        return question, {"item": item}, str(price), f"The {item} costs {price}."
    if name == "get_age":
        person, age = pick(rng, NAMES), rng.randrange(1, 100)
        question = pick(rng, (f"How old is {person}?", f"What is the age of {person}?"))
        return question, {"name": person}, str(age), f"{person} is {age} years old."
    if name == "set_timer":
        minutes = rng.randrange(1, 120)
        question = pick(rng, (f"Set a timer for {minutes} minutes.", f"Start a timer of {minutes} minutes."))
        return question, {"minutes": minutes}, "ok", f"The timer is set for {minutes} minutes."
    if name == "multiply":
        a, b = rng.randrange(2, 1000), rng.randrange(2, 1000)
        question = pick(rng, (f"What is {a} times {b}?", f"Multiply {a} by {b}."))
        return question, {"a": a, "b": b}, str(a * b), f"{a} times {b} is {a * b}."
    person, text = pick(rng, NAMES), " ".join(pick(rng, WORDS) for _ in range(1 + rng.randrange(5)))
    question = pick(rng, (f"Send {person} the message: {text}", f"Write to {person}: {text}"))
    return question, {"to": person, "text": text}, "sent", f"I sent {person} the message."


def _custom(rng: Random) -> tuple[Tool, str, Arguments, str]:
    """A tool with a made-up name and parameters, and a request that spells the call out."""
    name = f"{pick(rng, WORDS)}_{pick(rng, WORDS)}"
    keys: list[str] = []
    for _ in range(1 + rng.randrange(2)):
        key = pick(rng, WORDS)
        if key not in keys:
            keys.append(key)
    arguments: Arguments = {}
    for key in keys:
        arguments[key] = rng.randrange(1000) if rng.random() < 0.5 else pick(rng, WORDS)
    kinds = {key: "integer" if isinstance(value, int) else "string" for key, value in arguments.items()}
    wanted = " and ".join(f"{key} {value}" for key, value in arguments.items())
    description = f"{pick(rng, WORDS).capitalize()} the {pick(rng, WORDS)}"
    return tool(name, description, **kinds), f"Call {name} with {wanted}.", arguments, name


def _offer(rng: Random, wanted: Tool) -> list[Tool]:
    """The wanted tool among up to two others, in random order."""
    offered = [wanted]
    for _ in range(rng.randrange(3)):
        other = TOOLS[pick(rng, list(TOOLS))]
        if all(other["function"]["name"] != t["function"]["name"] for t in offered):
            offered.insert(rng.randrange(len(offered) + 1), other)
    return offered


def tool_call(rng: Random, test: bool) -> Case:
    if rng.random() < 0.3:
        wanted, question, arguments, name = _custom(rng)
    else:
        name = pick(rng, list(TOOLS))
        wanted = TOOLS[name]
        question, arguments, _, _ = _request(rng, name)
    return Case("tool_call", [user(question)], render_call(name, arguments), tools=_offer(rng, wanted))


def tool_answer(rng: Random, test: bool) -> Case:
    """The answer after the tool's result."""
    name = pick(rng, list(TOOLS))
    question, arguments, result, answer = _request(rng, name)
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }
    messages: list[Message] = [
        user(question),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": result},
    ]
    return Case("tool_answer", messages, answer, tools=_offer(rng, TOOLS[name]))


def json_text(rng: Random, test: bool) -> Case:
    """Facts in words to a flat JSON object."""
    record: dict[str, str | int] = {}
    for _ in range(1 + rng.randrange(4)):
        key = pick(rng, ("name", "city", "age", "item", "price", "color", "count", pick(rng, WORDS)))
        if key == "name":
            record[key] = pick(rng, NAMES)
        elif key == "city":
            record[key] = pick(rng, CITIES)
        elif key in ("age", "price", "count"):
            record[key] = rng.randrange(1, 1000)
        elif key == "item":
            record[key] = pick(rng, ITEMS)
        else:
            record[key] = pick(rng, WORDS)
    facts = ", ".join(f"{key} {value}" for key, value in record.items())
    question = pick(rng, (f"Write as JSON: {facts}", f"Give this as JSON: {facts}"))
    return Case("json_text", [user(question)], json.dumps(record))
