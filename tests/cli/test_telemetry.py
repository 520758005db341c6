"""`--otel` and what a supervisor is told."""

from __future__ import annotations

import http.server
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from luce.cli.supervisor import notify
from luce.cli.telemetry import telemetry
from luce.errors import ConfigError

PACKAGES = "opentelemetry-sdk and its exporter are not installed (the extra otel)"


def test_nothing_of_it_is_imported_unless_asked_for() -> None:
    program = (
        "import sys, luce.cli.serve, luce.http.app\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    with telemetry(False) as tracer:
        assert tracer is None


def test_without_its_packages_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(ConfigError, match=r"--otel: .* pip install 'luce\[otel\]'"), telemetry(True):
        pass


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin", "'zipkin' is none of otlp, console, none"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "'grpc' is not supported; http/protobuf is"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "'http/json' is not supported; http/protobuf is"),
    ],
)
def test_variables_that_name_what_there_is_not(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    pytest.importorskip("opentelemetry.sdk", reason=PACKAGES)
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as refused, telemetry(True):
        pass
    assert str(refused.value) == f"{name}: {said}"


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """(its address, what was sent there)."""
    came: list[tuple[str, bytes]] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            came.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", came
        server.shutdown()


def test_spans_go_where_the_environment_says_and_the_last_ones_too(
    monkeypatch: pytest.MonkeyPatch, collector: tuple[str, list[tuple[str, bytes]]]
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason=PACKAGES)
    url, came = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=here")
    with telemetry(True) as tracer:
        assert tracer is not None
        with tracer.start_as_current_span("chat fake"):
            pass
    ((path, data),) = came
    assert path == "/v1/traces"
    assert all(
        word in data for word in (b"chat fake", b"service.name", b"luce", b"deployment.environment.name")
    )


def test_a_collector_that_never_answers_holds_up_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither spans that end, more than the queue has room for, nor the end of the server."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason=PACKAGES)
    monkeypatch.setattr("luce.cli.telemetry.FLUSH_SECONDS", 0.2)
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "16")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "16")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with telemetry(True) as tracer:
            assert tracer is not None
            for _ in range(100):
                tracer.start_span("chat fake").end()
            connection, _ = silent.accept()  # it was asked, and says nothing
        flushing = [one for one in threading.enumerate() if one.name == "the last spans"]
        assert flushing and all(one.daemon for one in flushing), "the process may go all the same"
        connection.close()
    for one in flushing:
        one.join(30)


@pytest.mark.parametrize("abstract", [False, True])
def test_a_supervisor_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, abstract: bool) -> None:
    name = f"@luce-{tmp_path.name}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(name.replace("@", "\0", 1))
        supervisor.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        notify("READY=1")
        assert supervisor.recv(100) == b"READY=1"
    for nobody in (name, "", "relative", str(tmp_path / "none")):
        monkeypatch.setenv("NOTIFY_SOCKET", nobody)
        notify("READY=1")
