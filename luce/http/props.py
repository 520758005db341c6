"""GET /props: what this server is and can do, in a shape that is versioned."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import PurePath
from typing import Any

import attrs
import msgspec
from quart import Response, current_app

from luce.actors.service import Service
from luce.engines.loaded import LoadedModel
from luce.http.addresses import addresses
from luce.http.image_sources.hosts import HostRule
from luce.http.options import HttpOptions

__all__ = ["SCHEMA", "Props"]

SCHEMA = 2
"""Grows when a field changes its meaning or goes; new fields leave it as it is."""


class Props:
    """The endpoint. Limits and budgets are those in force, wherever they came from."""

    def __init__(self, service: Service, model: LoadedModel, options: HttpOptions) -> None:
        self._service = service
        self._model = model
        self._options = options

    async def __call__(self) -> Response:
        body = {
            "schema": SCHEMA,
            "version": _version(),
            "state": self._service.state,
            "model": self._describe_model(),
            "capabilities": self._capabilities(),
            "limits": self._limits(),
            "memory": self._memory(),
            "caches": self._caches(),
            "endpoints": addresses(current_app),
            "access": {
                "api_keys": len(self._options.api_keys),
                "cors_origins": self._options.cors_origins,
                "tls": self._options.tls is not None,
            },
            "settings": {"http": _shown(self._options), "service": _shown(self._service.options)},
        }
        return Response(msgspec.json.encode(body), content_type="application/json")

    def _describe_model(self) -> Mapping[str, Any]:
        model, capabilities = self._model, self._model.engine.capabilities
        return {
            "name": model.name,
            "aliases": self._options.aliases,
            "created": model.created,
            "system_fingerprint": model.fingerprint,
            "input_modalities": ["text", "image"] if capabilities.images else ["text"],
            "vocab_size": capabilities.vocab_size,
            "num_layers": capabilities.num_layers,
            "sampling_defaults": {
                name: {"value": value, "source": model.defaults.source(name)}
                for name, value in model.defaults.values.items()
            },
        }

    def _capabilities(self) -> Mapping[str, Any]:
        found = self._model.engine.capabilities
        return {
            "images": found.images,
            "image_urls": self._options.image_sources.schemes if found.images else (),
            "prefix_cache": self._service.loop.memory.cache.enabled,
            "parking": found.parking,
            "recomputable": found.recomputable,
            "staged_passes": found.whole_image_blocks,
            "speculation": found.speculation,
            "steps_in_flight": self._service.loop.depth,
        }

    def _limits(self) -> Mapping[str, Any]:
        found, service, http = self._model.engine.capabilities, self._service.options, self._options
        return {
            "slots": found.num_slots,
            "max_context": found.max_context,
            "prefill_rows": service.prefill_budget,
            "max_queued": service.max_queued,
            "max_queued_tokens": self._service.max_queued_tokens,
            "queue_timeout": service.queue_timeout,
            "request_timeout": service.request_timeout,
            "client_timeout": service.client_timeout,
            "drain_timeout": service.drain_timeout,
            "body_timeout": http.body_timeout,
            "head_timeout": http.head_timeout,
            "idle_timeout": http.idle_timeout,
            "max_connections": http.max_connections,
            "max_streams": http.max_streams,
            "max_body_bytes": http.max_body_bytes,
            "max_buffered_bytes": http.max_buffered_bytes,
            "max_choices": http.max_choices,
            "max_images": http.max_images,
            "max_image_bytes": http.max_image_bytes,
            "max_image_pixels": getattr(getattr(self._model.preparer, "limits", None), "max_pixels", None),
            "max_total_image_bytes": http.image_sources.max_total_bytes,
            "max_total_image_pixels": http.max_total_pixels,
        }

    def _memory(self) -> Mapping[str, Any]:
        found = self._model.engine.capabilities
        return {
            "plan": dict(self._model.memory),
            "plan_total": sum(self._model.memory.values()),
            "bytes_per_token": found.bytes_per_token,
            "bytes_per_slot": found.bytes_per_slot,
        }

    def _caches(self) -> Mapping[str, Any]:
        memory, pictures = self._service.loop.memory, self._service.encoder.cache
        pool, prefixes = memory.pool, memory.cache
        return {
            "kv": {
                "block_size": pool.block_size,
                "blocks": pool.num_blocks,
                "held": pool.held,
                "cached": pool.cached,
                "free": pool.free,
            },
            "prefixes": {
                "budget_bytes": prefixes.budget,
                "bytes": prefixes.index.device_bytes,
                "entries": len(prefixes.index),
                **attrs.asdict(prefixes.index.stats),
            },
            "pictures": {
                "budget_bytes": pictures.budget,
                "bytes": pictures.bytes,
                **attrs.asdict(pictures.stats),
            },
            "parked": {"budget_bytes": self._service.options.park_bytes, "bytes": memory.saved_bytes},
        }


def _shown(options: Any) -> Mapping[str, Any]:
    """Every option by name. What its class does not show is left out, and of a path only that there is one."""
    fields = [field.name for field in attrs.fields(type(options)) if field.repr]
    return {name: _value(getattr(options, name)) for name in fields}


def _value(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_value(item) for item in value]
    if isinstance(value, HostRule):
        return str(value)
    return _shown(value) if attrs.has(type(value)) else isinstance(value, PurePath) or value


def _version() -> str | None:
    try:
        return version("luce")
    except PackageNotFoundError:
        return None
