"""A service without an engine: answers are scripts, so that tests of the HTTP side choose every piece."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import trio
import trio.lowlevel
from PIL import Image

from luce.actors.mailbox import Waker
from luce.actors.options import ServiceOptions
from luce.actors.submission import Handle, Submission, Timings, Usage
from luce.actors.token_buffer import Delta, End, TokenBuffer
from luce.engines.loaded import GenerationDefaults, LoadedModel
from luce.engines.seam import Capabilities, ImageSpan, PatchImage, SampledToken
from luce.errors import CapacityError, LuceError, RequestError
from luce.trace.events import EventStream

CONTEXT = 64
NUM_IDS = 300
END_ID = 299

Piece = Delta | End
Script = Callable[[Submission], AsyncIterator[Piece]]


class StubTokenizer:
    """Ids 0 to 255 are bytes."""

    num_token_ids = NUM_IDS
    vocab_size = NUM_IDS

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def is_special(self, token_id: int) -> bool:
        return token_id >= 256

    def encode_text(self, text: str, *, field: str | None = None) -> list[int]:
        return list(text.encode())

    def encode_prompt(self, text: str, *, field: str | None = None) -> list[int]:
        """``<end>`` is the token :data:`END_ID`."""
        pieces = [list(piece.encode()) for piece in text.split("<end>")]
        return [*pieces[0], *(one for piece in pieces[1:] for one in (END_ID, *piece))]

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        found = [index for index in ids if not (skip_special and index >= 256)]
        return b"".join(b"<end>" if index == END_ID else self.token_bytes(index) for index in found).decode(
            "utf-8", "replace"
        )


class StubEngine:
    fingerprint = "stub-1"

    def __init__(self, images: bool = True) -> None:
        self.capabilities = Capabilities(
            num_slots=2,
            block_size=16,
            num_blocks=64,
            max_context=CONTEXT,
            vocab_size=NUM_IDS + 20,
            images=images,
            recomputable=True,
            whole_image_blocks=False,
            num_layers=1,
            max_depth=1,
        )


@attrs.frozen(eq=False)
class StubPrompt:
    token_ids: np.ndarray
    spans: tuple[ImageSpan, ...] = ()
    rope_delta: int = 0
    turn_ends: tuple[int, ...] = ()
    starts_in_thinking: bool = False

    @property
    def answer_start(self) -> int:
        return len(self.token_ids)

    @property
    def positions(self) -> np.ndarray:
        return np.tile(np.arange(len(self.token_ids), dtype=np.int32), (3, 1))


class StubPreparer:
    """One token per character of text, 4 per picture. Remembers what it was given."""

    options = frozenset({"enable_thinking"})

    def __init__(self, thinking: bool = False) -> None:
        self._thinking = thinking
        self.seen: list[dict[str, Any]] = []

    def build(
        self,
        messages: Sequence[Mapping[str, Any]],
        images: Sequence[PatchImage],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continuation: str = "",
    ) -> StubPrompt:
        self.seen.append(
            {
                "messages": messages,
                "images": images,
                "tools": tools,
                "template_kwargs": template_kwargs,
            }
        )
        if continuation:
            self.seen[-1]["continuation"] = continuation
        text = self.render(messages, add_generation_prompt=add_generation_prompt) + continuation
        ids = np.frombuffer(text.encode("utf-8", "strict"), np.uint8).astype(np.int32)
        thinking = (template_kwargs or {}).get("enable_thinking", self._thinking)
        return StubPrompt(ids, starts_in_thinking=thinking)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        text = ""
        for message in messages:
            content = message.get("content") or ""
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            text += "".join(part.get("text", "####") for part in parts)
        return text if add_generation_prompt else f"{text}."

    def count(
        self, messages: Sequence[Mapping[str, Any]], image_tokens: Sequence[int], **options: Any
    ) -> int:
        return len(self.build(messages, (), **options).token_ids)

    def from_ids(
        self, ids: Sequence[int], images: Sequence[PatchImage] = (), *, field: str = "ids"
    ) -> StubPrompt:
        return StubPrompt(np.array(ids, np.int32))

    def image_tokens(self, data: bytes, *, field: str) -> int:
        return 4

    def prepare_image(self, data: bytes, *, field: str) -> PatchImage:
        try:
            Image.open(io.BytesIO(data)).load()
        except Exception as error:
            raise RequestError(f"{field}: not a picture ({error})", field=field) from None
        return PatchImage(np.zeros((4, 768), np.float32), (2, 2), b"digest", 4)


def make_model(**changes: Any) -> LoadedModel:
    values: dict[str, Any] = {
        "name": "stub",
        "engine": StubEngine(),
        "tokenizer": StubTokenizer(),
        "preparer": StubPreparer(),
        "eos_token_ids": (END_ID,),
        "defaults": GenerationDefaults(temperature=0.7, top_k=20, top_p=0.95),
        "created": 1_700_000_000,
    }
    return LoadedModel(**(values | changes))


def sampled(
    token: int, logprob: float | None = None, top: tuple[tuple[int, float], ...] = ()
) -> SampledToken:
    return SampledToken(token, logprob, top)


def saying(text: str, reason: str = "stop", pause: float = 0.0) -> Script:
    """Says ``text`` byte by byte, whole characters at a time as the real detokenizer does."""

    async def script(submission: Submission) -> AsyncIterator[Piece]:
        top = submission.params.logprobs
        for character in text:
            data = character.encode()
            for place, byte in enumerate(data):
                await trio.sleep(pause)
                alternatives = tuple((byte, -0.25) for _ in range(top or 0))
                token = sampled(byte, -0.25 if top is not None else None, alternatives)
                yield Delta(character if place == len(data) - 1 else "", (token,))
        yield End(reason)

    return script


def failing(error: LuceError, after: str = "") -> Script:
    async def script(submission: Submission) -> AsyncIterator[Piece]:
        for character in after:
            yield Delta(character, (sampled(ord(character)),))
        yield End("error", error)

    return script


async def endless(submission: Submission) -> AsyncIterator[Piece]:
    while True:
        await trio.sleep(0.005)
        yield Delta("x" * 64, (sampled(120),))


async def torrent(submission: Submission) -> AsyncIterator[Piece]:
    """32 MiB at once, more than the buffers of any socket hold, and no end."""
    for _ in range(512):
        yield Delta("x" * 65536, (sampled(120),))
        await trio.lowlevel.checkpoint()
    await trio.sleep_forever()


async def silent(submission: Submission) -> AsyncIterator[Piece]:
    await trio.sleep_forever()
    yield End("stop")


class StubService:
    """What :class:`luce.actors.service.Service` shows to the HTTP side."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or saying("Hello, wörld!")
        self.state = "ready"
        self.full = False
        self.running: dict[str, trio.CancelScope] = {}
        self.cancelled: list[str] = []
        self.submissions: list[Submission] = []
        self.nursery: trio.Nursery | None = None
        self.model = make_model()
        self.options = ServiceOptions()
        self.events = EventStream(lambda: 0.0)
        self.requests: dict[int, Any] = {}
        self.arrivals: dict[int, float] = {}
        self.arrived: list[float | None] = []
        """As it was told, one for each answer's request."""

    @property
    def ready(self) -> bool:
        return self.state == "ready"

    def submit_all(
        self, submissions: Sequence[Submission], arrived: float | None = None
    ) -> tuple[Handle, ...]:
        if self.full:
            raise CapacityError("256 requests are waiting already", retry_after=2.5)
        self.arrived.append(arrived)
        waker = Waker()
        return tuple(self._submit(submission, waker) for submission in submissions)

    def _submit(self, submission: Submission, waker: Waker) -> Handle:
        assert self.nursery is not None
        self.submissions.append(submission)
        buffer = TokenBuffer(1024, lambda: None, waker)
        scope = trio.CancelScope()
        self.running[submission.id] = scope
        self.nursery.start_soon(self._run, submission, buffer, scope)

        def cancel() -> None:
            if submission.id in self.running:
                self.cancelled.append(submission.id)
                scope.cancel()

        prompt_tokens, timings = len(submission.prompt.token_ids), Timings(trio.current_time())
        return Handle(submission.id, Usage(prompt_tokens), buffer, cancel, timings, submission.choice)

    async def _run(self, submission: Submission, buffer: TokenBuffer, scope: trio.CancelScope) -> None:
        script = self.script(submission)
        with scope:
            async for piece in script:
                if isinstance(piece, End):
                    buffer.end(piece)
                    break
                buffer.put(piece)
        if not buffer.ended:
            buffer.end(End("cancelled"))
        del self.running[submission.id]
        with trio.CancelScope(shield=True):
            await script.aclose()  # type: ignore[attr-defined]
