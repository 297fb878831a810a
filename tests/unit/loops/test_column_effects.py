"""Effects of columns on many predictions."""

from __future__ import annotations

import numpy as np
import pytest

from raygnn.data.history_spec import HistoryColumn
from raygnn.loops.column_effects import describe_effects

DESCRIBED = [
    ("user", HistoryColumn("orders", "orders", "count")),
    ("user", HistoryColumn("orders.amount", "orders", "sum")),
    ("user", HistoryColumn("country", "user", names=("DE", "FR"), is_category=True)),
]


def test_effects_are_means_of_sizes_and_cohorts_are_means_of_rows() -> None:
    rng = np.random.default_rng(0)
    effects = rng.normal(size=(200, 3)) * (1.0, 0.0, 3.0)
    values = np.stack([rng.poisson(3, 200), np.zeros(200), rng.integers(0, 2, 200)], axis=1)
    values = values.astype(np.float64)
    values[:20, 0] = np.nan
    labels, predictions = rng.random((2, 200))
    found = describe_effects(DESCRIBED, effects, values, labels, predictions)
    sizes = np.abs(effects).mean(axis=0)
    assert [each["effect"] for each in found["columns"]] == pytest.approx([sizes[2], sizes[0]])
    assert [each["table"] for each in found["tables"]] == ["user", "orders"]
    assert sum(each["share"] for each in found["tables"]) == pytest.approx(1)
    countries, orders = (each["ranges"] for each in found["cohorts"])
    for row in countries:
        chosen = values[:, 2] == ("DE", "FR").index(row["range"])
        assert row["rows"] == chosen.sum()
        assert row["label"] == pytest.approx(labels[chosen].mean())
        assert row["prediction"] == pytest.approx(predictions[chosen].mean())
    assert orders[0] == {
        "range": "unknown",
        "rows": 20,
        "label": pytest.approx(labels[:20].mean()),
        "prediction": pytest.approx(predictions[:20].mean()),
    }
    assert sum(each["rows"] for each in orders) == 200
    starts = [float(each["range"].split(" to ")[0]) for each in orders[1:]]
    assert starts == sorted(starts)


def test_ages_are_days() -> None:
    described = [("user", HistoryColumn("orders", "orders", "since last", is_age=True))]
    values = np.array([[1.0], [2.0], [2.0], [5.0]]) * 86_400e6
    found = describe_effects(
        described, np.ones((4, 1)), values, np.arange(4.0), np.zeros(4), is_date=True
    )
    (cohort,) = found["cohorts"]
    ranges = {each["range"]: each["label"] for each in cohort["ranges"]}
    assert ranges == {"1 days": 0, "2 days": 1.5, "5 days": 3}


def test_several_classes_have_no_cohorts() -> None:
    found = describe_effects(DESCRIBED, np.ones((4, 3)), np.zeros((4, 3)))
    assert found["cohorts"] == []
    assert found["columns"][0]["share"] == pytest.approx(1 / 3)
