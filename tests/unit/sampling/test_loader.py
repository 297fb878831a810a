from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from raygnn.data.bundle import SeedRows
from raygnn.sampling import LocalGraphStore, NeighborLoader, NeighborSampler, NodeBatch
from raygnn.sampling.loader import RowPlan
from raygnn.sampling.prefetch import copied_together
from tests.batches import check_ids, is_same, node_loader
from tests.errors import raises
from tests.small_graph import EDGE, NODE, SmallGraph, random_graph

SEEDS = np.arange(3, 200, 4)  # 50 of 200 nodes, 7 batches of 8


def _loader(small: SmallGraph | None = None, **changes: Any) -> NeighborLoader:
    settings = {
        "seeds": SEEDS,
        "columns": {"x": "x", "y": "y"},
        "edge_columns": {"weight": "edge_weight"},
        "seed": 1,
        "shuffle": True,
    }
    return node_loader(random_graph() if small is None else small, **{**settings, **changes})


def _sampler_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("raygnn-sampler")]


def test_a_batch_names_its_nodes_and_edges():
    small = random_graph()
    batches = list(_loader(small).iterate(0))
    assert [batch.index for batch in batches] == list(range(7))
    assert sorted(torch.cat([batch.input_id for batch in batches]).tolist()) == SEEDS.tolist()
    csc = small.bundle.csc(EDGE)
    for batch in batches:
        nodes, edges = batch.nodes[NODE], batch.edges[EDGE]
        check_ids(batch)
        assert torch.equal(nodes.columns["x"][:, 0], nodes.n_id.float())
        assert torch.equal(nodes.n_id[: nodes.num_seeds], batch.input_id)
        assert torch.equal(batch.y, batch.input_id % 7)
        assert nodes.num_seeds == len(batch.input_id)
        assert torch.equal(edges.columns["edge_weight"], edges.e_id.float())
        indices = torch.from_numpy(csc.indices[edges.e_id])
        assert torch.equal(indices.long(), nodes.n_id[edges.edge_index[0]])
        degree = torch.from_numpy(np.diff(csc.indptr))[nodes.n_id]
        assert torch.equal(edges.dst_degree, degree.float())
        assert len(nodes.n_id) == sum(nodes.num_sampled)


@pytest.mark.parametrize("num_threads", [0, 2, 4, None])
def test_batches_are_the_same_for_any_number_of_threads(num_threads):
    expected = list(_loader(num_threads=1, prefetch_batches=1).iterate(3))
    found = list(_loader(num_threads=num_threads, prefetch_batches=3).iterate(3))
    assert len(found) == 7
    assert all(map(is_same, found, expected))


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def _counting_loader(**options: Any) -> tuple[NeighborLoader, list[int]]:
    """A loader of seven batches, and the keys of those that were made."""
    made: list[int] = []

    class Counting(NeighborSampler):
        def sample(self, seeds: Any, key: int) -> Any:
            made.append(key)
            return super().sample(seeds, key)

    small = random_graph()
    sampler = Counting(LocalGraphStore(small.bundle), [2])
    return _loader(small, sampler=sampler, **options), made


@pytest.mark.parametrize(("num_cores", "num_local"), [(2, 1), (4, 2)])
def test_threads_take_turns_where_training_keeps_all_cores_busy(
    num_cores, num_local, monkeypatch, two_threads
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(num_cores)))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(num_local))
    loader, made = _counting_loader(prefetch_batches=3)
    assert [len(made) for _ in loader.iterate(0)] == [3, 3, 3, 6, 6, 6, 7]


