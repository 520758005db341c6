"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

import msgspec
from msgspec import Struct
from quart import Response

from luce.engines.loaded import LoadedModel
from luce.http.answering.prepare import check_model
from luce.http.options import HttpOptions

__all__ = ["Models"]


class ModelCard(Struct, frozen=True):
    id: str
    created: int
    max_model_len: int
    input_modalities: list[str]
    object: str = "model"
    owned_by: str = "luce"


class ModelList(Struct, frozen=True):
    data: list[ModelCard]
    object: str = "list"


class Models:
    def __init__(self, model: LoadedModel, options: HttpOptions) -> None:
        self._model = model
        self._options = options

    def _card(self, name: str) -> ModelCard:
        capabilities = self._model.engine.capabilities
        modalities = ["text", "image"] if capabilities.images else ["text"]
        return ModelCard(name, self._model.created, capabilities.max_context, modalities)

    async def list(self) -> Response:
        cards = [self._card(name) for name in (self._model.name, *self._options.aliases)]
        return _json(ModelList(cards))

    async def one(self, name: str) -> Response:
        check_model(name, self._model, self._options)
        return _json(self._card(name))


def _json(value: Struct) -> Response:
    return Response(msgspec.json.encode(value), content_type="application/json")
