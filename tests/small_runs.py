"""Small whole runs without Ray, for tests that compare runs with each other."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from raygnn.config import load_config
from raygnn.data.bundle import Bundle
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.tables.graph_tables import write_tables
from raygnn.job import TrainJob
from raygnn.loops.callbacks import Callback
from raygnn.loops.context import ProcessContext
from raygnn.loops.engine import Engine
from raygnn.loops.task import TaskEnvironment
from raygnn.loops.tasks.link_prediction.task import LinkPrediction
from raygnn.outputs.run_start import open_run_folder
from raygnn.parallel import collectives
from raygnn.prepare.synthetic import synthetic_tables
from raygnn.runtime.data_source import open_bundle
from raygnn.sampling.stored_samples import StoredSamples
from raygnn.worker import run_worker
from tests.rank_pool import RankPool

CONFIG: dict[str, Any] = {
    "sampling": {"fanouts": [4, 3]},
    "loader": {"batch_size": 16, "eval_batch_size": 32},
    # Tests of the encoder: it predicts alone, and no LightGBM takes time.
    "task": {"type": "node_classification", "args": {"blend": False}},
    "model": {"type": "GraphSAGE", "args": {"hidden_channels": 8, "dropout": 0.3}},
    "metrics": [{"type": "accuracy"}, {"type": "f1_macro"}, {"type": "auroc"}],
    "training": {"max_epochs": 2, "log_every": {"steps": 2}, "validate_every": {"epochs": 1}},
    "early_stopping": None,
    "loggers": [],
    "deterministic": True,
    "run": {"name": "run"},
}


def small_config(storage_path: Path | str, **changes: Any) -> dict[str, Any]:
    """`CONFIG` with changes by dotted path (`__` for the dot)."""
    config = copy.deepcopy(CONFIG)
    config["run"]["storage_path"] = str(storage_path)
    if "tasks" in changes:
        del config["task"]
    change(config, **changes)
    return config


def change(config: dict[str, Any], **changes: Any) -> None:
    """Sets values by dotted path (`__` for the dot)."""
    for path, value in changes.items():
        *parents, leaf = path.split("__")
        section = config
        for parent in parents:
            section = section.setdefault(parent, {})
        section[leaf] = copy.deepcopy(value)


def link_task(config: dict[str, Any]) -> LinkPrediction:
    """The task of a config, over the graph in memory; without a model."""
    loaded = load_config(config)
    task = LinkPrediction(**loaded.config.task.args)
    task.setup(TaskEnvironment(loaded, open_bundle(loaded, None), 0, 1, torch.device("cpu")))
    return task


def evaluated_link_task(config: dict[str, Any]) -> LinkPrediction:
    """The same with a model of fixed weights, in evaluation mode."""
    task = link_task(config)
    torch.manual_seed(0)
    task.model = task.build_model().eval()
    return task


class KillAt(Callback):
    """Raises after a step on every rank, while the file `kill` is in the folder of the runs."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_train_step_start(self, engine: Engine) -> None:
        marker = Path(engine.config.run.storage_path) / "kill"
        if marker.exists() and engine.position.step == self._step:
            raise RuntimeError(f"killed after step {self._step}")


@dataclass(frozen=True)
class Trained:
    """The final metrics of each rank, the exported weights and the validations of a run."""

    metrics: list[dict[str, Any]]
    weights: dict[str, torch.Tensor]
    history: list[dict[str, Any]]


_TRAINED: dict[str, Trained] = {}


def train_once(
    ranks: RankPool, config: dict[str, Any], bundle_path: str, world_size: int, run: Any = None
) -> Trained:
    """The results of a run. Settings that differ only in their folder train once per session."""
    folder, run = config["run"]["storage_path"], run or run_rank
    key = json.dumps([run.__qualname__, world_size, bundle_path, config]).replace(folder, "")
    if key not in _TRAINED:
        metrics = ranks.run(run, world_size, config, bundle_path)
        _TRAINED[key] = Trained(metrics, trained_weights(config), read_history(Path(folder)))
    return _TRAINED[key]


def kill_at(step: int) -> list[dict[str, Any]]:
    """The callbacks of a run that `run_killed` ends after a step."""
    return [{"type": "tests.small_runs.KillAt", "args": {"step": step}}]


def run_killed(
    ranks: RankPool, config: dict[str, Any], bundle_path: str, world_size: int, run: Any = None
) -> None:
    """Runs a config with the callbacks of `kill_at` until all ranks have raised."""
    marker = Path(config["run"]["storage_path"]) / "kill"
    marker.parent.mkdir(exist_ok=True)
    marker.touch()
    with pytest.raises(RuntimeError, match="killed after step"):
        ranks.run(run or run_rank, world_size, config, bundle_path)
    marker.unlink()


