"""Runs with mined negatives: the same on 1 and 2 workers, and resumed within an epoch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import raygnn.train
from raygnn.documents import parse_yaml
from raygnn.loops.callbacks import Callback
from raygnn.loops.engine import Engine
from tests.errors import error_cases, raises
from tests.small_runs import (
    check_resumed_bits,
    check_workers_agree,
    evaluated_link_task,
    run_rank,
    small_bundle,
    small_config,
)

#: `make test` has other tests of training and inference; these are of one feature each.
pytestmark = pytest.mark.slow

ARGS = {"num_random_negatives": 20, "num_random_negatives_eval": 30, "mined_negatives": 3}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graph")
    small_bundle(folder, num_nodes=150, homophily=0.95)
    return folder / "tables"


@pytest.fixture(scope="module")
def bundle_path(graph: Path) -> str:
    return str(next((graph.parent / "cache" / "bundles").glob("*/bundle.json")).parent)


def _config(folder: Path, graph: Path, world_size: int, args: dict | None = None, **changes):
    settings = {
        "task": {"type": "link_prediction", "args": {**ARGS, **(args or {})}},
        "losses": [{"type": "softmax"}],
        "metrics": [],
        "data": {"uri": str(graph), "splits": {"type": "hash", "fractions": [0.7, 0.15, 0.15]}},
        "scaling__num_workers": world_size,
        "optimizer__args": {"lr": 0.01},
        "loader__batch_size": 128,
        "training__global_batch_size": 768,
        "training__max_epochs": 3,
        "model": {"type": "GraphSAGE", "args": {"hidden_channels": 8, "dropout": 0.3}},
    }
    return small_config(folder, **{**settings, **changes})


def test_weights_do_not_depend_on_the_workers(ranks, graph, bundle_path, tmp_path):
    def config(folder: Path, size: int) -> dict:
        return _config(folder, graph, size)

    check_workers_agree(ranks, config, tmp_path, bundle_path)


def test_a_run_resumes_within_an_epoch_that_has_mined(ranks, graph, bundle_path, tmp_path):
    def config(folder: Path, **changes):
        # 3 steps an epoch: the checkpoint of step 4 lies within the first epoch that has mined.
        own = {"training__global_batch_size": 512, "checkpoint__every": {"steps": 1}}
        own["training__max_epochs"] = 3  # the last one mines with weights after the resume
        return _config(folder, graph, 2, **{**changes, **own})

    check_resumed_bits(ranks, config, tmp_path, bundle_path)


class KeepMined(Callback):
    """Writes what is mined at each step, and the weights before the step, on rank 0."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def on_train_step_start(self, engine: Engine) -> None:
        epoch = engine.position.epoch
        state = {"mined": engine.task.state_dict(), "weights": engine.task.model.state_dict()}
        self._folder.mkdir(parents=True, exist_ok=True)
        if not (self._folder / f"{epoch}.pt").exists():
            torch.save(state, self._folder / f"{epoch}.pt")


def test_an_epoch_mines_with_the_weights_that_it_begins_with(ranks, graph, bundle_path, tmp_path):
    kept = tmp_path / "kept"
    keeps = [
        {"type": "tests.numerics.test_mined_negatives.KeepMined", "args": {"folder": str(kept)}}
    ]
    config = _config(tmp_path, graph, 1, {"mine_every_epochs": 2}, training__max_epochs=5)
    ranks.run(run_rank, 1, {**config, "callbacks": keeps}, bundle_path)
    states = [torch.load(kept / f"{epoch}.pt") for epoch in range(5)]
    mined = [state["mined"].get("mined_negatives") for state in states]
    assert mined[0] is None
    assert mined[1] is None
    assert torch.equal(mined[2], mined[3])
    for epoch in (2, 4):
        task = evaluated_link_task(config)
        task.model.load_state_dict(states[epoch]["weights"])
        with torch.no_grad():
            task.prepare_epoch(epoch)
        assert torch.equal(mined[epoch], task.state_dict()["mined_negatives"])
        task.close()
    assert not torch.equal(mined[2], mined[4])


def test_mined_negatives_change_the_epochs_after_the_first(ranks, graph, bundle_path, tmp_path):
    weights = {}
    for number in (0, 3):
        kept = tmp_path / f"{number}-kept"
        keeps = [
            {"type": "tests.numerics.test_mined_negatives.KeepMined", "args": {"folder": str(kept)}}
        ]
        config = _config(tmp_path / str(number), graph, 1, {"mined_negatives": number})
        ranks.run(run_rank, 1, {**config, "callbacks": keeps}, bundle_path)
        for epoch in range(3):
            tensors = torch.load(kept / f"{epoch}.pt")["weights"].values()
            weights[number, epoch] = torch.cat([tensor.ravel().double() for tensor in tensors])
    assert torch.equal(weights[0, 1], weights[3, 1])
    assert not torch.equal(weights[0, 2], weights[3, 2])


@pytest.mark.parametrize(
    ("text", "expected"),
    error_cases(
        """
data__mode: partitioned
    task-mined-mode | data.mode='partitioned'
{data__mode: presampled, data__samples: samples}
    task-mined-mode | data.mode='presampled'
sampling__temporal: {column: time}
    task-mined-temporal
model: {type: tests.user_code.PlainPyG, args: {out_channels: 8}}
    model-not-layerwise | task.args.mined_negatives=3
"""
    ),
)
def test_what_cannot_be_mined_is_refused(tmp_path, graph, text, expected):
    config = _config(tmp_path, graph, 0, **parse_yaml(text).value)
    with raises(*expected):
        raygnn.train.fit(config, allow_modules=["tests"])
