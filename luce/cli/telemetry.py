"""OpenTelemetry for `luce serve --otel`: where spans go is said by the standard ``OTEL_…`` variables.

Spans leave from a thread of their own and are dropped when it does not keep up, so a collector that is slow or gone
holds up nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from luce.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

__all__ = ["telemetry"]

EXPORTERS = ("otlp", "console", "none")
FLUSH_SECONDS = 5.0
"""For the last spans, when the server has ended."""


@contextmanager
def telemetry(wanted: bool) -> Iterator[Tracer | None]:
    """A tracer while it lasts, None without ``wanted``. On the way out the last spans are sent.

    Raises:
        ConfigError: packages are missing, or a variable names what there is not.
    """
    if not wanted:
        yield None
        return
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise _missing() from None
    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    resource = Resource.create(
        {"service.version": version("luce")} | ({} if named else {"service.name": "luce"})
    )
    exporter = _exporter()
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    if exporter is not None:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    try:
        yield provider.get_tracer("luce", version("luce"))
    finally:
        last = threading.Thread(target=provider.shutdown, name="the last spans", daemon=True)
        last.start()
        last.join(FLUSH_SECONDS)


def _exporter() -> Any:
    kind = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    if kind not in EXPORTERS:
        raise ConfigError(f"{kind!r} is none of {', '.join(EXPORTERS)}", flag="OTEL_TRACES_EXPORTER")
    if kind == "none":
        return None
    if kind == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter()
    variables = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    for name in variables:
        if os.environ.get(name, "http/protobuf") != "http/protobuf":
            raise ConfigError(f"{os.environ[name]!r} is not supported; http/protobuf is", flag=name)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise _missing() from None
    return OTLPSpanExporter()


def _missing() -> ConfigError:
    return ConfigError("the packages for it are not installed; pip install 'luce[otel]'", flag="--otel")
