"""Small whole runs without Ray, for tests that compare runs with each other."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file

from raygnn.config import load_config
from raygnn.data.bundle import Bundle
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.synthetic.generators import synthetic_tables
from raygnn.data.tables.graph_tables import write_tables
from raygnn.job import TrainJob
from raygnn.loops.context import ProcessContext
from raygnn.loops.task import TaskEnvironment
from raygnn.loops.tasks.link_prediction.task import LinkPrediction
from raygnn.outputs.run_start import open_run_folder
from raygnn.parallel import all_reduce, collectives
from raygnn.runtime.data_source import open_bundle
from raygnn.sampling.presampled.stored_samples import StoredSamples
from raygnn.worker import run_worker
from tests.rank_pool import RankPool

CONFIG: dict[str, Any] = {
    "sampling": {"fanouts": [4, 3]},
    "loader": {"batch_size": 16, "eval_batch_size": 32},
    "model": {"type": "GraphSAGE", "args": {"hidden_channels": 8, "dropout": 0.3}},
    "metrics": [{"type": "accuracy"}, {"type": "f1_macro"}, {"type": "auroc"}],
    "training": {
        "max_epochs": 2,
        "log_every": {"steps": 2},
        "validate_every": {"epochs": 1},
    },
    "early_stopping": None,
    "loggers": [],
    "deterministic": True,
    "run": {"name": "run"},
}


def small_config(storage_path: Path | str, **changes: Any) -> dict[str, Any]:
    """`CONFIG` with changes by dotted path (`__` for the dot)."""
    config = copy.deepcopy(CONFIG)
    config["run"]["storage_path"] = str(storage_path)
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


def check_resumed_bits(
    ranks: RankPool, config: Callable[..., dict[str, Any]], folder: Path, bundle_path: str
) -> None:
    """Checks that 2 ranks killed after step 4 resume to the weights of a straight run.

    Args:
        config: gives the config of a run in a folder, with changes as of `small_config`.
    """
    straight = config(folder / "straight", training__max_epochs=3)
    ranks.run(run_rank, 2, straight, bundle_path)
    marker = folder / "kill"
    args = {"step": 4, "marker": str(marker)}
    killed = config(
        folder / "killed",
        training__max_epochs=3,
        callbacks=[{"type": "tests.numerics.test_resume.KillAt", "args": args}],
        checkpoint__every={"steps": 3},
    )
    marker.touch()
    with pytest.raises(RuntimeError, match="killed after step 4"):
        ranks.run(run_rank, 2, killed, bundle_path)
    marker.unlink()
    ranks.run(run_rank, 2, killed, bundle_path)
    assert_same_weights(killed, straight)


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


def run_rank_in_small_buckets(config: dict[str, Any], bundle_path: str) -> dict[str, Any]:
    """As `run_rank`, with several buckets of gradients where `scaling.gradients` is ddp."""
    with patch.object(all_reduce, "_BUCKET_BYTES", 256):
        return run_rank(config, bundle_path)


def trained_weights(config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The exported weights of a finished run."""
    folder = Path(config["run"]["storage_path"]) / config["run"]["name"]
    return load_file(folder / "model.safetensors")


def assert_same_weights(config: dict[str, Any], expected: dict[str, Any]) -> None:
    """The exported weights of two finished runs are equal, bit for bit."""
    weights, others = trained_weights(config), trained_weights(expected)
    assert weights.keys() == others.keys()
    for name, tensor in weights.items():
        assert torch.equal(tensor, others[name]), name


def read_history(folder: Path) -> list[dict[str, Any]]:
    """The validations of `folder/run`, without their time."""
    rows = (folder / "run" / "history.jsonl").read_text().splitlines()
    return [{name: v for name, v in json.loads(row).items() if name != "time_s"} for row in rows]
