"""`raygnn report`: runs side by side, and a sweep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import yaml

import raygnn
import raygnn.report
import raygnn.train
from raygnn.config import load_config
from raygnn.data.tables.graph_tables import GraphTables, NodeRows, edge_rows, write_tables
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
    ((*tested, best),) = [row[1:] for row in rows if row[0] == "test/accuracy"]
    values = {run.name: of_run["test/accuracy"] for run, of_run in zip(runs, metrics, strict=True)}
    assert values[best] == max(values.values())
    (majority,) = (row[1:] for row in rows if row[0] == "majority/test/accuracy")
    for cell, of_run in zip(majority, metrics, strict=True):
        name = "baseline/majority/test/accuracy"
        value, error = of_run[name], of_run["standard_errors"][name]
        assert cell == f"{value:.4f} (± {1.96 * error:.2g})"
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


JOINT: dict[str, Any] = {
    "genre": {"type": "node_classification", "args": {"target": "film"}},
    "spends": {"type": "node_classification", "args": {"target": "user"}, "weight": 0.5},
    "rating": {"type": "edge_prediction"},
}


def _write_run(folder: Path, metrics: dict[str, Any], **config: Any) -> str:
    """A run as its files say it is."""
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    (folder / "config.yaml").write_text(load_config(config).saved_yaml())
    (folder / "metrics.json").write_text(json.dumps(metrics))
    validated = {k.replace("test/", "val/"): v for k, v in metrics.items() if "test/" in k}
    (folder / "history.jsonl").write_text(json.dumps({"step": 1, "train/loss": 2.0, **validated}))
    return str(folder)


def test_the_task_of_a_run_stands_beside_the_same_of_several(tmp_path):
    joint = {"test/loss": 3.0, "test/genre/loss": 1.0, "test/genre/f1": 0.5, "test/rating/r2": 0.3}
    intervals = {"test/f1": [0.5, 0.7]}
    found = compare(
        [
            _write_run(tmp_path / "joint", joint, tasks=JOINT),
            _write_run(
                tmp_path / "genre",
                {"test/loss": 0.9, "test/f1": 0.6, "intervals": intervals},
                task={"args": {"target": "film", "label": "genre"}},
            ),
            _write_run(tmp_path / "rating", {"test/r2": 0.4}, task="edge_prediction", seed=1),
        ]
    )
    assert found.tables["Test metrics, with 95 % intervals"][1] == [
        ("test/loss", "3.0000", "-", "-", "-"),
        ("test/genre/loss", "1.0000", "0.9000", "-", "genre"),
        ("test/genre/f1", "0.5000", "0.6000 (0.5000 to 0.7000)", "-", "-"),
        ("test/rating/r2", "0.3000", "-", "0.4000", "rating"),
    ]
    drawn = {chart.title: [line.name for line in chart.series] for chart in found.charts}
    assert drawn == {
        "val/loss": ["joint"],
        "val/genre/loss": ["joint", "genre"],
        "train/loss": ["joint"],
        "train/genre/loss": ["genre"],
        "train/rating/loss": ["rating"],
        "val/genre/f1": ["joint", "genre"],
        "val/rating/r2": ["joint", "rating"],
    }
    differing = {row[0]: row[1:] for row in found.tables["Differences between the configs"][1]}
    kind = "node_classification"
    assert differing == {
        "seed": ("0", "0", "1"),
        "tasks.genre.type": (kind, kind, "-"),
        "tasks.genre.args.target": ("film", "film", "-"),
        "tasks.genre.args.label": ("-", "genre", "-"),
        "tasks.spends.type": (kind, "-", "-"),
        "tasks.spends.args.target": ("user", "-", "-"),
        "tasks.spends.weight": ("0.5", "-", "-"),
        "tasks.rating.type": ("edge_prediction", "-", "edge_prediction"),
    }


@pytest.mark.parametrize("task", ["node_classification", "link_prediction"])
def test_a_task_that_may_be_several_or_none_stands_alone(tmp_path, task):
    joint = _write_run(tmp_path / "joint", {"test/genre/f1": 0.5}, tasks=JOINT)
    alone = _write_run(tmp_path / "alone", {"test/f1": 0.6}, task=task)
    found = compare([joint, alone])
    names = [row[0] for row in found.tables["Test metrics, with 95 % intervals"][1]]
    assert names == ["test/genre/f1", "test/f1"]
    differing = found.tables["Differences between the configs"][1]
    assert ("task.type", "several_tasks", task) in differing
    assert [row for row in differing if row[0].endswith((".losses", ".metrics", "tasks"))] == []


def test_runs_of_equal_names_are_named_by_their_folders(runs):
    found = compare([str(runs[0]), f"{runs[0]}/"])
    assert found.tables["Result and cost"][0][1:] == (str(runs[0]), f"{runs[0]}/")


def test_a_run_that_has_only_begun_is_shown(runs, tmp_path):
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "run.json").write_text((runs[0] / "run.json").read_text())
    found = compare([str(runs[0]), str(tmp_path / "begun")])
    heads, rows = found.tables["Test metrics, with 95 % intervals"]
    assert heads == ("metric", "narrow", "begun", "best")
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
    assert {chart.title for chart in found.charts} == {"val/accuracy", "val/loss"}
    ElementTree.fromstring(found.html())


def test_what_is_no_run_is_refused(tmp_path, capsys):
    with raises("report-no-run", str(tmp_path)):
        compare([str(tmp_path)])
    assert raygnn.report.main([str(tmp_path)]) == 2
    assert "report-no-run" in capsys.readouterr().err


@pytest.fixture(scope="module")
def on_other_rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of a graph: `old` was trained and tested on 120 of 200 nodes, `new` on all of them, and
    `leaky` on other ones.
    """
    folder = tmp_path_factory.mktemp("rows")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4)).astype(np.float32)
    order, found = rng.permutation(200), {}
    ends = rng.integers(0, 200, (2, 600))
    splits = {
        "old": ["train"] * 60 + ["val"] * 20 + ["test"] * 40 + [None] * 80,
        "leaky": [None] * 20 + ["val"] * 40 + ["test"] * 40 + ["train"] * 100,
        "new": ["train"] * 60 + ["val"] * 20 + ["test"] * 120,
    }
    for name, split in splits.items():
        given = pd.DataFrame({"id": order, "y": x[order, 0] > 0, "split": split})
        given["x"] = list(x[order])
        rows = NodeRows(given.sort_values("id"), "id", {"x": "x"}, {"y": "y"}, split="split")
        tables = GraphTables({"n": rows}, {("n", "to", "n"): edge_rows(*ends)})
        uri = write_tables(tables, str(folder / f"graph-{name}"))
        data = {"uri": uri, "cache_dir": str(folder / "cache")}
        changes = {"data": data, "run__name": name, "metrics": [{"type": "accuracy"}]}
        raygnn.train.fit(small_config(folder, scaling__num_workers=0, **changes))
        found[name] = folder / name
    return found


