"""From tokens to the text of one answer: detokenising, then stop strings."""

from __future__ import annotations

from luce.actors.submission import Submission
from luce.text.detokenizer import Detokenizer
from luce.text.stop_strings import StopMatcher
from luce.text.tokenizer import Tokenizer

__all__ = ["AnswerText"]


class AnswerText:
    """The text side of one request; belongs to it alone.

    Stop strings are looked for from the ``min_tokens``-th token on, as vLLM documents it: text of earlier tokens
    passes through unseen.
    """

    def __init__(self, tokenizer: Tokenizer, submission: Submission) -> None:
        self._detokenizer = Detokenizer(tokenizer, submission.skip_special_tokens)
        self._stops = StopMatcher(submission.stop, include=submission.include_stop)
        self._min_tokens = submission.params.min_tokens
        self._tokens = 0

    @property
    def stopped(self) -> bool:
        """A stop string was completed."""
        return self._stops.match is not None

    def push(self, token: int, *, ends: bool) -> str:
        """Text that is final after this token. A token that ends the answer by its id shows no text of its own."""
        self._tokens += 1
        piece = "" if ends else self._detokenizer.feed(token)
        return self._stops.feed(piece, armed=self._tokens > self._min_tokens)

    def flush(self) -> str:
        """The rest, once the answer is complete: a possible stop string that was none, an incomplete character."""
        text = self._stops.feed(self._detokenizer.flush(), armed=self._tokens > self._min_tokens)
        return text + self._stops.flush()
