"""Columns that are known too late, or follow time, are found by their evidence, noise is not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from raygnn.data.bundle import Bundle
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.loops.tasks.node_classification.audit import (
    columns_known_later,
    columns_that_follow_time,
)

_NUM, _DAY_US = 300, 86_400_000_000
_MANIFEST = """\
format: raygnn/graph-v1
node_types:
  account:
    files: accounts.parquet
    id: id
    features:
      x:
        - {column: limit, transform: standard, missing: indicator}
        - {column: fee, transform: standard, missing: indicator}
        - {column: opened, transform: time}
        - {column: closed, transform: time, missing: indicator}
  payment:
    files: payments.parquet
    id: id
    time: day
    features:
      x:
        - {column: amount, transform: standard}
        - {column: week, transform: standard}
        - {column: receipt, transform: standard}
        - {column: noise, transform: standard}
edge_types:
  - {type: [payment, of, account], files: payments.parquet, source: id, target: account, time: day}
"""


def _dates(days: np.ndarray) -> pd.Series:
    return pd.Series(pd.to_datetime(days, unit="D").astype("datetime64[us]"))


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, np.ndarray, np.ndarray]:
    """Bundle, classes of accounts and days of their rows. Fees are known for class 1 only."""
    folder, rng = tmp_path_factory.mktemp("accounts"), np.random.default_rng(0)
    classes, day = rng.integers(0, 2, _NUM), rng.integers(18_000, 18_300, _NUM)
    closed = _dates(day + rng.integers(-90, 90, _NUM)).where(rng.random(_NUM) < 0.5)
    pd.DataFrame(
        {
            "id": np.arange(_NUM),
            "limit": np.where(rng.random(_NUM) < 0.5, rng.random(_NUM), np.nan),
            "fee": np.where((classes == 1) & (rng.random(_NUM) < 0.5), rng.random(_NUM), np.nan),
            "opened": _dates(day - 400),
            "closed": closed,
        }
    ).to_parquet(folder / "accounts.parquet")
    paid = np.sort(rng.integers(18_000, 18_400, 2_000))
    pd.DataFrame(
        {
            "id": np.arange(2_000),
            "account": rng.integers(0, _NUM, 2_000),
            "day": _dates(paid),
            "amount": rng.random(2_000),
            "week": paid // 7,
            "receipt": np.arange(2_000) + 50_000 * (paid > 18_200),
            "noise": (paid - 18_000) + rng.normal(0, 100, 2_000),
        }
    ).to_parquet(folder / "payments.parquet")
    (folder / "graph.yaml").write_text(_MANIFEST)
    bundle = ingest(str(folder / "graph.yaml"), IngestOptions(), str(folder / "cache"))
    return bundle, classes, day


def test_columns_that_may_be_known_too_late_are_named(
    accounts: tuple[Bundle, np.ndarray, np.ndarray],
) -> None:
    bundle, classes, day = accounts
    nodes, times = np.arange(_NUM), day * _DAY_US
    found = [*columns_known_later(bundle, "account", "x", nodes, times, classes)]
    assert [text.split("'")[1] for text in found] == ["fee", "closed"]
    assert "filled only in training rows of one class" in found[0]
    assert "is later than the time of" in found[1]
    by_chance = np.random.default_rng(1).permutation(classes)
    late = times + 100 * _DAY_US
    assert not [*columns_known_later(bundle, "account", "x", nodes, late, by_chance)]


def test_a_value_of_one_entity_is_chance(accounts: tuple[Bundle, np.ndarray, np.ndarray]) -> None:
    """Many rows of the same few entities are no evidence of a class."""
    bundle, classes, _ = accounts
    few = np.flatnonzero(classes == 1)[:4]
    nodes = np.concatenate([np.repeat(few, 50), np.flatnonzero(classes == 0)])
    assert not [*columns_known_later(bundle, "account", "x", nodes, None, classes[nodes])]


def test_columns_that_grow_with_time_are_named(
    accounts: tuple[Bundle, np.ndarray, np.ndarray],
) -> None:
    """Also a running number that jumps; a trend with noise is none."""
    found = [*columns_that_follow_time(accounts[0], "x", None)]
    assert found == ["'week' of 'payment'", "'receipt' of 'payment'"]
