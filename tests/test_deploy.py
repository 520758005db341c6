"""Container files and the systemd unit name what there is: files, flags, variables, extras."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import subprocess
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from luce.actors.options import ServiceOptions
from luce.cli import main as command
from luce.http.options import HttpOptions

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
SERVE = {name for one in command.arguments_of(command.build_app(None), ["serve"]) for name in one.names}
LONGEST_END = ServiceOptions().drain_timeout + ServiceOptions().abort_timeout + HttpOptions().exit_grace
"""Seconds from the first signal, with the defaults."""


def instructions() -> list[tuple[str, str]]:
    """(word, rest) of each, continued lines joined."""
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def stages() -> dict[str, list[tuple[str, str]]]:
    """Instructions by stage, those of the stage below first."""
    found: dict[str, list[tuple[str, str]]] = {}
    current: list[tuple[str, str]] = []
    for word, rest in instructions():
        if word == "FROM":
            below, _, name = rest.split()
            found[name] = current = list(found.get(below, []))
        elif word != "ARG":
            current.append((word, rest))
    return found


def variables_are_flags(text: str) -> None:
    for name in re.findall(r"\bLUCE_([A-Z_]+)", text):
        assert f"--{name.lower().replace('_', '-')}" in SERVE, name


def flags_exist(words: list[str]) -> None:
    assert {word.split("=")[0] for word in words if word.startswith("--")} <= SERVE


def test_dockerfiles_name_what_there_is() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    variables_are_flags(text)
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for word, rest in instructions():
        if word == "COPY":
            *sources, _ = [part for part in rest.split() if not part.startswith("--")]
            for source in sources:
                assert (ROOT / source).exists(), source
                assert f"!{source}" in ignored, f"{source} is kept out of the build"
    extras = {one for found in re.findall(r"whl\)\[([\w,]+)\]", text) for one in found.split(",")}
    assert {"cuda12", "rocm", "otel"} <= extras <= EXTRAS.keys()


@pytest.mark.parametrize("name", ["cpu", "cuda", "rocm"])
def test_every_image_is_fit_to_run(name: str) -> None:
    stage = stages()[name]
    said = dict(stage)  # the last one of each word holds
    assert said["USER"] == "luce", "not root"
    assert said["STOPSIGNAL"] == "SIGTERM" and said["EXPOSE"] == "8000"
    assert "/opt/luce/healthcheck.py" in said["HEALTHCHECK"]
    assert shlex.split(said["ENTRYPOINT"].strip("[]")) == ["luce"]
    assert '"serve"' in said["CMD"]
    assert any("--uid" in rest for word, rest in stage if word == "RUN"), "a user of a known number"
    assert not any("gguf" in rest and "rm " not in rest for _, rest in stage), "no model inside"
    installed = [rest for word, rest in stage if word == "RUN" and "pip install" in rest]
    assert len(installed) == 1 and "--no-cache-dir" in installed[0]


def test_the_wheel_of_the_images_has_no_model() -> None:
    wheel = stages()["wheel"]
    places = [index for index, (_, rest) in enumerate(wheel) if "rm luce/demo/model/*.gguf" in rest]
    assert places and "pip wheel" in wheel[places[0]][1]
    assert list((ROOT / "luce" / "demo" / "model").glob("*.gguf"))


def test_the_last_stage_is_the_cpu_one() -> None:
    """What is built when no target is named."""
    assert list(stages())[-1] == "cpu"


def test_compose_names_what_there_is() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    variables_are_flags(re.sub(r"#.*", "", text))
    assert re.search(r"^      target: (\w+)$", text, re.M)[1] in stages()  # type: ignore[index]
    flags_exist(re.findall(r'"(--[\w-]+)"', text))
    grace = float(re.search(r"stop_grace_period: (\d+)s", text)[1])  # type: ignore[index]
    assert grace >= LONGEST_END


def unit() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "luce.service").read_text().splitlines():
        if line and line[0] not in "#[":
            name, value = line.split("=", 1)
            found.setdefault(name, []).append(value)
    return found


def test_unit_names_what_there_is() -> None:
    said = unit()
    (start,) = said["ExecStart"]
    words = shlex.split(start)
    assert words[1] == "serve"
    flags_exist(words)
    variables_are_flags(" ".join(said["Environment"]))
    assert said["Type"] == ["notify"] and said["KillSignal"] == ["SIGTERM"]
    assert float(said["TimeoutStopSec"][0].rstrip("s")) >= LONGEST_END
    assert said["RestartPreventExitStatus"] == [str(command.EXIT_USAGE)]
    for name in ("DynamicUser", "NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices"):
        assert said[name] == ["yes"], name
    assert said["ProtectSystem"] == ["strict"] and said["CapabilityBoundingSet"] == [""]
    assert "ProcSubset" not in said, "free memory is read from /proc/meminfo"


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not here")
    here = tmp_path / "luce.service"
    here.write_text((DEPLOY / "luce.service").read_text().replace("/opt/luce/bin/luce", "/bin/true"))
    done = subprocess.run([program, "verify", str(here)], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and str(here) not in done.stderr, done.stderr


@pytest.mark.parametrize("status", [200, 503, None])
def test_the_health_check(monkeypatch: pytest.MonkeyPatch, status: int | None) -> None:
    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if status and self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        monkeypatch.setenv("LUCE_PORT", str(server.server_port))
        monkeypatch.setenv("no_proxy", "*")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        if status is None:
            server.shutdown()
            server.server_close()
        if status == 200:
            runpy.run_path(str(DEPLOY / "healthcheck.py"))
        else:
            with pytest.raises(SystemExit) as ended:
                runpy.run_path(str(DEPLOY / "healthcheck.py"))
            assert ended.value.code not in (0, None)
        if status is not None:
            server.shutdown()