def check_resumed_bits(
    ranks: RankPool,
    config: Callable[..., dict[str, Any]],
    folder: Path,
    bundle_path: str,
    world_size: int = 2,
    step: int = 4,
    every: Mapping[str, int] | None = MappingProxyType({"steps": 3}),
    **changes: Any,
) -> None:
    """Checks that a run killed after a step resumes to the weights and history of a straight run.

    Args:
        config: gives the config of a run in a folder, with changes as of `small_config`.
        every: `checkpoint.every` of the killed run.
    """
    changes = {"training__max_epochs": 2, **changes}
    straight = config(folder / "straight", **changes)
    changes |= {"callbacks": kill_at(step), "checkpoint__every": every and dict(every)}
    killed = config(folder / "killed", **changes)
    expected = train_once(ranks, straight, bundle_path, world_size)
    run_killed(ranks, killed, bundle_path, world_size)
    ranks.run(run_rank, world_size, killed, bundle_path)
    assert_equal_weights(trained_weights(killed), expected.weights)
    assert read_history(folder / "killed") == expected.history


def check_workers_agree(
    ranks: RankPool,
    config: Callable[[Path, int], dict[str, Any]],
    folder: Path,
    bundle_path: str,
    *names: str,
    sizes: Sequence[int] = (1, 2),
    run: Any = None,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    ignored: re.Pattern[str] | None = None,
    in_bits: bool = False,
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Checks that any number of ranks trains the same weights, up to rounding.

    All ranks of a run must return the same metrics.

    Args:
        config: gives the config of a run in a folder on a number of ranks.
        names: columns of the history, or final metrics, that agree too.
        ignored: names of weights that may differ.
        in_bits: they must be equal bit for bit.
    Returns:
        The metrics and the weights of the run on the first number of ranks.
    """
    found = []
    for size in sizes:
        settings = config(folder / str(size), size)
        trained = train_once(ranks, settings, bundle_path, size, run or run_rank)
        for metrics in trained.metrics:
            assert {**metrics, "training_time_s": 0} == {**trained.metrics[0], "training_time_s": 0}
        found.append((trained.metrics[0], trained.weights, trained.history))
    metrics, weights, history = found[0]
    assert history
    if in_bits:
        rtol = atol = 0.0
    for others, other_weights, rows in found[1:]:
        for name, tensor in weights.items():
            if ignored is None or not ignored.fullmatch(name):
                other = other_weights[name]
                torch.testing.assert_close(other, tensor, rtol=rtol, atol=atol, msg=name)
        for row, other in zip([*history, metrics], [*rows, others], strict=True):
            expected = {name: row[name] for name in names if name in row}
            assert {name: other[name] for name in expected} == pytest.approx(expected, rel=rtol)
    assert {*names} <= {*metrics, *history[0]}
    return metrics, weights


def small_bundle(folder: Path, **arguments: Any) -> Bundle:
    """A planted-partition graph of 300 nodes, 180 of them to train on."""
    settings = {"num_nodes": 300, "num_classes": 3, "num_features": 8, "seed": 1, **arguments}
    tables = synthetic_tables("planted_partition", **settings)
    uri = write_tables(tables, str(folder / "tables"), num_shards=2)
    return ingest(uri, IngestOptions(), str(folder / "cache"))


def run_rank(config: dict[str, Any], bundle_path: str, **callbacks: Any) -> dict[str, Any]:
    """One rank of a whole run; returns its final metrics. Collective: all ranks must call."""
    torch.set_num_threads(1)
    loaded = load_config(config, allow_modules=["tests"])
    folder = None
    if collectives.rank() == 0:
        folder = open_run_folder(loaded, config["run"]["name"])
    folder = collectives.broadcast_object(folder)
    uri = loaded.config.data.samples
    samples = None if uri is None else StoredSamples.open(uri)
    job = TrainJob(loaded, folder, bundle_path, samples=samples)
    return run_worker(job, ProcessContext(use_gpu=False))


def trained_weights(config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The exported weights of a finished run."""
    folder = Path(config["run"]["storage_path"]) / config["run"]["name"]
    return load_file(folder / "model.safetensors")


def assert_same_weights(config: dict[str, Any], expected: dict[str, Any]) -> None:
    """The exported weights of two finished runs are equal, bit for bit."""
    assert_equal_weights(trained_weights(config), trained_weights(expected))


def assert_equal_weights(
    weights: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]
) -> None:
    """All weights of two models are equal, bit for bit."""
    assert weights.keys() == expected.keys()
    for name, tensor in weights.items():
        assert torch.equal(tensor, expected[name]), name


def read_history(folder: Path) -> list[dict[str, Any]]:
    """The validations of `folder/run`, without their time."""
    rows = (folder / "run" / "history.jsonl").read_text().splitlines()
    return [{name: v for name, v in json.loads(row).items() if name != "time_s"} for row in rows]
