from __future__ import annotations

import json
import math

import numpy as np
import pytest

from raygnn.outputs.comparison import sweep_tables
from raygnn.outputs.curves import without_flat
from raygnn.outputs.html_page import Chart, Series, label
from raygnn.outputs.report import degree_charts


def test_columns_are_over_the_union_of_all_x():
    lines = [Series("a", [(1, 0.5), (3, math.nan)], 2), Series("b", [(2, 1 / 3), (3, 7.0)])]
    data = Chart("any", lines, marked_x=2, mark="best").data()
    assert data["x"] == [1, 2, 3]
    assert data["columns"] == [[0.5, None, None], [None, 0.3333333, 7.0]]
    assert (data["names"], data["colors"]) == (["a", "b"], [2, 0])
    assert (data["marked_x"], data["mark"]) == (2, "best")


def test_no_text_of_users_ends_the_script_element():
    chart = Chart("t", [Series("</script><b>&", [(0, 1.0)])])
    assert not set("<>&") & set(chart.json())
    assert json.loads(chart.json())["names"] == ["</script><b>&"]


def test_lines_of_one_value_are_numbers_and_losses_are_drawn_anyhow():
    flat, rising = [(0, 1.0), (5, 1.0)], [(0, 1.0), (5, 2.0)]
    charts = [
        Chart("Loss", [Series("loss", flat)], wide=True),
        Chart("LR", [Series("lr", flat)]),
        Chart("Both", [Series("a", flat), Series("b", rising)]),
        Chart("Accuracy", [Series("val/accuracy", flat)], marked_x=5),
    ]
    drawn, numbers = without_flat(charts)
    assert [chart.title for chart in drawn] == ["Loss", "Both", "Accuracy"]
    assert numbers == [("lr", 1.0)]


def test_degrees_are_counted_by_powers_of_two():
    degrees = np.array([0, 0, 1, 2, 3, 4, 7, 8, 100])

    class Bundle:
        edge_types = (("a", "to", "b"),)

        def num_edges(self, edge_type):
            return int(degrees.sum())

        def csc(self, edge_type):
            return type("Csc", (), {"indptr": np.concatenate([[0], degrees.cumsum()])})

    (chart,) = degree_charts(Bundle())
    counted = dict(zip(chart.x_names, [y for _, y in chart.series[0].points], strict=True))
    expected = {"0": 2, "1": 1, "2-3": 2, "4-7": 2, "8-15": 1, "16-31": 0, "32-63": 0}
    assert counted == {**expected, "64-127": 1}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.25, "0.25"), (1500, "1,500"), (2.5e6, "2.5M"), (3e-06, "3e-06"), (-4e9, "-4G")],
)
def test_numbers_are_written_as_people_do(value, text):
    assert label(value) == text


def _sweep(num_trials: int = 8) -> dict:
    trials = [
        {
            "trial": f"trial-{number:05d}",
            "values": {
                "optimizer.args.lr": 10.0 ** -(1 + number % 4),
                "model.type": "AB"[number % 2],
            },
            "status": "finished",
            "best": None if number == num_trials - 1 else 0.9 - number / 100,
            "num_validations": 3,
            "error": None,
        }
        for number in range(num_trials)
    ]
    return {"metric": "val/mrr", "mode": "max", "trials": trials}


def test_the_table_has_every_trial():
    heads, rows = sweep_tables(_sweep())["Trials"]
    assert heads[:2] == ("trial", "val/mrr")
    assert len(rows) == 8
    assert rows[-1][1] is None
