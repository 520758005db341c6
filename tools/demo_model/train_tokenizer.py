"""Trains the byte-level BPE and writes tokenizer.json in the released form.

    python -m tools.demo_model.train_tokenizer

The corpus is training text of the tasks and the docstrings of a few standard modules, so that other English
text does not fall apart into bytes.  The result depends on the Python release; the file in the repository is
the one the model was trained with.
"""

import importlib
import inspect
from collections.abc import Iterator

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from luce.demo.tasks import TASKS, make_case
from luce.demo.words import CITIES, ITEMS, NAMES, TITLE_FIRST, TITLE_LAST, WORDS
from tools.demo_model.text import (
    ADDED_TOKENS,
    BASE_PIECES,
    IDS,
    SPLIT_PATTERN,
    TOKENIZER_FILE,
    VOCAB_SIZE,
    template,
)

MODULES = (
    "argparse",
    "calendar",
    "collections",
    "datetime",
    "json",
    "logging",
    "pathlib",
    "random",
    "unittest",
)


def corpus() -> Iterator[str]:
    for word in (*TITLE_FIRST, *TITLE_LAST, *WORDS, *CITIES, *ITEMS, *NAMES):
        yield f" {word} {word}" * 60
        yield f"{word}\n" * 20
    for task in TASKS:
        for index in range(150):
            case = make_case(task, index, test=False)
            text = template().render(
                messages=[m for m in case.messages if "tool_calls" not in m], tools=case.tools
            )
            yield text
            yield case.completion
    for name in MODULES:
        module = importlib.import_module(name)
        yield inspect.getdoc(module) or ""
        for _, member in inspect.getmembers(module):
            if inspect.isclass(member) or inspect.isfunction(member):
                yield inspect.getdoc(member) or ""


def build() -> Tokenizer:
    special = [name for name, _ in ADDED_TOKENS]

    def plain() -> Iterator[str]:
        for text in corpus():
            for name in special:
                text = text.replace(name, " ")
            yield text

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=BASE_PIECES,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(plain(), trainer)
    tokenizer.add_tokens([AddedToken(name, special=flag, normalized=False) for name, flag in ADDED_TOKENS])
    return tokenizer


def main() -> None:
    tokenizer = build()
    assert tokenizer.get_vocab_size() == VOCAB_SIZE - 1, tokenizer.get_vocab_size()
    assert all(tokenizer.token_to_id(name) == token for name, token in IDS.items())
    tokenizer.save(str(TOKENIZER_FILE))


if __name__ == "__main__":
    main()
