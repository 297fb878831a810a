"""Learned rows that are sharded over ranks train the same model as whole tables do."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from raygnn.config import load_config
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from raygnn.documents import parse_yaml
from raygnn.errors import ConfigError, TrainingError
from raygnn.loops.callbacks import Callback
from raygnn.loops.engine import Engine
from raygnn.models import node_inputs
from raygnn.models.node_inputs import EmbeddingTable, NodeInputs, RowShare, rows_shared
from raygnn.outputs.model_export import export_checkpoint
from raygnn.parallel import collectives
from raygnn.parallel.sharded_tables import ShardedTables
from raygnn.runtime.data_source import open_bundle
from tests.rank_pool import RankPool
from tests.small_runs import (
    assert_equal_weights,
    kill_at,
    read_history,
    run_killed,
    run_rank,
    small_config,
    train_once,
    trained_weights,
)
from tests.tiers import slow

LIKES = ("user", "likes", "item")
NUM_USERS, NUM_ITEMS = 150, 40


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Users without features like items that have some."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 4, NUM_USERS)
    pairs = []
    for user in range(NUM_USERS):
        liked = group[user] + 4 * rng.choice(10, 5, replace=False)
        pairs += [(user, item) for item in liked]
    source, target = np.array(pairs).T
    tables = GraphTables(
        {
            "user": node_rows(np.arange(NUM_USERS)),
            "item": node_rows(np.arange(NUM_ITEMS), {"x": rng.random((NUM_ITEMS, 5))}),
        },
        {LIKES: edge_rows(source, target)},
    )
    return write_tables(tables, str(tmp_path_factory.mktemp("graph") / "tables"))


@pytest.fixture(scope="module")
def bundle_path(graph: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    config = _config(tmp_path_factory.mktemp("opened"), graph, 1)
    return str(open_bundle(load_config(config, allow_modules=["tests"]), None).path)


MODELS: dict[str, dict[str, Any]] = parse_yaml(
    """
dense: {model: {type: Hetero, args: {hidden_channels: 8}}}
sparse:
  model: {type: Hetero, args: {hidden_channels: 8, sparse_embeddings: true}}
  optimizer: {type: SGD, args: {lr: 0.5}}
rows only:
  model: {type: LightGCN, args: {out_channels: 8, sparse_embeddings: true}}
  optimizer: {type: SparseAdam, args: {lr: 0.05}}
  training__ema_decay: null
adam:
  model: {type: LightGCN, args: {out_channels: 8}}
  optimizer: {type: Adam, args: {lr: 0.05}}
adagrad:
  model: {type: LightGCN, args: {out_channels: 8, sparse_embeddings: true}}
  optimizer: {type: Adagrad, args: {lr: 0.05}}
exact evaluation: {training__eval: exact}
bfloat16: {training__precision: bf16-mixed}
one against all:
  model: {type: Embedding, args: {out_channels: 8}}
  task__args: {edge_type: user__likes__item, num_random_negatives: all}
