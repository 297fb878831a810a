"""The command `raygnn`: what it hands over, what it answers itself, and what the doctor finds."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import raygnn
import raygnn.__main__ as command
from raygnn import doctor
from raygnn.command_line import exit_status_of
from raygnn.config import load_config
from raygnn.errors import RunError

ROOT = Path(__file__).parents[2]
#: What takes long to import, or would start something.
HEAVY = {"torch", "numpy", "pyarrow", "ray", "pydantic", "yaml"}


@pytest.mark.parametrize("argv", [[], ["--help"], ["version"]])
def test_help_and_version_import_nothing(argv):
    code = (
        "import sys, raygnn.__main__ as c; status = c.main(sys.argv[1:]); "
        f"assert not {HEAVY} & set(sys.modules); sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if argv == ["version"]:
        assert done.stdout == f"{raygnn.__version__}\n"
    else:
        assert all(f"\n  {name} " in done.stdout for name in command.COMMANDS)


def test_a_command_is_its_module(capsys):
    example = str(ROOT / "examples" / "quickstart.yaml")
    assert command.main(["train", example, "--print-config", "--seed", "5"]) == 0
    assert "\nseed: 5\n" in "\n" + capsys.readouterr().out
    assert command.main(["infer"]) == 2
    assert "command-model-missing" in capsys.readouterr().err
    assert command.main(["tune"]) == 2
    assert "command-config-missing" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        command.main(["prepare", "--help"])
    assert ended.value.code == 0
    assert "draft" in capsys.readouterr().out


@pytest.mark.parametrize("name", [n for n in command.COMMANDS if n != "version"])
def test_every_command_shows_examples(name, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main([name, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert re.search(rf"\nexamples?:\n(  .*\n)*  raygnn {name}", shown)


def test_options_of_training_stand_in_groups(capsys):
    with pytest.raises(SystemExit):
        command.main(["train", "--help"])
    shown = capsys.readouterr().out
    groups = ["options:", "instead of a run:", "output:", "print or export, and stop:"]
    places = [shown.index(f"\n{group}\n") for group in groups]
    assert places == sorted(places)


def test_what_is_no_command_is_refused(capsys):
    assert command.main(["trian"]) == 2
    told = capsys.readouterr().err
    assert "command-unknown" in told
    assert "'trian'" in told
    assert "train" in told


def test_errors_have_names_of_the_environment(capsys, monkeypatch):
    monkeypatch.setenv("WHERE", "hunter2-hunter2")

    def fail() -> None:
        load_config("{run: {storage_path: '${env:WHERE}/runs'}}")
        raise RunError("run.storage_path='hunter2-hunter2/runs' is invalid")

    assert exit_status_of(fail, interrupted="") == RunError.exit_status
    assert "run.storage_path='${env:WHERE}/runs'" in capsys.readouterr().err


def test_the_console_script_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"raygnn": "raygnn.__main__:run"}


def test_the_doctor_finds_this_machine_well(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("RAYGNN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert doctor.main([str(tmp_path / "runs"), "memory://bucket/runs"]) == 0
    told = capsys.readouterr().out
    for word in ("Python 3", "torch 2", "ray 2", "CPU cores", "GB of memory", "RAY_ADDRESS"):
        assert word in told
    assert f"folder {tmp_path / 'runs'} can be written" in told
    assert "bucket memory://bucket/runs can be written" in told
    assert not list((tmp_path / "runs").iterdir())


def test_the_doctor_says_what_to_set(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("RAYGNN_CACHE_DIR", "gs://bucket/cache")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setattr("raygnn.runtime.connection._ANSWERS_WITHIN_S", 0.0)
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert doctor.main([str(blocked / "runs"), "nosuch://bucket"]) == 1
    lines = capsys.readouterr().out.splitlines()
    failed = [line for line in lines if line.startswith("fail")]
    assert len(failed) == 4
    assert "Set RAYGNN_CACHE_DIR to a local folder" in failed[0]
    assert "cluster-unreachable" in failed[1]
    assert all("cannot be used" in line for line in failed[2:])