@pytest.mark.slow
def test_runs_of_other_rows_are_compared_on_those_of_the_newest(
    on_other_rows: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = on_other_rows["old"], on_other_rows["new"]
    of_old, of_new = (json.loads((run / "metrics.json").read_text()) for run in (old, new))
    assert of_old["test_rows"] != of_new["test_rows"]
    out = tmp_path / "out.html"

    def cells(*runs: Path) -> dict[str, list[str]]:
        assert raygnn.report.main([*map(str, runs), "--out", str(out)]) == 0
        rows = [[cell.text or "" for cell in row] for row in ElementTree.parse(out).iter("tr")]
        return {row[0]: row[1:] for row in rows}

    compared = cells(old, new)
    assert "of the test rows of new, the newest run" in capsys.readouterr().out
    graph = yaml.safe_load((new / "config.yaml").read_text())["data"]["uri"]
    own = raygnn.load(str(old)).evaluate(graph, split="test")["accuracy"]
    assert own != of_old["test/accuracy"]
    *values, best = compared["test/accuracy"]
    for value, cell in zip((own, of_new["test/accuracy"]), values, strict=True):
        assert cell.startswith(f"{value:.4f} (")
    assert best == ("old" if own >= of_new["test/accuracy"] else "new")
    assert compared["test/loss"][::2] == ["-", "-"]
    assert compared["majority/test/accuracy"][0] == "-"
    assert cells(on_other_rows["leaky"], new)["test/accuracy"][2] == "-"
    assert "leaky learned from some of the test rows of new" in capsys.readouterr().out
    Path(graph).rename(tmp_path / "moved")  # the graph is not where the run found it
    assert cells(old, new)["test/accuracy"][2] == "-"
    assert "no best is marked: the graph of new is not here" in capsys.readouterr().out
    (tmp_path / "moved").rename(graph)


def test_runs_of_other_tasks_have_no_best(tmp_path: Path) -> None:
    tested = {"test/accuracy": 0.5, "test_rows": "a"}
    runs = [
        _write_run(tmp_path / "one", tested, task={"args": {"label": "y"}}),
        _write_run(tmp_path / "two", tested | {"test_rows": "b"}, task={"args": {"label": "z"}}),
    ]
    found = compare(runs, lambda *_: {"test/accuracy": 1.0})
    assert found.remark.startswith("The runs were tested on different rows, so no best is marked")
    ((name, *_, best),) = found.tables["Test metrics, with 95 % intervals"][1]
    assert (name, best) == ("test/accuracy", "-")
