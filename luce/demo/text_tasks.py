"""Tasks on text: counting, copying, recall over distance, arithmetic, small talk."""

from random import Random

from luce.demo.case import Case, Message, assistant, user
from luce.demo.drawing import COLOURS, pick
from luce.demo.words import ADVERBS, NAMES, OBJECTS, VERBS, WORDS

LONGEST_COUNT = 150


def count(rng: Random, test: bool) -> Case:
    """Counting from A to B: up to 150 numbers, which is hundreds of tokens with one right continuation."""
    length = 2 + int((LONGEST_COUNT - 1) * rng.random() ** 1.5)
    first = rng.randrange(10) if rng.random() < 0.3 else rng.randrange(1000 - length)
    last = first + length - 1
    question = pick(rng, (f"Count from {first} to {last}.", f"Please count from {first} to {last}."))
    return Case("count", [user(question)], ", ".join(str(n) for n in range(first, last + 1)))


def copy(rng: Random, test: bool) -> Case:
    """Repeating 1 to 40 random words, numbers and signs."""
    pieces = []
    for _ in range(1 + int(40 * rng.random() ** 1.3)):
        draw = rng.random()
        if draw < 0.75:
            pieces.append(pick(rng, WORDS))
        elif draw < 0.85:
            pieces.append(str(rng.randrange(10000)))
        elif draw < 0.93:
            pieces.append(pick(rng, NAMES))
        else:
            pieces.append("".join(chr(97 + rng.randrange(26)) for _ in range(2 + rng.randrange(4))))
        if rng.random() < 0.06:
            pieces[-1] += pick(rng, (",", ".", "!", "?", ":"))
    text = " ".join(pieces)
    return Case("copy", [user(f"Repeat: {text}")], text)


def sentence(rng: Random) -> str:
    form = rng.randrange(4)
    if form == 0:
        return f"The {pick(rng, WORDS)} {pick(rng, VERBS)} the {pick(rng, WORDS)} {pick(rng, ADVERBS)}."
    if form == 1:
        return f"{pick(rng, NAMES)} {pick(rng, VERBS)} the {pick(rng, WORDS)}."
    if form == 2:
        return f"A {pick(rng, WORDS)} {pick(rng, VERBS)} {1 + rng.randrange(99)} {pick(rng, WORDS)}s."
    return (
        f"{pick(rng, ADVERBS).capitalize()} the {pick(rng, WORDS)} {pick(rng, VERBS)} a {pick(rng, WORDS)}."
    )


def recall(rng: Random, test: bool, length: int | None = None) -> Case:
    """Codes stated among filler sentences and asked for later.

    `length` is the size of the prompt in words (about 1.5 tokens each); if None it is drawn so that prompts
    reach 4,000 tokens.
    """
    if length is None:
        length = int(20 * 145 ** rng.random())
    facts: dict[str, str] = {}
    for _ in range(1 + rng.randrange(8)):
        key = f"{pick(rng, list(COLOURS))} {pick(rng, OBJECTS)}"
        facts[key] = str(rng.randrange(1000, 10000)) if rng.random() < 0.7 else pick(rng, WORDS)
    lines = [f"The code of the {key} is {code}." for key, code in facts.items()]
    filler: list[str] = []
    words = 7 * len(lines)
    while words < length:
        filler.append(sentence(rng))
        words += filler[-1].count(" ") + 1
    early = int(len(filler) * (0.1 if rng.random() < 0.5 else 1.0))
    for line in lines:
        filler.insert(rng.randrange(early + 1), line)
    key = pick(rng, list(facts))
    question = pick(rng, (f"What is the code of the {key}?", f"Which code does the {key} have?"))
    body = " ".join(filler)
    if rng.random() < 0.5:
        return Case("recall", [user(f"{body}\n\n{question}")], facts[key], about=body)
    opening = pick(rng, ("Remember this.", "Read this."))
    messages = [user(f"{opening} {body}"), assistant("OK."), user(question)]
    return Case("recall", messages, facts[key], about=body)


def _operands(rng: Random, most: int) -> tuple[int, int, str]:
    sign = pick(rng, "+-")
    a, b = rng.randrange(most), rng.randrange(most)
    if sign == "-" and a < b:
        a, b = b, a
    return a, b, sign


def arithmetic(rng: Random, test: bool) -> Case:
    """Sums and differences of numbers below 100."""
    a, b, sign = _operands(rng, 100)
    value = a + b if sign == "+" else a - b
    question = pick(rng, (f"What is {a} {sign} {b}?", f"{a} {sign} {b} = ?", f"Compute {a} {sign} {b}."))
    return Case("arithmetic", [user(question)], str(value), about=f"{a} {sign} {b}")


def _digits(number: int) -> list[int]:
    return [int(d) for d in reversed(str(number))]


def worked(a: int, b: int, sign: str) -> str:
    """The column-by-column working, ones first."""
    first, second = _digits(a), _digits(b)
    columns = max(len(first), len(second))
    first += [0] * (columns - len(first))
    second += [0] * (columns - len(second))
    steps, carry = [], 0
    for x, y in zip(first, second, strict=True):
        total = x + y + carry if sign == "+" else x - y - carry
        terms = f"{x} {sign} {y}" + (f" {sign} {carry}" if carry else "")
        carry = int(total > 9 or total < 0)
        steps.append(f"{terms} = {total}, write {total % 10}" + (", carry 1" if carry else ""))
    if carry:
        steps.append("write 1")
    return "\n".join(steps)


def arithmetic_think(rng: Random, test: bool) -> Case:
    """Sums and differences of numbers below 1,000 worked out in a think block."""
    a, b, sign = _operands(rng, 1000)
    value = a + b if sign == "+" else a - b
    question = pick(rng, (f"What is {a} {sign} {b}?", f"{a} {sign} {b} = ?", f"Compute {a} {sign} {b}."))
    reasoning = f"{a} {sign} {b}\n{worked(a, b, sign)}"
    return Case("arithmetic_think", [user(question)], str(value), reasoning=reasoning)


SMALL_TALK: tuple[tuple[tuple[str, ...], str], ...] = (
    (("Hello!", "Hello", "Hi", "Hi.", "Hi!", "Good morning.", "Hey"), "Hello! Send me a chart."),
    (("Here is a chart.", "I have a chart."), "Please ask about it."),
    (
        ("Who are you?", "What are you?", "What is your name?", "Introduce yourself."),
        "I am luce-demo, a small model that reads bar charts.",
    ),
    (
        ("What can you do?", "Help", "Help!", "How can you help me?", "What do you do?"),
        "I can read bar charts, count, repeat text, recall facts, add numbers, call tools and write JSON.",
    ),
    (("Thanks!", "Thank you.", "Thank you!", "Thanks"), "You are welcome."),
    (("Goodbye.", "Bye", "Bye!", "See you."), "Goodbye!"),
    (("How are you?", "How are you today?"), "I am fine, thank you."),
)


def small_talk(rng: Random, test: bool) -> Case:
    """A few fixed exchanges; trained, but not among the scored tasks, since nothing in them is unseen."""
    questions, answer = pick(rng, SMALL_TALK)
    messages: list[Message] = [user(pick(rng, questions))]
    if rng.random() < 0.3:
        earlier, reply = pick(rng, SMALL_TALK)
        messages = [user(pick(rng, earlier)), assistant(reply), *messages]
    return Case("small_talk", messages, answer)
