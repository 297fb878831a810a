"""Links scored in time know nothing of what is later than they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import raygnn.train
from raygnn.config import load_config
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from raygnn.loops.task import TaskEnvironment
from raygnn.loops.tasks.link_prediction.task import LinkPrediction
from raygnn.runtime.data_source import open_bundle
from tests.errors import raises
from tests.small_runs import small_config
from tests.tiers import slow

NUM_NODES, CUT = 40, 50
LIKES = ("node", "likes", "node")


def _write(folder: Path, num_later: int, seed: int, with_times: bool = True) -> str:
    """Links at all times, and edges; then further edges, later than `CUT`."""
    rng = np.random.default_rng(seed)
    x = rng.random((NUM_NODES, 4), dtype=np.float32)
    likes = edge_rows(*_pairs(rng, 90), time=rng.integers(0, 100, 90) if with_times else None)
    source, target = _pairs(rng, 250)
    time = rng.integers(0, 100, 250)
    later = np.random.default_rng(seed + 1)
    more = _pairs(later, num_later)
    edges = edge_rows(
        np.concatenate([source, more[0]]),
        np.concatenate([target, more[1]]),
        time=np.concatenate([time, later.integers(CUT + 1, 100, num_later)]),
    )
    tables = GraphTables(
        {"node": node_rows(np.arange(NUM_NODES), {"x": x})},
        {("node", "to", "node"): edges},
        label_edges={(LIKES, "positive"): likes},
    )
    return write_tables(tables, str(folder))


def _pairs(rng: np.random.Generator, num: int) -> tuple[np.ndarray, np.ndarray]:
    source = rng.integers(0, NUM_NODES, num)
    return source, (source + rng.integers(1, NUM_NODES, num)) % NUM_NODES


def _config(folder: Path, uri: str, model: str = "GraphSAGE", **changes) -> dict:
    settings = {
        "task": {
            "type": "link_prediction",
            "args": {
                "edge_type": "node__likes__node",
                "labels": True,
                "num_random_negatives": 64,
                "num_random_negatives_eval": 5,
            },
        },
        "sampling": {"fanouts": [-1, -1], "temporal": {}},
        "metrics": [{"type": "mrr"}],
        "scaling__num_workers": 0,
        "model": {"type": model, "args": {"out_channels": 8}},
        "data": {"uri": uri, "splits": {"type": "temporal", "timestamps": [80, 90]}},
    }
    return small_config(folder, **{**settings, **changes})


def _scores(config: dict) -> tuple[torch.Tensor, ...]:
    """Of the first training batch: times and scores of links and candidates, mask."""
    loaded = load_config(config)
    task = LinkPrediction(**config["task"]["args"])
    env = TaskEnvironment(loaded, open_bundle(loaded, None), 0, 1, torch.device("cpu"))
    task.setup(env)
    torch.manual_seed(0)
    task.model = task.build_model().eval()
    batch = next(task.loader("train").iterate(0))
    with torch.no_grad():
        rows = task.encode(batch)
        offered = task.offer(batch, rows)
        found = task._scoring.scores(task.model.decoder, batch, rows, offered)
    task.close()
    links = batch.links
    times = torch.from_numpy(task.target.splits["train"].times)[links.position]
    index = torch.cat([links.random.index, links.index[1]])
    (nodes,) = batch.nodes.values()
    return times, nodes.seed_time[index], found.positive, found.candidate, found.mask


@pytest.mark.parametrize("model", ["GraphSAGE", "GCN", "LightGCN"])
@pytest.mark.parametrize("seed", [0, *slow(1)])
def test_later_edges_change_no_score(tmp_path, model, seed):
    scores = []
    for num_later in (0, 400):
        uri = _write(tmp_path / str(num_later), num_later, seed)
        config = _config(tmp_path, uri, model)
        scores.append(_scores(config))
    times, of_candidates, positive, candidate, mask = scores[0]
    early = times <= CUT
    assert early.any()
    assert not early.all()
    # Whoever competes is embedded as of a time that is not later; and somebody does.
    assert not ((of_candidates > times.unsqueeze(1)) & ~mask).any()
    assert (~mask).sum() > len(mask)
    assert torch.equal(mask, scores[1][-1])
    torch.testing.assert_close(positive[early], scores[1][2][early])
    allowed = ~mask & early.unsqueeze(1)
    torch.testing.assert_close(candidate[allowed], scores[1][3][allowed])
    assert not torch.allclose(positive[~early], scores[1][2][~early])


def test_global_candidates_in_time(tmp_path):
    losses = [{"type": "retrieval", "args": {"candidates": "global"}}]
    config = _config(tmp_path, _write(tmp_path / "tables", 0, 0), losses=losses)
    config["training"]["accumulate_grad_batches"] = 2
    assert np.isfinite(raygnn.train.fit(config).metrics["val/loss"])


def test_what_cannot_be_in_time(tmp_path):
    config = _config(tmp_path, _write(tmp_path / "none", 0, 0, with_times=False))
    config["data"]["splits"] = {"type": "hash", "fractions": [0.8, 0.1, 0.1]}
    with raises("links-no-times"):
        raygnn.train.fit(config)
    config = _config(tmp_path, _write(tmp_path / "tables", 0, 0))
    # Label edges are ranked at the time of each row: see test_links_by_time.py.
    config["task"]["args"] = {"edge_type": "node__to__node", "full_ranking": True}
    with raises("task-full-ranking-temporal"):
        raygnn.train.fit(config)


def test_exact_evaluation_takes_all_neighbors_up_to_the_time_of_a_group(tmp_path):
    uri, losses = _write(tmp_path / "tables", 0, 0), []
    for fanout, how in ((2, "exact"), (-1, "sampled"), (2, "sampled")):
        config = _config(tmp_path / f"{fanout}-{how}", uri, training__eval=how)
        config["sampling"]["fanouts"] = [fanout, fanout]
        config["optimizer"] = {"type": "Adam", "args": {"lr": 0.0}}
        config["training"]["max_epochs"] = 1
        losses.append(raygnn.train.fit(config).metrics["val/loss"])
    assert losses[0] == losses[1] != losses[2]
