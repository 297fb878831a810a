"""Training over a partitioned graph in one process: the bits of the graph opened whole."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raygnn.infer
import raygnn.train
from raygnn.config import load_config
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.partition.build import Partitioning, partition
from raygnn.data.partition.part import open_partitioned
from raygnn.data.partition.record import RECORD_NAME
from raygnn.data.tables.graph_tables import GraphTables, node_rows, write_tables
from raygnn.runtime.data_source import tables_uri
from tests.errors import raises
from tests.faults.outcome import assert_equal_outcomes
from tests.partitioned_graphs import asked_shop, friends, ratings, shop
from tests.partitioned_runs import LINKS, parts_config, planted_parts
from tests.rank_pool import RankPool
from tests.small_runs import run_rank


def _assert_equals_in_memory(folder: Path, parts: Path, **changes: Any) -> None:
    raygnn.train.fit(parts_config(folder / "parted", parts, **changes))
    whole = open_partitioned(parts)
    run_rank(parts_config(folder / "whole", parts, **changes), str(whole.path))
    assert_equal_outcomes(folder / "parted" / "run", folder / "whole" / "run")


def test_a_run_has_the_bits_of_one_in_memory(tmp_path: Path) -> None:
    """Batches of other tasks and samplers: see tests/numerics/test_partitioned_links.py."""
    _assert_equals_in_memory(tmp_path, planted_parts(tmp_path / "graph", 4))


def test_a_run_of_edges_has_the_bits_and_predictions_of_one_in_memory(tmp_path: Path) -> None:
    _, parts = _written_in_parts(tmp_path, ratings())
    _assert_equals_in_memory(
        tmp_path,
        parts,
        task={"type": "edge_prediction", "args": {"edge_type": "user__rates__film"}},
        data__splits={"type": "hash", "fractions": [0.6, 0.2, 0.2]},
        model={"type": "RGCN", "args": {"hidden_channels": 8}},
        metrics=[],
    )
    (tmp_path / "parted" / "run").rename(tmp_path / "run")
    found = _inferred(tmp_path, parts, raygnn.infer.predict, "exact")
    tables, both_ways = tmp_path / "tables", ("--data.reverse_edges", "true")
    expected = _inferred(tmp_path, tables, raygnn.infer.predict, "exact", *both_ways)
    assert len(found) == 300
    assert found.equals(expected)


def test_rows_of_a_training_table_are_learned_and_predicted_as_in_memory(
    ranks: RankPool, tmp_path: Path
) -> None:
    uri, parts = _written_in_parts(tmp_path, asked_shop())
    _assert_equals_in_memory(
        tmp_path,
        parts,
        task={"type": "node_classification", "args": {"blend": False, "label": "word"}},
        sampling={"fanouts": [4, 3], "temporal": {"strategy": "last"}, "disjoint": True},
        model={"type": "Hetero", "args": {"hidden_channels": 8}},
        optimizer={"args": {"lr": 0.005}},
        metrics=[{"type": "auroc"}],
    )
    models = [
        raygnn.load(str(tmp_path / "parted" / "run"), graph)
        for graph in (
            ["--data.mode", "partitioned", "--data.uri", str(parts)],
            ["--data.uri", uri, "--data.reverse_edges", "true"],
        )
    ]
    asked: Any
    own = {"id": [7, 3], "time": [50, 9]}
    for asked in ({"rows": own}, {"rows": {"id": [7]}}, {}, {"rows": "churn", "split": "test"}):
        found, expected = (model.predict(**asked) for model in models)
        assert len(found) > 0
        assert found.arrow.equals(expected.arrow)
    arguments = ["--data.mode", "partitioned", "--data.uri", str(parts), "--table", "churn"]
    arguments += ["--split", "test", "--out", str(tmp_path / "rows.parquet")]
    run = str(tmp_path / "parted" / "run")
    assert ranks.run(raygnn.infer.main, 2, [run, *arguments]) == [0, 0]
    assert pq.read_table(tmp_path / "rows.parquet").equals(found.arrow)
    judged, expected_metrics = (model.evaluate(split="test") for model in models)
    assert judged == expected_metrics


def test_a_run_on_parts_says_how_to_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = planted_parts(tmp_path / "graph", 2)
    raygnn.train.fit(parts_config(tmp_path, parts, training__max_steps=1))
    (line,) = [ln for ln in capsys.readouterr().out.splitlines() if "use it" in ln]
    monkeypatch.chdir(tmp_path)
    eval(line.partition("use it")[2].strip(), {"raygnn": raygnn})
    assert len(pq.read_table(tmp_path / "out" / "node")) == 300


@pytest.mark.parametrize("model", ["GraphSAGE", "GCN"])
def test_exact_evaluation_of_nodes(tmp_path: Path, model: str) -> None:
    parts = planted_parts(tmp_path / "graph", 3)
    changes = {"training__eval": "exact", "training__max_epochs": 1, "model__type": model}
    _assert_equals_in_memory(tmp_path, parts, **changes)


@pytest.mark.parametrize("graph", ["friends", "shop"])
def test_exact_evaluation_and_full_ranking_of_links(tmp_path: Path, graph: str) -> None:
    tables, arguments = friends(), {"edge_weight": "weight"}
    if graph == "shop":
        tables, arguments = shop(), {"edge_type": "user__buys__item"}
    partition(
        write_tables(tables, str(tmp_path / "tables")),
        tmp_path / "parts",
        Partitioning(3),
        IngestOptions(reverse_edges=graph == "shop"),
    )
    _assert_equals_in_memory(
        tmp_path,
        tmp_path / "parts",
        task={"type": "link_prediction", "args": {**arguments, "full_ranking": [5]}},
        data__splits={"type": "hash", "fractions": [0.7, 0.15, 0.15]},
        training__eval="exact",
        training__max_epochs=1,
        model={"type": "RGCN" if graph == "shop" else "GCN", "args": {"hidden_channels": 8}},
        metrics=[{"type": "mrr"}],
    )


def test_a_model_of_parts_predicts_for_the_tables_of_its_graph(tmp_path: Path) -> None:
    parts = planted_parts(tmp_path / "graph", 2)
    raygnn.train.fit(parts_config(tmp_path, parts, training__max_steps=1))
    table = raygnn.load(str(tmp_path / "run")).predict(str(tmp_path / "graph" / "tables"))
    assert len(table) == 300
    with raises("data-source-missing", "the training graph is --data.uri TABLES"):
        raygnn.load(str(tmp_path / "run")).predict()


@pytest.mark.parametrize("how", ["exact", "sampled"])
def test_inference_over_parts_gives_the_tables_of_memory(tmp_path: Path, how: str) -> None:
    parts = planted_parts(tmp_path / "graph", 3, "range")
    raygnn.train.fit(parts_config(tmp_path, parts, training__max_steps=2))
    for what in ("embeddings", "probabilities"):
        found, expected = (
            _inferred(tmp_path, graph, partial(raygnn.infer.predict, what=what), how)
            for graph in (parts, tmp_path / "graph" / "tables")
        )
        assert len(found) == 300
        assert found.equals(expected)


def test_top_k_over_parts_leaves_out_the_links_of_memory(tmp_path: Path) -> None:
    parts = planted_parts(tmp_path / "graph", 2, "range")
    raygnn.train.fit(parts_config(tmp_path, parts, **{**LINKS, "training__max_steps": 2}))
    anchors = list(range(20))
    top_k = partial(raygnn.infer.top_k, k=4, anchors=anchors, filter_known=True)
    found, expected = (
        _inferred(tmp_path, graph, top_k, "exact") for graph in (parts, tmp_path / "graph/tables")
    )
    assert len(found) == 80
    assert found.equals(expected)


def _written_in_parts(
    folder: Path, tables: GraphTables, *, reverse_edges: bool = True
) -> tuple[str, Path]:
    """URI of the tables, and the folder of their three parts."""
    uri = write_tables(tables, str(folder / "tables"))
    options = IngestOptions(reverse_edges=reverse_edges)
    partition(uri, folder / "parts", Partitioning(3, "range"), options)
    return uri, folder / "parts"


def _inferred(
    folder: Path, graph: Path, infer: Callable[..., Any], how: str, *more: str
) -> pa.Table:
    mode = "partitioned" if (graph / RECORD_NAME).exists() else "in_memory"
    settings = ["--data.mode", mode, "--data.uri", str(graph), "--training.eval", how]
    infer(str(folder / "run"), str(folder / "out"), overrides=[*settings, *more], overwrite=True)
    return pq.read_table(next(p for p in (folder / "out").iterdir() if p.is_dir()))


def test_a_model_of_fewer_types_than_the_parts_have_is_refused(tmp_path: Path) -> None:
    tables = write_tables(friends(), str(tmp_path / "tables"))
    wider = friends()
    wider.nodes["tag"] = node_rows(np.arange(3), {"x": np.zeros((3, 2))})
    partition(tables, tmp_path / "parts", Partitioning(2))
    partition(write_tables(wider, str(tmp_path / "wider")), tmp_path / "other", Partitioning(2))
    raygnn.train.fit(parts_config(tmp_path, tmp_path / "parts", **LINKS, training__max_steps=1))
    with raises("partition-types", "user, tag, user__knows__user"):
        _inferred(tmp_path, tmp_path / "other", raygnn.infer.predict, "exact")


def test_times_of_several_types_are_refused_before_training(tmp_path: Path) -> None:
    _, parts = _written_in_parts(tmp_path, asked_shop(), reverse_edges=False)
    changes = {"task__args": {"label": "y"}, "sampling__temporal": {"column": "time"}}
    config = parts_config(tmp_path, parts, **changes)
    with raises("partition-temporal-types", "time"):
        raygnn.train.fit(config)


def test_bad_parts_are_refused_before_training(tmp_path: Path) -> None:
    parts = planted_parts(tmp_path / "graph", 2)
    (parts / RECORD_NAME).rename(parts / "hidden")
    with raises("partition-missing", RECORD_NAME):
        raygnn.train.fit(parts_config(tmp_path, parts))
    (parts / "hidden").rename(parts / RECORD_NAME)
    with raises("partition-missing", f"there is no {tmp_path / 'nowhere'}"):
        raygnn.train.fit(parts_config(tmp_path, tmp_path / "nowhere"))
    tables = tmp_path / "graph" / "tables"
    command = f"raygnn partition {tables} --parts P --out URI"
    with raises("partition-missing", "holds the tables of a graph", command):
        raygnn.train.fit(parts_config(tmp_path, tables))
    bundle = ingest(str(tables), IngestOptions(), str(tmp_path / "cache")).path
    command = "raygnn partition SOURCE --parts P --out URI"
    with raises("partition-missing", f"{bundle} is an ordinary bundle", command):
        raygnn.train.fit(parts_config(tmp_path, bundle))
    with raises("partition-as-tables", "a partitioned graph"):
        raygnn.train.fit(parts_config(tmp_path, parts, data={"uri": str(parts)}))
    shutil.rmtree(parts / "part-00001")
    with raises("partition-missing", "part-00001"):
        raygnn.train.fit(parts_config(tmp_path, parts))
    assert not (tmp_path / "run").exists()


def test_tables_of_parts_are_not_looked_for(tmp_path: Path) -> None:
    loaded = load_config(parts_config(tmp_path, tmp_path / "parts"))
    with raises("partition-training-only", "data.mode='partitioned'"):
        tables_uri(loaded, None)
