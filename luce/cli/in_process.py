"""A model and its service inside this process, for commands that need no HTTP."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio
from rich.console import Console

from luce.actors.options import ServiceOptions
from luce.actors.service import Service
from luce.actors.submission import Handle
from luce.cli.loading_progress import loading_progress
from luce.engines.load_model import LoadOptions, OpenedModel, demo_model, load_model, open_model
from luce.engines.loaded import LoadedModel
from luce.errors import ConfigError
from luce.http.openai.prepare import prepare_chat
from luce.http.options import HttpOptions

__all__ = ["ask", "data_url", "load_with_progress", "opened", "running"]


def opened(path: Path | None, options: LoadOptions) -> OpenedModel:
    """The named model, or the bundled one, checked and not loaded. Raises as :func:`open_model`."""
    return open_model(demo_model() if path is None else path, options)


def load_with_progress(model: OpenedModel, console: Console) -> LoadedModel:
    """Load it, with a bar on a terminal and plain lines elsewhere."""
    with loading_progress(model.name, console) as progress:
        return load_model(model, progress)


@asynccontextmanager
async def running(model: LoadedModel, options: ServiceOptions | None = None) -> AsyncIterator[Service]:
    """The service of a model while the block runs; leaving drains it, leaving by an error stops it."""
    service = Service(model, options or ServiceOptions())
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        yield service
        service.drain()
        await service.stopped()


async def ask(service: Service, model: LoadedModel, body: Mapping[str, Any]) -> Handle:
    """Submit a chat completion by the same path as an HTTP request. Raises as the endpoint would answer."""
    text = msgspec.json.encode(body)
    job = await trio.to_thread.run_sync(prepare_chat, text, model, HttpOptions())
    return service.submit(job.submission)


def data_url(path: Path) -> str:
    """A picture file as a `data:` URL.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        data = path.expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    kind = mimetypes.guess_type(path.name)[0] or "image/png"
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
