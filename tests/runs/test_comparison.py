"""`raygnn report`: runs side by side, and a sweep."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

import raygnn.report
from raygnn.outputs.comparison import compare
from tests.errors import raises
from tests.small_runs import run_rank, small_config


@pytest.fixture(scope="module")
def runs(small_bundle_path: str, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("compared")
    found = []
    for name, width in (("narrow", 4), ("wide", 16)):
        changes = {"run__name": name, "model__args__hidden_channels": width}
        config = small_config(
            folder, scaling__num_workers=0, loader__eval_batch_size=2, job_name=name, **changes
        )
        run_rank(config, small_bundle_path)
        found.append(folder / name)
    return found


def test_runs_stand_side_by_side(runs, tmp_path, capsys):
    out = tmp_path / "out.html"
    assert raygnn.report.main([*map(str, runs), "--out", str(out)]) == 0
    assert str(out) in capsys.readouterr().out
    document = ElementTree.fromstring(out.read_text("utf-8"))
    rows = [["".join(cell.itertext()) for cell in row] for row in document.iter("tr")]
    metrics = [json.loads((run / "metrics.json").read_text()) for run in runs]
    (tested,) = [row[1:] for row in rows if row[0] == "test/accuracy"]
    for cell, of_run in zip(tested, metrics, strict=True):
        low, high = of_run["intervals"]["test/accuracy"]
        assert low <= of_run["test/accuracy"] <= high
        assert cell == f"{of_run['test/accuracy']:.4f} ({low:.4f} to {high:.4f})"
    assert ["model.args.hidden_channels", "4", "16"] in rows
    assert not any(row[0].startswith(("run.", "job_name")) for row in rows)
    scripts = [e for e in document.iter("script") if e.get("type") == "application/json"]
    charts = [json.loads(script.text or "") for script in scripts]
    assert all(chart["names"] == ["narrow", "wide"] for chart in charts)
    assert len(charts) >= 4


def test_runs_of_equal_names_are_named_by_their_folders(runs):
    found = compare([str(runs[0]), f"{runs[0]}/"])
    assert found.tables["How it ended, and what it cost"][0][1:] == (str(runs[0]), f"{runs[0]}/")


def test_a_run_that_has_only_begun_is_shown(runs, tmp_path):
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "run.json").write_text((runs[0] / "run.json").read_text())
    found = compare([str(runs[0]), str(tmp_path / "begun")])
    heads, rows = found.tables["Test metrics, with 95 % intervals"]
    assert heads == ("metric", "narrow", "begun")
    assert all(row[2] == "-" for row in rows)


def test_a_sweep_shows_its_trials(runs, tmp_path):
    trials = [
        {
            "trial": run.name,
            "values": {"model.args.hidden_channels": width},
            "status": "finished",
            "best": 0.5,
            "num_validations": 2,
            "error": None,
        }
        for run, width in [*zip(runs, (4, 16), strict=True), (Path("failed"), 8)]
    ]
    for run in runs:
        (tmp_path / run.name).symlink_to(run)
    content = {"metric": "val/accuracy", "mode": "max", "trials": trials}
    (tmp_path / "trials.json").write_text(json.dumps(content))
    found = compare([str(tmp_path)])
    assert [row[0] for row in found.tables["Trials"][1]] == ["narrow", "wide", "failed"]
    assert len(found.sweep_charts[0].series) == 3
    assert {chart.title for chart in found.charts} == {"val/accuracy", "val/loss"}
    ElementTree.fromstring(found.html())


def test_what_is_no_run_is_refused(tmp_path, capsys):
    with raises("report-no-run", str(tmp_path)):
        compare([str(tmp_path)])
    assert raygnn.report.main([str(tmp_path)]) == 2
    assert "report-no-run" in capsys.readouterr().err
