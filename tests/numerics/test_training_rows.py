"""Rows of training tables: learned, judged and predicted as of their own times."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pydantic import ValidationError

import raygnn
import raygnn.infer
import raygnn.train
from raygnn.config import load_config
from raygnn.data.bundle import SeedRows
from raygnn.data.ingest.plan_bundle import IngestOptions
from raygnn.data.partition.build import Partitioning, partition
from raygnn.data.tables.graph_tables import (
    GraphTables,
    NodeRows,
    TrainingRows,
    edge_rows,
    node_rows,
    write_tables,
)
from raygnn.loops.task import TaskEnvironment
from raygnn.loops.tasks.node_classification.target import NodeOutput
from raygnn.loops.tasks.node_classification.task import NodeClassification
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.runtime.data_checks import with_task_defaults
from raygnn.runtime.data_source import open_bundle
from raygnn.sampling.loader import RowPlan
from raygnn.serving.answers import Answers
from raygnn.serving.messages import NewRows, Predict, Predictions, Refused
from tests.errors import raises
from tests.numerics.infer.conftest import dates
from tests.partitioned_graphs import late_shop
from tests.small_runs import change, read_history, small_config, trained_weights
from tests.tiers import slow

NUM_USERS, NUM_ITEMS, NUM_DAYS, WINDOW = 120, 30, 240, 30
BUYS = ("user", "buys", "item")
ASKED = np.arange(WINDOW, NUM_DAYS, WINDOW)
#: Settings that choose how neighbors are sampled.
DRAWS = {
    "last": ["--sampling.temporal.strategy", "last"],
    "uniform": ["--sampling.temporal.strategy", "uniform"],
    "labor": ["--sampling.temporal.strategy", "uniform", "--sampling.type", "labor"],
}


@dataclass(frozen=True)
class Shop:
    """Purchases, in the order of days, and items in the order of the days since when they exist."""

    user: np.ndarray
    item: np.ndarray
    day: np.ndarray
    since: np.ndarray
    price: np.ndarray

    @classmethod
    def random(cls, seed: int, num: int = 4000) -> Shop:
        rng = np.random.default_rng(seed)
        rate = rng.permutation(np.linspace(0.1, 2, NUM_USERS))
        user = rng.choice(NUM_USERS, num, p=rate / rate.sum())
        day = np.sort(rng.integers(0, NUM_DAYS, num))
        since = np.sort(np.append(-1, rng.integers(-99, NUM_DAYS, NUM_ITEMS - 1)))
        item = rng.integers(0, np.searchsorted(since, day, side="right"))
        return cls(user, item, day, since, rng.random(NUM_ITEMS, np.float32))

    def after(self, day: int, rng: np.random.Generator) -> Shop:
        """The same until the end of a day; then other purchases, items and prices."""
        past, known = self.day <= day, int((self.since <= day).sum())
        later, others = int(rng.integers(0, 2 * (~past).sum())), int(rng.integers(1, 40))
        return Shop(
            np.append(self.user[past], rng.integers(0, NUM_USERS, later)),
            np.append(self.item[past], rng.integers(0, known + others, later)),
            np.append(self.day[past], rng.integers(day + 1, 400, later)),
            np.append(self.since[:known], np.sort(rng.integers(day + 1, 400, others))),
            np.append(self.price[:known], rng.random(others, np.float32)),
        )

    def tables(self, labels: np.ndarray) -> GraphTables:
        """Graph tables with a training table of all users at all days that are asked for.

        Args:
            labels: [NUM_USERS, len(ASKED)], or with as many outputs in a third dimension.
        """
        items = {"id": np.arange(len(self.since)), "price": self.price, "since": dates(self.since)}
        nodes = {
            "user": node_rows(np.arange(NUM_USERS), {"x": np.ones((NUM_USERS, 1), np.float32)}),
            "item": NodeRows(pd.DataFrame(items), "id", {"x": "price"}, time="since"),
        }
        edges = {BUYS: edge_rows(self.user, self.item, time=dates(self.day))}
        rows = {
            "user": np.repeat(np.arange(NUM_USERS), len(ASKED)),
            "at": dates(np.tile(ASKED, NUM_USERS)),
        }
        outputs = labels.reshape(NUM_USERS * len(ASKED), -1).T
        names = ["label", *(f"label_{i}" for i in range(1, len(outputs)))]
        rows |= dict(zip(names, outputs, strict=True))
        label = {"y": names if names[1:] else "label"}
        made = TrainingRows(pd.DataFrame(rows), "user", "user", label, time="at")
        return GraphTables(nodes, edges, training_tables={"active": made})

    def write(self, folder: Path, labels: np.ndarray) -> str:
        write_tables(self.tables(labels), str(folder))
        return str(folder)

    def counts(self, first: int, last: int) -> np.ndarray:
        """[NUM_USERS, len(ASKED)], purchases from `first` to before `last` days after each day."""
        found = np.zeros((NUM_USERS, len(ASKED)), np.int64)
        for i, asked in enumerate(ASKED):
            chosen = (self.day - asked >= first) & (self.day - asked < last)
            found[:, i] = np.bincount(self.user[chosen], minlength=NUM_USERS)
        return found


def _config(folder: Path, graph: str, **changes: Any) -> dict[str, Any]:
    return {
        "data": {"uri": graph, "cache_dir": str(folder / "cache")},
        "task": "node_classification",
        "model": {"type": "Hetero", "args": {"hidden_channels": 32}},
        "optimizer": {"args": {"lr": 0.005}},
        "training": {"max_epochs": 12},
        "loader": {"batch_size": 128},
        "scaling": {"num_workers": 0},
        "run": {"storage_path": str(folder), "name": "run"},
        **changes,
    }


@pytest.fixture(scope="module")
def shop() -> Shop:
    return Shop.random(0)


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory, shop: Shop) -> tuple[Any, str]:
    """A run that learns which users bought more than four times in the last 30 days."""
    folder = tmp_path_factory.mktemp("busy")
    graph = shop.write(folder / "graph", (shop.counts(-WINDOW, 0) > 4).astype(np.int64))
    return raygnn.train.fit(_config(folder, graph)), graph


@pytest.fixture(scope="module")
def busy_gnn(busy: tuple[Any, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    """The GNN of `busy` alone. LightGBM reads all events, which no process of parts has."""
    folder, graph = tmp_path_factory.mktemp("busy-gnn"), busy[1]
    return raygnn.train.fit(_config(folder, graph, task=_task(blend=False))), graph


def test_recent_purchases_are_learned(busy: tuple[Any, str]) -> None:
    result, _ = busy
    guess = result.metrics["baseline/entity_mean/test/auroc"]
    assert 0.6 < guess < result.metrics["test/auroc"]
    assert result.metrics["test/auroc"] > 0.97
    assert "baseline/last_label/test/accuracy" in result.metrics


def test_exact_evaluation_keeps_the_latest_edges(busy: tuple[Any, str]) -> None:
    """All edges have times, so nothing is drawn at random, and all edges would be another model."""
    result, graph = busy
    model = result.model
    for exact in (None, True):
        judged = model.evaluate(graph, split="test", exact=exact)
        assert judged["auroc"] == result.metrics["test/auroc"]
        predicted = model.predict(graph, rows="active", split="test", exact=exact)
        assert predicted.arrow.equals(model.predict(graph, rows="active", split="test").arrow)


def test_boosted_trees_are_a_baseline(busy: tuple[Any, str]) -> None:
    result, _ = busy
    assert 0.6 < result.metrics["baseline/lightgbm/test/auroc"] < 1


@pytest.mark.parametrize(("optimizer", "rate"), [({}, 0.001), ({"args": {"lr": 0.02}}, 0.02)])
def test_tables_have_a_smaller_learning_rate_and_average_weights(
    busy: tuple[Any, str], tmp_path: Path, optimizer: dict[str, Any], rate: float
) -> None:
    config = _config(tmp_path, busy[1], optimizer=optimizer)
    if not optimizer:
        del config["optimizer"]
    loaded = with_task_defaults(load_config(config))
    assert loaded.config.optimizer.args["lr"] == loaded.saved["optimizer"]["args"]["lr"] == rate
    decay = None if optimizer else 0.98
    assert loaded.config.training.ema_decay == loaded.saved["training"]["ema_decay"] == decay


def test_numbers_of_tables_have_a_robust_loss_by_default() -> None:
    number: dict[str, Any] = {"label": "y", "problem": "regression", "num_outputs": 1}
    assert NodeOutput("user", **number, table="spent").default_loss == "huber"
    assert NodeOutput("user", **number).default_loss == "mse"


@pytest.mark.parametrize("have_times", [False, True])
def test_latest_events_are_read_as_of_each_row(
    shop: Shop, tmp_path: Path, have_times: bool
) -> None:
    """Purchases as nodes that refer to users. Means of very wide rows are left out.

    `have_times`: edges have times too.
    """
    labels = (shop.counts(-WINDOW, 0) > 4).astype(np.int64)
    asked = shop.tables(labels).training_tables
    users = node_rows(np.arange(NUM_USERS), {"x": np.ones((NUM_USERS, 1), np.float32)})

    def write(name: str, width: int, shift: int) -> str:
        is_later = shop.day > 150
        x = np.random.default_rng(0).random((len(shop.day), width), np.float32)
        x[is_later] += shift
        ids, day = np.arange(len(shop.day)), shop.day + shift * is_later
        purchases = node_rows(ids, {"x": x}, time=dates(day))
        nodes = {"user": users, "purchase": purchases}
        time = {"time": dates(day)} if have_times else {}
        edges = {("purchase", "by", "user"): edge_rows(ids, shop.user, **time)}
        graph = str(tmp_path / name)
        write_tables(GraphTables(nodes, edges, training_tables=asked), graph)
        return graph

    widths = {}
    for width in (1, 200):
        of_gnn = {"task": _task(blend=False), "training": {"max_epochs": 2}}
        config = _config(tmp_path, write(f"wide{width}", width, 0), **of_gnn)
        result = raygnn.train.fit(config, ["--run.name", f"wide{width}"])
        encoder = result.model.module.encoder
        assert isinstance(encoder, GraphEncoder)
        widths[width] = encoder.relative_time.channels("user")
    assert widths[1] == widths[200] + 4
    model = raygnn.load(str(tmp_path / "wide1"))
    rows = {"id": np.arange(NUM_USERS), "time": ["1970-05-30"] * NUM_USERS}  # day 149
    known = model.predict(str(tmp_path / "wide1"), rows=rows).to_pandas()
    changed = model.predict(write("later", 1, 7), rows=rows).to_pandas()
    pd.testing.assert_frame_equal(known, changed, check_exact=True)
    parts = str(tmp_path / "parts")
    partition(
        str(tmp_path / "wide1"), parts, Partitioning(3, "range"), IngestOptions(reverse_edges=True)
    )
    source = ["--data.mode", "partitioned", "--data.uri", parts]
    of_parts = raygnn.load(str(tmp_path / "wide1"), source).predict(rows=rows).to_pandas()
    pd.testing.assert_frame_equal(known, of_parts, check_exact=True)


def test_columns_of_edges_are_read_as_of_each_row(shop: Shop, tmp_path: Path) -> None:
    """The label is whether the latest purchase was large, which only its edge shows."""
    amount = np.random.default_rng(0).normal(size=len(shop.day)).astype(np.float32)
    latest = np.zeros((NUM_USERS, len(ASKED)), np.float32)
    for i, asked in enumerate(ASKED):
        known = shop.day <= asked
        latest[shop.user[known], i] = amount[known]  # in the order of days
    asked_rows = shop.tables((latest > 0).astype(np.int64))

    def write(name: str, shift: int) -> str:
        changed = amount + shift * (shop.day > 150)
        edges = edge_rows(shop.user, shop.item, {"edge_attr": changed}, time=dates(shop.day))
        tables = replace(asked_rows, edges={BUYS: edges})
        write_tables(tables, str(tmp_path / name))
        return str(tmp_path / name)

    graph = write("graph", 0)
    changed = write("later", 7)
    rows = {"id": np.arange(NUM_USERS), "time": ["1970-05-30"] * NUM_USERS}  # day 149
    for name, blend in (("both", True), ("gnn", False)):
        result = raygnn.train.fit(_config(tmp_path / name, graph, task=_task(blend=blend)))
        assert result.metrics["test/auroc"] > 0.8
        assert not blend or result.metrics["baseline/lightgbm/test/auroc"] > 0.95
        known = raygnn.load(result.path).predict(graph, rows=rows).to_pandas()
        later = raygnn.load(result.path).predict(changed, rows=rows).to_pandas()
        pd.testing.assert_frame_equal(known, later, check_exact=True)
    parts = str(tmp_path / "parts")
    partition(graph, parts, Partitioning(3, "range"), IngestOptions(reverse_edges=True))
    source = ["--data.mode", "partitioned", "--data.uri", parts]
    of_parts = raygnn.load(result.path, source).predict(rows=rows).to_pandas()
    pd.testing.assert_frame_equal(known, of_parts, check_exact=True)


@pytest.mark.parametrize(
    ("least", "losses", "is_named"), [(0, [], False), (8, [], True), (8, [{"type": "mse"}], False)]
)
@pytest.mark.parametrize("num_others", [0, 3])
def test_totals_that_are_mostly_zero_are_named(
    shop: Shop,
    tmp_path: Path,
    least: int,
    losses: list[dict[str, str]],
    is_named: bool,
    num_others: int,
) -> None:
    """Also one of several numbers."""
    counts = shop.counts(-WINDOW, 0).astype(float)
    labels = np.where(counts < least, 0, counts)
    if num_others:
        labels = np.stack([labels, *[counts + 1] * num_others], axis=2)
    graph = shop.write(tmp_path / "graph", labels)
    settings = {"training": {"max_steps": 1}, "losses": losses}
    result = raygnn.train.fit(_config(tmp_path, graph, **settings))
    assert ("% of the training rows" in result.metrics["warnings"]) is is_named
    predicts_means = least > 0  # by the default, or as it is set
    assert result.metrics["verdict"].startswith(f"test/{'r2' if predicts_means else 'mae'}")
    assert result.model.spec.output.is_mostly_zero is predicts_means


def test_clamped_numbers_stay_in_the_range_of_training(shop: Shop, tmp_path: Path) -> None:
    """In metrics and predictions, before and after the model is saved."""
    counts = shop.counts(-WINDOW, 0).astype(float)
    graph = shop.write(tmp_path / "graph", counts)
    settings = {"task": _task(clamp=True), "training": {"max_epochs": 1}}
    config = _config(tmp_path, graph, **settings)
    config["data"]["splits"] = {"type": "temporal", "quantiles": [0.5, 0.6]}
    result = raygnn.train.fit(config)
    output = result.model.spec.output
    table = result.model.predict(graph, rows="active", split="test").to_pandas()
    ends = np.quantile(counts[:, :3], [0.02, 0.98])
    assert output.in_units(torch.tensor([[-99.0], [99.0]])).flatten().tolist() == ends.tolist()
    assert table.prediction.between(*ends).all()
    error = np.abs(counts[:, 4:].reshape(-1) - table.prediction).mean()
    assert error == pytest.approx(result.metrics["test/mae"], rel=1e-5)
    by_month = result.metrics["over_time"]["test"]
    assert set(by_month) == {"month", "rows", "mae", "r2"}
    assert by_month["rows"] == [NUM_USERS] * 3
    assert np.mean(by_month["mae"]) == pytest.approx(error, rel=1e-5)


@pytest.mark.parametrize("mode", ["in_memory", "partitioned"])
@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("day", [30, *slow(120, 200)])
def test_nothing_later_than_a_row_changes_a_bit_of_its_prediction(
    busy: tuple[Any, str],
    busy_gnn: tuple[Any, str],
    shop: Shop,
    tmp_path: Path,
    draws: str,
    mode: str,
    day: int,
) -> None:
    """Rows of every table are changed, added and removed. Presampled batches are those of memory:
    see tests/numerics/test_presampled.py.
    """
    result, graph = busy if mode == "in_memory" else busy_gnn
    rng = np.random.default_rng(day)
    labels = rng.integers(0, 2, (NUM_USERS, len(ASKED)))
    changed = shop.after(day, rng).write(tmp_path / "tables", labels)
    at = pd.Timestamp("1970-01-01") + pd.Timedelta(days=day)
    asked = pd.DataFrame({"id": np.arange(NUM_USERS), "time": at})
    given: dict[str, Any] = {"rows": asked, "what": "probabilities"}
    source = ["--data.uri", changed]
    if mode == "partitioned":
        options = IngestOptions(reverse_edges=True)
        partition(changed, tmp_path / "parts", Partitioning(3, "range"), options)
        source = ["--data.mode", "partitioned", "--data.uri", str(tmp_path / "parts")]
    before, after = (
        raygnn.load(str(result.path), [*DRAWS[draws], *uri])
        for uri in (["--data.uri", graph], source)
    )
    assert after.predict(**given).arrow.equals(before.predict(**given).arrow)
    later = {**given, "rows": asked.assign(time=at + pd.Timedelta(days=20))}
    assert not after.predict(**later).arrow.equals(before.predict(**later).arrow)


@pytest.mark.parametrize("draws", DRAWS)
def test_the_future_says_nothing(shop: Shop, tmp_path: Path, draws: str) -> None:
    """Labels follow from what is bought after each row alone: chance must come out."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, (NUM_USERS, len(ASKED)))
    user, asked = np.nonzero(labels)
    day = ASKED[asked] + rng.integers(1, WINDOW, len(user))
    late = replace(shop, user=user, item=rng.integers(0, NUM_ITEMS, len(user)), day=day)
    graph = late.write(tmp_path / "graph", labels)
    found = raygnn.train.fit(_config(tmp_path, graph), DRAWS[draws])
    assert 0.3 < found.metrics["test/auroc"] < 0.7


