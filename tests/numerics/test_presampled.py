"""Batches of stored neighborhoods: those of live sampling, each once an epoch, in little memory."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch

from raygnn.config import build, load_config
from raygnn.data.pagerank_graph import neighborhood_graph
from raygnn.data.tables.graph_tables import write_tables
from raygnn.loops.task import TaskEnvironment
from raygnn.prepare.synthetic import synthetic_tables
from raygnn.presample import presample
from raygnn.runtime.data_checks import with_task_defaults
from raygnn.runtime.data_source import open_bundle
from raygnn.sampling.neighbor_sampler import NeighborSampler
from raygnn.sampling.stored_samples import StoredSamples
from tests.errors import raises
from tests.partitioned_graphs import asked_shop, assert_same, friends, shop
from tests.partitioned_runs import LINKS
from tests.rank_pool import RankPool
from tests.small_runs import check_resumed_bits, small_config
from tests.social_tables import social_tables, write_social
from tests.tiers import slow

_NODES: dict[str, Any] = {
    "task": {"type": "node_classification", "args": {"blend": False, "label": "group"}},
    "model": {"type": "RGCN", "args": {"hidden_channels": 8}},
    "metrics": [{"type": "accuracy"}],
}
_SHOP: dict[str, Any] = {
    "task": {"type": "link_prediction", "args": {"edge_type": "user__*__item"}},
    "model": {"type": "RGCN", "args": {"hidden_channels": 8}},
    "metrics": [{"type": "mrr"}],
    "loader": {"batch_size": 64},
}
_ROWS = {
    "task": {"type": "node_classification", "args": {"blend": False, "label": "y"}},
    "model": {"type": "Hetero", "args": {"hidden_channels": 8}},
    "metrics": [],
}
_USUAL = ("planted pagerank", "social disjoint", "shop in time", "asked labor")
_CASES: dict[str, dict[str, Any]] = {
    "planted": {},
    "planted labor": {"sampling": {"fanouts": [4, 3], "type": "labor"}},
    "planted pagerank": {"sampling": {"fanouts": [4, 3], "ppr": {"top_k": 8}, "weight": "ppr"}},
    "planted again": {"sampling": {"fanouts": [4]}},
    "social weighted": {**_NODES, "sampling": {"fanouts": [4, 3], "weight": "weight"}},
    "social disjoint": {**_NODES, "sampling": {"fanouts": [4, 3], "disjoint": True}},
    "social by type": {
        **_NODES,
        "data__reverse_edges": False,
        "sampling": {"fanouts": {"user__buys__item": [0, 2], "user__knows__user": [3, 2]}},
    },
    "asked labor": {**_ROWS, "sampling": {"fanouts": [4, 3], "type": "labor"}},
    "asked in time": {
        **_ROWS,
        "sampling": {"fanouts": [4, 3], "temporal": {"strategy": "last", "window": 30}},
    },
    "friends links": {**LINKS, "data__splits": {"type": "hash", "fractions": [0.7, 0.15, 0.15]}},
    "shop in time": {
        **_SHOP,
        "data__splits": {"type": "temporal", "quantiles": [0.7, 0.85]},
        "sampling": {"fanouts": [4, 3], "temporal": {}, "weight": "weight"},
    },
    "ratings": {
        "task": {"type": "edge_prediction", "args": {"edge_type": "user__rates__film"}},
        "model": {"type": "Hetero", "args": {"hidden_channels": 8}},
        "metrics": [{"type": "rmse"}],
        "data__reverse_edges": True,
        "sampling": {"fanouts": [4, 3], "disjoint": True},
    },
    "shop cold": {
        **_SHOP,
        "task__args__cold_share": 0.3,
        "task__args__negatives": "degree",
        "task__args__edge_type": "user__buys__item",
        "data__splits": {"type": "hash", "fractions": [0.7, 0.15, 0.15]},
        "data__reverse_edges": True,
    },
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Graph tables by the first word of a case."""
    folder = tmp_path_factory.mktemp("tables")
    planted = {"num_nodes": 300, "num_classes": 3, "num_features": 8, "seed": 1}
    ratings = {"num_users": 80, "num_films": 40, "num_ratings": 600}
    made = {
        "planted": synthetic_tables("planted_partition", **planted),
        "friends": friends(),
        "shop": shop(),
        "asked": asked_shop(),
        "ratings": synthetic_tables("ratings", **ratings),
    }
    found = {name: write_tables(each, str(folder / name)) for name, each in made.items()}
    return {**found, "social": str(write_social(folder / "social", social_tables(60, 20, 1)))}


