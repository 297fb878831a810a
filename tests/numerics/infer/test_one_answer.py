"""Rows with sampled neighborhoods: one answer, whoever asks and whatever else is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

import raygnn
import raygnn.infer
import raygnn.train
from raygnn.data.tables.graph_tables import (
    EdgeRows,
    GraphTables,
    TrainingRows,
    edge_rows,
    node_rows,
    write_tables,
)
from raygnn.serving.answers import Answers
from raygnn.serving.messages import Predict
from tests.numerics.infer.conftest import dates
from tests.small_runs import small_config
from tests.tiers import slow

NUM_USERS, NUM_FRIENDS, NUM_DAYS = 60, 20, 40
LABOR = {"type": "labor", "temporal": {"strategy": "uniform"}}
KNOWS, RATES = ("user", "knows", "user"), ("user", "rates", "film")
NEXT = ("user", "next", "film")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Users with many more friends than are sampled, rows of users, rated films, and lists of films
    that are watched next.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_USERS, 4)).astype(np.float32)
    friends = np.repeat(np.arange(NUM_USERS), NUM_FRIENDS)
    rows = {
        "user": rng.integers(0, NUM_USERS, 300),
        "at": dates(np.sort(rng.integers(1, NUM_DAYS, 300))),
        "y": rng.integers(0, 2, 300),
    }
    days = np.repeat([10, 20, 30], 2 * NUM_USERS)
    watched = {
        "user": rng.integers(0, NUM_USERS, len(days)),
        "film": rng.integers(0, 30, len(days)),
        "at": dates(days),
        "split": np.array(["train", "val", "test"])[days // 10 - 1],
    }
    lists = pd.DataFrame(watched).drop_duplicates(["user", "film", "at"])
    rated = rng.integers(0, (NUM_USERS, 30), (400, 2)).T
    tables = GraphTables(
        {
            "user": node_rows(np.arange(NUM_USERS), {"x": x}),
            "film": node_rows(np.arange(30), {"x": rng.normal(size=(30, 4)).astype(np.float32)}),
        },
        {
            KNOWS: edge_rows(friends, rng.integers(0, NUM_USERS, len(friends))),
            RATES: edge_rows(
                *rated,
                time=dates(rng.integers(0, NUM_DAYS, 400)),
                labels={"stars": rng.random(400).astype(np.float32)},
            ),
        },
        label_edges={(NEXT, "positive"): EdgeRows(lists, "user", "film", time="at", split="split")},
        training_tables={
            "asked": TrainingRows(pd.DataFrame(rows), "user", "user", {"y": "y"}, time="at")
        },
    )
    folder = str(tmp_path_factory.mktemp("sampled") / "tables")
    write_tables(tables, folder)
    return folder


def _config(folder: Path, graph: str, task: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return small_config(
        folder,
        data={"uri": graph, "cache_dir": str(folder / "cache"), "splits": {"type": "temporal"}},
        task=task,
        model={"type": "Hetero", "args": {"hidden_channels": 8}},
        metrics=[],
        training__max_steps=5,
        scaling__num_workers=0,
        **changes,
    )


def _probabilities(run: str, graph: str, batch_size: int = 32, **rows: Any) -> np.ndarray:
    model = raygnn.load(run, ["--loader.eval_batch_size", str(batch_size)])
    found: np.ndarray = model.predict(graph, what="probabilities", **rows)["probability"]
    return found


def _on_a_rank(run: str, graph: str) -> tuple[np.ndarray, dict[str, float]]:
    metrics = raygnn.load(run).evaluate(graph, split="test")
    return _probabilities(run, graph, rows="asked", split="test"), metrics


@pytest.mark.parametrize("draws", [{}, *slow(LABOR)], ids=["default", "labor"])
def test_rows_have_one_answer(graph: str, tmp_path: Path, ranks: Any, draws: Any) -> None:
    """In the run, on 1 and 2 workers, in any order and number, in Python, in files, by HTTP."""
    task = {"type": "node_classification", "args": {"table": "asked", "blend": False}}
    config = _config(tmp_path, graph, task)
    config["sampling"] |= draws
    result = raygnn.train.fit(config)
    run = str(result.path)
    table = raygnn.load(run).predict(graph, rows="asked", split="test").to_pandas()
    every = _probabilities(run, graph, rows="asked", split="test")
    asked = pd.read_parquet(Path(graph) / "training_tables/asked").iloc[-len(every) :]
    assert asked["user"].tolist() == table["id"].tolist()
    assert roc_auc_score(asked["y"], every[:, 1]) == pytest.approx(result.metrics["test/auroc"])
    for found, metrics in (_on_a_rank(run, graph), *ranks.run(_on_a_rank, 2, run, graph)):
        assert found == pytest.approx(every, rel=1e-4)
        assert metrics == {
            name: pytest.approx(result.metrics[f"test/{name}"], rel=1e-5) for name in metrics
        }
    rng = np.random.default_rng(0)
    for size, batch_size in ((9, 1), (50, 7), (200, 64)):
        chosen = rng.integers(0, len(table), size)
        rows = table.iloc[chosen][["id", "time"]]
        found = _probabilities(run, graph, batch_size, rows=rows)
        assert found == pytest.approx(every[chosen], rel=1e-4)
    rows.to_csv(tmp_path / "rows.csv", index=False)
    for source in (["--rows", str(tmp_path / "rows.csv")], ["--table", "asked", "--split", "test"]):
        options = ["--what", "probabilities", "--out", str(tmp_path / "out.parquet")]
        assert raygnn.infer.main([run, *source, *options, "--data.uri", graph]) == 0
        written = pq.read_table(tmp_path / "out.parquet")["probability"].to_pylist()
        expected = every[chosen] if "--rows" in source else every
        assert np.array(written) == pytest.approx(expected, rel=1e-4)
    questions = [
        Predict(
            nodes=rows["id"].tolist()[first:last],
            time=[time.isoformat() for time in rows["time"][first:last]],
            what="probabilities",
        )
        for first, last in ((0, 1), (1, 120), (120, 200))
    ]
    answers = Answers(raygnn.load(run), graph).answer(questions)
    answered = [row["probability"] for answer in answers for row in answer]
    assert np.array(answered) == pytest.approx(every[chosen], rel=1e-4)


@pytest.mark.slow
def test_lists_have_one_answer(graph: str, tmp_path: Path, ranks: Any) -> None:
    """In the run, on 1 and 2 workers, in any order and number, of rows and of nodes."""
    args = {"edge_type": "__".join(NEXT), "labels": True, "full_ranking": [5]}
    config = _config(tmp_path, graph, {"type": "link_prediction", "args": args})
    config["data"]["splits"] = None
    config["sampling"]["temporal"] = {}
    config["model"]["args"]["node_embeddings"] = False  # the encoder alone
    result = raygnn.train.fit(config)
    run, name = str(result.path), "full_recall@5"
    for found in (_judged(run, graph), *ranks.run(_judged, 2, run, graph)):
        assert found[name] == pytest.approx(result.metrics[f"test/{name}"], rel=1e-6)
    every = raygnn.load(run).open(graph).top_k_of_rows("next", 30, split="test").to_pandas()
    rows = pd.read_parquet(Path(graph) / "label_edges").query("split == 'test'")
    watched = rows.groupby("user")["film"].apply(set)
    shares = [
        len(watched[row.id].intersection(row.neighbor_id[:5])) / len(watched[row.id])
        for row in every.itertuples()
    ]
    assert len(shares) == len(watched) > 30
    assert np.mean(shares) == pytest.approx(result.metrics[f"test/{name}"], rel=1e-6)
    for size in (1, 7):
        opened = raygnn.load(run, ["--loader.eval_batch_size", str(size)]).open(graph)
        chosen = every.sample(10, random_state=size)
        found = opened.top_k_of_rows(chosen[["id", "time"]], 30).to_pandas()
        for one, other in zip(found.score, chosen.score, strict=True):
            assert one == pytest.approx(other, rel=1e-3, abs=1e-5)
        at = opened.as_of(str(chosen.time.iloc[0])).top_k(chosen.id.to_numpy(), 30).to_pandas()
        assert at.score.to_numpy() == pytest.approx(np.concatenate(found.score), rel=1e-3, abs=1e-5)


def _judged(run: str, graph: str) -> dict[str, float]:
    return raygnn.load(run).evaluate(graph, split="test")
