"""Transforms and standardization of parts: fitted on training rows, with the bits of memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raygnn.config import LoadedConfig, load_config
from raygnn.data.ingest.plan_bundle import IngestOptions
from raygnn.data.partition.build import Partitioning, partition
from raygnn.data.partition.steps import Method
from raygnn.data.tables.graph_tables import write_tables
from raygnn.loops.model_spec import ModelSpec
from raygnn.runtime.data_checks import find_spec, open_outline, rows_to_fit, with_task_defaults
from raygnn.runtime.data_source import open_training_tables
from tests.partitioned_graphs import late_shop
from tests.small_runs import small_config
from tests.tiers import slow


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
