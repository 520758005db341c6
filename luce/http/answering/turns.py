"""One message's content, put together from the parts that an API sends, as chat templates take it."""

from __future__ import annotations

from typing import Any

from luce.text.messages import ImageReference

__all__ = ["TurnContent", "add_system"]


class TurnContent:
    """Text and pictures in order. The rules are those of :func:`luce.text.messages.normalise`: neighbouring texts are
    one, nothing between them, and text alone is a string.

    Args:
        images: the conversation's pictures; those of this turn are added.
    """

    def __init__(self, images: list[ImageReference]) -> None:
        self._images = images
        self._parts: list[dict[str, str]] = []

    def text(self, text: str) -> None:
        if self._parts and self._parts[-1]["type"] == "text":
            self._parts[-1]["text"] += text
        else:
            self._parts.append({"type": "text", "text": text})

    def image(self, field: str, url: str, detail: str | None = None) -> None:
        """A picture.

        Args:
            field: its place in the request, for errors.
        """
        self._images.append(ImageReference(field, url, detail))
        self._parts.append({"type": "image"})

    @property
    def content(self) -> str | list[dict[str, str]]:
        if all(part["type"] == "text" for part in self._parts):
            return "".join(part["text"] for part in self._parts)
        return self._parts


def add_system(messages: list[dict[str, Any]], text: str) -> None:
    """A system message. Neighbours become one, a blank line between them: templates take one, at the beginning."""
    if messages and messages[-1]["role"] == "system":
        messages[-1]["content"] += f"\n\n{text}"
    else:
        messages.append({"role": "system", "content": text})