"""
).value


def _config(folder: Path, uri: str, world_size: int, shard: str = "none", **changes) -> dict:
    """Everything on that has state; the last step of an epoch leaves ranks without a batch."""
    settings = {
        "task": {"type": "link_prediction", "args": {"edge_type": "user__likes__item"}},
        "data": {"uri": uri, "splits": {"type": "hash", "fractions": [0.7, 0.15, 0.15]}},
        "model": {"type": "Hetero", "args": {"hidden_channels": 8}},
        "metrics": [{"type": "mrr"}],
        "loader": {"batch_size": 20, "eval_batch_size": 32},
        "scaling": {"num_workers": world_size, "shard": shard},
        # Not one that divides by the gradient: of parameters that do not matter it is noise.
        "optimizer": {"type": "SGD", "args": {"lr": 0.5, "momentum": 0.9}},
        "training__global_batch_size": 120,
        "training__clip_grad_norm": 0.5,
        "training__ema_decay": 0.8,
        "training__validate_every": {"steps": 4},
        "training__max_epochs": 3,
        "callbacks": kill_at(8),
    }
    return small_config(folder, **{**settings, **changes})


def run_rank_in_small_blocks(config: dict[str, Any], bundle_path: str) -> dict[str, Any]:
    """As `run_rank`; each rank holds several blocks of a table, and the last one is ragged."""
    with patch.object(node_inputs, "BLOCK_ROWS", 16):
        return run_rank(config, bundle_path)


def _straight(ranks: Any, bundle_path: str, config: dict[str, Any]):
    size = config["scaling"]["num_workers"]
    trained = train_once(ranks, config, bundle_path, size, run_rank_in_small_blocks)
    return trained.weights, trained.history


def _train(ranks: Any, bundle_path: str, config: dict[str, Any]):
    """A run that leaves its files in the folder, and resumes what is there."""
    size = config["scaling"]["num_workers"]
    ranks.run(run_rank_in_small_blocks, size, config, bundle_path)
    return trained_weights(config), read_history(Path(config["run"]["storage_path"]))


def _assert_close(one: tuple, other: tuple) -> None:
    for row, other_row in zip(one[1], other[1], strict=True):
        row, other_row = dict(row), dict(other_row)
        # A tie that rounding breaks is another rank.
        assert row.pop("val/mrr") == pytest.approx(other_row.pop("val/mrr"), abs=0.01)
        assert row == pytest.approx(other_row, rel=1e-3)
    for name, tensor in other[0].items():
        torch.testing.assert_close(one[0][name], tensor, rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def whole(ranks, graph, bundle_path, tmp_path_factory):
    """A run of a model on one rank, which has whole tables."""

    def train(name: str) -> tuple:
        folder = tmp_path_factory.mktemp("whole")
        return _straight(ranks, bundle_path, _config(folder, graph, 1, **MODELS[name]))

    return train


@pytest.mark.parametrize(
    ("name", "world_size"),
    [
        ("dense", 2),
        ("rows only", 2),
        *slow(*((name, 2) for name in MODELS if name not in ("dense", "rows only"))),
        *slow(("dense", 1), ("dense", 3), ("rows only", 3)),
    ],
)
def test_results_are_those_of_whole_tables(
    ranks, graph, bundle_path, tmp_path, whole, name, world_size
):
    config = _config(tmp_path, graph, world_size, "embeddings", **MODELS[name])
    _assert_close(_straight(ranks, bundle_path, config), whole(name))


@pytest.mark.parametrize("name", ["dense", *slow("sparse", "rows only")])
def test_resumed_and_straight_end_with_the_same_bits(ranks, graph, bundle_path, tmp_path, name):
    def config(folder: str) -> dict[str, Any]:
        return _config(tmp_path / folder, graph, 2, "embeddings", **MODELS[name])

    straight = _straight(ranks, bundle_path, config("straight"))
    _kill(ranks, bundle_path, config("killed"))
    resumed = _train(ranks, bundle_path, config("killed"))
    assert resumed[1] == straight[1]
    assert_equal_weights(resumed[0], straight[0])


def _kill(ranks: Any, bundle_path: str, config: dict[str, Any]) -> None:
    size = config["scaling"]["num_workers"]
    run_killed(ranks, config, bundle_path, size, run_rank_in_small_blocks)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((2, "embeddings"), (3, "embeddings")),
        *slow(
            ((3, "embeddings"), (2, "embeddings")),
            ((2, "embeddings"), (1, "none")),
            ((1, "none"), (3, "embeddings")),
            ((3, "embeddings"), (2, "full")),
            ((2, "optimizer"), (3, "embeddings")),
        ),
    ],
    ids=str,
)
def test_a_checkpoint_goes_on_with_other_workers_shared_out_otherwise(
    ranks, graph, bundle_path, tmp_path, whole, before, after
):
    _kill(ranks, bundle_path, _config(tmp_path / "killed", graph, *before))
    resumed = _train(ranks, bundle_path, _config(tmp_path / "killed", graph, *after))
    _assert_close(resumed, whole("dense"))


def test_rows_lie_in_parts_in_checkpoints_and_whole_in_exports(ranks, graph, bundle_path, tmp_path):
    config = _config(tmp_path, graph, 3, "embeddings", training__ema_decay=None)
    weights, _ = _train(ranks, bundle_path, config)
    checkpoint = sorted((tmp_path / "run" / "checkpoints").glob("*-*/"))[-1]
    name = "inputs.tables.user.rows.weight"
    (key,) = [key for key in weights if key.endswith(name)]
    state = torch.load(checkpoint / "state.pt", weights_only=True)
    assert key not in state["model"]
    parts = [torch.load(checkpoint / f"rows-{rank}.pt", weights_only=True) for rank in range(3)]
    sizes = [len(part["model", key]) for part in parts]
    assert sizes == [RowShare(rank, 3, 16).num_held(NUM_USERS) for rank in range(3)]
    assert sum(sizes) == NUM_USERS
    export_checkpoint(str(tmp_path / "run"), str(tmp_path / "exported"))
    exported = load_file(tmp_path / "exported" / "model.safetensors")
    for name, tensor in weights.items():
        assert torch.equal(exported[name], tensor), name


@pytest.mark.slow
def test_training_begins_with_the_rows_of_another_run(ranks, graph, bundle_path, tmp_path):
    first = _train(ranks, bundle_path, _config(tmp_path / "first", graph, 1))
    changes: dict[str, Any] = {
        "checkpoint__init_from": {"uri": str(tmp_path / "first" / "run")},
        "optimizer": {"type": "SGD", "args": {"lr": 1e-30}},
        "training__max_epochs": 1,
    }
    config = _config(tmp_path / "second", graph, 3, "embeddings", **changes)
    second = _train(ranks, bundle_path, config)
    for name, tensor in first[0].items():
        assert torch.equal(second[0][name], tensor), name
    changes["checkpoint__init_from"] = {
        "uri": str(sorted((tmp_path / "second" / "run" / "checkpoints").glob("*-*/"))[-1])
    }
    third = _train(ranks, bundle_path, _config(tmp_path / "third", graph, 1, **changes))
    for name, tensor in first[0].items():
        assert torch.equal(third[0][name], tensor), name


@pytest.mark.parametrize("hook", ["on_train_batch_start", *slow("on_train_batch_end")])
def test_a_rank_that_fails_leaves_no_other_waiting(ranks, graph, bundle_path, tmp_path, hook):
    failing = {"type": "tests.user_code.FailOnRank", "args": {"rank": 1, "hook": hook}}
    config = _config(tmp_path, graph, 3, "embeddings", callbacks=[failing])
    with pytest.raises(RuntimeError, match=r"Rank 1 failed in training.*a mistake in a hook"):
        _train(ranks, bundle_path, config)


def test_a_model_without_learned_rows_is_refused(ranks, small_bundle_path, tmp_path):
    scaling = {"num_workers": 2, "shard": "embeddings"}
    config = small_config(tmp_path, scaling=scaling)
    with pytest.raises(RuntimeError, match="shard-no-rows"):
        ranks.run(run_rank, 2, config, small_bundle_path)


def _rows_that_were_not_fetched() -> str:
    share = RowShare(collectives.rank(), 2, 16)
    with rows_shared(share):
        module = NodeInputs({}, {"user": 100}, 4)
    tables = ShardedTables(module)
    tables.fetch([{"user": torch.tensor([3, 40, 3])}] if collectives.rank() else [])
    with pytest.raises(TrainingError, match="shard-rows-unfetched") as caught:
        module({"user": torch.tensor([3, 41, 99])})
    return str(caught.value)


def test_rows_that_were_not_fetched_are_not_taken_for_others(ranks):
    for text in ranks.run(_rows_that_were_not_fetched, 2):
        assert "'user'" in text


def test_a_model_that_is_called_elsewhere_says_so():
    with rows_shared(RowShare(0, 2)):
        table = EmbeddingTable(3000, 4)
    assert len(table.rows.weight) == 1976
    with pytest.raises(ConfigError, match="shard-rows-elsewhere"):
        table(torch.arange(3))


@pytest.mark.parametrize(("num_nodes", "channels"), [(1, 1), (10, 3), (1025, 1), (5000, 7)])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_shares_begin_as_the_whole_table_does(num_nodes, channels, world_size):
    def drawn(share: RowShare | None) -> tuple[Tensor, Tensor]:
        torch.manual_seed(3)
        with rows_shared(share):
            table = EmbeddingTable(num_nodes, channels)
        return table.rows.weight.detach(), torch.rand(3)

    whole, after = drawn(None)
    for rank in range(world_size):
        share = RowShare(rank, world_size)
        held, after_share = drawn(share)
        assert torch.equal(held, whole[share.ids(num_nodes)])
        assert torch.equal(after_share, after)  # what is drawn next is the same too


class PeakMemory(Callback):
    """Writes down how much a rank came to hold, in bytes, of what no file backs."""

    def __init__(self, folder: str) -> None:
        self._folder, self._peak, self._stopped = Path(folder), 0, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._stopped.wait(0.003):
            self._peak = max(self._peak, _anonymous_bytes())

    def on_shutdown(self, engine: Engine) -> None:
        self._stopped.set()
        self._thread.join()
        (self._folder / f"peak-{engine.context.rank}").write_text(str(self._peak))


def _anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) << 10


def _peak_of_rank(config: dict[str, Any], bundle_path: str) -> int:
    before = _anonymous_bytes()
    run_rank(config, bundle_path)
    folder = Path(config["run"]["storage_path"])
    return int((folder / f"peak-{collectives.rank()}").read_text()) - before


@pytest.mark.slow
def test_memory_of_a_rank_falls_with_the_number_of_ranks(tmp_path):
    """From the first draw of the rows, with checkpoints and evaluations on the way."""
    num_rows, channels = 400_000, 128  # beside some MiB of chunks, whatever the number of rows

    def peak(pool: RankPool, size: int, num_users: int) -> int:
        folder = tmp_path / f"{size}-{num_users}"
        folder.mkdir()
        tables = GraphTables(
            {"user": node_rows(np.arange(num_users)), "item": node_rows(np.arange(500))},
            {LIKES: edge_rows(np.arange(2_000), np.arange(2_000) % 500)},
        )
        config = _config(
            folder,
            write_tables(tables, str(folder / "tables")),
            size,
            "embeddings",
            model={"type": "LightGCN", "args": {"out_channels": channels}},
            optimizer={"type": "Adam", "args": {"lr": 0.01}},
            training__ema_decay=None,
            training__max_steps=4,
            training__global_batch_size=80,
            callbacks=[
                {
                    "type": "tests.numerics.test_sharded_tables.PeakMemory",
                    "args": {"folder": str(folder)},
                }
            ],
        )
        bundle = open_bundle(load_config(config, allow_modules=["tests"]), None)
        return max(pool.run(_peak_of_rank, size, config, str(bundle.path)))

    peaks = {}
    for size in (1, 4):
        pool = RankPool(size)  # what other tests have left would count
        try:
            peak(pool, size, 2_000)  # and what is loaded and compiled once
            peaks[size] = peak(pool, size, num_rows)
        finally:
            pool.close()
    table = num_rows * channels * 4
    assert peaks[1] > 4 * table, peaks  # rows, gradients, and Adam's two
    assert peaks[4] < 0.30 * peaks[1], peaks
