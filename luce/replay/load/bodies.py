"""Requests of a trace as JSON bodies: prompts and pictures of about the wanted lengths."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import attrs
import msgspec

from luce.bench.pictures import png
from luce.replay.load.probe import ServerTraits, picture_parts
from luce.replay.load.request import LoadRequest
from luce.vision.data_url import data_url

__all__ = ["Prepared", "Writer"]

KEPT_PICTURES = 64
TURN = 128
"""Tokens of a turn, at least, where a trace names blocks."""


@attrs.define
class Prepared:
    """A request that only needs to be sent. Its body goes when it is: answers may take long."""

    number: int
    due: float
    """Seconds after the start."""
    body: bytes | None
    """None: it cannot be asked of this server, which…"""
    why: str
    """…says."""
    asked: LoadRequest

    def taken(self) -> bytes:
        """The body, which is nobody else's any more."""
        body, self.body = self.body, None
        assert body is not None, "only what can be asked is sent, once"
        return body


@attrs.define
class Writer:
    """Makes bodies; used by one thread at a time.

    Args:
        traits: of the server.
        seed: prompts and pictures that the trace gives no name are new for each seed.
        picture_tokens: of pictures of which the trace says only that they were there.
        without_pictures: text takes their place.
    """

    traits: ServerTraits
    seed: int
    picture_tokens: int
    without_pictures: bool = False
    _pictures: OrderedDict[tuple[str, int], str] = attrs.field(factory=OrderedDict, init=False, repr=False)

    def prepared(self, number: int, asked: LoadRequest) -> Prepared:
        due = asked.traffic.arrival
        sizes = self.traits.pictures
        if asked.traffic.images and sizes is None and not self.without_pictures:
            return Prepared(number, due, None, "the server takes no pictures (--no-pictures)", asked)
        return Prepared(number, due, msgspec.json.encode(self._body(number, asked)), "", asked)

    def _body(self, number: int, asked: LoadRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.traits.model,
            "messages": self._messages(number, asked),
            "max_tokens": asked.traffic.output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if asked.choices > 1:
            body["n"] = asked.choices
        return body | dict(self.traits.extras)

    def _drawn(self, number: int, asked: LoadRequest) -> tuple[list[str], float]:
        """Pictures, and the tokens that they take."""
        sizes = self.traits.pictures
        if sizes is None or self.without_pictures:
            return [], 0.0
        urls, taken = [], 0.0
        for index, tokens in enumerate(asked.traffic.images):
            named = asked.pictures[index] if asked.pictures else f"{self.seed} request {number} {index}"
            side = sizes.side(tokens or self.picture_tokens)
            urls.append(self._picture(named, side))
            taken += sizes.tokens(side)
        return urls, taken

    def _picture(self, name: str, side: int) -> str:
        key = name, side
        found = self._pictures.get(key)
        if found is None:
            found = data_url(png(side, side, int.from_bytes(name.encode(), "little")))
            self._pictures[key] = found
            if len(self._pictures) > KEPT_PICTURES:
                self._pictures.popitem(last=False)
        return found

    def _messages(self, number: int, asked: LoadRequest) -> list[dict[str, Any]]:
        """One message, or turns that begin alike where named blocks do: servers that keep prefixes at the ends of
        turns find them there. Pictures go with the last one."""
        urls, taken = self._drawn(number, asked)
        texts = [asked.text] if asked.text is not None else self._texts(number, asked, taken)
        if len(texts) % 2 == 0:  # the last turn is the user's, whatever roles are before it
            texts.append(f" {self.traits.words.words[0]}")
        messages: list[dict[str, Any]] = [
            {"role": "user" if index % 2 == 0 else "assistant", "content": text}
            for index, text in enumerate(texts)
        ]
        if urls:
            messages[-1]["content"] = picture_parts(texts[-1], urls)
        return messages

    def _texts(self, number: int, asked: LoadRequest, pictures: float) -> list[str]:
        """What is left of the prompt's tokens, turn by turn, at least one word in all."""
        traffic, words, per_turn = asked.traffic, self.traits.words, self.traits.per_turn
        left = traffic.prompt_tokens - self.traits.overhead - pictures
        if not traffic.prefix_blocks:
            name = f"prompt {asked.name}" if asked.name is not None else f"{self.seed} request {number}"
            return [words.text(name, max(round(left), 1))]
        together = -(-TURN // traffic.block_size)
        turns: list[str] = []
        if -(-len(traffic.prefix_blocks) // together) % 2 == 0:
            left -= per_turn + 1  # of the last, short turn
        for start in range(0, len(traffic.prefix_blocks), together):
            names = traffic.prefix_blocks[start : start + together]
            if turns:
                left -= per_turn
            room = round(min(left, len(names) * traffic.block_size - (per_turn if turns else 0)))
            if turns and room < per_turn + 2:
                break
            text = self._blocks(names, max(room, 1), traffic.block_size)
            left -= room
            turns.append(text)
        return turns

    def _blocks(self, names: tuple[int, ...], tokens: int, size: int) -> str:
        texts = []
        for name in names:
            if tokens > 0:
                texts.append(self.traits.words.text(f"block {name}", min(tokens, size)))
            tokens -= size
        return "".join(texts)
