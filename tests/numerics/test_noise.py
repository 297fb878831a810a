"""On links at random, sampled metrics are those of chance."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raygnn.train
from tests.small_runs import small_config

NUM_CANDIDATES, KS = 30, (1, 10)
NUM_SEEDS = 5
#: As improbable, with errors estimated from 5 runs, as three known ones (Student's t).
MOST_ERRORS = 6.62
HASH = {"type": "hash", "fractions": [0.6, 0.2, 0.2]}
BY_TIME = {"type": "temporal", "quantiles": [0.6, 0.8]}
TWO_TYPES, SEVERAL = {"num_targets": 200}, {"num_relations": 2}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "hash": ({}, {"splits": HASH}),
    "several relations, two types": (TWO_TYPES | SEVERAL, {"splits": HASH}),
    "hard negatives": ({"num_hard_negatives": 200}, {"splits": HASH}),
    "learned rows, batches' links kept": (
        TWO_TYPES,
        {"splits": HASH, "model": {"type": "LightGCN", "args": {"out_channels": 16}}},
    ),
    "negatives by degree": ({}, {"splits": HASH, "negatives": "degree"}),
    "several relations, two types, by degree": (
        TWO_TYPES | SEVERAL,
        {"splits": HASH, "negatives": "degree"},
    ),
    "temporal": ({}, {"splits": BY_TIME, "temporal": {}}),
    "hash split, temporal sampling": ({}, {"splits": HASH, "temporal": {}}),
    "temporal, two types, relations, hard negatives": (
        TWO_TYPES | SEVERAL | {"num_hard_negatives": 200},
        {"splits": BY_TIME, "temporal": {"strategy": "last"}},
    ),
}


def _config(folder: Path, graph: dict[str, Any], seed: int, how: dict[str, Any]) -> dict[str, Any]:
    task = {
        "edge_type": "node__links_*",
        "num_random_negatives": 64,
        "num_random_negatives_eval": NUM_CANDIDATES,
        "negatives": how.get("negatives", "uniform"),
    }
    has_types = graph.get("num_targets") or graph.get("num_relations", 1) > 1
    model = {"type": "Hetero" if has_types else "GraphSAGE", "args": {"hidden_channels": 16}}
    model = how.get("model", model)
    sampling = {"fanouts": [5, 5]} | ({"temporal": how["temporal"]} if "temporal" in how else {})
    return small_config(
        folder,
        data={
            "synthetic": {"type": "noise", "seed": seed, **graph},
            "cache_dir": str(folder / "cache"),
            "reverse_edges": bool(has_types),
            "splits": how["splits"],
        },
        task={"type": "link_prediction", "args": task},
        metrics=[{"type": "mrr"}, {"type": "hits", "args": {"ks": list(KS)}}, {"type": "auc"}],
        sampling=sampling,
        model=model,
        seed=seed,
        loader={"batch_size": 64, "eval_batch_size": 128},
        training={"max_epochs": 4, "log_every": {"epochs": 1}},
        optimizer={"type": "Adam", "args": {"lr": 0.02}},
        scaling__num_workers=0,
    )


# If links may carry their own messages, the mean of 8 runs is 10 to 15 errors off.
SIZE = {"num_nodes": 500, "num_links": 4000, "num_features": 8}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", CASES)
def test_sampled_metrics_of_noise_are_those_of_chance(tmp_path: Path, name: str) -> None:
    """Within three standard errors."""
    graph, how = CASES[name]
    found: dict[str, list[float]] = {}
    for seed in range(NUM_SEEDS):
        config = _config(tmp_path / str(seed), SIZE | graph, seed, how)
        for name, value in raygnn.train.fit(config).metrics.items():
            found.setdefault(name, []).append(value)
    ranks = np.arange(1, NUM_CANDIDATES + 2)
    chance = {"mrr": np.mean(1 / ranks), "auc": 0.5}
    chance |= {f"hits@{k}": k / (NUM_CANDIDATES + 1) for k in KS}
    for name, expected in chance.items():
        values = found[f"test/{name}"]
        error = statistics.stdev(values) / len(values) ** 0.5
        distance = abs(statistics.mean(values) - expected)
        assert distance < MOST_ERRORS * error, (name, expected, values)
