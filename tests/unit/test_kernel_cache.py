"""What importing raygnn sets for numba and OpenMP."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from raygnn.process_start import keep_kernels


@pytest.fixture(autouse=True)
def _read_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file system on which only the temporary folder can be written."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")  # so that it is what it was after the test
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))


def _own(tmp_path: Path) -> Path:
    return tmp_path / f"raygnn-kernels-{os.getuid()}"


def test_a_temporary_folder_is_shared_by_all_processes_of_a_user(tmp_path: Path):
    keep_kernels()
    assert os.environ["NUMBA_CACHE_DIR"] == str(_own(tmp_path))
    assert _own(tmp_path).stat().st_mode & 0o077 == 0


def test_a_folder_that_others_can_write_is_not_trusted(tmp_path: Path):
    _own(tmp_path).mkdir()
    _own(tmp_path).chmod(0o777)
    keep_kernels()
    chosen = Path(os.environ["NUMBA_CACHE_DIR"])
    assert chosen.parent == tmp_path
    assert chosen != _own(tmp_path)
    assert chosen.stat().st_mode & 0o077 == 0


def test_a_link_to_elsewhere_is_not_followed(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    _own(tmp_path).symlink_to(tmp_path / "elsewhere")
    keep_kernels()
    assert Path(os.environ["NUMBA_CACHE_DIR"]).resolve() != tmp_path / "elsewhere"


def test_what_is_set_or_can_be_written_stays(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "access", lambda path, mode: True)
    keep_kernels()
    assert "NUMBA_CACHE_DIR" not in os.environ
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/mine")
    keep_kernels()
    assert os.environ["NUMBA_CACHE_DIR"] == "/mine"


def test_no_place_at_all_is_left_to_numba(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "missing"))
    keep_kernels()
    assert "NUMBA_CACHE_DIR" not in os.environ


PRINTS = (
    "import os, sys; import raygnn; print('torch' in sys.modules, os.environ.get('GOMP_SPINCOUNT'))"
)


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")],
)
def test_threads_wait_briefly_unless_the_user_says_how(given, expected):
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    env = {name: value for name, value in os.environ.items() if name not in names} | given
    done = subprocess.run(
        [sys.executable, "-c", PRINTS], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", expected]
