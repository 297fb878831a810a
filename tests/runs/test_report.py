from __future__ import annotations

import itertools
import json
import re
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

import raygnn.train
from raygnn.outputs.curves import run_charts
from raygnn.outputs.history import MAX_ROWS, LogRows
from raygnn.outputs.html_page import duration, show
from tests.errors import raises
from tests.small_runs import run_rank, small_config
from tests.user_code import FailOnce

JOB_NAME = "<script>alert('&')</script>"


@pytest.fixture(scope="module")
def run_folder(small_bundle_path: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted once."""
    folder = tmp_path_factory.mktemp("report")
    config = small_config(
        folder,
        job_name=JOB_NAME,
        scaling__num_workers=0,
        loader={"batch_size": 40, "eval_batch_size": 100},
        training={"max_steps": 8, "log_every": {"steps": 1}, "validate_every": {"steps": 2}},
        callbacks=["tests.user_code.FailOnce"],
    )
    FailOnce.steps[:] = [5]
    with raises("run-rank-failed", "went away"):
        run_rank(config, small_bundle_path)
    (folder / "run" / "report.html").rename(folder / "failed.html")
    (folder / "run" / "metrics.json").rename(folder / "failed.json")
    (folder / "run" / "run.json").rename(folder / "failed-run.json")
    (folder / "run" / "run.json").write_text((folder / "failed-run.json").read_text())
    run_rank(config, small_bundle_path)
    return folder / "run"


def test_a_failed_run_says_what_happened(run_folder: Path) -> None:
    folder = run_folder.parent
    metrics = json.loads((folder / "failed.json").read_text())
    assert metrics["stop_reason"].startswith("failed: TrainingError: Rank 0 failed in training")
    assert "the machine went away (in on_train_step_start of FailOnce)" in metrics["stop_reason"]
    assert metrics["step"] == 5
    assert "test/loss" not in metrics
    assert json.loads((folder / "failed-run.json").read_text())["status"] == "failed"
    document = ElementTree.fromstring((folder / "failed.html").read_text("utf-8"))
    notes = ["".join(p.itertext()) for p in document.iter("p")]
    assert any(n.startswith("Failed: ") and "the machine went away" in n for n in notes)
    assert _charts(document)


@pytest.fixture(scope="module")
def page(run_folder: Path) -> str:
    return (run_folder / "report.html").read_text("utf-8")


@pytest.fixture(scope="module")
def document(page: str) -> ElementTree.Element:
    return ElementTree.fromstring(page)


def _table(document: ElementTree.Element, heading: str) -> list[list[str]]:
    for card in document.iter("div"):
        if [e.text for e in card.findall("h3")] == [heading]:
            return [["".join(cell.itertext()) for cell in row] for row in card.iter("tr")]
    raise AssertionError(f"no table {heading}")


def _charts(document: ElementTree.Element) -> list[dict[str, Any]]:
    """What the page gives the library to draw."""
    scripts = [e for e in document.iter("script") if e.get("type") == "application/json"]
    return [json.loads(script.text or "") for script in scripts]


def _num_points(charts: list[dict[str, Any]], name: str) -> int:
    columns = [c["columns"][c["names"].index(name)] for c in charts if name in c["names"]]
    return sum(value is not None for value in columns[0])


def test_every_metric_of_the_history_is_drawn(run_folder, document):
    rows = [json.loads(line) for line in (run_folder / "history.jsonl").read_text().splitlines()]
    names = {name for row in rows for name in row} - {"step", "epoch", "samples", "time_s"}
    charts = _charts(document)
    drawn = {name for chart in charts for name in chart["names"]}
    flat = {row[0] for row in _table(document, "Constant curves")[1:]}
    assert {"val/loss", "train/loss", "val/accuracy", "lr"} <= names <= drawn | flat
    assert {"perf/seeds_per_s", "perf/loader_wait_share", "train/grad_norm"} <= drawn
    assert "lr" in flat
    assert _num_points(charts, "val/accuracy") == len(rows)
    assert _num_points(charts, "train/loss") == 8  # of every step, also those before the resume


def test_the_best_epoch_is_marked(run_folder, document):
    best = json.loads((run_folder / "metrics.json").read_text())["best_epoch"]
    marks = {chart["mark"] for chart in _charts(document)}
    assert marks == {f"best: epoch {best}", ""}


def test_nothing_is_loaded_from_elsewhere(page):
    for name in ("uPlot.iife.min.js", "uPlot.min.css"):
        library = files("raygnn.outputs").joinpath("page", name).read_text("utf-8")
        assert library in page
        page = page.replace(library, "")
        assert not re.search(r"fetch\(|XMLHttpRequest|importScripts|import\(|url\(", library)
    page = page.replace("//<![CDATA[", "").replace("//]]>", "").replace("\n// ", "\n")
    assert not re.search(r"<(link|img|iframe|object|embed|base)\b", page)
    assert not re.search(r"(src|href|srcset)\s*=|url\(|@import|https?://|//[a-z]", page)


def test_text_of_users_is_escaped(document):
    assert [e.text for e in document.iter("h1")] == [JOB_NAME]
    assert next(e.text for e in document.iter("title")) == JOB_NAME


def test_the_page_has_what_the_run_has(run_folder, page, document):
    metrics = json.loads((run_folder / "metrics.json").read_text())
    assert f"{metrics['test/accuracy']:.4f}" in page
    assert "Stopped by training.max_steps=8." in page
    assert (run_folder / "config.yaml").read_text() in "".join(document.itertext())
    assert _table(document, "Node types")[1] == [
        "node",
        "300",
        "x (feature, float32 [8]); y (label, int64, 3 classes)",
    ]
    splits = _table(document, "Splits")
    assert [row[0] for row in splits[1:]] == ["training", "validation", "test"]
    assert sum(int(row[1]) for row in splits[1:]) == 300
    starts = _table(document, "Starts")
    assert [row[3] for row in starts[1:]] == ["0", "4"]
    assert starts[2][4] == metrics["resumed_from"]
    environment = dict(_table(document, "Environment"))
    assert {"raygnn", "Python", "torch", "host", "CPUs"} <= set(environment)


def test_the_model_stands_among_its_baselines(run_folder, document):
    metrics = json.loads((run_folder / "metrics.json").read_text())
    head, *rows = _table(document, "Test split, weakest first")
    assert head[:2] == ["predictor", "accuracy"]
    values = {row[0]: float(row[1].split()[0]) for row in rows}
    assert values["this model"] == pytest.approx(metrics["test/accuracy"], abs=1e-4)
    assert values["majority"] == pytest.approx(metrics["baseline/majority/test/accuracy"], abs=1e-4)
    assert list(values.values()) == sorted(values.values())
    paragraphs = ["".join(p.itertext()) for p in document.iter("p")]
    assert sum(text.startswith("The model is ") for text in paragraphs) <= 1
    assert not any(text.endswith("..") for text in paragraphs)
    (accuracy,) = [row for row in _table(document, "All metrics") if row[0] == "accuracy"]
    assert accuracy[1] == f"{metrics['test/accuracy']:.4f}"
    assert accuracy[3] == f"{metrics['val/accuracy']:.4f}"


def test_charts_are_of_kinds_and_in_order():
    history = [{"step": 2, "val/mrr": 0.1, "val/hits@1": 0.2, "val/hits@10": 0.3, "val/loss": 1.0}]
    logged = [{"step": 1, "train/loss": 2.0, "lr": 0.1, "perf/seeds_per_s": 5.0}]
    charts = run_charts(history, logged, "val/hits@10", (2, "best"))
    assert [chart.title for chart in charts] == [
        "Loss",
        "Hits",
        "MRR",
        "Learning rate",
        "Seeds per second",
    ]
    assert [line.name for line in charts[1].series] == ["val/hits@1", "val/hits@10"]
    assert [chart.marked_x for chart in charts] == [2, 2, 2, None, None]


def test_logged_rows_stay_few_and_spread_over_the_run():
    rows = LogRows()
    for step in range(10 * MAX_ROWS):
        if step == 5 * MAX_ROWS:  # as after a resume
            state, rows = rows.state_dict(), LogRows()
            rows.load_state_dict(state)
        rows.on_log(SimpleNamespace(position=SimpleNamespace(step=step)), {"lr": 0.1})
    steps = [row["step"] for row in rows.rows]
    assert MAX_ROWS / 2 <= len(steps) <= MAX_ROWS
    assert len({after - before for before, after in itertools.pairwise(steps)}) == 1
    assert steps[0] == 0
    assert steps[-1] > 9.9 * MAX_ROWS


@pytest.mark.parametrize(
    ("seconds", "text"), [(12.34, "12.3 s"), (245, "4 min 5 s"), (7385.0, "2 h 3 min")]
)
def test_durations_are_said_as_people_do(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.12345, "0.1235"),
        (12345, "12,345"),
        (True, "True"),
        (1.5e7, "15M"),
        ("a", "a"),
    ],
)
def test_values_in_tables(value, text):
    assert show(value) == text


@pytest.mark.parametrize(
    "data",
    [
        {"synthetic": {"type": "planted_partition", "num_nodes": 120, "num_classes": 3}},
        {"type": "tests.user_code.my_graph", "args": {"num_nodes": 120}},
    ],
    ids=["synthetic", "type"],
)
def test_the_line_that_says_how_to_use_a_model_runs(
    data: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    splits = {"type": "hash", "fractions": [0.6, 0.2, 0.2]}
    config = small_config(tmp_path, data={**data, "splits": splits}, scaling__num_workers=0)
    raygnn.train.fit(config, allow_modules=["tests.user_code"])
    (line,) = [ln for ln in capsys.readouterr().out.splitlines() if "use it" in ln]
    assert len(eval(line.partition("use it")[2].strip(), {"raygnn": raygnn})) == 120
