"""Several tasks train one encoder: each as alone, none leaks, alike for 1, 2 and 3 workers."""

from __future__ import annotations

from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
import torch

import raygnn
import raygnn.train
from raygnn import infer
from raygnn.config import build, load_config
from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import parse_edge_type
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.tables.graph_tables import write_tables
from raygnn.documents import parse_yaml
from raygnn.loops.task import TaskEnvironment
from raygnn.loops.tasks.encoder_task import EncoderTask
from tests.errors import error_cases, raises
from tests.several_tasks import social_films, without_held_out
from tests.small_runs import (
    check_resumed_bits,
    check_workers_agree,
    read_history,
    small_config,
    train_once,
    trained_weights,
)
from tests.tiers import slow

FOLLOWS, RATES = "user__follows__user", "user__rates__film"
TASKS: dict[str, Any] = {
    "genre": {"type": "node_classification", "args": {"blend": False, "target": "film"}},
    "follows": {
        "type": "link_prediction",
        "args": {"edge_type": FOLLOWS, "num_random_negatives": 20, "num_random_negatives_eval": 30},
        "weight": 0.2,
    },
    "rating": {
        "type": "edge_prediction",
        "args": {"blend": False},
        "weight": 2.0,
        "loader": {"batch_size": 48},
    },
}
MODEL = {"type": "Hetero", "args": {"hidden_channels": 8, "out_channels": 8, "dropout": 0.3}}
REVERSE = IngestOptions(reverse_edges=True)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("social") / "tables"
    write_tables(social_films(), str(folder))
    return folder


@pytest.fixture(scope="module")
def bundle_path(graph: Path) -> str:
    return str(ingest(str(graph), REVERSE, str(graph.parent / "cache")).path)


def _config(folder: Path, graph: Path, world_size: int = 0, **changes: Any) -> dict[str, Any]:
    settings = {
        "tasks": TASKS,
        "metrics": [],
        "data": {"uri": str(graph), "reverse_edges": True, "cache_dir": str(folder / "cache")},
        "model": MODEL,
        "scaling__num_workers": world_size,
        "optimizer__args": {"lr": 0.01},
    }
    return small_config(folder, **{**settings, **changes})


_GLOBAL = {"type": "retrieval", "args": {"candidates": "global"}}
_WITH_GLOBAL = {**TASKS, "follows": {**TASKS["follows"], "losses": [_GLOBAL]}}
_WITH_SELF_SUPERVISED = {
    **TASKS,
    "users": {"type": "self_supervised", "args": {"target": "user"}, "weight": 0.1},
}


@pytest.mark.parametrize(
    "tasks",
    [TASKS, *slow(_WITH_GLOBAL, _WITH_SELF_SUPERVISED)],
    ids=["each by itself", "candidates of all micro-batches", "with a self-supervised loss"],
)
def test_workers_agree(ranks, graph, bundle_path, tmp_path, tasks):
    def config(folder: Path, size: int) -> dict[str, Any]:
        changes = {"training__global_batch_size": 96, "training__max_epochs": 1, "tasks": tasks}
        return _config(folder, graph, size, **changes)

    logged = [f"{split}/{name}/loss" for split in ("train", "val") for name in TASKS]
    names = ("train/loss", "val/loss", "val/rating/mae", *logged)
    check_workers_agree(ranks, config, tmp_path, bundle_path, *names)


