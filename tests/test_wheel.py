"""The wheel holds what the program reads at run time: charts, kernels, the bundled model."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="NOT TESTED: hatchling is not installed")
    out = tmp_path_factory.mktemp("wheel")
    build = ("-m", "hatchling", "build", "-t", "wheel", "-d", str(out))
    subprocess.run([sys.executable, *build], cwd=ROOT, check=True, capture_output=True)
    (found,) = out.glob("*.whl")
    return found


def test_it_holds_what_is_read(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {f"luce/_statecharts/{path.name}" for path in (ROOT / "statecharts").glob("*.scxml")}
    wanted |= {
        f"luce/_kernels/{path.relative_to(ROOT / 'kernels')}"
        for path in (ROOT / "kernels").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    sources = [
        path
        for path in (ROOT / "luce").rglob("*")
        if path.suffix in (".py", ".gguf", ".typed", ".json", ".html")
    ]
    wanted |= {str(path.relative_to(ROOT)) for path in sources}
    assert len(wanted) > 250 and "luce/demo/model/luce-demo.gguf" in wanted
    assert wanted - names == set()
    assert not [name for name in names if name.startswith(("tests/", "tools/", "benchmarks/"))]


def test_it_runs_from_where_it_is_unpacked(wheel: Path, tmp_path: Path) -> None:
    """Charts and model are found without the repository beside them."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    run = "from luce.cli.main import main; main()"
    for words, said in ((["charts", "check"], "request "), (["inspect"], str(tmp_path))):
        # Isolated, with this wheel before what is installed.
        program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {run}"
        command = [sys.executable, "-I", "-c", program, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert said in done.stdout
