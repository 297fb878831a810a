"""Ranking trials, and the table of them."""

from __future__ import annotations

import json
import math

from raygnn.runtime.sweep_progress import TrialRow, as_json, best_value, rank, table

ROWS = [
    TrialRow("trial-00000", {"lr": 0.1, "model": "GCN"}, "finished", 0.5, 8),
    TrialRow("trial-00001", {"lr": 0.01, "model": "GAT"}, "failed", None, 0, "it broke"),
    TrialRow("trial-00002", {"lr": 0.02, "model": "GCN"}, "stopped early", 0.25, 2),
]


def test_rank_puts_the_best_first_and_failures_last():
    assert [row.name[-1] for row in rank(ROWS, "min")] == ["2", "0", "1"]
    assert [row.name[-1] for row in rank(ROWS, "max")] == ["0", "2", "1"]


def test_best_value_leaves_out_what_is_no_number():
    assert best_value([0.3, math.nan, None, 0.1, math.inf], "min") == 0.1
    assert best_value([0.3, math.nan, 0.1, math.inf], "max") == 0.3
    assert best_value([math.nan, None], "max") is None


def test_the_table_has_a_line_per_trial():
    lines = table(rank(ROWS, "min"), "val/loss")
    assert lines[0].split() == ["rank", "trial", "val/loss", "validations", "lr", "model", "status"]
    assert lines[1].split() == ["1", "trial-00002", "0.25", "2", "0.02", "GCN", "stopped", "early"]
    assert lines[3].endswith("failed: it broke")
    assert table([], "val/loss") == []


def test_the_same_as_json():
    content = json.loads(as_json(rank(ROWS, "min"), "val/loss", "min"))
    assert content["trials"][0]["values"] == {"lr": 0.02, "model": "GCN"}
    assert content["trials"][2]["error"] == "it broke"
