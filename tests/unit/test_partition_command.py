"""`raygnn partition`: what it prints and the exit statuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import raygnn.__main__ as command
from raygnn.data.partition.part import open_partitioned
from raygnn.data.partition.record import PartitionRecord
from raygnn.data.tables.graph_tables import write_tables
from raygnn.prepare.synthetic import synthetic_tables
from tests.errors import assert_reports


def _tables(folder: Path) -> str:
    tables = synthetic_tables(
        "planted_partition", num_nodes=60, num_classes=3, avg_degree=6, num_features=5
    )
    return write_tables(tables, str(folder / "tables"))


def test_it_reports_cut_and_balance_of_each_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "parts")
    given = ["partition", _tables(tmp_path), "--parts", "3", "--out", out, "--method", "range"]
    assert command.main(given) == 0
    bundle = open_partitioned(out, tmp_path / "cache")
    (edge_type,) = bundle.edge_types
    csc, lines = bundle.csc(edge_type), capsys.readouterr().out.splitlines()
    num_cut = sum(
        source // 20 != target // 20
        for target in range(60)
        for source in csc.indices[csc.indptr[target] : csc.indptr[target + 1]].tolist()
    )
    counts = [int(csc.indptr[stop] - csc.indptr[stop - 20]) for stop in (20, 40, 60)]
    by_type = {line.split()[0]: line.split()[1:] for line in lines[-2:]}
    (edges, nodes) = by_type["__".join(edge_type)], by_type[edge_type[0]]
    assert nodes == ["60", "1.00"]
    balance, cut = f"{max(counts) * 3 / sum(counts):.2f}", f"{num_cut / sum(counts):.1%}"
    assert edges == [f"{sum(counts):,}", balance, cut]


def test_a_config_chooses_the_rows_to_fit_on(tmp_path: Path) -> None:
    config, out = tmp_path / "train.yaml", tmp_path / "parts"
    given = ["partition", _tables(tmp_path), "--parts", "2", "--out", str(out)]
    config.write_text("task: node_classification\ndata: {splits: {type: hash}}\n")
    assert command.main([*given, "--config", str(config)]) == 0
    fit = PartitionRecord.load(out).whole.fit
    assert fit is not None
    assert re.fullmatch(r"the \d\d training rows of node", fit.rows)
    config.write_text("task: link_predictions\n")
    assert command.main([*given, "--config", str(config)]) == 2


def test_wrong_input_is_exit_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["partition", _tables(tmp_path), "--parts", "99", "--out", str(tmp_path / "parts")]
    assert command.main(given) == 2
    assert_reports(capsys.readouterr().err, "partition-too-many-parts", 99, 60)
