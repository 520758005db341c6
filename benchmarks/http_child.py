"""``python -m benchmarks.http_child luce|quart``: a server process for `overhead.py`, with nothing behind its HTTP.

``luce`` is the whole server on an engine that computes nothing and says one letter a step for each of its 64 slots;
``quart`` is an application without anything on Hypercorn as it comes. Prints its port.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from quart import Response, request
from quart_trio import QuartTrio

from benchmarks.turns import ByteTokenizer, Prompt
from luce.actors.options import ServiceOptions
from luce.engines.fake.engine import FakeEngine, fake_capabilities
from luce.engines.fake.times import Times
from luce.engines.loaded import GenerationDefaults, LoadedModel
from luce.http.options import HttpOptions
from luce.http.server import listen, run_server
from luce.text.tokenizer import Tokenizer

__all__ = ["CHUNK", "SLOTS", "STEP"]

SLOTS = 64
STEP = 0.03
"""Seconds between two tokens of a stream."""
CHUNK = 230
"""Bytes of an event, about as many as luce's."""


class Letters(ByteTokenizer):
    """Every token is a letter, so that no text is held back."""

    def token_bytes(self, token_id: int) -> bytes:
        return bytes((97 + token_id % 26,))

    def encode_prompt(self, text: str, *, field: str | None = None) -> list[int]:
        return list(text.encode())


class Preparer:
    """A prompt of 16 tokens, whatever is asked."""

    def build(
        self,
        messages: Sequence[Mapping[str, Any]],
        images: Sequence[Any],
        **how: Any,
    ) -> Prompt:
        name = sum(str(messages[-1]["content"]).encode()) % 256
        return Prompt(np.full(16, name, np.int32), np.tile(np.arange(16, dtype=np.int32), (3, 1)))


def model() -> LoadedModel:
    capabilities = fake_capabilities(num_slots=SLOTS, num_blocks=SLOTS * 80, max_context=1024)
    return LoadedModel(
        name="fake",
        engine=FakeEngine(capabilities, times=Times(step=STEP)),
        tokenizer=cast(Tokenizer, Letters()),
        preparer=cast(Any, Preparer()),
        eos_token_ids=(),
        defaults=GenerationDefaults(),
        created=0,
    )


def bare() -> QuartTrio:
    app = QuartTrio("bare")
    app.config["RESPONSE_TIMEOUT"] = None
    chunk = b"data: " + b"x" * (CHUNK - 8) + b"\n\n"

    @app.post("/echo")
    async def echo() -> Response:
        return Response(await request.get_data(), content_type="application/json")

    @app.post("/stream/<int:count>")
    async def stream(count: int) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            started = trio.current_time()
            for number in range(count):
                await trio.sleep_until(started + STEP * number)
                yield chunk
            yield b"data: [DONE]\n\n"

        return Response(pieces(), content_type="text/event-stream")

    return app


def main() -> None:
    logging.basicConfig(level=logging.ERROR)
    listener = listen(HttpOptions(port=0))
    port = listener.getsockname()[1]
    if sys.argv[1] == "luce":
        trio.run(
            partial(
                run_server,
                model(),
                ServiceOptions(),
                HttpOptions(),
                listener,
                lambda _: print(port, flush=True),
            )
        )
    else:
        config = Config()
        listener.listen(1024)
        config.loglevel = "WARNING"
        config.bind = [f"fd://{listener.fileno()}"]
        print(port, flush=True)
        trio.run(serve, bare(), config)


if __name__ == "__main__":
    main()
