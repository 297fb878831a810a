"""State that is sharded over ranks trains the same model, and lies whole in checkpoints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from raygnn.config import load_config
from raygnn.config.registry import SLOTS
from raygnn.errors import ConfigError
from raygnn.loops.callbacks import Callback
from raygnn.loops.optimization import Optimization
from raygnn.outputs.model_export import export_checkpoint
from raygnn.parallel import collectives
from raygnn.parallel.all_reduce import GradientReducer, LocalTotals
from raygnn.parallel.sharding import own_part
from raygnn.sampling import Batch
from tests.batches import batch_of
from tests.small_runs import (
    assert_equal_weights,
    change,
    kill_at,
    read_history,
    run_killed,
    run_rank,
    small_config,
    train_once,
    trained_weights,
)
from tests.tiers import slow

GLOBAL_BATCH = 180


class FailsToSave(Callback):
    """Has no state to give, on one rank."""

    def state_dict(self) -> dict[str, Any]:
        if collectives.rank() == 1:
            raise ValueError("nothing to save")
        return {}


def _config(folder: Path, world_size: int, shard: str, **changes: Any) -> dict[str, Any]:
    """Everything on that has state; the last step of an epoch leaves ranks without a batch."""
    settings: dict[str, Any] = {
        "scaling": {"num_workers": world_size, "shard": shard},
        "loader": {"batch_size": 30, "eval_batch_size": 64},
        "training": {
            "max_epochs": 4,
            "global_batch_size": GLOBAL_BATCH,
            "validate_every": {"steps": 2},
            "clip_grad_norm": 0.5,
            "ema_decay": 0.8,
        },
        "optimizer": {"type": "Adam", "args": {"lr": 0.01}},
        "lr_scheduler": {"type": "StepLR", "args": {"step_size": 3}},
        "early_stopping": {"monitor": "val/loss", "patience": 20},
        "callbacks": kill_at(5),
    }
    config = small_config(folder, **settings)
    change(config, **changes)
    return config


def _straight(
    ranks: Any, small_bundle_path: str, folder: Path, world_size: int, shard: str, **changes: Any
):
    config = _config(folder, world_size, shard, **changes)
    trained = train_once(ranks, config, small_bundle_path, world_size)
    return trained.weights, trained.history


def _train(
    ranks: Any, small_bundle_path: str, folder: Path, world_size: int, shard: str, **changes: Any
):
    """A run that leaves its files in the folder, and resumes what is there."""
    config = _config(folder, world_size, shard, **changes)
    ranks.run(run_rank, world_size, config, small_bundle_path)
    return trained_weights(config), read_history(folder)


def _assert_equal(one: tuple, other: tuple) -> None:
    assert one[1] == other[1]
    assert_equal_weights(one[0], other[0])


def _assert_close(one: tuple, other: tuple) -> None:
    for row, other_row in zip(one[1], other[1], strict=True):
        assert row == pytest.approx(other_row, rel=1e-4)
    for name, tensor in other[0].items():
        torch.testing.assert_close(one[0][name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("world_size", [2, *slow(1, 3)])
def test_results_are_those_of_whole_state(ranks, small_bundle_path, tmp_path, world_size):
    plain, optimizer, full = (
        _straight(ranks, small_bundle_path, tmp_path / shard, world_size, shard)
        for shard in ("none", "optimizer", "full")
    )
    _assert_equal(optimizer, plain)
    _assert_close(full, plain)  # the norm that clips is summed in another order


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"training__precision": "fp16-mixed", "training__clip_grad_norm": None},
        {"training__precision": "bf16-true", "training__ema_decay": None},
        {"training__eval": "exact", "training__ema_decay": None},
        {"model": {"type": "GCN", "args": {"hidden_channels": 8, "norm": "batch"}}},
        {"task": {"type": "tests.user_code.TwoGroups"}},
        {"optimizer": {"type": "SGD", "args": {"lr": 0.1, "momentum": 0.9}},
         "lr_scheduler": {"type": "OneCycleLR", "args": {"max_lr": 0.1, "total_steps": 50}}},
        {"lr_scheduler": {"type": "ReduceLROnPlateau", "args": {"patience": 0}}},
    ],
    ids=["fp16", "bf16", "exact", "norm", "groups", "one cycle", "plateau"],
)  # fmt: skip
def test_it_fits_the_rest_of_the_engine(ranks, small_bundle_path, tmp_path, changes):
    plain, optimizer, full = (
        _straight(ranks, small_bundle_path, tmp_path / shard, 3, shard, **changes)
        for shard in ("none", "optimizer", "full")
    )
    _assert_equal(optimizer, plain)
    _assert_close(full, plain)


@pytest.mark.parametrize(
    ("world_size", "shard"), [(2, "full"), *slow((3, "full"), (2, "optimizer"))]
)
def test_resumed_and_straight_end_with_the_same_bits(
    ranks, small_bundle_path, tmp_path, world_size, shard
):
    straight = _straight(ranks, small_bundle_path, tmp_path / "straight", world_size, shard)
    _kill(ranks, small_bundle_path, tmp_path / "killed", world_size, shard)
    _assert_equal(
        _train(ranks, small_bundle_path, tmp_path / "killed", world_size, shard), straight
    )


def _kill(ranks: Any, small_bundle_path: str, folder: Path, world_size: int, shard: str) -> None:
    run_killed(ranks, _config(folder, world_size, shard), small_bundle_path, world_size)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((3, "full"), (2, "optimizer")),
        *slow(
            ((2, "optimizer"), (3, "full")),
            ((2, "full"), (1, "none")),
            ((1, "none"), (3, "full")),
            ((3, "optimizer"), (2, "none")),
        ),
    ],
    ids=str,
)
def test_a_checkpoint_goes_on_with_other_workers_shared_out_otherwise(
    ranks, small_bundle_path, tmp_path, before, after
):
    straight = _straight(ranks, small_bundle_path, tmp_path / "straight", 1, "none")
    _kill(ranks, small_bundle_path, tmp_path / "killed", *before)
    _assert_close(_train(ranks, small_bundle_path, tmp_path / "killed", *after), straight)


def test_a_run_and_a_checkpoint_export_one_whole_file(ranks, small_bundle_path, tmp_path):
    weights, _ = _train(ranks, small_bundle_path, tmp_path, 3, "full")
    export_checkpoint(str(tmp_path / "run"), str(tmp_path / "exported"))
    exported = load_file(tmp_path / "exported" / "model.safetensors")
    for name, tensor in weights.items():
        assert torch.equal(exported[name], tensor), name


def test_a_rank_that_fails_leaves_no_other_waiting(ranks, small_bundle_path, tmp_path):
    failing = {
        "type": "tests.user_code.FailOnRank",
        "args": {"rank": 1, "hook": "on_train_batch_end"},
    }
    with pytest.raises(RuntimeError, match=r"Rank 1 failed in training.*a mistake in a hook"):
        _train(ranks, small_bundle_path, tmp_path, 3, "full", callbacks=[failing])
    failing = {"type": "tests.numerics.test_sharding.FailsToSave"}
    with pytest.raises(RuntimeError, match=r"Rank 1 failed in writing.*state_dict of FailsToSave"):
        _train(ranks, small_bundle_path, tmp_path / "saving", 3, "full", callbacks=[failing])


def _parts(shard: str, optimizer: str, module: nn.Module, **args: Any) -> Optimization:
    config = {
        "scaling": {"num_workers": collectives.world_size(), "shard": shard},
        "optimizer": {"type": optimizer, "args": {"lr": 0.01, **args}},
    }
    return Optimization(module, load_config(config), torch.device("cpu"))


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.out = nn.Linear(64, 2)

    def forward(self, batch: Batch) -> Tensor:
        return self.out(self.layers(batch.nodes["node"].columns["x"]))


def _some_steps(shard: str, optimizer: str) -> tuple[list[Tensor | None], int, int]:
    """Weights after three steps, and how many bytes of state and weights this rank holds."""
    parts = _parts(shard, optimizer, _Net())
    with parts.gathered():
        reducer = GradientReducer(parts.module, (), torch.device("cpu"))
    for step in range(3):
        parts.optimizer.zero_grad()
        with parts.gathered():
            seed = 10 * step + collectives.rank()
            x = torch.randn(5, 32, generator=torch.Generator().manual_seed(seed))
            parts.module(batch_of(x, torch.zeros(2, 0).long(), 5)).square().sum().backward()
            reducer.reduce(LocalTotals(weight=5.0))
        parts.step()
    state = parts.own_optimizer.state.values()
    held = [own_part(v) for values in state for v in values.values() if isinstance(v, Tensor)]
    weights = [own_part(p.detach()) for p in parts.module.parameters()]
    return list(parts.whole_weights(Path()).values()), _num_bytes(held), _num_bytes(weights)


def _num_bytes(tensors: list[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


@pytest.mark.parametrize("world_size", [2, 3])
def test_each_rank_holds_its_share(ranks, world_size):
    whole = [held for _, held, _ in ranks.run(_some_steps, world_size, "none", "Adam")]
    assert len(set(whole)) == 1
    *_, all_weights = ranks.run(_some_steps, 1, "full", "Adam")[0]
    optimizer = ranks.run(_some_steps, world_size, "optimizer", "Adam")
    assert sum(held for _, held, _ in optimizer) == whole[0]
    assert max(held for _, held, _ in optimizer) < 0.7 * whole[0]  # weights are dealt out whole
    full = ranks.run(_some_steps, world_size, "full", "Adam")
    share = (1 / world_size + 0.05) * whole[0]  # rows do not divide, and step counts are not shared
    assert max(held for _, held, _ in full) < share
    assert sum(weights for *_, weights in full) == all_weights
    assert max(weights for *_, weights in full) < (1 / world_size + 0.05) * all_weights


@pytest.mark.parametrize(
    "optimizer", ["Adam", *slow(*sorted(SLOTS["optimizer"].names.keys() - {"Adam", "SparseAdam"}))]
)
def test_every_optimizer_gives_the_weights_of_whole_state(ranks, optimizer):
    plain = ranks.run(_some_steps, 3, "none", optimizer)[0][0]
    shared = ranks.run(_some_steps, 3, "optimizer", optimizer)[0][0]
    for one, other in zip(shared, plain, strict=True):
        assert torch.equal(one, other)
    if optimizer not in ("Adafactor", "Rprop"):
        full = ranks.run(_some_steps, 3, "full", optimizer)[0][0]
        for one, other in zip(full, plain, strict=True):
            torch.testing.assert_close(one, other)


def _refused(shard: str, kind: str) -> str:
    module = {
        "sparse": nn.EmbeddingBag(4, 2, sparse=True),
        "dtypes": nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2).double()]),
        "number": nn.ParameterList([nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(3))]),
    }[kind]
    with pytest.raises(ConfigError) as caught:
        _parts(shard, "SGD", module)
    return str(caught.value)


@pytest.mark.parametrize(
    ("shard", "kind", "message"),
    [
        ("optimizer", "sparse", "embedding with sparse gradients. Set it to none."),
        ("full", "dtypes", "weights are in float32 and float64. Set it to none, or the w"),
        ("full", "number", "weight 0 is a number, which has no rows.*Set it to optimizer"),
    ],
)
def test_models_that_cannot_be_shared_out_are_refused(ranks, shard, kind, message):
    for text in ranks.run(_refused, 2, shard, kind):
        assert f"scaling.shard={shard!r} is invalid" in text
        assert re.search(message, text), text
