"""1, 2 and 3 workers train the same model at equal global batch."""

from __future__ import annotations

import json
import pickle
import re
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torchmetrics.classification import MulticlassCohenKappa

from raygnn.loops.evaluation import EvaluationTable
from raygnn.loops.model_spec import TREES_FILE
from raygnn.loops.task import EvalOutput
from raygnn.metrics import as_metric
from raygnn.models.encoder import Encoder
from raygnn.parallel import collectives
from tests.small_runs import check_workers_agree, run_rank, small_config, trained_weights
from tests.tiers import slow

GLOBAL_BATCH = 96
COUNTS = ("step", "samples")


def _config(folder: Path, world_size: int, **changes: Any) -> dict[str, Any]:
    settings = {"scaling__num_workers": world_size, "training__global_batch_size": GLOBAL_BATCH}
    return small_config(folder, **{**settings, **changes})


@pytest.mark.parametrize(
    ("model", "eval_mode", "sizes"),
    [
        ("GraphSAGE", "sampled", (1, 2, 3)),
        *slow(("GraphSAGE", "exact", (1, 2)), ("GCN", "sampled", (1, 2)), ("GCN", "exact", (1, 2))),
    ],
)
def test_losses_and_weights_are_equal(ranks, small_bundle_path, tmp_path, model, eval_mode, sizes):
    config = partial(_config, model__type=model, training__eval=eval_mode)
    names = (*("train/loss", "val/loss", "val/accuracy", "val/auroc"), *COUNTS)
    check_workers_agree(ranks, config, tmp_path, small_bundle_path, *names, sizes=sizes)


def test_workers_choose_the_same_blend(ranks, small_bundle_path, tmp_path):
    config = partial(_config, task="node_classification", metrics=[])
    metrics, _ = check_workers_agree(ranks, config, tmp_path, small_bundle_path, "test/loss")
    assert {"lightgbm", "gnn"} <= metrics["blend"].keys()
    runs = [tmp_path / size / "run" for size in ("1", "2")]
    trees = [(run / TREES_FILE).read_bytes() for run in runs]
    assert trees[0] == trees[1]
    blends = [json.loads((run / "model.json").read_text())["nodes"]["blend"] for run in runs]
    assert blends[0]["history"] == blends[1]["history"]
    shares = [{name: s["weight"] for name, s in blend["shares"].items()} for blend in blends]
    assert shares[0] == pytest.approx(shares[1])


@pytest.mark.slow
def test_draws_that_nodes_share_are_those_of_any_worker(ranks, small_bundle_path, tmp_path):
    labor = partial(_config, sampling={"type": "labor", "fanouts": [3, 2]})
    _, weights = check_workers_agree(ranks, labor, tmp_path, small_bundle_path, "train/loss")
    uniform = _config(tmp_path / "uniform", 1, sampling={"fanouts": [3, 2]})
    ranks.run(run_rank, 1, uniform, small_bundle_path)
    others = trained_weights(uniform)
    assert any(not torch.equal(others[name], tensor) for name, tensor in weights.items())


def test_workers_that_come_and_go_train_the_same(ranks, small_bundle_path, tmp_path):
    # Three micro-batches a step, also where two workers share them.
    elastic = {"training__global_batch_size": 48, "scaling__num_workers": [1, 3]}
    config = partial(_config, **elastic)
    sizes = {"sizes": (1, 2, 3)}
    check_workers_agree(ranks, config, tmp_path, small_bundle_path, "train/loss", *COUNTS, **sizes)


def _with_norm(model: str, **args: Any) -> dict[str, Any]:
    heads = {"num_heads": 2} if model in ("GAT", "GATv2", "Transformer") else {}
    return {
        "type": model,
        "args": {"hidden_channels": 8, "norm": "batch", "dropout": 0.3, **heads, **args},
    }


#: What a softmax over the in-edges of one type subtracts again has no part in any output.
_WITHOUT_EFFECT = re.compile(
    r".*(lin_key\.bias|lin_kqv\..*bias|att_edge|lin_edge.*|edge_type_rows)"
)
_SGD = {"type": "SGD", "args": {"lr": 0.1, "momentum": 0.9}}


_WITH_STATISTICS: dict[str, dict[str, Any]] = {
    "GAT": {"model": _with_norm("GAT")},
    "GAT, sharded": {"model": _with_norm("GAT"), "scaling__shard": "full"},
    "GAT, bf16": {
        "model": _with_norm("GAT"),
        "training__precision": "bf16-mixed",
        "optimizer": _SGD,
    },
    "GAT, jump": {"model": _with_norm("GAT", jump="max")},
    "Hetero, GIN": {"model": _with_norm("Hetero", conv="GIN")},
    **{
        model: {"model": _with_norm(model)}
        for model in ("Transformer", "GCN", "GraphSAGE", "GIN", "RGCN", "SimpleHGN", "HGT")
    },
    # The bias before its norm is a user's own affair.
    "own module": {"model": {"type": "tests.user_code.Normed"}, "optimizer": _SGD},
    "own module, mean of all steps": {
        "model": {"type": "tests.user_code.Normed", "args": {"momentum": None}},
        "optimizer": _SGD,
    },
    # Two micro-batches an epoch leave the third rank without one, and 180 seeds by 179 leave a
    # micro-batch of one row, which has no variance.
    "ranks without a batch, a batch of one row": {
        "model": _with_norm("MLP", dropout=0.0),
        "loader": {"batch_size": 179, "eval_batch_size": 32},
        "training__global_batch_size": 537,
        "scaling__num_workers": [1, 3],
        "training__max_epochs": 10,
    },
}


