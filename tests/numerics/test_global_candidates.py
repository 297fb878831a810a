"""With global candidates a step is the same however its global batch is cut among ranks."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from raygnn.config import load_config
from raygnn.data.bundle import Bundle
from raygnn.loops.context import ProcessContext
from raygnn.loops.engine import Engine
from raygnn.loops.process import seed_micro_batch
from raygnn.loops.task import TaskEnvironment
from raygnn.loops.tasks.link_prediction.task import LinkPrediction
from raygnn.losses import Candidates
from raygnn.parallel import collectives
from raygnn.parallel.all_reduce import LocalTotals
from tests.small_runs import check_workers_agree, run_rank, small_bundle, small_config
from tests.tiers import slow

NUM_NODES = 150


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return small_bundle(tmp_path_factory.mktemp("graph"), num_nodes=NUM_NODES, homophily=0.95)


def _config(folder: Path, world_size: int = 0, candidates: str = "global", **changes) -> dict:
    # 19 micro-batches an epoch, 6 a step: the last step has one, for one rank.
    settings = {
        "task": {
            "type": "link_prediction",
            "args": {"num_random_negatives": 7, "num_random_negatives_eval": 9},
        },
        "losses": [{"type": "retrieval", "args": {"candidates": candidates}}],
        "metrics": [{"type": "mrr"}],
        "data": {"splits": {"type": "hash", "fractions": [0.9, 0.05, 0.05]}},
        "loader__batch_size": 76,
        "training__global_batch_size": 456,
        "training__max_epochs": 1,
        "training__log_every": {"steps": 1},
        "scaling__num_workers": world_size,
        "optimizer": {"type": "SGD", "args": {"lr": 0.5}},
        "model": {"type": "GCN", "args": {"hidden_channels": 8, "dropout": 0.3}},
    }
    return small_config(folder, **{**settings, **changes})


def num_object_gathers(config: dict, bundle_path: str) -> int:
    """How often a run pickles what its ranks tell each other. Collective: all ranks must call."""
    with patch.object(collectives, "gather_objects", wraps=collectives.gather_objects) as gathers:
        run_rank(config, bundle_path)
    return gathers.call_count


def test_steps_gather_no_objects_after_the_first(ranks, bundle, tmp_path):
    counts = []
    for steps in (1, 3):
        config = _config(tmp_path / str(steps), 2, training__max_steps=steps)
        counts += ranks.run(num_object_gathers, 2, config, str(bundle.path))
    assert len({*counts}) == 1


def _losses(folder: Path) -> list[float]:
    rows = (folder / "run" / "history.jsonl").read_text().splitlines()
    return [json.loads(row)["train/loss"] for row in rows]


@pytest.mark.parametrize(
    ("decoder", "norm"),
    [("inner_product", "batch"), *slow(("inner_product", None), ("distmult", None))],
)
def test_losses_and_weights_do_not_depend_on_the_workers(ranks, bundle, tmp_path, decoder, norm):
    def config(folder: Path, size: int) -> dict:
        config = _config(folder, size)
        config["model"]["args"]["norm"] = norm
        config["optimizer"]["args"]["lr"] = 0.5 if norm is None else 0.05
        config["task"]["args"].update(decoder={"type": decoder}, logq_correction=True)
        config["training"]["validate_every"] = {"steps": 1}
        return config

    check_workers_agree(ranks, config, tmp_path, str(bundle.path), "train/loss")


def test_candidates_of_the_rank_alone_give_another_loss(ranks, bundle, tmp_path):
    losses = {}
    for candidates in ("rank", "global"):
        config = _config(tmp_path / candidates, 1, candidates)
        ranks.run(run_rank, 1, config, str(bundle.path))
        losses[candidates] = _losses(tmp_path / candidates)
    assert losses["global"][0] > losses["rank"][0]  # more to compete with


def _engine(bundle: Bundle, config: dict) -> Engine:
    loaded = load_config(config)
    task = LinkPrediction(**config["task"]["args"])
    context = ProcessContext(use_gpu=False)
    task.setup(TaskEnvironment(loaded, bundle, 0, 1, context.device))
    torch.manual_seed(0)
    return Engine(task, loaded, context)


def test_gradients_are_those_of_one_graph_over_all_micro_batches(bundle, tmp_path):
    config = _config(tmp_path)
    config["task"]["args"]["decoder"] = {"type": "hadamard_mlp"}
    engine = _engine(bundle, config)
    task, local = engine.task, LocalTotals()
    loader = task.loader("train")
    engine.optimization.module.train()
    engine.accumulation.run(loader.iterate(0), 0, range(3), local)
    found = [p.grad.clone() for p in engine.optimization.module.parameters()]

    batches, rows = list(loader.iterate(0, stop=3)), []
    for index, batch in enumerate(batches):
        seed_micro_batch(engine.config.seed, 0, index)
        rows.append(task.encode(batch))
    pairs = list(zip(batches, rows, strict=True))
    offered = Candidates.joined([task.offer(*pair) for pair in pairs])
    assert len(offered.ids) == 3 * 7 + sum(b.links.id.shape[1] for b in batches)
    outputs = [task.loss_among(*pair, offered) for pair in pairs]
    loss = sum(output.loss_sum for output in outputs)
    expected = torch.autograd.grad(loss, list(engine.optimization.module.parameters()))
    assert local.loss_sum == pytest.approx(loss.item(), rel=1e-6)
    assert local.weight == sum(b.links.id.shape[1] for b in batches)
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("hook", ["on_train_batch_start", "on_train_batch_end"])
def test_a_rank_that_fails_before_or_after_the_gather_stops_all(ranks, bundle, tmp_path, hook):
    failing = {"type": "tests.user_code.FailOnRank", "args": {"rank": 1, "hook": hook}}
    config = _config(tmp_path, 3, callbacks=[failing])
    with pytest.raises(RuntimeError, match="Rank 1 failed in training, epoch 1, batches 0 to 5"):
        ranks.run(run_rank, 3, config, str(bundle.path))
