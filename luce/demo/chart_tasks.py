"""Tasks about charts: one picture, several pictures, follow-up turns, JSON."""

import json
from collections.abc import Callable
from random import Random

from luce.demo.case import Case, Message, assistant, image_part, user
from luce.demo.drawing import Chart, pick, random_chart, random_title

# A question about one chart: (rng, chart, the words that name the chart) -> question, answer.
Question = Callable[[Random, Chart, str], tuple[str, str]]
THIS = ""


def description(chart: Chart) -> str:
    bars = ", ".join(f"{bar.colour} {bar.value}" for bar in chart.bars)
    return f'The chart "{chart.title}" has {len(chart.bars)} bars: {bars}.'


def as_json(chart: Chart) -> str:
    bars = [{"color": bar.colour, "value": bar.value} for bar in chart.bars]
    return json.dumps({"title": chart.title, "bars": bars})


def ask_describe(rng: Random, chart: Chart, which: str) -> tuple[str, str]:
    name = which or pick(rng, ("the chart", "this chart", "the picture", "the image"))
    return pick(
        rng, (f"Describe {name}.", f"Please describe {name}.", f"What does {name} show?")
    ), description(chart)


def ask_value(rng: Random, chart: Chart, which: str) -> tuple[str, str]:
    bar = pick(rng, chart.bars)
    where = f" in {which}" if which else ""
    forms = (
        f"What is the value of the {bar.colour} bar{where}?",
        f"What value does the {bar.colour} bar{where} have?",
        f"How high is the {bar.colour} bar{where}?",
    )
    return pick(rng, forms), str(bar.value)


def ask_tallest(rng: Random, chart: Chart, which: str) -> tuple[str, str]:
    where = f" in {which}" if which else ""
    forms = (
        f"Which bar is tallest{where}?",
        f"Which bar is the tallest{where}?",
        f"Which bar is the highest{where}?",
    )
    return pick(rng, forms), chart.tallest.colour


def ask_how_many(rng: Random, chart: Chart, which: str) -> tuple[str, str]:
    forms = (
        f"How many bars are there in {which}?" if which else "How many bars are there?",
        f"How many bars does {which or 'the chart'} have?",
        f"Count the bars in {which or 'the chart'}.",
    )
    return pick(rng, forms), str(len(chart.bars))


def ask_title(rng: Random, chart: Chart, which: str) -> tuple[str, str]:
    name = which or pick(rng, ("the chart", "this chart"))
    forms = (
        f"What is the title of {name}?" if which else "What is the title?",
        f"What is the title of {name}?",
        f"How is {name} titled?",
    )
    return pick(rng, forms), chart.title


def ask_json(rng: Random, chart: Chart, which: str) -> tuple[str, str]:
    name = which or pick(rng, ("the chart", "this chart"))
    return pick(rng, (f"Describe {name} as JSON.", f"Give {name} as JSON.")), as_json(chart)


QUESTIONS: dict[str, Question] = {
    "describe": ask_describe,
    "value": ask_value,
    "tallest": ask_tallest,
    "how_many": ask_how_many,
    "title": ask_title,
}


def _ask(rng: Random, chart: Chart, which: str = THIS) -> tuple[str, str]:
    return QUESTIONS[pick(rng, list(QUESTIONS))](rng, chart, which)


def _turn(rng: Random, pictures: int, question: str) -> Message:
    """Pictures mostly come first, as clients send them; at times the question does."""
    images = [image_part() for _ in range(pictures)]
    return user(question, *images) if rng.random() < 0.15 else user(*images, question)


def one_picture(task: str, ask: Question) -> Callable[[Random, bool], Case]:
    def make(rng: Random, test: bool) -> Case:
        chart = random_chart(rng, test=test)
        question, answer = ask(rng, chart, THIS)
        return Case(task, [_turn(rng, 1, question)], answer, (chart,))

    return make


def _charts(rng: Random, test: bool) -> tuple[Chart, ...]:
    """Two to four charts with different titles."""
    titles: list[str] = []
    count = 2 + rng.randrange(3)
    while len(titles) < count:
        title = random_title(rng, 15, test)
        if title not in titles:
            titles.append(title)
    return tuple(random_chart(rng, test=test, title=title) for title in titles)


def several_pictures(task: str, ask: Question) -> Callable[[Random, bool], Case]:
    def make(rng: Random, test: bool) -> Case:
        charts = _charts(rng, test)
        index = rng.randrange(len(charts))
        question, answer = ask(rng, charts[index], f"chart {index + 1}")
        return Case(task, [_turn(rng, len(charts), question)], answer, charts)

    return make


def many_which(rng: Random, test: bool) -> Case:
    charts = _charts(rng, test)
    index = rng.randrange(len(charts))
    title = charts[index].title
    question = pick(rng, (f"Which chart is titled {title}?", f"Which chart has the title {title}?"))
    listed = " ".join(f"Chart {i + 1}: {chart.title}." for i, chart in enumerate(charts))
    answer = f"{listed} So it is chart {index + 1}."
    return Case("many_which", [_turn(rng, len(charts), question)], answer, charts)


def follow_up(rng: Random, test: bool) -> Case:
    """A second or third question about pictures of the first turn."""
    charts = _charts(rng, test) if rng.random() < 0.3 else (random_chart(rng, test=test),)

    def ask() -> tuple[str, str]:
        index = rng.randrange(len(charts))
        return _ask(rng, charts[index], f"chart {index + 1}" if len(charts) > 1 else THIS)

    question, answer = ask()
    messages = [_turn(rng, len(charts), question)]
    for _ in range(1 + rng.randrange(2)):
        messages.append(assistant(answer))
        question, answer = ask()
        messages.append(user(question))
    return Case("follow_up", messages, answer, charts)


def later_picture(rng: Random, test: bool) -> Case:
    """Two turns without or with a picture, then a new picture; the question may go back to an earlier one."""
    messages: list[Message] = []
    charts: list[Chart] = []
    for turn in range(2):
        if rng.random() < 0.4:
            chart = random_chart(rng, test=test)
            charts.append(chart)
            question, answer = _ask(rng, chart)
            messages += [_turn(rng, 1, question), assistant(answer)]
        else:
            messages += (
                [user(pick(rng, ("Hello!", "Hi.", "Good morning.")))]
                if turn == 0
                else [user("Here is a chart.")]
            )
            messages.append(assistant("Hello! Send me a chart." if turn == 0 else "Please ask about it."))
    last = random_chart(rng, test=test)
    charts.append(last)
    index = rng.randrange(len(charts)) if rng.random() < 0.4 else len(charts) - 1
    newest = index == len(charts) - 1 and rng.random() < 0.5
    which = THIS if newest or len(charts) == 1 else f"chart {index + 1}"
    question, answer = _ask(rng, charts[index], which)
    messages.append(_turn(rng, 1, question))
    return Case("later_picture", messages, answer, tuple(charts))
