"""The command `raygnn`, its doctor, and options and exit statuses of small commands."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import raygnn
import raygnn.__main__ as command
import raygnn.tune
from raygnn import doctor
from raygnn.command_line import exit_status_of
from raygnn.config import load_config
from raygnn.data.partition.part import open_partitioned
from raygnn.data.partition.record import PartitionRecord
from raygnn.data.tables.graph_tables import write_tables
from raygnn.errors import RunError
from raygnn.prepare.synthetic import synthetic_tables
from tests.errors import assert_reports

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


@pytest.mark.parametrize("given", [[], ["--out", "samples", "--epochs", "0"]])
def test_it_needs_a_folder_and_epochs(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["presample", "train.yaml", *given]) == 2
    assert_reports(capsys.readouterr().err, "presample-options", *given)


def test_what_is_not_presampled_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.yaml").write_text("{data: {uri: graph}, task: self_supervised}")
    given = ["presample", str(tmp_path / "train.yaml"), "--out", str(tmp_path / "samples")]
    assert command.main(given) == 2
    assert_reports(capsys.readouterr().err, "samples-task", "self_supervised")


def test_keys_of_the_config_are_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.yaml").write_text("data: {uri: graph}")
    given = ["presample", str(tmp_path / "train.yaml"), "--out", "s", "--seed", "7"]
    assert command.main([*given, "--print-config"]) == 0
    shown = capsys.readouterr().out
    assert "\nseed: 7\n" in "\n" + shown
    assert "samples: s" in shown


EXAMPLES = Path(__file__).parents[2] / "examples"


def test_print_config_shows_the_sweep(capsys):
    assert raygnn.tune.main([str(EXAMPLES / "sweep.yaml"), "--print-config"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["tune"]["scheduler"]["type"] == "asha"
    assert shown["tune"]["space"]["optimizer.args.lr"]["loguniform"] == [1e-4, 1e-1]


def test_wrong_input_has_status_2(capsys):
    assert raygnn.tune.main([]) == 2
    assert "CONFIG comes first" in capsys.readouterr().err
    wrong = [str(EXAMPLES / "sweep.yaml"), "--tune.mode", "most"]
    assert raygnn.tune.main(wrong) == 2
    assert "--tune.mode: tune.mode='most' is invalid" in capsys.readouterr().err


def test_a_sweep_under_a_name_that_is_taken_is_refused(capsys, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "run.json").write_text('{"status": "finished", "fingerprint": "x"}')
    alone = tmp_path / "alone.yaml"  # as `raygnn prepare` writes it
    alone.write_text("data: {uri: graph}\nscaling: {num_workers: 0}\n")
    place = ["--run.storage_path", str(tmp_path), "--run.name", "mine"]
    for config in (EXAMPLES / "sweep.yaml", alone):
        assert raygnn.tune.main([str(config), "--tune.num_samples", "2", *place]) == 2
        assert "that run has finished. Set run.overwrite to true" in capsys.readouterr().err


def _tables(folder: Path) -> str:
    tables = synthetic_tables(
        "planted_partition", num_nodes=60, num_classes=3, avg_degree=6, num_features=5
    )
    return write_tables(tables, str(folder / "tables"))


def test_it_reports_cut_and_balance_of_each_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "parts")
    given = ["partition", _tables(tmp_path), "--parts", "3", "--out", out, "--method", "range"]
    assert command.main(given) == 0
    bundle = open_partitioned(out, tmp_path / "cache")
    (edge_type,) = bundle.edge_types
    csc, lines = bundle.csc(edge_type), capsys.readouterr().out.splitlines()
    num_cut = sum(
        source // 20 != target // 20
        for target in range(60)
        for source in csc.indices[csc.indptr[target] : csc.indptr[target + 1]].tolist()
    )
    counts = [int(csc.indptr[stop] - csc.indptr[stop - 20]) for stop in (20, 40, 60)]
    by_type = {line.split()[0]: line.split()[1:] for line in lines[-2:]}
    (edges, nodes) = by_type["__".join(edge_type)], by_type[edge_type[0]]
    assert nodes == ["60", "1.00"]
    balance, cut = f"{max(counts) * 3 / sum(counts):.2f}", f"{num_cut / sum(counts):.1%}"
    assert edges == [f"{sum(counts):,}", balance, cut]


def test_a_config_chooses_the_rows_to_fit_on(tmp_path: Path) -> None:
    config, out = tmp_path / "train.yaml", tmp_path / "parts"
    given = ["partition", _tables(tmp_path), "--parts", "2", "--out", str(out)]
    config.write_text("task: node_classification\ndata: {splits: {type: hash}}\n")
    assert command.main([*given, "--config", str(config)]) == 0
    fit = PartitionRecord.load(out).whole.fit
    assert fit is not None
    assert re.fullmatch(r"the \d\d training rows of node", fit.rows)
    config.write_text("task: link_predictions\n")
    assert command.main([*given, "--config", str(config)]) == 2


def test_wrong_input_is_exit_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["partition", _tables(tmp_path), "--parts", "99", "--out", str(tmp_path / "parts")]
    assert command.main(given) == 2
    assert_reports(capsys.readouterr().err, "partition-too-many-parts", 99, 60)