def test_resumed_and_straight_end_with_the_same_bits(ranks, graph, bundle_path, tmp_path):
    config = partial(_config, graph=graph, world_size=2, tasks=TASKS)
    check_resumed_bits(ranks, config, tmp_path, bundle_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{"scaling__shard": "full"}, {"training__eval": "exact"}],
    ids=["sharded", "exact evaluation"],
)
def test_two_workers_train_one_model_in_any_way(ranks, graph, bundle_path, tmp_path, changes):
    weights = []
    for folder, size, own in ((tmp_path / "1", 1, {}), (tmp_path / "2", 2, changes)):
        settings = {"training__global_batch_size": 32, "training__max_epochs": 1, **own}
        config = _config(folder, graph, size, **settings)
        trained = train_once(ranks, config, bundle_path, size)
        weights.append(trained.weights)
    for name, tensor in weights[0].items():
        if ".labels." not in name:  # weighed on the neighborhoods of the evaluation
            torch.testing.assert_close(weights[1][name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["follows", *slow("genre", "rating")])
def test_a_task_beside_tasks_of_weight_0_is_the_task_alone(tmp_path, graph, name):
    """Alone it trains on tables without the edges that the other tasks hold out."""
    tasks = {other: {**entry, "weight": float(other == name)} for other, entry in TASKS.items()}
    together = _config(tmp_path / "together", graph, tasks=tasks)
    others = {"follows": FOLLOWS, "rating": RATES}
    others.pop(name, None)
    write_tables(without_held_out(social_films(), others.values()), str(tmp_path / "tables"))
    entry = TASKS[name]
    alone = _config(tmp_path / "alone", tmp_path / "tables")
    del alone["tasks"]
    alone["task"] = {"type": entry["type"], "args": entry.get("args", {})}
    alone["loader"] |= entry.get("loader", {})
    alone["checkpoint"] = {"monitor": "val/loss", "mode": "min"}  # as several tasks do
    for config in (together, alone):
        raygnn.train.fit(config)
    expected = trained_weights(alone)
    for key, tensor in trained_weights(together).items():
        own = key.removeprefix(f"heads.{name}.")
        if key.startswith(("encoder.", f"heads.{name}.")):
            assert torch.equal(tensor, expected.pop(own)), key
    assert not expected
    for row, other in zip(
        read_history(tmp_path / "together"), read_history(tmp_path / "alone"), strict=True
    ):
        assert (row["step"], row["train/loss"]) == (other["step"], other["train/loss"])
        assert row["val/loss"] == row[f"val/{name}/loss"] == other["val/loss"]
        for metric, value in other.items():
            if metric.startswith("val/"):
                assert row[metric.replace("val/", f"val/{name}/")] == value


@pytest.fixture(scope="module")
def trained(graph: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict, list[str]]:
    """The folder of a run, its metrics, and the lines that it prints."""
    folder = tmp_path_factory.mktemp("trained")
    config = _config(folder, graph, early_stopping={"monitor": "val/rating/r2", "mode": "max"})
    config["training"]["log_every"] = {"steps": 1}
    with redirect_stdout(StringIO()) as printed:
        metrics = raygnn.train.fit(config).metrics
    return folder, metrics, printed.getvalue().splitlines()


def test_the_loss_of_a_step_is_the_weighted_sum_of_the_tasks(trained):
    rows = read_history(trained[0])
    assert rows
    for row in rows:
        for split in ("train", "val"):
            losses = {name: row[f"{split}/{name}/loss"] for name in TASKS}
            total = sum(TASKS[name].get("weight", 1.0) * loss for name, loss in losses.items())
            assert row[f"{split}/loss"] == pytest.approx(total, rel=1e-5)


@pytest.mark.slow
def test_every_head_learns(tmp_path, graph):
    weights = []
    for rate in (1e-30, 0.01):
        config = _config(tmp_path / str(rate), graph, optimizer__args={"lr": rate})
        config["tasks"] = {
            **TASKS,
            "follows": {
                **TASKS["follows"],
                "args": {**TASKS["follows"]["args"], "decoder": {"type": "hadamard_mlp"}},
            },
        }
        raygnn.train.fit(config)
        weights.append(trained_weights(config))
    heads = [name for name in weights[0] if name.startswith("heads.")]
    assert {name.split(".")[1] for name in heads} == set(TASKS)
    for name in weights[0]:
        # An output bias shifts all scores of links; factors of labels are not learned by gradients.
        is_fixed = (
            (name.endswith("out.bias") and "follows" in name)
            or ".start." in name
            or ".labels." in name
        )
        assert is_fixed or not torch.equal(weights[0][name], weights[1][name]), name


def _task(config: dict[str, Any], bundle_path: str) -> Any:
    loaded = load_config(config)
    task: Any = build(loaded.config.task, "task")
    bundle = Bundle.open(bundle_path)
    task.setup(TaskEnvironment(loaded, bundle, 0, 1, torch.device("cpu")))
    return task


def _split_of_pairs(bundle: Bundle, name: str) -> dict[tuple[int, int], set[int]]:
    edge_type = parse_edge_type(name)
    csc = bundle.csc(edge_type)
    targets = np.repeat(np.arange(len(csc.indptr) - 1), np.diff(csc.indptr))
    found: dict[tuple[int, int], set[int]] = {}
    splits = np.asarray(bundle.column(edge_type, "split"))
    for source, target, split in zip(csc.indices, targets, splits, strict=True):
        found.setdefault((int(source), int(target)), set()).add(int(split))
    return found


_ON_THE_SAME_EDGES = {
    **TASKS,
    "rates": {**TASKS["follows"], "args": {"edge_type": RATES, "num_random_negatives_eval": 30}},
}


@pytest.mark.parametrize("tasks", [TASKS, _ON_THE_SAME_EDGES])
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_held_out_edges_of_a_task_carry_no_messages_in_any(
    graph, bundle_path, tmp_path, tasks, split
):
    task = _task(_config(tmp_path, graph, tasks=tasks, sampling__fanouts=[-1, -1]), bundle_path)
    splits = {name: _split_of_pairs(task.env.bundle, name) for name in (FOLLOWS, RATES)}
    allowed = {1, 2} if split == "test" else {1}
    seen: dict[tuple[str, str], set[int]] = {}
    for index in range(task.loader(split).num_batches):
        for name, batch in task.loader(split).make(0, index).batches.items():
            for edge_type, edges in batch.edges.items():
                source, target = (
                    batch.nodes[end].n_id[rows]
                    for end, rows in zip(edge_type[::2], edges.edge_index, strict=True)
                )
                is_reverse = edge_type[1].startswith("rev_")
                ends = (target, source) if is_reverse else (source, target)
                relation = FOLLOWS if edge_type[1].endswith("follows") else RATES
                for pair in zip(*(end.tolist() for end in ends), strict=True):
                    seen.setdefault((name, relation), set()).update(splits[relation][pair])
    assert set(seen) == {(name, relation) for name in tasks for relation in (FOLLOWS, RATES)}
    for place, found in seen.items():
        assert found == allowed, place
    task.close()


def test_log_lines_and_report_show_all_tasks(trained):
    folder, metrics, lines = trained
    (line, *_) = [line for line in lines if "| val/rating/r2" in line]
    for name in ("genre/loss", "genre/accuracy", "follows/mrr", "rating/loss", "rating/r2"):
        assert f"val/{name}" in line
    (start,) = [line for line in lines if "global batch" in line]
    assert "48 of rating" in start
    page = (folder / "run" / "report.html").read_text()
    for text in (
        *("genre (node_classification)", "genre: Actual and predicted classes, test"),
        *("follows: Ranks by known links of the target, test", "rating: validation"),
        *("genre/accuracy", "follows/mrr", "rating/mae"),
    ):
        assert text in page, text
    assert set(metrics["genre/confusion"]) == {"test"}
    assert metrics["best_step"] > 0
    best = max(row["val/rating/r2"] for row in read_history(folder))
    assert metrics["val/rating/r2"] == best


def test_each_task_is_used_by_its_name(tmp_path, graph, trained):
    run, metrics = trained[0] / "run", trained[1]
    for name, metric in (("genre", "accuracy"), ("follows", "mrr"), ("rating", "rmse")):
        model = raygnn.load(run, task=name)
        judged = model.evaluate(str(graph), split="test", exact=False)
        assert judged[metric] == pytest.approx(metrics[f"test/{name}/{metric}"], rel=1e-6)
        with raises("infer-task", "nothing", "genre"):
            raygnn.load(run, task="nothing")
    with raises("infer-task", "task is missing", "genre, follows, rating"):
        raygnn.load(run)
    rows = [
        raygnn.load(run, task=name).embed(str(graph), node_type="film")["embedding"]
        for name in TASKS
    ]
    assert np.array_equal(rows[0], rows[1])
    assert np.array_equal(rows[0], rows[2])

    options = ["--data.uri", str(graph), "--scaling.num_workers", "0", "--training.eval", "exact"]
    genre = infer.predict(run, tmp_path / "genre", options, task="genre")
    assert list(genre.manifest["tables"]) == ["film"]
    rating = infer.predict(run, tmp_path / "rating", options, task="rating")
    assert list(rating.manifest["tables"]) == [RATES]
    found = infer.top_k(run, tmp_path / "top", 3, [1, 2], options, task="follows")
    assert found.manifest["tables"]["neighbors"]["num_rows"] == 6


def test_each_task_has_the_blend_that_validation_chooses(tmp_path, graph):
    genre = {**TASKS["genre"], "args": {"target": "film"}}
    tasks = {"rating": {"type": "edge_prediction"}, "genre": genre, "follows": TASKS["follows"]}
    result = raygnn.train.fit(_config(tmp_path, graph, tasks=tasks))
    metrics = result.metrics
    assert set(metrics["blend"]) == set(metrics["rungs"]) == {"rating", "genre"}
    assert "lightgbm" in metrics["blend"]["rating"]
    assert "lightgbm" in metrics["rungs"]["genre"]["val"]["accuracy"]
    assert "test/rating/" in metrics["verdict"]
    for name in ("rating", "genre"):
        judged = raygnn.load(str(result.path), task=name).evaluate(str(graph), split="test")
        assert judged
        for metric, value in judged.items():
            assert metrics[f"test/{name}/{metric}"] == pytest.approx(value, rel=1e-12)


def test_a_model_of_one_task_has_no_task_of_a_name(tmp_path, graph):
    config = _config(tmp_path, graph)
    config["task"] = {"type": "node_classification", "args": {"blend": False, "target": "film"}}
    del config["tasks"]
    raygnn.train.fit(config)
    with raises("infer-task-single", "genre"):
        raygnn.load(tmp_path / "run", task="genre")


def test_two_losses_of_all_micro_batches_are_refused(tmp_path, graph):
    with raises("tasks-joint-losses"):
        raygnn.train.fit(
            _config(
                tmp_path,
                graph,
                tasks={**_WITH_GLOBAL, **_WITH_SELF_SUPERVISED, "follows": _WITH_GLOBAL["follows"]},
            )
        )


@pytest.mark.parametrize(
    ("text", "message"),
    error_cases(
        """
tasks: {genre: {type: node_classification, args: {target: book}}}
    graph-node-type-unknown | tasks.genre.args.target='book'
tasks: {genre: {type: node_classification, args: {label: taste}}}
    labels-unknown | tasks.genre.args.label='taste'
{tasks: {genre: node_classification}, task: {args: {feature: words}}}
    task-feature-unknown | tasks.genre: task.args.feature='words'
"""
    ),
)
def test_errors_name_the_keys_that_the_user_sets(tmp_path, graph, text, message):
    with raises(*message):
        raygnn.train.fit(_config(tmp_path, graph, **parse_yaml(text).value))


def test_a_trained_task_has_training_seeds(tmp_path):
    tables = social_films()
    films = tables.nodes["film"]
    split = films.table["split"].to_numpy(zero_copy_only=False)
    late = pa.array(np.where(split == "train", "val", split))
    number = films.table.column_names.index("split")
    table = films.table.set_column(number, "split", late)
    nodes = {**tables.nodes, "film": replace(films, table=table)}
    write_tables(replace(tables, nodes=nodes), str(tmp_path / "tables"))
    config = _config(tmp_path, tmp_path / "tables")
    with raises("split-empty", "tasks.genre"):
        raygnn.train.fit(config)


def test_a_task_that_builds_its_model_in_one_serves_alone(graph, bundle_path, tmp_path):
    task = _task(_config(tmp_path, graph), bundle_path)
    with (
        patch.object(type(task.parts["genre"]), "build_head", EncoderTask.build_head),
        raises("tasks-no-head", "node_classification", "tasks.genre"),
    ):
        task.build_model()


@pytest.mark.slow
@pytest.mark.parametrize("noise", [False, True])
def test_all_tasks_learn_what_there_is_to_learn(tmp_path, noise):
    tables = social_films(400, 120, noise=noise)
    write_tables(tables, str(tmp_path / "tables"))
    config = {
        "data": {"uri": str(tmp_path / "tables"), "cache_dir": str(tmp_path / "cache")},
        "tasks": {
            "genre": {"type": "node_classification", "args": {"blend": False, "target": "film"}},
            "follows": {"type": "link_prediction", "args": {"edge_type": FOLLOWS}},
            "rating": {"type": "edge_prediction", "args": {"edge_type": RATES}},
        },
        "model": {"type": "Hetero", "args": {"hidden_channels": 32}},
        "sampling": {"fanouts": [10, 5]},
        "loader": {"batch_size": 256},
        "training": {"max_epochs": 15},
        "loggers": [],
        "scaling": {"num_workers": 0},
        "run": {"storage_path": str(tmp_path), "name": "run"},
    }
    found = raygnn.train.fit(config).metrics
    if noise:
        assert found["test/genre/accuracy"] < 0.33 + 3 * 0.1
        assert abs(found["test/follows/auc"] - 0.5) < 0.06
        assert found["test/rating/r2"] < 0.02
    else:
        assert found["test/genre/accuracy"] > 0.5
        assert found["test/follows/auc"] > 0.65
        assert found["test/rating/r2"] > 0.1
