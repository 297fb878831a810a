"""Explanations name the column that a label follows from, with its table, in parts of a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import raygnn
import raygnn.train
from raygnn.data.tables.graph_tables import (
    EdgeRows,
    GraphTables,
    NodeRows,
    TrainingRows,
    node_rows,
    write_tables,
)
from raygnn.inference.explain.explanations import Explanations
from raygnn.loops.blend import Blend, Share
from raygnn.loops.tasks import blended_task
from tests.numerics.infer.conftest import dates

NUM_ACCOUNTS, NUM_PAGES, LAST_DAY, WINDOW = 300, 12, 330, 30
ASKED = np.arange(90, LAST_DAY - WINDOW, WINDOW)
ROWS = {"id": np.arange(40, 52), "time": dates(np.full(12, 300))}
#: By cause of the label: table and column.
CAUSES = {"recency": ("logins", "since last"), "plan": ("accounts", "plan")}
#: `make test` explains a blend in `test_blend.py`.
pytestmark = pytest.mark.slow


def write(folder: Path, cause: str) -> str:
    """Accounts log in until they leave. `cause` says what the label follows from: the time since
    the latest login, the account's plan, or nothing.
    """
    rng = np.random.default_rng(3)
    plan = rng.choice(["basic", "plus", "pro"], NUM_ACCOUNTS)
    joined = rng.uniform(0, 60, NUM_ACCOUNTS)
    left = np.minimum(joined + rng.exponential(150, NUM_ACCOUNTS), LAST_DAY)
    num = 1 + rng.poisson((left - joined) / 6)
    account = np.repeat(np.arange(NUM_ACCOUNTS), num)
    day = joined[account] + rng.random(len(account)) * (left - joined)[account]
    asked_account, asked_day = (x.ravel() for x in np.meshgrid(np.arange(NUM_ACCOUNTS), ASKED))
    last = np.array(
        [
            day[(account == a) & (day <= d)].max(initial=-1)
            for a, d in zip(asked_account, asked_day, strict=True)
        ]
    )
    label = {
        "recency": asked_day - last > 25,
        # Of labels that one column separates, LightGBM learns too little: the AUROC stops it.
        "plan": (plan[asked_account] == "pro") ^ (np.arange(len(asked_day)) % 20 == 0),
        "noise": rng.random(len(asked_day)) < 0.4,
    }[cause]
    accounts = pd.DataFrame(
        {"id": np.arange(NUM_ACCOUNTS), "plan": plan, "age": rng.integers(18, 80, NUM_ACCOUNTS)}
    )
    logins = pd.DataFrame(
        {"a": account, "p": rng.integers(0, NUM_PAGES, len(account)), "day": dates(day)}
    )
    x = [{"column": "plan", "transform": "category"}, {"column": "age", "transform": "auto"}]
    rows = {"account": asked_account, "at": dates(asked_day), "gone": label.astype(np.int64)}
    tables = GraphTables(
        {
            "accounts": NodeRows(accounts, "id", {"x": x}),
            "pages": node_rows(np.arange(NUM_PAGES), {"x": np.ones((NUM_PAGES, 1), np.float32)}),
        },
        {
            # Without features, whose sums would say the same as the age of the latest login.
            ("accounts", "logins", "pages"): EdgeRows(logins, "a", "p", time="day")
        },
        training_tables={
            "churn": TrainingRows(
                pd.DataFrame(rows), "accounts", "account", {"gone": "gone"}, time="at"
            )
        },
    )
    write_tables(tables, str(folder / "graph"))
    return str(folder / "graph")


def trained(folder: Path, cause: str, **changes: Any) -> tuple[raygnn.TrainedModel, str]:
    graph = write(folder, cause)
    config = {
        "data": {"uri": graph, "cache_dir": str(folder / "cache")},
        "task": "node_classification",
        "model": {"type": "Hetero", "args": {"hidden_channels": 16}},
        "training": {"max_epochs": 15},
        "optimizer": {"type": "Adam", "args": {"lr": 0.01}},
        "loader": {"batch_size": 128},
        "scaling": {"num_workers": 0},
        "run": {"storage_path": str(folder), "name": "run"},
        **changes,
    }
    return raygnn.load(str(raygnn.train.fit(config).path)), graph


@pytest.fixture(scope="module")
def blended(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made: dict[str, tuple[raygnn.TrainedModel, str]] = {}

    def of(cause: str) -> tuple[raygnn.TrainedModel, str]:
        if cause not in made:
            with pytest.MonkeyPatch.context() as patch:
                shares = {"gnn": Share(0.4), "lightgbm": Share(0.6)}
                patch.setattr(blended_task, "fit_blend", lambda *args: Blend(shares, (0.0, 0.0)))
                made[cause] = trained(tmp_path_factory.mktemp(cause), cause)
        return made[cause]

    return of


def explained(model: Any, graph: str, shares: dict[str, Share]) -> Explanations:
    opened = model.open(graph, exact=False)
    task = opened._applied.task
    blend = replace(task.output.blend, shares=shares)
    task.spec = replace(task.spec, output=replace(task.output, blend=blend))
    found = opened.explain(rows=ROWS)
    expected = opened.predict(rows=ROWS)
    assert np.array_equal(found.predictions["prediction"], expected["prediction"].astype(str))
    assert np.allclose(found.predictions["score"], expected["probability"], atol=1e-5)
    return found


@pytest.mark.parametrize(
    ("cause", "shares"),
    [
        ("recency", ("gnn",)),
        ("recency", ("lightgbm", "gnn")),
        ("plan", ("lightgbm",)),
        ("plan", ("lightgbm", "gnn")),
    ],
)
def test_the_cause_of_a_label_is_named_first_with_its_table(
    blended: Any, cause: str, shares: tuple[str, ...]
) -> None:
    model, graph = blended(cause)
    found = explained(model, graph, {name: Share(1 / len(shares)) for name in shares})
    weights = found.parts.to_pandas().groupby("part")["weight"].unique()
    assert {name: list(each) for name, each in weights.items()} == {
        name: [1 / len(shares)] for name in shares
    }
    columns = found.columns.to_pandas()
    table, column = CAUSES[cause]
    for part in shares:
        first = columns[columns["part"] == part].groupby("id").first()
        # No login within 30 days says nearly the same as a latest login 25 days ago.
        names = {column, "count 30d"} if cause == "recency" else {column}
        hits = (first["table"] == table) & first["column"].isin(names)
        assert hits.mean() >= (0.8 if part == "gnn" else 0.9), part
        assert first["kept"].all()
    said = {"recency": "no logins for ", "plan": "accounts.plan is "}[cause]
    sentences = found.predictions["sentence"]
    assert (
        np.mean(
            [
                each.split(": ", 1)[1].removeprefix("against it: ").startswith(said)
                for each in sentences
            ]
        )
        >= 0.8
    )
    rows = found.predictions.to_pandas()
    assert rows["score_kept"].mean() > rows["score"].mean() - 0.05
    assert rows["score_removed"].mean() < rows["score"].mean()


def test_effects_of_lightgbm_add_up_to_the_prediction(blended: Any) -> None:
    model, graph = blended("recency")
    found = explained(model, graph, {"lightgbm": Share(1.0)})
    columns, rows = found.columns.to_pandas(), found.predictions.to_pandas()
    logits = np.log(rows["score"] / (1 - rows["score"]))
    sign = np.where(rows["prediction"] == "1", 1, -1)
    base = sign * logits - sign * columns.groupby("id")["effect"].sum().to_numpy()
    assert np.ptp(base) < 0.1  # three models are averaged by probability
    assert not len(found.edges)


def test_values_are_those_of_the_row(blended: Any) -> None:
    model, graph = blended("recency")
    found = explained(model, graph, {"lightgbm": Share(0.5), "gnn": Share(0.5)})
    columns = found.columns.to_pandas()
    both = columns[columns["column"] == "since last"][["id", "value"]].drop_duplicates()
    both = both[both["value"].notna()]
    assert both["id"].is_unique  # as the GNN reads it, and as LightGBM does
    plans = columns[(columns["column"] == "plan") & (columns["part"] == "gnn")]
    written = pq.read_table(Path(graph) / "nodes" / "accounts").to_pandas().set_index("id")["plan"]
    assert plans["value"].tolist() == written.loc[plans["id"]].tolist()


def test_on_noise_nothing_stands_out(tmp_path: Path) -> None:
    task = {"type": "node_classification", "args": {"blend": False}}
    model, graph = trained(tmp_path, "noise", task=task)
    found = model.explain(graph, rows=ROWS)
    first = found.columns.to_pandas().groupby("id")["column"].first()
    assert first.value_counts(normalize=True).max() < 0.8
    assert found.columns.to_pandas()["effect"].abs().max() < 0.3  # above 2 for a cause
    said = [each.endswith("nothing stands out") for each in found.predictions["sentence"]]
    assert np.mean(said) > 0.7
