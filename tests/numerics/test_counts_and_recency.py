"""A shop where only the number of purchases and the time since the last one say who buys again."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from sklearn.metrics import roc_auc_score

import raygnn.train

#: `make test` learns recent purchases in `test_training_rows.py`.
pytestmark = pytest.mark.slow

NUM_USERS, NUM_ITEMS, DAYS, WINDOW, LEAVES = 1200, 20, 400.0, 30.0, 1 / 150
ASKED = np.arange(130.0, DAYS - WINDOW + 1, 30)
RATES = np.array([0.005, 0.02, 0.05, 0.15])


class Shop(NamedTuple):
    """Purchases and questions; `best` is the probability that follows from all purchases."""

    joined: np.ndarray
    user: np.ndarray
    day: np.ndarray
    asked_user: np.ndarray
    asked_day: np.ndarray
    buys: np.ndarray
    best: np.ndarray


def draw_shop(seed: int = 0) -> Shop:
    """Customers buy at a constant rate until they leave, which nobody sees (Pareto/NBD)."""
    rng = np.random.default_rng(seed)
    joined = rng.uniform(0, 100, NUM_USERS)
    rate = rng.choice(RATES, NUM_USERS)
    left = joined + rng.exponential(1 / LEAVES, NUM_USERS)
    active = np.minimum(left, DAYS) - joined
    user = np.repeat(np.arange(NUM_USERS), rng.poisson(rate * active))
    day = joined[user] + rng.random(len(user)) * active[user]
    asked_user, asked_day = (x.ravel() for x in np.meshgrid(np.arange(NUM_USERS), ASKED))
    buys, best = np.zeros(len(asked_user), np.int64), np.zeros(len(asked_user))
    for i, (u, asked) in enumerate(zip(asked_user, asked_day, strict=True)):
        days = day[user == u]
        buys[i] = np.any((days > asked) & (days <= asked + WINDOW))
        known = days[days <= asked] - joined[u]
        best[i] = probability(len(known), known.max(initial=0), asked - joined[u])
    return Shop(joined, user, day, asked_user, asked_day, buys, best)


def probability(count: int, last: float, age: float) -> float:
    """Probability of a purchase within the window, given the purchases up to an age."""
    total = RATES + LEAVES
    here = RATES**count * np.exp(-total * age)
    gone = RATES**count * LEAVES / total * (np.exp(-total * last) - np.exp(-total * age))
    buys = RATES / total * -np.expm1(-total * WINDOW)
    return float((here * buys).sum() / (here + gone).sum())


def write(shop: Shop, folder: Path) -> None:
    def table(name: str, **columns: np.ndarray) -> None:
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")

    rng = np.random.default_rng(1)
    table("users", id=np.arange(NUM_USERS), x=rng.normal(size=NUM_USERS), joined=shop.joined)
    table("items", id=np.arange(NUM_ITEMS), x=rng.normal(size=NUM_ITEMS))
    item = rng.integers(0, NUM_ITEMS, len(shop.user))
    table("bought", user=shop.user, item=item, day=shop.day)
    split = np.select([shop.asked_day < 280, shop.asked_day < 320], ["train", "val"], "test")
    asked = {"user": shop.asked_user, "day": shop.asked_day, "buys": shop.buys, "split": split}
    table("asked", **asked)
    node = {"id": "id", "features": {"x": "x"}}
    manifest = {
        "format": "raygnn/graph-v1",
        "node_types": {
            "users": {"files": "users.parquet", **node, "time": "joined"},
            "items": {"files": "items.parquet", **node},
        },
        "edge_types": [
            {
                "type": ["users", "bought", "items"],
                "files": "bought.parquet",
                **{"source": "user", "target": "item", "time": "day"},
            }
        ],
        "training_tables": {
            "buys": {
                "files": "asked.parquet",
                **{"node_type": "users", "node": "user", "time": "day", "split": "split"},
                "labels": {"y": "buys"},
            }
        },
    }
    (folder / "graph.yaml").write_text(yaml.safe_dump(manifest))


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """The folder of a shop, and the best AUROC that its purchases allow."""
    folder = tmp_path_factory.mktemp("shop")
    drawn = draw_shop()
    write(drawn, folder)
    test = drawn.asked_day >= 320
    return folder, float(roc_auc_score(drawn.buys[test], drawn.best[test]))


def trained(folder: Path, tmp_path: Path, *overrides: str) -> float:
    config = {"task": "node_classification", "model": "Hetero"}
    settings = (
        *("--data.uri", str(folder), "--scaling.num_workers", "0", "--metrics", "[auroc]"),
        *(
            "--run.storage_path",
            str(tmp_path),
            "--run.name",
            "run",
            "--model.args",
            "{hidden_channels: 32}",
        ),
    )
    return float(raygnn.train.fit(config, [*settings, *overrides]).metrics["test/auroc"])


def test_defaults_find_counts_and_recency(shop: tuple[Path, float], tmp_path: Path) -> None:
    folder, best = shop
    assert trained(folder, tmp_path) > best - 0.02


def test_a_mean_of_neighbors_does_not(shop: tuple[Path, float], tmp_path: Path) -> None:
    folder, best = shop
    arguments = ("--model.relative_time", "false", "--task.args.blend", "false")
    assert trained(folder, tmp_path, *arguments) < best - 0.1