def test_each_way_to_ask_gives_the_same(
    busy: tuple[Any, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Metrics, Python, own rows and the command line; rows without a time are as of now."""
    result, graph = busy
    model = result.model
    table = model.predict(graph, rows="active", split="test").to_pandas()
    assert set(table.columns) == {"id", "time", "prediction", "probability"}
    rows = pd.read_parquet(Path(graph) / "training_tables/active").rename(
        columns={"user": "id", "at": "time"}
    )
    own = model.predict(graph, rows=rows).to_pandas()
    joined = own.merge(table, on=["id", "time"], suffixes=("", "_again"))
    assert len(joined) == len(table) < len(own)
    assert np.allclose(joined.probability, joined.probability_again, atol=1e-6)
    labels = rows.merge(table, on=["id", "time"]).label
    judged = model.evaluate(graph, split="test")
    assert np.mean(table.prediction == labels) == pytest.approx(judged["accuracy"], abs=1e-6)
    out = tmp_path / "rows.csv"
    arguments = [str(result.path), "--data.uri", graph, "--table", "active", "--split", "test"]
    assert raygnn.infer.main([*arguments, "--out", str(out)]) == 0
    assert np.allclose(pd.read_csv(out).probability, table.probability, atol=1e-6)
    assert raygnn.infer.main([*arguments, "--out", str(out), "--what", "probabilities"]) == 0
    unknown = [*arguments[:3], "--table", "nope", "--out", str(out)]
    assert raygnn.infer.main(unknown) == 2
    assert "task-table-unknown" in capsys.readouterr().err
    chances = pd.read_csv(out)
    assert list(chances.columns) == ["id", "time", "probability_0", "probability_1"]
    assert np.allclose(chances[["probability_0", "probability_1"]].sum(axis=1), 1)
    named = rows.rename(columns={"id": "user", "time": "at"}).iloc[::2]
    assert model.predict(graph, rows=named).arrow.equals(pa.Table.from_pandas(own.iloc[::2]))
    now = model.predict(graph, rows={"id": [3, 4]}).to_pandas()
    assert np.allclose(now.probability, model.predict(graph, [3, 4])["probability"], atol=1e-6)


def test_past_labels_are_read_once_their_window_is_over(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By default. Each user has one label at all times, which no purchase shows."""
    rng = np.random.default_rng(0)
    labels = np.repeat(rng.integers(0, 2, (NUM_USERS, 1)), len(ASKED), axis=1)

    def write(name: str, labels: np.ndarray) -> str:
        tables = shop.tables(labels)
        made = replace(tables.training_tables["active"], window=f"{WINDOW}d")
        write_tables(replace(tables, training_tables={"active": made}), str(tmp_path / name))
        return str(tmp_path / name)

    graph = write("graph", labels)
    found = {}
    for reads in (False, True):
        task = _task(past_labels=reads, blend=False)
        changes = {"task": task, "training": {"max_epochs": 6}}
        config = _config(tmp_path / str(reads), graph, **changes)
        found[reads] = raygnn.train.fit(config)
    assert found[False].metrics["test/auroc"] < 0.7
    assert found[True].metrics["test/auroc"] > 0.95
    day = int(ASKED[4])
    asked = {"id": np.arange(NUM_USERS), "time": dates(np.full(NUM_USERS, day))}
    given: dict[str, Any] = {"rows": asked, "what": "probabilities"}
    model = raygnn.load(found[True].path)
    before = model.predict(graph, **given).arrow
    for rows_changed, is_equal in ((day - WINDOW < ASKED, True), (day - WINDOW == ASKED, False)):
        changed = np.where(rows_changed, 1 - labels, labels)
        uri = write(f"changed-{is_equal}", changed)
        assert model.predict(uri, **given).arrow.equals(before) is is_equal
    bare = replace(shop.tables(labels), training_tables={})
    capsys.readouterr()
    assert not model.predict(bare, **given).arrow.equals(before)
    assert "no training table 'active' with 'y' and a window" in capsys.readouterr().out
    first = {**given, "rows": {**asked, "time": dates(np.full(NUM_USERS, WINDOW))}}
    assert model.predict(bare, **first).arrow.equals(model.predict(graph, **first).arrow)


def test_past_labels_need_times_and_a_window(busy: tuple[Any, str], tmp_path: Path) -> None:
    with raises("task-past-labels", "lacks a time, a window"):
        raygnn.train.fit(_config(tmp_path, busy[1], task=_task(past_labels=True)))


def test_rows_are_read_as_the_tables_of_a_graph(
    busy: tuple[Any, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, graph = busy
    days = ["1970-03-27", "1970-05-01"]
    expected = result.model.predict(graph, rows={"id": [3, 4], "time": pd.to_datetime(days)})
    out, asked = tmp_path / "out.parquet", tmp_path / "asked.csv"
    arguments = [str(result.path), "--data.uri", graph, "--rows", str(asked), "--out", str(out)]
    for text in (
        "id;time\n3.0;27.03.1970\n4.0;1.5.1970\n",
        "user\tat\n3\t1970-3-27\n4\t1970-5-1\n",
    ):
        asked.write_text(text)
        assert raygnn.infer.main(arguments) == 0
        assert pd.read_parquet(out).equals(expected.to_pandas())
    assert "nothing after its end is known" not in capsys.readouterr().out
    asked.write_text("id,time\n3,1980-01-01\n")
    assert raygnn.infer.main(arguments) == 0
    assert "is 1980-01-01, and the graph ends at 1970-08-28: nothing" in capsys.readouterr().out
    for text in (
        "id,time\n3,yesterday\n",
        "id,time\n3.5,1970-05-01\n",
        "id,time\n3,1970-05-01\n4,\n",
    ):
        asked.write_text(text)
        assert raygnn.infer.main(arguments) == 2
    assert "a time cannot be read (row 2 has none)" in capsys.readouterr().err


def test_rows_are_explained_as_of_their_times(busy: tuple[Any, str]) -> None:
    result, graph = busy
    asked = {"id": [3, 3], "time": pd.to_datetime(["1970-03-01", "1970-06-01"])}
    found = result.model.explain(graph, rows=asked, exact=False)
    table = found.predictions.to_pandas()
    expected = result.model.predict(graph, rows=asked).to_pandas()
    assert table.id.tolist() == [3, 3]
    assert table.time.tolist() == list(asked["time"])
    assert np.allclose(table.score, expected.probability, atol=1e-5)
    assert set(found.columns.to_pandas().time) == set(asked["time"])


def test_a_server_answers_rows(busy: tuple[Any, str]) -> None:
    """Each as if alone: one time for all ids, one each, or the end of the graph."""
    result, graph = busy
    model = result.model
    questions = [
        Predict.parse(body)
        for body in (
            b'{"ids": [3, 4], "time": "1970-05-01"}',
            b'{"ids": [3, 4], "time": ["1970-03-01", "1970-05-01T02:00+02:00"]}',
            b'{"ids": [3]}',
            b'{"ids": [3], "time": 7776000}',
            b'{"ids": [3], "time": "1970-06-01", "what": "probabilities"}',
            b'{"ids": [3], "time": "1980-01-01"}',
            b'{"ids": [3], "time": "9999-12-31T23:59:59-14:00"}',  # the year 10000 in UTC
        )
    ]
    together = Answers(model, graph).answer(questions)
    for refused in (together.pop(), together.pop(3)):
        assert isinstance(refused, Refused)
        assert refused.id == "infer-rows-times"
    one, each, now, chances, far = together
    assert one.notes == []
    assert far.notes[0].startswith("the latest time of the rows is 1980-01-01, and the graph")
    for ids, times, answer in (
        ([3, 4], ["1970-05-01", "1970-05-01"], one),
        ([3, 4], ["1970-03-01", "1970-05-01"], each),
    ):
        table = model.predict(graph, rows={"id": ids, "time": pd.to_datetime(times)})
        expected = table.to_pandas().probability
        assert [row["probability"] for row in answer] == pytest.approx(list(expected))
        assert [row["time"][:10] for row in answer] == times
        Predictions.model_validate_json(json.dumps({"rows": answer}))
    assert now == model.predict(graph, [3]).arrow.to_pylist()
    assert len(chances[0]["probability"]) == 2
    with pytest.raises(ValidationError, match="2 times for 1 ids"):
        Predict.parse(b'{"ids": [3], "time": ["1970-05-01", "1970-05-02"]}')


def test_two_tables_train_one_model(shop: Shop, tmp_path: Path) -> None:
    """Both read counts, ages and past labels, and are used by their names."""
    counts = shop.counts(-WINDOW, 0)
    labels = {"active": (counts > 4).astype(np.int64), "bought": counts / 2}
    tables = {name: shop.tables(values) for name, values in labels.items()}
    both = {
        name: replace(of_label.training_tables["active"], window=f"{WINDOW}d")
        for name, of_label in tables.items()
    }
    graph = str(tmp_path / "graph")
    write_tables(replace(tables["active"], training_tables=both), graph)
    config = _config(tmp_path, graph, tasks={name: _task(table=name) for name in both})
    del config["task"]
    result = raygnn.train.fit(config)
    assert result.metrics["test/active/auroc"] > 0.95
    assert result.metrics["test/bought/r2"] > 0.7
    times = raygnn.load(result.path, task="bought").spec.relative_time
    assert times is not None
    assert times.past_labels > 0
    for name in both:
        model = raygnn.load(result.path, task=name)
        judged = model.evaluate(graph, split="test")
        for metric, value in judged.items():
            assert value == pytest.approx(result.metrics[f"test/{name}/{metric}"], rel=1e-5)
        assert len(model.predict(graph, rows={"id": [3], "time": ["1970-05-01"]})) == 1
    del config["optimizer"]
    assert with_task_defaults(load_config(config)).config.optimizer.args["lr"] == 0.001
    config["tasks"] = {name: _task(table=name, past_labels=name == "active") for name in both}
    with raises("tasks-past-labels", "tasks.active"):
        raygnn.train.fit(config, ["--run.overwrite", "true"])


def test_new_nodes_and_events_are_seen_from_their_time_on(
    busy: tuple[Any, str], tmp_path: Path
) -> None:
    """Appended purchases change predictions after them only, if served and if read from tables."""
    result, graph = busy
    bought = [
        {"source": NUM_USERS, "target": day, "time": f"1970-09-{day + 1:02}"} for day in range(18)
    ]
    new = NewRows(
        nodes={"user": [{"id": NUM_USERS, "x": [1.0]}]}, edges={"user__buys__item": bought}
    )
    ask = {"nodes": [NUM_USERS, 3], "new": new, "what": "probabilities"}
    before, after = Answers(result.model, graph).answer(
        [Predict(time="1970-08-20", **ask), Predict(time="1970-09-19", **ask)]
    )
    assert not isinstance(before, Refused), before
    assert not isinstance(after, Refused), after
    known = result.model.predict(
        graph, rows={"id": [3], "time": ["1970-08-20"]}, what="probabilities"
    )
    assert before[1]["probability"] == pytest.approx(known.arrow.to_pylist()[0]["probability"])
    assert before[0]["probability"][1] < 0.5 < after[0]["probability"][1]

    source, target, time = (pd.Series([b[k] for b in bought]) for k in ("source", "target", "time"))
    nodes = {
        "user": node_rows(np.array([NUM_USERS]), {"x": np.ones((1, 1), np.float32)}),
        "item": NodeRows(
            {"id": [NUM_ITEMS], "price": [1.0], "since": dates(np.array([0]))}, "id", time="since"
        ),
    }
    edges = {BUYS: edge_rows(source, target, time=pd.to_datetime(time).to_numpy("M8[us]"))}
    today = Path(write_tables(GraphTables(nodes, edges), str(tmp_path / "today"))).parent
    rows = pd.DataFrame({"id": [NUM_USERS, 3], "time": ["1970-09-19"] * 2})
    rows.to_csv(tmp_path / "asked.csv", index=False)
    out = str(tmp_path / "out.parquet")
    asked = ["--rows", str(tmp_path / "asked.csv"), "--new-nodes", str(today), "--out", out]
    options = ["--data.uri", graph, "--what", "probabilities", *asked]
    assert raygnn.infer.main([str(result.path), *options]) == 0
    written = np.array(list(pd.read_parquet(out).probability))
    assert written == pytest.approx(np.array([row["probability"] for row in after]), abs=1e-6)


def test_the_graph_of_a_split_can_end(busy: tuple[Any, str], tmp_path: Path) -> None:
    """Test rows that see nothing at all are guessed; half of the training rows see as little."""
    result, graph = busy
    until = {"strategy": "last", "until": {"test": "1960-01-01"}}
    frozen = raygnn.load(str(result.path), ["--sampling.temporal", json.dumps(until)])
    scores = {split: frozen.evaluate(graph, split=split)["auroc"] for split in ("val", "test")}
    live = result.model.evaluate(graph, split="val")["auroc"]
    assert scores == {"val": pytest.approx(live), "test": 0.5}
    task = {"sampling": {"temporal": until}, "training": {"max_epochs": 1}}
    losses = [
        raygnn.train.fit(_config(tmp_path / name, graph, **{**task, **more})).metrics["val/loss"]
        for name, more in (("frozen", {}), ("live", {"sampling": {}}))
    ]
    assert losses[0] != losses[1]


def test_half_of_the_training_rows_see_an_older_graph() -> None:
    """Draws follow from the batch; rows see nothing later than their own time."""
    days = np.arange(1000)
    rows = SeedRows("active", "user", 1000, days % 7, days, None, None, {})
    plan = RowPlan(rows, gaps=np.array([0, 5, 90]))
    positions = np.arange(0, 1000, 2)
    ages = days[positions] - plan.times(positions, 11)
    assert set(ages) == {0, 5, 90}
    assert np.bincount(ages)[[0, 5, 90]] / len(ages) == pytest.approx(
        [4 / 6, 1 / 6, 1 / 6], abs=0.06
    )
    assert np.array_equal(plan.times(positions, 11), days[positions] - ages)
    assert not np.array_equal(plan.times(positions, 12), days[positions] - ages)


def test_trees_learn_from_rows_that_see_an_older_graph(
    busy: tuple[Any, str], tmp_path: Path
) -> None:
    """As the model: half of the training rows see as little as the test rows, here nothing."""
    temporal = {"strategy": "last", "until": {"test": "1960-01-01"}}
    config = _config(tmp_path, busy[1], sampling={"temporal": temporal})
    loaded = with_task_defaults(load_config(config), busy[1])
    task = NodeClassification()
    task.setup(TaskEnvironment(loaded, open_bundle(loaded, None), 0, 1, torch.device("cpu")))
    counts = [name.endswith("count all") for name in task.histories[0].names].index(True)
    train, test = task.target.splits.train, task.target.splits.test
    task.model = None  # whose columns are the graph's alone
    is_empty = task.row_columns(train, "train")[:, counts] == 0
    assert 0.35 < is_empty.mean() < 0.65
    assert (task.row_columns(test, "test")[:, counts] == 0).all()


def test_a_window_leaves_out_older_edges(busy: tuple[Any, str], shop: Shop, tmp_path: Path) -> None:
    """Purchases before the window change nothing, also where all nodes are encoded together."""
    result, graph = busy
    recent = shop.day >= 170
    less = replace(shop, user=shop.user[recent], item=shop.item[recent], day=shop.day[recent])
    other = less.write(tmp_path / "tables", (shop.counts(-WINDOW, 0) > 4).astype(np.int64))
    asked = pd.DataFrame(
        {"id": np.arange(NUM_USERS), "time": pd.Timestamp("1970-07-20")}
    )  # day 200
    for window, is_same in (("30d", True), ("40d", False)):
        model = raygnn.load(str(result.path), ["--sampling.temporal.window", window])
        found, expected = (model.predict(uri, rows=asked) for uri in (other, graph))
        assert found.arrow.equals(expected.arrow) == is_same


def test_rows_after_the_last_training_row_change_no_weight(shop: Shop, tmp_path: Path) -> None:
    labels = (shop.counts(-WINDOW, 0) > 4).astype(np.int64)
    last = int(ASKED[int(0.8 * len(ASKED))])
    weights = []
    for name, rows in (("some", shop), ("others", shop.after(last, np.random.default_rng(0)))):
        graph = rows.write(tmp_path / name / "tables", labels)
        config = _config(tmp_path / name, graph, training={"max_epochs": 1})
        weights.append(raygnn.train.fit(config).model.module.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_tables_in_memory_are_those_of_a_folder(
    busy: tuple[Any, str], shop: Shop, tmp_path: Path
) -> None:
    """DataFrames and arrays in place of files, with temporal sampling by default."""
    result, graph = busy
    tables = shop.tables((shop.counts(-WINDOW, 0) > 4).astype(np.int64))
    config = _config(tmp_path, graph)
    del config["data"]["uri"]
    found = raygnn.train.fit(config, data=tables)
    for name in ("val/loss", "test/loss", "test/auroc"):
        assert found.metrics[name] == result.metrics[name]
    own = result.model.predict(tables, rows="active", split="test")
    assert own.arrow.equals(result.model.predict(graph, rows="active", split="test").arrow)


@pytest.mark.parametrize("has_table", [True, False])
def test_a_feature_that_is_the_label_is_named(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str], has_table: bool
) -> None:
    taste = np.random.default_rng(0).random((NUM_USERS, 2), np.float32).round()
    label = taste[:, 1:].astype(np.int64)
    tables = shop.tables(np.repeat(label, len(ASKED), axis=1))
    tables.nodes["user"] = node_rows(np.arange(NUM_USERS), {"x": 3 - taste}, {"y": label[:, 0]})
    write_tables(tables, str(tmp_path / "graph"))
    config = _config(tmp_path, str(tmp_path / "graph"), training={"max_epochs": 1})
    config["task"] = _task(past_labels=False)
    if not has_table:
        config["task"] = {
            "type": "node_classification",
            "args": {"blend": False, "target": "user", "label": "y"},
        }
        config["data"]["splits"] = {"type": "hash", "fractions": [0.6, 0.2, 0.2]}
    raygnn.train.fit(config)
    printed = capsys.readouterr()
    assert "column 'x[1]' of 'user' gives label" in printed.out + printed.err
    lifts = "column 'user.x[1]' alone raises LightGBM's AUROC" in printed.out + printed.err
    assert lifts is has_table
    assert "x[0]" not in printed.out + printed.err


@pytest.mark.parametrize(
    ("third", "window", "named", "others"),
    [
        ("test", "60d", ["no validation rows", "120 training rows of training_tables.active"], []),
        ("val", "30d", ["no test rows"], ["no validation rows", "reach past"]),
    ],
)
def test_splits_that_say_too_little_are_named(
    shop: Shop, tmp_path: Path, third: str, window: str, named: list[str], others: list[str]
) -> None:
    tables = shop.tables((shop.counts(-WINDOW, 0) > 4).astype(np.int64))
    made = tables.training_tables["active"]
    split = np.where(np.tile(ASKED, NUM_USERS) < 4 * WINDOW, "train", third)
    rows = made.table.append_column("split", pa.array(split))
    made = replace(made, table=rows, split="split", window=window)
    tables = replace(tables, training_tables={"active": made})
    write_tables(tables, str(tmp_path / "graph"))
    config = _config(tmp_path, str(tmp_path / "graph"), training={"max_steps": 1})
    result = raygnn.train.fit(config)
    said = result.metrics["warnings"]
    assert all(text in said for text in named)
    assert not any(text in said for text in others)


@pytest.mark.parametrize("has_times", [False, True])
def test_events_of_which_the_latest_are_unknown_are_named(
    shop: Shop, tmp_path: Path, has_times: bool
) -> None:
    numbers, time = np.arange(len(shop.day)), dates(shop.day)
    tables = shop.tables((shop.counts(-WINDOW, 0) > 4).astype(np.int64))
    purchases = node_rows(numbers, {"x": np.ones((len(numbers), 1), np.float32)}, time=time)
    edges = {
        ("purchase", "by", "user"): edge_rows(numbers, shop.user, time=time if has_times else None),
        ("user", "made", "purchase"): edge_rows(shop.user, numbers),
    }
    tables = replace(tables, nodes={**tables.nodes, "purchase": purchases}, edges=edges)
    write_tables(tables, str(tmp_path / "graph"))
    config = _config(tmp_path, str(tmp_path / "graph"), training={"max_steps": 1})
    said = raygnn.train.fit(config).metrics["warnings"]
    assert ("purchase__by__user have no time, so" in said) is not has_times


def test_edges_that_begin_after_the_training_rows_are_not_read(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No training row sees one, so their weights would be random numbers in the test."""
    tables = shop.tables((shop.counts(-WINDOW, 0) > 4).astype(np.int64))
    is_late = shop.day > ASKED[-2]
    user, item, time = shop.user[is_late], shop.item[is_late], dates(shop.day[is_late])
    late = {("user", "likes", "item"): edge_rows(user, item, time=time)}
    runs = []
    for edges in ({}, late):
        uri = str(tmp_path / f"graph-{len(edges)}")
        write_tables(replace(tables, edges={**tables.edges, **edges}), uri)
        config = _config(tmp_path / f"run-{len(edges)}", uri, training={"max_steps": 3})
        runs.append(raygnn.train.fit(config).metrics)
    assert runs[1]["baseline/gnn/test/auroc"] == pytest.approx(runs[0]["baseline/gnn/test/auroc"])
    late_types = "item__rev_likes__user, user__likes__item"
    warning = f"all edges of {late_types} are later than the last training row"
    assert capsys.readouterr().out.count(warning) == 1


@pytest.mark.parametrize("has_times", [False, True])
def test_links_without_times_beside_others_are_named(
    shop: Shop, tmp_path: Path, has_times: bool
) -> None:
    tables = shop.tables((shop.counts(-WINDOW, 0) > 4).astype(np.int64))
    time = dates(shop.day) if has_times else None
    visits = {("user", "visits", "market"): edge_rows(shop.user, shop.item % 7, time=time)}
    markets = {"market": node_rows(np.arange(7), {"x": np.ones((7, 1), np.float32)})}
    tables = replace(tables, nodes={**tables.nodes, **markets}, edges={**tables.edges, **visits})
    write_tables(tables, str(tmp_path / "graph"))
    config = _config(tmp_path, str(tmp_path / "graph"), training={"max_steps": 1})
    said = raygnn.train.fit(config).metrics["warnings"]
    assert ("user__visits__market have no time, unlike others" in said) is not has_times


def test_what_is_refused(busy: tuple[Any, str], tmp_path: Path) -> None:
    result, graph = busy
    with raises("task-table-unknown", "churn", "active"):
        raygnn.train.fit(_config(tmp_path, graph, task=_task(table="churn")))
    with raises("task-table-target", "item"):
        raygnn.train.fit(_config(tmp_path, graph, task=_task(table="active", target="item")))
    with raises("task-table-full", "full"):
        raygnn.train.fit(_config(tmp_path, graph, sampling={"type": "full"}))
    with raises("split-empty", "val and test", "active"):
        bounds = {"type": "temporal", "timestamps": ["1998-01-01", "1999-01-01"]}
        raygnn.train.fit(_config(tmp_path, graph, data={"uri": graph, "splits": bounds}))
    with raises("task-clamp-class", "regressed"):
        raygnn.train.fit(_config(tmp_path, graph, task=_task(clamp=True)))
    with raises("sampling-until-time", "soon"):
        temporal = {"until": {"test": "soon"}}
        raygnn.train.fit(_config(tmp_path, graph, sampling={"temporal": temporal}))
    with raises("sampling-window-unit", 5, "dates"):
        window = {"temporal": {"window": 5}}
        raygnn.train.fit(_config(tmp_path / "window", graph, sampling=window))
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "window" / "run").exists()
    with raises("infer-rows-times", "a number", "dates"):
        result.model.predict(graph, rows={"id": [1], "time": [5]})
    with raises("infer-rows-columns", "id, date", "id or user", "time or at"):
        result.model.predict(graph, rows={"id": [1], "date": ["1970-05-01"]})
    with raises("infer-rows-columns", "id, user, time"):
        result.model.predict(graph, rows={"id": [1], "user": [1], "time": ["1970-05-01"]})


def _task(**args: Any) -> dict[str, Any]:
    return {"type": "node_classification", "args": args}


def test_a_date_is_read_relative_to_the_row(tmp_path: Path) -> None:
    """Contracts that end within 30 days. The dates themselves say nothing without the row's."""
    rng = np.random.default_rng(0)
    ends = rng.integers(0, NUM_DAYS + 60, 400)
    user, day = np.repeat(np.arange(400), len(ASKED)), np.tile(ASKED, 400)
    left = ends[user] - day
    rows = {"user": user, "at": dates(day), "soon": ((left > 0) & (left <= 30)).astype(int)}
    tables = {
        "users": {"id": np.arange(400), "ends": dates(ends)},
        "pages": {"id": np.arange(5), "price": rng.random(5)},
        "visits": {"user": rng.integers(0, 400, 800), "page": rng.integers(0, 5, 800)},
        "rows": rows,
    }
    tables["visits"]["day"] = dates(rng.integers(0, NUM_DAYS, 800))
    for name, columns in tables.items():
        pd.DataFrame(columns).to_csv(tmp_path / f"{name}.csv", index=False)
    (tmp_path / "graph.yaml").write_text(
        """\
format: raygnn/graph-v1
node_types:
  user: {files: users.csv, id: id, features: {x: [{column: ends, transform: auto}]}}
  page: {files: pages.csv, id: id, features: {x: [price]}}
edge_types:
  - {type: [user, visits, page], files: visits.csv, source: user, target: page, time: day}
training_tables:
  renewal: {files: rows.csv, node_type: user, node: user, time: at, labels: {y: soon}}
"""
    )
    found = raygnn.train.fit(_config(tmp_path, str(tmp_path / "graph.yaml")))
    assert found.metrics["test/auroc"] > 0.95
    assert "column 'ends' of 'user' is later than the time of" in found.metrics["warnings"]


@pytest.mark.slow
def test_a_run_on_parts_has_the_bits_of_memory_whatever_comes_after_training(
    tmp_path: Path,
) -> None:
    runs = []
    for seed, mode in ((0, "in_memory"), (0, "partitioned"), (1, "partitioned")):
        folder = tmp_path / f"{mode}{seed}"
        uri = write_tables(late_shop(seed), str(folder / "tables"))
        data = {"uri": uri, "mode": mode, "cache_dir": str(tmp_path / "cache")}
        if mode == "partitioned":
            data["uri"] = str(folder / "parts")
            partition(uri, data["uri"], Partitioning(3, "range"))
        config = small_config(folder, data=data, model={"type": "Hetero"}, metrics=[])
        change(config, training__max_epochs=1, scaling__num_workers=0, task__args__blend=False)
        raygnn.train.fit(config)
        losses = [r["train/loss"] for r in read_history(folder) if "train/loss" in r]
        assert losses
        runs.append((losses, trained_weights(config)))
    (losses, weights), *others = runs
    for found in others:
        assert found[0] == losses
        assert found[1].keys() == weights.keys()
        assert all(torch.equal(found[1][name], weights[name]) for name in weights)
