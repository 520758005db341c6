"""From tokens to the text of one answer: detokenising, then stop strings."""

from __future__ import annotations

from luce.actors.submission import Submission
from luce.text.detokenizer import Detokenizer
from luce.text.stop_strings import StopMatcher
from luce.text.think_blocks import ThinkBlocks
from luce.text.tokenizer import Tokenizer

__all__ = ["AnswerText"]


class AnswerText:
    """The text side of one request; belongs to it alone.

    Stop strings are looked for from the ``min_tokens``-th token on, as vLLM documents it: text of earlier tokens
    passes through unseen. So does reasoning, where the submission says so.
    """

    def __init__(self, tokenizer: Tokenizer, submission: Submission) -> None:
        self._detokenizer = Detokenizer(tokenizer, submission.skip_special_tokens)
        self._stops = StopMatcher(submission.stop, include=submission.include_stop)
        self._blocks = None
        if submission.stop and not submission.stop_in_reasoning:
            self._blocks = ThinkBlocks(inside=submission.prompt.starts_in_thinking)
        self._min_tokens = submission.params.min_tokens
        self._tokens = 0

    @property
    def stopped(self) -> bool:
        """A stop string was completed."""
        return self._stops.match is not None

    @property
    def stop(self) -> str | None:
        """The stop string that was completed."""
        return None if self._stops.match is None else self._stops.match.text

    def push(self, token: int, *, ends: bool) -> str:
        """Text that is final after this token. A token that ends the answer by its id shows no text of its own."""
        self._tokens += 1
        piece = "" if ends else self._detokenizer.feed(token)
        return self._search(piece)

    def flush(self) -> str:
        """The rest, once the answer is complete: a possible stop string that was none, an incomplete character."""
        text = self._search(self._detokenizer.flush())
        if self._blocks is not None:
            text += self._search_in(self._blocks.flush())
        return text + self._stops.flush()

    def _search(self, piece: str) -> str:
        if self._blocks is None:
            return self._stops.feed(piece, armed=self._tokens > self._min_tokens)
        return self._search_in(self._blocks.split(piece))

    def _search_in(self, pieces: list[tuple[str, bool]]) -> str:
        """What may be shown of pieces, each with whether it is reasoning."""
        armed = self._tokens > self._min_tokens
        return "".join([self._stops.feed(piece, armed=armed and not thought) for piece, thought in pieces])
