"""`pip install -e .`, as `make quickstart` does it, is found from every folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project in a folder called raygnn."""
    folder = tmp_path_factory.mktemp("parent") / "raygnn"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "raygnn", folder / "raygnn", ignore=ignored)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def python(clone: Path) -> Path:
    """Python of a new environment with the clone installed; the packages it needs are borrowed."""
    environment = clone.parent / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = environment / "lib" / version / "site-packages"
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = environment / "bin" / "python"
    install = ["-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "-e", clone]
    subprocess.run([python, *install], check=True, env=_environment(), cwd=clone)
    return python


def _environment() -> dict[str, str]:
    """Without what leads this test to its own raygnn."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.mark.parametrize("place", ["", "elsewhere", "raygnn", "raygnn/raygnn"])
def test_a_script_in_any_folder_imports_raygnn(clone: Path, python: Path, place: str) -> None:
    folder = clone.parent / place
    folder.mkdir(exist_ok=True)
    script = folder / "script.py"
    script.write_text("import raygnn.errors\nprint(raygnn.errors.__file__, raygnn.__version__)\n")
    command = [python, script] if place != "raygnn/raygnn" else [python, "-c", script.read_text()]
    run = subprocess.run(command, cwd=folder, env=_environment(), capture_output=True, text=True)
    script.unlink()
    assert run.returncode == 0, run.stderr
    assert run.stdout.split()[0] == str(clone / "raygnn" / "errors.py")