@pytest.mark.parametrize("case", ["GAT", *slow(*list(_WITH_STATISTICS)[1:])])
def test_running_statistics_are_equal(ranks, small_bundle_path, tmp_path, case):
    """With dropout, accumulation, and Adam, which blows up a gradient that is rounding alone."""
    settings = {"training__max_epochs": 6, "optimizer": {"args": {"lr": 0.01}}}
    config = partial(_config, **(settings | _WITH_STATISTICS[case]))
    rough = config.keywords.get("training__precision") == "bf16-mixed"
    close = {"rtol": 2e-2, "atol": 1e-2} if rough else {}
    metrics, weights = check_workers_agree(
        *(ranks, config, tmp_path, small_bundle_path, "train/loss", "val/loss"),
        **{"sizes": (1, 3), "ignored": _WITHOUT_EFFECT, **close},
    )
    assert metrics["step"] >= 10
    assert any(name.endswith("running_var") for name in weights)


def test_a_summed_loss_is_the_mean_times_the_seeds(ranks, small_bundle_path, tmp_path):
    optimizer = {"type": "SGD", "args": {"lr": 0.1}}
    scaled = {"type": "SGD", "args": {"lr": 0.1 / GLOBAL_BATCH}}
    weights = []
    for name, changes in (
        ("mean", {"optimizer": optimizer}),
        ("sum", {"optimizer": scaled, "training__loss_reduction": "sum"}),
    ):
        config = _config(tmp_path / name, 2, training__max_steps=1, **changes)
        ranks.run(run_rank, 2, config, small_bundle_path)
        weights.append(trained_weights(config))
    mean, total = weights
    for name, tensor in mean.items():
        torch.testing.assert_close(total[name], tensor)


def _first_validation(
    config: dict[str, Any], small_bundle_path: str
) -> tuple[dict[str, float], int]:
    """One rank of a run that evaluates exactly before its first step, and how much it encoded."""
    computed = []
    forward_layer = Encoder.forward_layer

    def counted(encoder: Encoder, *args: Any) -> torch.Tensor:
        if not encoder.training:
            computed.append(args[0])
        return forward_layer(encoder, *args)

    with patch.object(Encoder, "forward_layer", counted):
        run_rank(config, small_bundle_path)
    history = Path(config["run"]["storage_path"]) / "run" / "history.jsonl"
    first = json.loads(history.read_text().splitlines()[0])
    return {name: value for name, value in first.items() if name.startswith("val/")}, len(computed)


def test_exact_evaluation_is_shared_among_ranks_and_equal_bit_for_bit(
    ranks, small_bundle_path, tmp_path
):
    found, work = [], []
    for size in (1, 2, 3):
        changes = {"training__eval": "exact", "training__max_steps": 1}
        config = small_config(tmp_path / str(size), training__validate_at_start=True, **changes)
        results = ranks.run(_first_validation, size, config, small_bundle_path)
        found.append(results[0][0])
        work.append([count for _, count in results])
    assert found[0] == found[1] == found[2]
    assert found[0]["val/loss"] > 0
    assert sum(work[0]) == sum(work[1]) == sum(work[2])


def _evaluate_one_batch_of_two(num_seeds: int) -> tuple[dict[str, float], int]:
    """A table with a batch on rank 0 only, and the largest object that this rank pickles."""
    sizes = []
    gather_objects = collectives.gather_objects

    def measured(value: Any) -> list[Any]:
        sizes.append(len(pickle.dumps(value)))
        return gather_objects(value)

    metric = MulticlassCohenKappa(num_classes=3)
    table = EvaluationTable(1, [as_metric(metric, num_outputs=3, problem="multi_class")])
    if collectives.rank() == 0:
        target = torch.arange(num_seeds) % 3
        prediction = torch.eye(3)[target]
        table.add(EvalOutput(0, torch.arange(num_seeds), 1.0, 1.0, prediction, target, {}))
    with patch.object(collectives, "gather_objects", measured):
        return table.reduce(), max(sizes)


def test_no_rank_sends_a_batch_of_scores_as_an_object(ranks):
    """Rows travel as tensors. A slice of no rows would take the storage of its batch along."""
    for metrics, size in ranks.run(_evaluate_one_batch_of_two, 2, 10_000):
        assert metrics["multiclass_cohen_kappa"] == pytest.approx(1.0)
        assert size < 500
