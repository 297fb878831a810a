"""Each tutorial runs as a notebook, from its first cell to its last, and comes to what it says."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import pytest

pytest.importorskip("ray.serve")  # an extra
from nbclient import NotebookClient

from docs.notebooks import TUTORIALS, notebook
from raygnn.outputs.model_registry import RegisteredModel

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    # Of sockets that jupyter_client leaves to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Runs a tutorial in a folder of its own and gives what its cells show."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{tmp_path}")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("RAYGNN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("RAY_ADDRESS", "local")  # not a cluster that happens to run here
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.chdir(tmp_path)

    def shown(name: str, folder: Path = TUTORIALS) -> str:
        page = (folder / f"{name}.md").read_text("utf-8")
        content = notebook(page.replace("8000", str(_free_port())))
        cells = nbformat.from_dict(content)
        nbformat.validate(cells)
        resources = {"metadata": {"path": str(tmp_path)}}
        NotebookClient(cells, timeout=600, resources=resources).execute()
        texts = []
        for cell in cells.cells:
            outputs = cell.get("outputs", [])
            printed = "".join(out.get("text", "") for out in outputs)  # comes in pieces
            texts += [printed, *(out.get("data", {}).get("text/plain", "") for out in outputs)]
        return "\n".join(filter(None, texts))

    yield shown
    if (tmp_path / "serve.pid").exists():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((tmp_path / "serve.pid").read_text()), signal.SIGTERM)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def metric(run: str, name: str) -> float:
    return float(json.loads(Path("runs", run, "metrics.json").read_text())[f"test/{name}"])


def history(run: str) -> list[dict[str, float]]:
    lines = Path("runs", run, "history.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_every_tutorial_is_run_here():
    pages = {page.stem for page in TUTORIALS.glob("*.md")}
    assert {
        name.removeprefix("test_tutorial_")
        for name in globals()
        if name.startswith("test_tutorial_")
    } == {page.replace("-", "_") for page in pages}


def test_tutorial_database(run):
    texts = run("database")
    metrics = json.loads(Path("runs/orders/metrics.json").read_text())
    assert metrics["test/auroc"] >= 0.87
    for guess in ("entity_mean", "last_label"):
        assert metrics["test/auroc"] > metrics[f"baseline/{guess}/test/auroc"] + 0.02
    answers = pd.read_csv("answers.csv")
    assert len(answers) == len(pd.read_csv("store/customers.csv"))
    order = answers["probability_1"]
    orders = pd.read_csv("store/orders.csv", parse_dates=["ordered"])
    is_recent = orders["ordered"] > pd.Timestamp("2023-12-06")
    num_recent = orders[is_recent].groupby("customer_id").size().reindex(answers["id"]).fillna(0)
    assert (
        order[(num_recent >= 5).to_numpy()].mean() > 3 * order[(num_recent == 0).to_numpy()].mean()
    )
    assert "probability" in texts.splitlines()[-4]
    _check_a_year(run("run-for-a-year", TUTORIALS.parent))


def _check_a_year(texts: str) -> None:
    """The page that begins where the tutorial of a database ends, in its folder."""
    assert "1200 answers at position 0" in texts
    assert "answers at position 383" in texts
    assert 'raygnn_served_metric{metric="auroc"} 0.9' in texts
    assert "status 3: 3 means that the champion stays" in texts
    model = RegisteredModel("models/orders")
    first, second = model.versions()
    actions = [(change.action, change.version) for change in model.history("champion")]
    assert actions == [("set", first), ("set", second), ("rollback", first)]
    tested = json.loads(Path("models/orders", second, "metrics.json").read_text())["times"]["test"]
    assert pd.Timestamp(tested[0], unit="us") > pd.Timestamp("2023-12-30")  # first 12-01


def test_tutorial_churn(run):
    texts = run("churn")
    assert metric("churn", "auroc") >= 0.87
    assert "act on rows of '1'" in texts
    assert "no sessions for" in texts
    assert Path("churn.png").stat().st_size > 20_000


def test_tutorial_shop(run):
    texts = run("shop")
    assert metric("segments", "accuracy") >= 0.8
    assert metric("shop", "auc") >= 0.7
    users, items = (pd.read_csv(f"shop/{name}.csv") for name in ("users", "items"))
    found = pd.read_parquet("out/segments/users")
    assert len(found) == len(users)
    assert set(found["prediction"]) == set(users["segment"].dropna())
    offers = pd.read_parquet("out/offers/neighbors")
    assert offers.groupby("anchor_id").size().eq(10).mean() >= 0.9
    kinds = items.set_index("item_id")["category"]
    segments = ("sport", "reader", "parent", "gardener", "musician", "cook")
    wanted = dict(
        zip(segments, ("Shoes", "Books", "Toys", "Garden", "Music", "Kitchen"), strict=True)
    )
    own = users.set_index("user_id")["segment"].map(wanted).dropna()
    firsts = offers[offers["rank"] == 1].set_index("anchor_id")["neighbor_id"].map(kinds)
    known = own.index.intersection(firsts.index)
    assert (firsts[known] == own[known]).mean() >= 0.8
    served = [line for line in texts.splitlines() if " 200000 " in line]
    assert len(served) == 5
    assert sum("Shoes" in line for line in served) >= 3  # of one category in six


def test_tutorial_pyg(run):
    texts = run("pyg")
    assert metric("sage", "accuracy") >= 0.7
    assert metric("own", "accuracy") >= 0.7
    (difference,) = (line for line in texts.splitlines() if line.startswith("largest difference"))
    assert float(difference.split()[-1]) < 1e-4


def test_tutorial_cluster(run):
    run("cluster")
    one, two = ([row["val/loss"] for row in history(name)] for name in ("one", "two"))
    assert len(one) >= 1
    assert one == pytest.approx(two, rel=1e-5)


def test_tutorial_sweep(run):
    run("sweep")
    assert metric("best", "accuracy") > 0.3  # 0.2 is chance
    assert len(list(Path("runs/sweep").glob("trial-*"))) == 2


def test_tutorial_own_task(run):
    run("own-task")
    assert min(metric("focal", "accuracy"), metric("small", "accuracy")) >= 0.5
    assert "train/squared_logits" in history("small")[0]


def test_tutorial_coming_from(run):
    run("coming-from")
    for name in ("gigl", "graphstorm", "lightning"):
        assert metric(name, "accuracy") >= 0.5
    assert len(pd.read_parquet("out/gigl/node")) == 2000
