"""A model and its service inside this process, for commands that need no HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import msgspec
import trio
from rich.console import Console

from luce.actors.options import ServiceOptions
from luce.actors.service import Service
from luce.actors.submission import Handle
from luce.cli.inputs import read_file
from luce.cli.loading_progress import loading_progress
from luce.engines.load_model import LoadOptions, OpenedModel, demo_model, load_model, open_model
from luce.engines.loaded import LoadedModel, Preparer
from luce.errors import ConfigError, RequestError, reason
from luce.http.openai.prepare import prepare_chat
from luce.http.options import HttpOptions
from luce.vision.data_url import data_url, parse_data_url
from luce.vision.decode import check_image

__all__ = ["Picture", "ask", "load_with_progress", "opened", "read_picture", "running"]


@attrs.frozen
class Picture:
    """A picture file that the model can read."""

    name: str
    width: int
    height: int
    """Pixels, as stored."""
    url: str = attrs.field(repr=False)
    """Of the whole file, `data:`."""

    def __str__(self) -> str:
        return f"{self.name}: {self.width}×{self.height} pixels"


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
    chat = await trio.to_thread.run_sync(prepare_chat, text, model, HttpOptions())
    return service.submit(chat.job.submission)


def read_picture(path: Path, preparer: Preparer, flag: str | None = None) -> Picture:
    """A picture file, decoded once to know that the model will be able to.

    Raises:
        ConfigError: it cannot be read, or is no picture that this model takes; names the file, and ``flag``.
    """
    try:
        data = read_file(path.expanduser(), HttpOptions().max_image_bytes)
    except (OSError, ValueError, RuntimeError) as error:  # a NUL in the name; no such home
        raise ConfigError(f"{path}: {reason(error)}", flag=flag) from None
    field = str(path)
    try:
        kind, height, width = check_image(data, field=field)
        url = data_url(data, kind)
        parse_data_url(url, field=field, max_bytes=HttpOptions().max_image_bytes)
        preparer.prepare_image(data, field=field)
    except RequestError as error:
        raise ConfigError(error.message, flag=flag) from None
    return Picture(path.name, width, height, url)
