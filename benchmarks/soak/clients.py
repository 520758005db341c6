"""Clients of a server, well behaved and not. Each asks once, or has one conversation, and judges what it got."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from random import Random
from urllib.parse import urlsplit

import attrs
import httpx
import trio

from benchmarks.soak.questions import Body, bad_body, body_of, conversation, gallery, picture_case, text_case

__all__ = ["KINDS", "Clients", "Tally"]

PATH = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
TOO_LONG = "context_length_exceeded"
REMEMBERED = 4000
"""Bodies whose answers are kept, to be compared when they are asked again."""
LONG = 600
"""Tokens of an answer whose reader stalls: with its log-probabilities more than sockets hold."""


@attrs.define
class Tally:
    """What came of the traffic."""

    done: Counter[str] = attrs.field(factory=Counter)
    """By kind of client."""
    tokens: int = 0
    """Of whole answers."""
    cached_tokens: int = 0
    """Of their prompts, from the prefix cache."""
    busy: int = 0
    """Refused with 503."""
    too_long: int = 0
    """Refused because they do not fit into the context, as chats that grow do some day."""
    compared: int = 0
    """Answers that had been given before."""
    wrong: list[str] = attrs.field(factory=list)


class Clients:
    """Args:
    url: of the server.
    client: for those who behave.
    longest_stall: seconds that a stalled reader reads nothing, at most.
    """

    def __init__(self, url: str, client: httpx.AsyncClient, longest_stall: float) -> None:
        self.tally = Tally()
        self._client = client
        self._longest_stall = longest_stall
        self._address = urlsplit(url)
        self._answers: dict[bytes, str] = {}

    async def ask(self, kind: str, rng: Random) -> None:
        """One client of that kind, from its request to its end."""
        try:
            await KINDS[kind][1](self, rng)
        except (httpx.HTTPError, OSError, trio.BrokenResourceError, ValueError, KeyError) as error:
            self.tally.wrong.append(f"{kind}: {type(error).__name__}: {error}")
        else:
            self.tally.done[kind] += 1

    # -- who behave -----------------------------------------------------------------------------------------------

    async def gallery(self, rng: Random) -> None:
        """No kind of its own: what fills the server's caches before memory is compared."""
        response = await self._client.post(PATH, content=json.dumps(gallery(rng)), headers=JSON)
        if response.status_code != 200:
            self._refused(response.status_code, response.text)

    async def text(self, rng: Random) -> None:
        await self._answered(body_of(text_case(rng), rng), stream=rng.random() < 0.5)

    async def pictures(self, rng: Random) -> None:
        await self._answered(body_of(picture_case(rng), rng), stream=rng.random() < 0.5)

    async def chat(self, rng: Random) -> None:
        """Each turn repeats all before it, the server's own answers included."""
        messages: list[Body] = []
        for case in conversation(rng):
            body = body_of(case, rng) | {"temperature": 0}
            messages += body["messages"]
            said = await self._answered(body | {"messages": messages}, stream=True)
            if said is None:
                return
            messages.append({"role": "assistant", "content": said})

    async def _answered(self, body: Body, *, stream: bool) -> str | None:
        """The text of a whole answer, None if the server was too busy. Equal bodies get equal answers."""
        if stream:
            text = await self._streamed(body)
        else:
            response = await self._client.post(PATH, content=json.dumps(body), headers=JSON)
            if response.status_code != 200:
                return self._refused(response.status_code, response.text)
            answer = response.json()
            text = answer["choices"][0]["message"]["content"]
            self._count(answer["usage"])
        if text is None:
            return None
        key = blake2b(json.dumps(body).encode(), digest_size=16).digest()
        if key in self._answers:
            self.tally.compared += 1
            if self._answers[key] != text:
                self.tally.wrong.append(f"one body, two answers: {self._answers[key]!r} and {text!r}")
        elif len(self._answers) < REMEMBERED:
            self._answers[key] = text
        return text

    async def _streamed(self, body: Body, leave_after: int | None = None) -> str | None:
        """``leave_after``: pieces after which the client closes the connection."""
        asked = json.dumps(body | {"stream": True, "stream_options": {"include_usage": True}})
        pieces: list[str] = []
        ended = False
        async with self._client.stream("POST", PATH, content=asked, headers=JSON) as response:
            if response.status_code != 200:
                return self._refused(response.status_code, (await response.aread()).decode())
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    ended = True
                elif line.startswith("data: "):
                    chunk = json.loads(line.removeprefix("data: "))
                    if chunk.get("usage"):
                        self._count(chunk["usage"])
                    pieces += [choice["delta"].get("content") or "" for choice in chunk["choices"]]
                if leave_after is not None and len(pieces) > leave_after:
                    return None
        if not ended:
            self.tally.wrong.append("a stream ended before its end")
        return "".join(pieces)

    def _count(self, usage: Body) -> None:
        self.tally.tokens += usage["completion_tokens"]
        self.tally.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]

    def _refused(self, status: int, said: str) -> None:
        if status == 503:
            self.tally.busy += 1
        elif status == 400 and TOO_LONG in said:
            self.tally.too_long += 1
        else:
            self.tally.wrong.append(f"status {status}: {said[:300]}")

    # -- who do not -----------------------------------------------------------------------------------------------

    async def cancel(self, rng: Random) -> None:
        """Reads some of a stream and goes away."""
        case = picture_case(rng) if rng.random() < 0.5 else text_case(rng)
        await self._streamed(body_of(case, rng) | {"ignore_eos": True}, leave_after=rng.randrange(60))

    async def late(self, rng: Random) -> None:
        """Has little time, and gets the whole answer or none."""
        case = picture_case(rng) if rng.random() < 0.5 else text_case(rng)
        body = body_of(case, rng) | {"timeout": rng.uniform(0.02, 1.0)}
        response = await self._client.post(PATH, content=json.dumps(body), headers=JSON)
        if response.status_code not in (200, 504):
            self._refused(response.status_code, response.text)

    async def disconnect(self, rng: Random) -> None:
        """Goes away in the middle of its request, or right behind it, before there is any answer."""
        case = picture_case(rng) if rng.random() < 0.5 else text_case(rng)
        request = self._raw(json.dumps(body_of(case, rng)).encode())
        sent = rng.choice([rng.randrange(len(request)), len(request)])
        async with await self._connect() as stream:
            await stream.send_all(request[:sent])
            await trio.sleep(rng.random() * 0.2)

    async def stalled(self, rng: Random) -> None:
        """Reads nothing of a long answer for a while; then goes away, or reads it to its end."""
        body = body_of(text_case(rng), rng) | {"max_tokens": LONG, "ignore_eos": True, "stream": True}
        body |= {"logprobs": True, "top_logprobs": 20}
        stays = rng.random() < 0.5
        async with await self._connect() as stream:
            stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4096)
            await stream.send_all(self._raw(json.dumps(body).encode()))
            first = await stream.receive_some(64)
            await trio.sleep(self._longest_stall * rng.uniform(0.2, 1.0))
            if not stays:
                return
            stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 1 << 18)
            tail = first
            while piece := await stream.receive_some(65536):
                tail = (tail + piece)[-1000:]
            status = int(first.split(b" ")[1])
            if status != 200:
                self._refused(status, tail.decode(errors="replace"))
            elif b"[DONE]" not in tail:
                self.tally.wrong.append(f"a slow reader's stream ended with {tail!r}")

    async def bad(self, rng: Random) -> None:
        content, right = bad_body(rng)
        response = await self._client.post(PATH, content=content, headers=JSON)
        if response.status_code not in right:
            self.tally.wrong.append(f"status {response.status_code} for the bad body {content[:100]!r}")
        elif "error" not in response.json():
            self.tally.wrong.append(f"no error object for the bad body {content[:100]!r}")

    async def _connect(self) -> trio.SocketStream:
        assert self._address.hostname is not None and self._address.port is not None
        return await trio.open_tcp_stream(self._address.hostname, self._address.port)

    def _raw(self, body: bytes) -> bytes:
        head = (
            f"POST {PATH} HTTP/1.1\r\nhost: {self._address.netloc}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        return head.encode() + body


KINDS: dict[str, tuple[int, Callable[[Clients, Random], Awaitable[None]]]] = {
    "text": (26, Clients.text),
    "pictures": (25, Clients.pictures),
    "chat": (15, Clients.chat),
    "cancel": (10, Clients.cancel),
    "late": (4, Clients.late),
    "disconnect": (8, Clients.disconnect),
    "stalled": (4, Clients.stalled),
    "bad": (8, Clients.bad),
}
"""How often each kind comes, out of a hundred, and what it does."""
