"""The web application: routes, request ids, JSON for every error."""

from __future__ import annotations

from typing import Any

import msgspec
from quart import Quart, Response, request
from werkzeug.routing import PathConverter

from luce.actors.service import Service
from luce.actors.tallies import RequestTallies
from luce.engines.loaded import LoadedModel
from luce.errors import CapacityError, RequestError, quoted
from luce.http.addresses import install_address_errors
from luce.http.answering.start import Answering
from luce.http.anthropic.messages import Messages
from luce.http.asgi import App
from luce.http.beside_body import install_checks
from luce.http.cors import install_cors
from luce.http.errors import error_body, install_error_handlers, is_anthropic
from luce.http.held_bodies import BodyBudget
from luce.http.keys import ApiKeys, install_keys
from luce.http.metrics import Metrics
from luce.http.openai.chat import Chat
from luce.http.openai.completions import Completions
from luce.http.openai.models import Models
from luce.http.openai.responses.endpoint import Responses
from luce.http.openai.tokenizing import Tokenizing
from luce.http.openapi.endpoint import read_document
from luce.http.options import HttpOptions
from luce.http.props import Props
from luce.http.request_log import record_of
from luce.http.running import cancel, request_ids
from luce.http.slots import Slots
from luce.http.ui.files import is_page_file
from luce.http.ui.routes import install_page

__all__ = ["create_app"]


class _GivenName(PathConverter):
    """A name that callers chose: anything, slashes too."""

    regex = ".+?"
    part_isolating = False


class _GivenNameAlone(_GivenName):
    """At the end of an address, of which another one ends in ``/cancel``."""

    regex = ".+?(?<!/cancel)"


def create_app(service: Service, model: LoadedModel, options: HttpOptions) -> App:
    """The application in front of a service. It owns nothing: the service runs beside it."""
    app = App(BodyBudget(options.max_buffered_bytes))
    app.config.update(
        MAX_CONTENT_LENGTH=options.max_body_bytes,
        RESPONSE_TIMEOUT=None,  # a stream may take as long as it takes; deadlines are the service's
    )
    app.url_map.merge_slashes = False  # a//b is another name than a/b, and answers are JSON, not redirects
    app.url_map.converters |= {"given": _GivenName, "given_alone": _GivenNameAlone}
    install_error_handlers(app)
    install_address_errors(app)
    install_cors(app, options.cors_origins)  # a preflight comes without a key
    install_keys(app, ApiKeys(options.api_keys), is_page_file if options.ui else lambda path: False)
    install_checks(app)
    _install_health(app, service)
    answering = Answering(service, model, options)
    _install_openai(app, answering)
    _install_anthropic(app, answering)
    _install_operation(app, service, model, options)

    @app.after_request
    async def name_request(response: Any) -> Any:
        name = record_of(request).id
        response.headers["x-request-id"] = name
        if is_anthropic(request.path):
            response.headers["request-id"] = name  # what Anthropic's clients show
        return response

    return app


def _install_openai(app: Quart, answering: Answering) -> None:
    chat, text, responses = Chat(answering), Completions(answering), Responses(answering)
    models = Models(answering.model, answering.options)

    @app.post("/v1/chat/completions")
    async def chat_completions() -> Response:
        return await chat(request._get_current_object())  # type: ignore[attr-defined]

    @app.post("/v1/completions")
    async def completions() -> Response:
        return await text(request._get_current_object())  # type: ignore[attr-defined]

    @app.post("/v1/responses")
    async def create_response() -> Response:
        return await responses(request._get_current_object())  # type: ignore[attr-defined]

    for prefix in ("", "/v1"):  # SGLang has them under /v1 as well
        _install_tokenizing(app, Tokenizing(answering), prefix)

    @app.get("/v1/models")
    async def list_models() -> Response:
        return await models.list()

    @app.get("/v1/models/<path:name>")
    async def one_model(name: str) -> Response:
        return await models.one(name)


def _install_tokenizing(app: Quart, tokenizing: Tokenizing, prefix: str) -> None:
    name = prefix.replace("/", "_")

    @app.post(f"{prefix}/tokenize", endpoint=f"tokenize{name}")
    async def tokenize() -> Response:
        return await tokenizing.tokenize(request._get_current_object())  # type: ignore[attr-defined]

    @app.post(f"{prefix}/detokenize", endpoint=f"detokenize{name}")
    async def detokenize() -> Response:
        return await tokenizing.detokenize(request._get_current_object())  # type: ignore[attr-defined]

    @app.post(f"{prefix}/apply-template", endpoint=f"apply_template{name}")
    async def apply_template() -> Response:
        return await tokenizing.apply_template(request._get_current_object())  # type: ignore[attr-defined]


def _install_anthropic(app: Quart, answering: Answering) -> None:
    messages = Messages(answering)

    @app.post("/v1/messages")
    async def create_message() -> Response:
        return await messages(request._get_current_object())  # type: ignore[attr-defined]

    @app.post("/v1/messages/count_tokens")
    async def count_tokens() -> Response:
        return await messages.count(request._get_current_object())  # type: ignore[attr-defined]


def _install_operation(app: App, service: Service, model: LoadedModel, options: HttpOptions) -> None:
    tallies = RequestTallies(service)
    metrics, slots = Metrics(service, tallies, app.tallies, model.name), Slots(service, tallies)
    props = Props(service, model, options)

    @app.get("/metrics")
    async def read_metrics() -> Response:
        return await metrics()

    @app.get("/openapi.json")
    async def openapi() -> Response:
        return await read_document()

    @app.get("/props")
    async def read_props() -> Response:
        return await props()

    @app.get("/slots")
    async def read_slots() -> Response:
        wish = request.args.get("fail_on_no_slot", "0")
        if wish not in ("0", "1"):
            raise RequestError(f"fail_on_no_slot must be 0 or 1, not {quoted(wish)}", field="fail_on_no_slot")
        return await slots(request_ids(app.records), fail_when_full=wish == "1")

    if options.ui:
        install_page(app, service, slots, lambda: request_ids(app.records), options)

    @app.post("/v1/requests/<given:id>/cancel")
    async def cancel_request(id: str) -> Response:  # noqa: A002 - as the address is documented
        return cancel(id, app.records)

    @app.delete("/v1/requests/<given_alone:id>")
    async def delete_request(id: str) -> Response:  # noqa: A002 - as the address is documented
        return cancel(id, app.records)


def _install_health(app: Quart, service: Service) -> None:
    @app.get("/health")
    async def health() -> Response:
        """Live: the process answers and its service has not failed."""
        failed = service.state == "failed"
        return _state("failed" if failed else "ok", 503 if failed else 200)

    @app.get("/ready")
    async def ready() -> Response:
        """Ready: requests are taken, up to the queue's limits."""
        return _state(service.state, 200 if service.ready else 503)

    def _state(state: str, status: int) -> Response:
        body: dict[str, Any] = {"status": state}
        if status != 200:
            body |= error_body(CapacityError(f"the server is {state}"))
        response = Response(msgspec.json.encode(body), status, content_type="application/json")
        if status != 200:
            response.headers["Retry-After"] = "5"
        return response
