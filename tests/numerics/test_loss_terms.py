"""Terms and reductions of the loss train the same model on 1 and 2 workers."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import raygnn.train
from raygnn.config import load_config
from raygnn.loops.gradients import GradReduction
from raygnn.loops.task import StepOutput
from tests.errors import raises
from tests.small_runs import check_workers_agree, read_history, run_rank, small_config
from tests.tiers import slow

TERMS = [
    {"type": "cross_entropy"},
    {"type": "embedding_l2", "weight": 0.3},
    {"type": "weight_l1", "weight": 0.001},
    {"type": "tests.unit.loops.test_objective.spread", "weight": 0.1},
]
NAMES = ("cross_entropy", "embedding_l2", "weight_l1", "spread")


def _config(folder: Path, world_size: int, **changes: Any) -> dict[str, Any]:
    # 182 seeds in steps of 96: neither steps nor micro-batches divide them.
    given = {"training__global_batch_size": 96, "training__max_epochs": 1}
    return small_config(folder, scaling__num_workers=world_size, **given, **changes)


@pytest.mark.parametrize("eval_mode", ["sampled", "exact"])
def test_workers_agree_on_every_term(ranks, small_bundle_path, tmp_path, eval_mode):
    stopping = {"monitor": "val/loss/cross_entropy", "mode": "min"}
    config = partial(_config, losses=TERMS, training__eval=eval_mode, early_stopping=stopping)
    names = [f"{split}/loss/{name}" for split in ("train", "val") for name in NAMES]
    check_workers_agree(ranks, config, tmp_path, small_bundle_path, *names)
    row = read_history(tmp_path / "1")[-1]
    for split in ("train", "val"):
        parts = [row[f"{split}/loss/{name}"] for name in NAMES]
        total = parts[0] + 0.3 * parts[1] + 0.001 * parts[2] + 0.1 * parts[3]
        assert row[f"{split}/loss"] == pytest.approx(total, rel=1e-5)


def test_links_take_terms_on_their_ends(ranks, small_bundle_path, tmp_path):
    terms = [{"type": "bpr"}, {"type": "embedding_l2", "weight": 0.01}]
    task = {"type": "link_prediction", "args": {"num_random_negatives": 8}}
    splits = {"type": "hash", "fractions": [0.8, 0.1, 0.1]}
    config = partial(_config, task=task, data__splits=splits, metrics=[], losses=terms)
    term = "train/loss/embedding_l2"
    check_workers_agree(ranks, config, tmp_path, small_bundle_path, term, rtol=1e-3, atol=1e-4)
    row = read_history(tmp_path / "1")[-1]
    total = row["val/loss/bpr"] + 0.01 * row["val/loss/embedding_l2"]
    assert row["val/loss"] == pytest.approx(total, rel=1e-5)


def test_losses_of_torch_and_of_raygnn_train_the_documented_regression(tmp_path):
    """The mean price as a guess is off by 83,000 on average, the noise by 8,000."""
    page = (Path(__file__).parents[2] / "docs" / "losses.md").read_text("utf-8")
    (block,) = (b for b in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "houses" in b)
    config = yaml.safe_load(block)
    assert config["losses"] == ["mae"]
    config["data"]["cache_dir"] = str(tmp_path / "cache")
    config |= {"scaling": {"num_workers": 0}, "loggers": []}
    found = {}
    for loss in ("mae", "torch.nn.L1Loss"):
        config |= {"losses": [loss], "run": {"storage_path": str(tmp_path), "name": loss}}
        found[loss] = raygnn.train.fit(config).metrics["val/mae"]
    assert found["mae"] < 12_000
    assert found["torch.nn.L1Loss"] == pytest.approx(found["mae"], rel=0.02)


def test_metrics_that_a_task_does_not_declare_are_refused(ranks, small_bundle_path, tmp_path):
    config = small_config(tmp_path, task={"type": "tests.user_code.Undeclared"})
    with pytest.raises(RuntimeError, match=r"'extra'.*\[task-step-metrics\]"):
        ranks.run(run_rank, 1, config, small_bundle_path)


SUMS, WEIGHTS = (6.0, 8.0, 1.0), (3.0, 2.0, 1.0)


def double_weight(output: StepOutput) -> float:
    """A user's weight of a micro-batch."""
    return 2.0 * output.weight + 1.0


@pytest.mark.parametrize(
    ("loss", "grad", "expected"),
    [
        ("mean", "sample_mean", 15 / 6),
        ("mean", "batch_mean", (2 + 4 + 1) / 3),
        ("mean", "sum", 2 + 4 + 1),
        ("sum", "sum", 15),
        ("sum", "batch_mean", 15 / 3),
        ("mean", "tests.numerics.test_loss_terms.double_weight", (7 * 2 + 5 * 4 + 3 * 1) / 15),
    ],
)
def test_formulas(loss, grad, expected):
    settings = {"loss_reduction": loss, "grad_reduction": grad}
    reduction = GradReduction(load_config({"training": settings}, allow_modules=["tests"]))
    total = divisor = 0.0
    for loss_sum, weight in zip(SUMS, WEIGHTS, strict=True):
        factor, share = reduction.factor_and_divisor(StepOutput(torch.tensor(loss_sum), weight))
        total += factor * loss_sum
        divisor += share
    assert (total / divisor if reduction.divides else total) == pytest.approx(expected)


def negative_weight(output: StepOutput) -> float:
    """A mistake."""
    return -1.0


def test_a_weight_must_be_one():
    settings = {"grad_reduction": f"{__name__}.negative_weight"}
    reduction = GradReduction(load_config({"training": settings}, allow_modules=["tests"]))
    with raises("training-reduction-weight", -1):
        reduction.factor_and_divisor(StepOutput(torch.tensor(1.0), 1.0))


@pytest.mark.parametrize("grad", ["sum", *slow("batch_mean", f"{__name__}.double_weight")])
def test_workers_agree_on_each(ranks, small_bundle_path, tmp_path, grad):
    def config(folder: Path, size: int) -> dict:
        changes = {"training__grad_reduction": grad, "training__ema_decay": 0.9}
        changes |= {"training__global_batch_size": 48, "scaling__num_workers": size}
        return small_config(folder, optimizer={"type": "SGD", "args": {"lr": 0.05}}, **changes)

    check_workers_agree(ranks, config, tmp_path, small_bundle_path, sizes=(1, 3))