def _config(folder: Path, uri: str, **changes: Any) -> dict[str, Any]:
    data = {"uri": uri, "cache_dir": str(folder / "cache")}
    return small_config(folder, **{"data": data, "scaling__num_workers": 0, **changes})


def _loaders(config: dict[str, Any], samples: str | None = None, **share: int) -> dict[str, Any]:
    """The loaders of a run by split, on stored neighborhoods where a set is given."""
    loaded = with_task_defaults(load_config(config))
    bundle = neighborhood_graph(loaded.config, open_bundle(loaded, None))
    task: Any = build(loaded.config.task, "task", ())
    stored = None if samples is None else StoredSamples.open(samples)
    rank, world_size = share.get("rank", 0), share.get("world_size", 1)
    device = torch.device("cpu")
    task.setup(TaskEnvironment(loaded, bundle, rank, world_size, device, samples=stored))
    return {split: task.loader(split) for split in ("train", "val", "test")}


@pytest.mark.parametrize("case", [*_USUAL, *slow(*(case for case in _CASES if case not in _USUAL))])
def test_batches_are_those_of_live_sampling(
    case: str, tables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _config(tmp_path, tables[case.split()[0]], **_CASES[case])
    samples = str(tmp_path / "samples")
    presample(config, samples, num_epochs=2)
    live, stored = _loaders(config), _loaders(config, samples)
    for split, epochs in {"train": (0, 1), "val": (0,), "test": (0,)}.items():
        for epoch in epochs:
            expected = list(live[split].iterate(epoch))
            with monkeypatch.context() as patch:
                patch.delattr(NeighborSampler, "sample")  # nothing is sampled
                found = list(stored[split].iterate(epoch))
            assert sum(len(edges.e_id) for b in expected for edges in b.edges.values())
            assert len(found) == len(expected) > 0
            for batch, wanted in zip(found, expected, strict=True):
                assert_same(batch, wanted)


@pytest.mark.parametrize("world_size", [2, *slow(1, 3)])
def test_each_seed_once_an_epoch_on_any_number_of_workers(
    world_size: int, tables: dict[str, str], tmp_path: Path
) -> None:
    config, samples = _config(tmp_path, tables["planted"]), str(tmp_path / "samples")
    presample(config, samples, num_epochs=2)
    ranks = [_loaders(config, samples, rank=r, world_size=world_size) for r in range(world_size)]
    expected = np.sort(ranks[0]["train"].seeds)
    by_index: dict[int, list[torch.Tensor]] = {}
    for epoch in range(4):
        batches = [batch for of_rank in ranks for batch in of_rank["train"].iterate(epoch)]
        ids = torch.cat([batch.input_id for batch in batches])
        assert np.array_equal(np.sort(ids), expected), epoch
        batches.sort(key=lambda batch: batch.index)
        assert [batch.index for batch in batches] == list(range(len(batches)))
        by_index[epoch] = [batch.input_id for batch in batches]
    for epoch in (2, 3):  # the stored epochs again, in another order
        stored = {tuple(ids.tolist()) for ids in by_index[epoch - 2]}
        again = [tuple(ids.tolist()) for ids in by_index[epoch]]
        assert set(again) == stored
        assert again != [tuple(ids.tolist()) for ids in by_index[epoch - 2]]


def test_draws_after_sampling_are_other_ones_in_repeated_epochs(
    tables: dict[str, str], tmp_path: Path
) -> None:
    config, samples = _config(tmp_path, tables["planted"]), str(tmp_path / "samples")
    presample(config, samples, num_epochs=1)
    loader = _loaders(config, samples)["train"]
    keys = {batch.key for epoch in range(3) for batch in loader.iterate(epoch)}
    assert len(keys) == 3 * loader.num_batches


def test_a_run_that_is_killed_within_an_epoch_resumes_with_the_same_bits(
    ranks: RankPool, tables: dict[str, str], tmp_path: Path
) -> None:
    samples, cache = str(tmp_path / "samples"), str(tmp_path / "cache")
    data = {"uri": tables["planted"], "cache_dir": cache}
    presample(_config(tmp_path, tables["planted"]), samples, num_epochs=1)  # of 2 that are trained
    bundle = open_bundle(load_config(_config(tmp_path, tables["planted"])), None)

    def config(folder: Path, **changes: Any) -> dict[str, Any]:
        stored = {"data": {**data, "mode": "presampled", "samples": samples}}
        return small_config(folder, **{**stored, "scaling__num_workers": 2, **changes})

    check_resumed_bits(ranks, config, tmp_path, str(bundle.path))


def test_a_set_of_five_times_the_limit_is_read_in_bounded_memory(tmp_path: Path) -> None:
    tables = synthetic_tables(
        "planted_partition", num_nodes=6_000, num_classes=3, avg_degree=20, num_features=1
    )
    config = _config(
        tmp_path,
        write_tables(tables, str(tmp_path / "tables")),
        sampling={"fanouts": [15, 10]},
        loader={"batch_size": 16, "num_threads": 2, "prefetch_batches": 2},
    )
    samples = str(tmp_path / "samples")
    record = presample(config, samples, num_epochs=1)
    size = sum(n for name, n in record.file_sizes.items() if name.startswith("train/"))
    loader = _loaders(config, samples)["train"]
    next(loader.iterate(0))  # compiles
    loader.close()
    gc.collect()
    pool = pyarrow.default_memory_pool()
    tracemalloc.start()
    try:
        arrow, most = pool.bytes_allocated(), 0
        for batch in loader.iterate(0):
            del batch
            most = max(most, pool.bytes_allocated() - arrow)
        peak = tracemalloc.get_traced_memory()[1] + most
    finally:
        tracemalloc.stop()
    assert 0 < peak < size / 5


def test_a_set_in_a_store_of_objects(tables: dict[str, str], tmp_path: Path) -> None:
    config, samples = _config(tmp_path, tables["planted"]), f"memory://{tmp_path.name}/samples"
    presample(config, samples, num_epochs=1)
    live, stored = _loaders(config)["train"], _loaders(config, samples)["train"]
    for batch, wanted in zip(stored.iterate(0), live.iterate(0), strict=True):
        assert_same(batch, wanted)
    threads = {thread.name for thread in threading.enumerate()}
    batches = stored.iterate(0)
    next(batches)
    started = {thread.name for thread in threading.enumerate()} - threads
    assert len(started) > 1  # several wait for the store at a time
    stored.close()


def test_a_row_of_another_request_or_place_is_refused_when_it_is_read(
    tables: dict[str, str], tmp_path: Path
) -> None:
    config, samples = _config(tmp_path, tables["planted"]), tmp_path / "samples"
    presample(config, samples, num_epochs=2)
    other = {**config, "sampling": {"fanouts": [4, 3], "type": "labor"}}
    with raises("samples-requests", samples, "train"):
        _loaders(other, str(samples))["train"].make(0, 0)
    first, second = (samples / f"train/epoch-0000{epoch}/000000000.parquet" for epoch in (0, 1))
    second.rename(first)
    loader = _loaders(config, str(samples))["train"]
    with raises("samples-damaged", "train/epoch-00000/000000000.parquet", "train"):
        loader.make(0, 0)
    with raises("samples-file-missing", "train/epoch-00001/000000000.parquet"):
        loader.make(1, 0)
    first.write_bytes(b"PAR1 and no more PAR1")
    with raises("samples-damaged", "train/epoch-00000/000000000.parquet"):
        _loaders(config, str(samples))["train"].make(0, 0)
