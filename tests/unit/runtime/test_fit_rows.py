"""What is fitted reads training rows only, in memory and on parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raygnn.config import LoadedConfig, load_config
from raygnn.data.bundle import Bundle
from raygnn.data.ingest.plan_bundle import IngestOptions
from raygnn.data.partition.build import Partitioning, partition
from raygnn.data.partition.steps import Method
from raygnn.data.tables.graph_tables import write_tables
from raygnn.loops.model_spec import ModelSpec
from raygnn.runtime.data_checks import find_spec, open_outline, rows_to_fit, with_task_defaults
from raygnn.runtime.data_source import open_training_tables
from tests.graph_writer import write_graph
from tests.partitioned_graphs import late_shop
from tests.small_runs import small_config
from tests.tiers import slow

_NODES, _LATE, _DAY = 60, 45, 86_400_000_000
_EDGE = ("n", "to", "n")
_FEATURES = [
    "size",
    {"column": "age", "transform": "standard", "missing": "median"},
    {"column": "income", "transform": "rank_gauss"},
    {"column": "place", "transform": "category", "min_frequency": 1},
    {"column": "seen", "transform": "time"},
]


def _tables(folder: Path, absurd: bool, split: bool) -> Path:
    """Nodes in the order of their times; those from 45 on are for validation and test."""
    rng = np.random.default_rng(0)
    late = np.arange(_NODES) >= _LATE
    values = rng.normal(5, 2, (3, _NODES))
    places = [f"place {number % 4}" for number in range(_NODES)]
    seen = np.arange(_NODES) * _DAY
    if absurd:
        values[:, late] = 1e9
        places[_LATE:] = [f"nowhere {number}" for number in range(late.sum())]
        seen[late] += 10_000 * _DAY
    times = pa.array(np.arange(_NODES) * _DAY, pa.timestamp("us"))
    columns = dict(zip(("size", "age", "income"), values, strict=True))
    nodes = {
        "id": np.arange(_NODES),
        **columns,
        "place": places,
        "seen": pa.array(seen, pa.timestamp("us")),
        "at": times,
    }
    nodes |= {"y": np.arange(_NODES) % 2}
    spec: dict[str, Any] = {"features": {"x": _FEATURES}, "labels": {"y": "y"}, "time": "at"}
    if split:
        spec["split"] = "part"
        nodes["part"] = np.where(late, np.where(np.arange(_NODES) < 52, "val", "test"), "train")
    source = rng.integers(0, _NODES, 300)
    w = np.where(absurd & late[source], 1e9, rng.random(300))
    edges = {"s": source, "t": rng.integers(0, _NODES, 300), "w": w, "at": times.take(source)}
    edge_spec = {"time": "at", "features": {"w": {"column": "w", "transform": "standard"}}}
    return write_graph(folder, pa.table(nodes), pa.table(edges), spec, edge_spec)


def _opened(
    folder: Path, splits: dict[str, Any] | None, absurd: bool, split: bool = False
) -> tuple[Bundle, ModelSpec]:
    uri = _tables(folder / f"graph-{absurd}", absurd, split)
    data = {"uri": str(uri), "splits": splits, "cache_dir": str(folder / "cache")}
    loaded = load_config(small_config(folder, data=data))
    bundle = open_training_tables(loaded, str(uri))
    spec = find_spec(loaded, bundle)
    assert spec is not None
    return bundle, spec


_DATES = {"type": "temporal", "timestamps": ["1970-02-15", "1970-02-22"]}  # days 45 and 52


@pytest.mark.parametrize(
    ("splits", "until"),
    [
        (_DATES, "rows not later than 1970-02-14"),
        ({"type": "temporal", "quantiles": [0.75, 0.87]}, "rows not later than 1970-02-14"),
        (None, "the training rows of split columns"),
    ],
    ids=["dates", "quantiles", "column"],
)
def test_test_rows_change_no_bit_of_training_rows(
    splits: dict[str, Any] | None, until: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    is_column = splits is None
    (plain, of_plain), (absurd, of_absurd) = (
        _opened(tmp_path, splits, absurd, is_column) for absurd in (False, True)
    )
    if not is_column:
        assert of_absurd.standardization["n"] == of_plain.standardization["n"]
    assert of_absurd.transforms["n"] == of_plain.transforms["n"]
    rows, others = (np.asarray(b.column("n", "x"))[:_LATE] for b in (plain, absurd))
    assert rows.tobytes() == others.tobytes()
    assert f"fitted on {until}" in capsys.readouterr().out
    if not is_column:
        assert absurd.columns(_EDGE)["w"].transforms == plain.columns(_EDGE)["w"].transforms


def test_a_rule_by_hash_fits_on_its_training_nodes(tmp_path: Path) -> None:
    rule = {"type": "hash", "fractions": [0.6, 0.2, 0.2]}
    bundle, spec = _opened(tmp_path, rule, absurd=False)
    again, _ = _opened(tmp_path, {**rule, "seed": 5}, absurd=False)
    x = np.asarray(bundle.column("n", "x"), np.float64)[:, 0]
    config = load_config(small_config(tmp_path, data={"uri": "x", "splits": rule})).config
    from raygnn.data.splits import make_splits

    train = make_splits(bundle, "n", config.data.splits, "y", config.seed).train
    assert spec.standardization["n"]["x"].mean[0] == pytest.approx(x[train].mean(), rel=1e-12)
    assert again.fingerprint != bundle.fingerprint


def test_a_rule_of_links_leaves_all_rows_of_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = _tables(tmp_path / "graph", absurd=False, split=False)
    data = {"uri": str(uri), "splits": {"type": "hash"}, "cache_dir": str(tmp_path / "cache")}
    config = small_config(tmp_path, data=data, task={"type": "link_prediction"}, metrics=[])
    loaded = load_config(config)
    find_spec(loaded, open_training_tables(loaded, str(uri)))
    printed = capsys.readouterr().out
    assert "fitted on all rows of nodes, since data.splits splits links only" in printed
    assert "warning" not in printed


def run_config(folder: Path, data: dict[str, Any], **changes: Any) -> LoadedConfig:
    data = {"cache_dir": str(folder / "cache"), **data}
    config = small_config(folder, data=data, model={"type": "Hetero"}, metrics=[], **changes)
    return with_task_defaults(load_config(config))


def spec_in_memory(folder: Path, uri: str, **changes: Any) -> ModelSpec:
    loaded = run_config(folder, {"uri": uri, "reverse_edges": True}, **changes)
    spec = find_spec(loaded, open_training_tables(loaded, uri))
    assert spec is not None
    return spec


def spec_of_parts(
    folder: Path, uri: str, parts: Path, how: Partitioning, *, named: bool = False, **changes: Any
) -> ModelSpec:
    loaded = run_config(folder, {"mode": "partitioned", "uri": str(parts)}, **changes)
    rows = rows_to_fit(loaded, uri) if named else None
    partition(uri, parts, how, IngestOptions(reverse_edges=True), rows_to_fit=rows)
    loaded = with_task_defaults(loaded)
    spec = find_spec(loaded, open_outline(loaded))
    assert spec is not None
    return spec


@pytest.mark.parametrize("method", ["hash", *slow("range")])
def test_parts_are_fitted_as_tables_in_memory(
    method: Method, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = write_tables(late_shop(), str(tmp_path / "tables"), num_shards=3)
    expected = spec_in_memory(tmp_path, uri)
    printed = capsys.readouterr().out
    found = spec_of_parts(tmp_path, uri, tmp_path / "parts", Partitioning(3, method))
    assert found == expected
    assert expected.relative_time is not None
    assert expected.relative_time.event_types == ("visit__of__user",)
    line = "transforms and standardization: fitted on rows not later than 2024-03-20"
    assert line in printed
    assert line in capsys.readouterr().out


def test_rows_after_training_change_no_input_of_the_model_on_parts(tmp_path: Path) -> None:
    specs = []
    for seed in (0, 1):
        folder = tmp_path / str(seed)
        uri = write_tables(late_shop(seed), str(folder / "tables"))
        specs.append(spec_of_parts(folder, uri, folder / "parts", Partitioning(2)))
    assert specs[0] == specs[1]


@pytest.mark.parametrize(
    "rule",
    [
        {"type": "hash", "fractions": [0.6, 0.2, 0.2]},
        *slow({"type": "temporal", "timestamps": ["2024-02-15", "2024-03-15"]}),
    ],
)
def test_a_config_names_other_training_rows(
    rule: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = write_tables(late_shop(), str(tmp_path / "tables"))
    expected = spec_in_memory(tmp_path, uri, data__splits=rule)
    changes: dict[str, Any] = {"data__splits": rule}
    for named in (True, False):
        capsys.readouterr()
        parts, how = tmp_path / f"parts-{named}", Partitioning(2)
        found = spec_of_parts(tmp_path, uri, parts, how, named=named, **changes)
        printed = capsys.readouterr()
        assert (found == expected) == named
        assert ("but this run trains on" in printed.out + printed.err) != named
