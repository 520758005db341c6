"""The body of POST /v1/completions as typed values."""

from __future__ import annotations

from luce.errors import RequestError
from luce.http.openai.generation_fields import GenerationFields

__all__ = ["MAX_PROMPTS", "CompletionRequest", "read_prompts"]

MAX_PROMPTS = 64


class CompletionRequest(GenerationFields, frozen=True, kw_only=True):
    prompt: str | list[int | str | list[int]]
    """Text, token ids, or a list of texts or of lists of token ids; an answer for each."""
    echo: bool | None = None
    """The answer begins with the prompt."""
    logprobs: int | None = None
    """Log-probabilities of so many most likely tokens, beside that of the chosen one."""
    parse_special: bool | None = None
    """llama.cpp's: the text of a special token in the prompt is that token. True when it is left out."""


def read_prompts(prompt: str | list[int | str | list[int]]) -> list[tuple[str, str | list[int]]]:
    """The prompts, each with its field.

    Raises:
        RequestError: there are none or too many, or the list mixes texts and ids.
    """
    if isinstance(prompt, str):
        return [("prompt", prompt)]
    if all(isinstance(one, int) for one in prompt):
        if not prompt:
            raise RequestError("prompt must not be an empty list", field="prompt")
        return [("prompt", [one for one in prompt if isinstance(one, int)])]
    if len(prompt) > MAX_PROMPTS:
        raise RequestError(
            f"prompt holds {len(prompt)} prompts; at most {MAX_PROMPTS} are taken in one request",
            field="prompt",
        )
    kind = type(prompt[0])
    found: list[tuple[str, str | list[int]]] = []
    for place, one in enumerate(prompt):
        if isinstance(one, int) or type(one) is not kind:
            raise RequestError(
                f"prompt[{place}]: a list holds either token ids, texts, or lists of token ids",
                field=f"prompt[{place}]",
            )
        found.append((f"prompt[{place}]", one))
    return found