def test_a_thread_works_beside_training_where_a_core_is_free(monkeypatch, two_threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    loader, made = _counting_loader(prefetch_batches=3)
    batches = loader.iterate(0)
    next(batches)
    while len(made) < 4:
        time.sleep(0.001)
    assert len(_sampler_threads()) == 1
    batches.close()


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize(("start", "stop"), [(0, None), (2, 6), (5, 99), (4, 4)])
def test_ranks_share_the_batches_of_one(world_size, start, stop):
    whole = list(_loader().iterate(2))
    found: dict[int, NodeBatch] = {}
    for rank in range(world_size):
        share = list(_loader(rank=rank, world_size=world_size).iterate(2, start, stop))
        assert [batch.index for batch in share] == sorted(batch.index for batch in share)
        assert all(batch.index % world_size == rank for batch in share)
        found.update({batch.index: batch for batch in share})
    assert sorted(found) == list(range(start, min(7 if stop is None else stop, 7)))
    assert all(is_same(batch, whole[index]) for index, batch in found.items())


@pytest.mark.parametrize("world_size", [1, 2])
def test_ranks_share_the_batches_of_a_table_that_is_shuffled_in_windows(world_size, monkeypatch):
    rows = SeedRows("t", NODE, 200, np.arange(200)[::-1].copy(), None, None, None, {})
    changes = {"plan": RowPlan(rows, {"y": np.arange(200) % 5})}
    shuffled = list(_loader(**changes).iterate(2))
    monkeypatch.setattr("raygnn.sampling.loader._MAX_SHUFFLED", 49)
    whole = list(_loader(**changes).iterate(2))
    read = torch.cat([batch.input_id for batch in whole])
    assert sorted(read.tolist()) == SEEDS.tolist()
    assert read.tolist() != torch.cat([batch.input_id for batch in shuffled]).tolist()
    for rank in range(world_size):
        share = list(_loader(**changes, rank=rank, world_size=world_size).iterate(2, 3))
        of_rank = [i for i in range(3, 7) if i % world_size == rank]
        assert [batch.index for batch in share] == of_rank
        assert all(is_same(batch, whole[batch.index]) for batch in share)
        assert all(torch.equal(batch.y, batch.input_id % 5) for batch in share)


def test_epochs_splits_and_seeds_differ():
    first = _loader().make(0, 0)
    for changes, epoch in [({}, 1), ({"seed": 2}, 0)]:
        assert not torch.equal(_loader(**changes).make(epoch, 0).input_id, first.input_id)
    of_val = _loader(split="val").make(0, 0)
    assert torch.equal(of_val.input_id, first.input_id)
    assert not torch.equal(of_val.edges[EDGE].e_id, first.edges[EDGE].e_id)


def test_without_shuffling_seeds_come_as_given():
    batches = list(_loader(shuffle=False).iterate(5))
    assert torch.cat([batch.input_id for batch in batches]).tolist() == SEEDS.tolist()


def test_batches_that_are_kept_keep_their_rows():
    loader = _loader()
    kept = [batch.nodes[NODE].columns["x"] for epoch in range(3) for batch in loader.iterate(epoch)]
    ids = [batch.nodes[NODE].n_id for epoch in range(3) for batch in loader.iterate(epoch)]
    assert all(torch.equal(x[:, 0], n_id.float()) for x, n_id in zip(kept, ids, strict=True))


def test_unknown_columns_are_named():
    with raises("sampling-batch-column", "z", "node"):
        _loader(columns={"z": "x"})
    with raises("sampling-batch-column", "edge", "node__to__node': ['weight"):
        _loader(edge_columns={"x": "edge_attr"})


def test_no_seeds_are_no_batches():
    loader = _loader(seeds=np.empty(0, np.int64))
    assert loader.num_batches == 0
    assert list(loader.iterate(0)) == []


def test_a_repeated_seed_is_one_node_and_two_labels():
    batch = _loader(seeds=np.array([5, 9, 5]), shuffle=False).make(0, 0)
    assert batch.nodes[NODE].n_id[:2].tolist() == [5, 9]
    assert (batch.nodes[NODE].num_seeds, len(batch.input_id)) == (2, 3)
    assert batch.seed_index.tolist() == [0, 1, 0]
    assert batch.y.tolist() == [5, 2, 5]


class _Failing(NeighborSampler):
    def sample(self, seeds: Any, key: int) -> Any:
        if 11 in seeds[NODE]:
            raise ZeroDivisionError("no such luck")
        return super().sample(seeds, key)


@pytest.mark.parametrize("num_threads", [0, 2, None])
def test_an_error_of_a_thread_is_raised_in_the_loop(num_threads):
    small = random_graph()
    sampler = _Failing(LocalGraphStore(small.bundle), [2])
    loader = _loader(small, sampler=sampler, shuffle=False, batch_size=1, num_threads=num_threads)
    seen = []
    with pytest.raises(ZeroDivisionError, match="no such luck") as caught:
        seen.extend(batch.index for batch in loader.iterate(4))
    assert seen == [0, 1]
    assert caught.value.__notes__ == ["while making batch 2 of split 'train', epoch 5"]
    assert _sampler_threads() == []


def test_leaving_a_loop_ends_its_threads():
    loader = _loader(num_threads=3)
    for _ in loader.iterate(0):
        assert _sampler_threads()
        break
    assert _sampler_threads() == []
    with loader:
        batches = loader.iterate(0)
        next(batches)
        assert _sampler_threads()
    assert _sampler_threads() == []
    assert list(batches) == []
    batches = loader.iterate(0)
    next(batches)
    batches.close()
    assert _sampler_threads() == []


def test_batches_are_made_ahead_but_not_without_bound():
    loader, made = _counting_loader(batch_size=1, num_threads=1, prefetch_batches=3)
    batches = loader.iterate(0)
    for _ in range(10):
        next(batches)
    batches.close()
    assert 10 <= len(made) <= 13


@pytest.mark.parametrize("num_threads", [0, 1, None])
def test_nothing_holds_a_batch_that_was_let_go(num_threads):
    batches = _loader(num_threads=num_threads).iterate(0)
    ref = weakref.ref(next(batches))
    assert ref() is None
    batches.close()


def test_several_types():
    follows, buys = ("user", "follows", "user"), ("user", "buys", "item")
    rng = np.random.default_rng(0)
    edges = {
        follows: (rng.integers(0, 30, 100), rng.integers(0, 30, 100)),
        buys: (rng.integers(0, 30, 80), rng.integers(0, 10, 80)),
    }
    x = np.arange(30, dtype=np.float32)[:, None]
    columns = {
        "user": {"x": x, "y": np.arange(30)},
        "item": {"x": x[:10] + 100, "y": np.arange(10)},
        buys: {"price": np.arange(80)},
    }
    small = SmallGraph({"user": 30, "item": 10}, edges, stored=columns)
    given = {"seeds": np.arange(10), "node_type": "item", "edge_columns": {"price": "edge_attr"}}
    sampler = NeighborSampler(LocalGraphStore(small.bundle), [4, 2])
    batch = _loader(small, sampler=sampler, shuffle=False, **given).make(0, 0)
    check_ids(batch)
    assert torch.equal(batch.nodes["user"].columns["x"][:, 0], batch.nodes["user"].n_id.float())
    assert torch.equal(
        batch.nodes["item"].columns["x"][:, 0], batch.nodes["item"].n_id.float() + 100
    )
    assert torch.equal(batch.y, batch.input_id)
    assert batch.nodes["user"].num_seeds == 0
    assert torch.equal(batch.edges[buys].columns["edge_attr"], batch.edges[buys].e_id)
    assert batch.edges[buys].num_sampled[1] == 0
    assert batch.edges[follows].num_sampled[0] == 0
    row, _ = batch.edges[buys].edge_index
    sources = torch.from_numpy(small.bundle.csc(buys).indices).long()[batch.edges[buys].e_id]
    assert torch.equal(batch.nodes["user"].n_id[row], sources)


def test_seeds_are_checked():
    with raises("graph-node-type-unknown", "node type 'user'", "node"):
        _loader(node_type="user")
    with raises("sampling-seeds-range", 1, 2, 200):
        _loader(seeds=np.array([1, 200]))


def test_a_batch_is_copied_in_one_piece():
    """Also empty tensors, slices, a tensor that it has twice, and types of any width."""
    batch = _loader().make(0, 0)
    nodes = batch.nodes[NODE]
    flags = torch.arange(7) % 2 == 0
    odd = {"flags": flags, "again": flags, "none": torch.empty(0, 3), "every": torch.arange(9)[::2]}
    record = replace(batch, nodes={NODE: replace(nodes, columns={**nodes.columns, **odd})})
    moved, arena = copied_together(record, torch.device("cpu"))
    expected, found = [], []
    record.apply(lambda tensor: expected.append(tensor) or tensor)
    moved.apply(lambda tensor: found.append(tensor) or tensor)
    assert len(found) == len(expected)
    for own, copy in zip(expected, found, strict=True):
        assert own.dtype == copy.dtype
        assert torch.equal(own, copy)
        assert copy.untyped_storage().data_ptr() == arena.untyped_storage().data_ptr()


class _Copies:
    """Stands in for `DeviceCopies` where no device is: notes which threads do what."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def begin(self, batch: NodeBatch) -> tuple[NodeBatch, str]:
        return batch, threading.current_thread().name

    def finish(self, copy: tuple[NodeBatch, str]) -> tuple[NodeBatch, str, str]:
        return (*copy, threading.current_thread().name)


@pytest.mark.parametrize("num_threads", [None, 0, 2])
def test_sampler_threads_begin_copies_that_the_consumer_finishes(monkeypatch, num_threads):
    monkeypatch.setattr("raygnn.sampling.batch_sequence.DeviceCopies", _Copies)
    plain = _loader(num_threads=num_threads)
    with _loader(num_threads=num_threads, device=torch.device("cuda", 0)) as loader:
        batches = loader.iterate(epoch=0)
        first = next(batches)
        both = zip(plain.iterate(epoch=0), itertools.chain([first], batches), strict=True)
        for own, (batch, begun_by, finished_by) in both:
            assert begun_by.startswith("raygnn-sampler" if num_threads != 0 else "Main")
            assert finished_by == "MainThread"
            assert batch.index == own.index
            assert torch.equal(batch.nodes[NODE].columns["x"], own.nodes[NODE].columns["x"])
        batches = loader.iterate(epoch=1)
        next(batches)
    assert not [t.name for t in threading.enumerate() if t.name.startswith("raygnn-sampler")]


@pytest.mark.parametrize(("cores", "workers", "expected"), [(16, 1, 12), (16, 4, 3), (2, 2, 1)])
def test_a_gpu_has_three_quarters_of_its_share_of_the_cores(monkeypatch, cores, workers, expected):
    monkeypatch.setattr("raygnn.sampling.batch_sequence.DeviceCopies", _Copies)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(cores))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(workers))
    asked = []

    def map_ahead(make, items, *numbers, in_turns):
        asked.append((*numbers, in_turns))
        return iter(())

    monkeypatch.setattr("raygnn.sampling.batch_sequence.map_ahead", map_ahead)
    _loader(num_threads=None, device=torch.device("cuda", 0)).iterate(0)
    assert asked == [(expected, expected + 1, False)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("num_threads", [0, 1, 2])
def test_batches_arrive_on_the_device_as_they_were_made(num_threads):
    device = torch.device("cuda", torch.cuda.current_device())
    loader = _loader(num_threads=num_threads, prefetch_batches=4, device=device)
    for epoch in range(3):
        for batch in loader.iterate(epoch):
            nodes, edges = batch.nodes[NODE], batch.edges[EDGE]
            own = loader.make(epoch, batch.index)
            assert nodes.columns["x"].device == device
            torch.cuda._sleep(1_000_000)  # the next copies are made while the device is busy
            assert torch.equal(nodes.columns["x"].cpu(), own.nodes[NODE].columns["x"])
            assert torch.equal(edges.edge_index.cpu(), own.edges[EDGE].edge_index)


def test_seeds_may_be_read_only_and_stay_as_they_are():
    seeds = SEEDS.copy()
    seeds.flags.writeable = False
    loader = _loader(seeds=seeds, shuffle=False)
    loader.make(0, 0).input_id[:] = 0
    assert loader.make(0, 0).input_id.tolist() == SEEDS[:8].tolist()
